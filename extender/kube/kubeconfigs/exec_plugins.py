"""Plugins that tell credentials, by the protocol of client-go (`plugin/pkg/client/auth/exec`), v1 and v1beta1.

One that fails ends what was wanted, with its own words: nothing is ever asked as nobody instead.
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from extender.core.texts import printable
from extender.kube.kubeconfigs.files import Exec
from extender.kube.transport import CredentialsError

_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INFO: Final = "KUBERNETES_EXEC_INFO"
_NEVER, _IF_AVAILABLE, _ALWAYS = "Never", "IfAvailable", "Always"
_TIMEOUT_S: Final = 120.0
"""Of one that can't ask anybody anything."""
_MAX_LINES: Final = 20
"""Of its words, the last."""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a plugin has told."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: datetime | None = None

    @property
    def expired(self) -> bool:
        """Whether they are not to be used any more."""
        return self.expires is not None and datetime.now(UTC) >= self.expires


@dataclass(frozen=True, slots=True)
class Plugin:
    """What is run, and what it is told."""

    user: str
    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str
    interactive_mode: str
    cluster: str
    """JSON, "" for nothing."""

    @classmethod
    def of(cls, user: str, wanted: Exec, cluster: dict[str, Any] | None) -> "Plugin":
        """As a kubeconfig wants it; `cluster` is what it is told of that. Raises CredentialsError."""
        mode = wanted.interactive_mode or (_IF_AVAILABLE if wanted.api_version == _VERSIONS[1] else "")
        faults = []
        if not wanted.command:
            faults.append("names no command")
        if wanted.api_version not in _VERSIONS:
            faults.append(f"has apiVersion {wanted.api_version or 'none'}, which is not {' or '.join(_VERSIONS)}")
        elif mode not in (_NEVER, _IF_AVAILABLE, _ALWAYS):
            faults.append(f"has interactiveMode {mode or 'none'}, which is not Never, IfAvailable or Always")
        if any(not item.name for item in wanted.env):
            faults.append("has a variable without a name")
        if faults:
            raise CredentialsError(f"the exec plugin of user {user} {', and '.join(faults)}")
        return cls(
            user=user,
            command=wanted.command,
            arguments=tuple(wanted.args),
            environment=tuple((item.name, item.value) for item in wanted.env),
            api_version=wanted.api_version,
            install_hint=wanted.install_hint,
            interactive_mode=mode,
            cluster="" if cluster is None else json.dumps(cluster),
        )

    async def run(self) -> Credentials:
        """New credentials. Raises CredentialsError."""
        interactive = self._interactive()
        spec = {"interactive": interactive} | ({"cluster": json.loads(self.cluster)} if self.cluster else {})
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        try:
            process = await asyncio.create_subprocess_exec(
                self.command,
                *self.arguments,
                env={**os.environ, **dict(self.environment), _INFO: json.dumps(info)},
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,  # who is asked something has to read it
            )
        except FileNotFoundError:
            hint = f"\n{_words(self.install_hint.encode())}" if self.install_hint else ""
            raise CredentialsError(f"{self}: there is no such program{hint}") from None
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{self}: can't be run: {error}") from None
        try:
            async with asyncio.timeout(None if interactive else _TIMEOUT_S):
                told, said = await process.communicate()
        except TimeoutError:
            raise CredentialsError(f"{self}: did not end within {_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            words = f": {_words(said)}" if said and said.strip() else ""
            raise CredentialsError(f"{self}: ended with exit status {process.returncode}{words}")
        return self._told(told)

    def _interactive(self) -> bool:
        """Whether it may ask who runs this. Raises CredentialsError."""
        if self.interactive_mode == _NEVER:
            return False
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.interactive_mode == _ALWAYS and not terminal:
            raise CredentialsError(f"{self}: wants to ask something, and standard input is no terminal")
        return terminal

    def _told(self, output: bytes) -> Credentials:
        """Raises CredentialsError."""
        try:
            answer = msgspec.json.decode(output, type=_Credential)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self}: what it told is no ExecCredential: {error}") from None
        status = answer.status
        if answer.api_version != self.api_version or answer.kind != "ExecCredential":
            told = f"{answer.kind or 'nothing'} of {answer.api_version or 'no version'}"
            raise CredentialsError(f"{self}: told {told}, not ExecCredential of {self.api_version}")
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise CredentialsError(f"{self}: told neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise CredentialsError(f"{self}: told a certificate without its key, or a key without its certificate")
        expires = status.expiration_timestamp
        return Credentials(
            token=status.token,
            certificate=status.client_certificate_data.encode(),
            key=status.client_key_data.encode(),
            expires=expires.replace(tzinfo=UTC) if expires is not None and expires.tzinfo is None else expires,
        )

    def __str__(self) -> str:
        return f"the exec plugin {self.command} of user {self.user}"


@dataclass
class PluginCredentials:
    """A plugin's credentials for as long as they are good; it runs once however many wait for it."""

    plugin: Plugin
    _current: Credentials | None = None
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self) -> Credentials:
        """Those there are, new ones where they have run out. Raises CredentialsError."""
        if self._current is None or self._current.expired:
            await self.renew(self._current)
        return self._known()

    async def renew(self, refused: Credentials | None) -> Credentials:
        """Others than those that the API server has refused. Raises CredentialsError."""
        async with self._running:
            if self._current is refused or self._current is None:
                self._current = await self.plugin.run()
        return self._known()

    def _known(self) -> Credentials:
        if self._current is None:
            raise CredentialsError(f"{self.plugin}: has told nothing")
        return self._current


def _words(said: bytes) -> str:
    """What it said, its last lines, without what a terminal would obey."""
    lines = said.decode(errors="replace").strip().splitlines()
    return "\n".join(printable(line) for line in lines[-_MAX_LINES:])
