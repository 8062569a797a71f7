"""How Kerf speaks to an API server: four calls behind a seam, so that a cluster in memory can stand in for one.

Requests go straight to the server, since the official client's models cost a hundred times what narrow decoding does;
which server that is, and as whom it is asked, `kubeconfigs` says.
"""

import asyncio
import base64
import os
import re
import ssl
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from extender.kube.connections import MAX_CONNECTIONS, MAX_IDLE_S, ConnectionPool
from extender.kube.http_transport import HEADERS, HttpTransport
from extender.kube.kubeconfigs import SERVICE_ACCOUNT, Access, Credentials, PluginCredentials, access_of
from extender.kube.transport import ApiError, ClusterError, CredentialsError, Query, Transport, UnreachableError

__all__ = ["ApiError", "ApiServer", "ClusterError", "CredentialsError", "Query", "Transport", "UnreachableError"]

_TOKEN_S: Final = 60.0
"""How old the token of a file may get."""
_CERTIFICATES: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass
class _Way:
    """Everything by which requests go: made anew where server or certificates change."""

    access: Access
    certificate: tuple[bytes, bytes]
    """What is shown to the server, with its key."""
    session: aiohttp.ClientSession
    connections: ConnectionPool | None
    """None by a proxy."""

    async def close(self) -> None:
        """Let go of all connections."""
        if self.connections is not None:
            self.connections.close()
        await self.session.close()


class ApiServer(HttpTransport):
    """A real API server."""

    def __init__(
        self,
        *,
        kubeconfig: str = "",
        context: str = "",
        service_account_dir: Path = SERVICE_ACCOUNT,
        request_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(request_timeout_s)
        self._kubeconfig = kubeconfig
        self._context = context
        self._service_account_dir = service_account_dir
        self._way: _Way | None = None
        self._before: _Way | None = None
        """By which requests may still be under way."""
        self._plugin: PluginCredentials | None = None
        self._told: Credentials = Credentials()
        """What the plugin has told, as it was used last."""
        self._token, self._token_at = "", float("-inf")
        self._renewing = asyncio.Lock()
        self._num_renewed = 0

    @property
    def told(self) -> str:
        """Which server it is, and as whom it is asked: read from the files where it has not been started.

        Raises CredentialsError.
        """
        return (self._way.access if self._way is not None else self._read()).told

    async def start(self) -> None:
        """Make ready to be called. Raises CredentialsError."""
        await self._enter(self._read())

    async def close(self) -> None:
        """Let go of all connections."""
        for way in (self._way, self._before):
            if way is not None:
                await way.close()

    async def exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        """Status and body of one answer. Raises OSError, aiohttp.ClientError, CredentialsError."""
        if query or self._way is None or self._way.connections is None:
            return await super().exchange(method, path, query, body)
        headers = await self.headers(method, body)  # by which the way may have been made anew
        if self._way.connections is None:
            return await super().exchange(method, path, query, body)
        return await self._way.connections.exchange(method, path, headers, body)

    async def renew(self) -> None:
        """Read the credentials again, once for all that were refused meanwhile. Raises CredentialsError."""
        number = self._num_renewed
        async with self._renewing:
            if number != self._num_renewed:
                return
            access = self._read()
            if self._plugin is not None and access.plugin == self._plugin.plugin:
                await self._plugin.renew(self._told)
            await self._enter(access)
            self._num_renewed += 1

    async def authorization(self) -> str:
        """The header `Authorization`, "" for none. Raises CredentialsError."""
        if self._way is None:
            raise RuntimeError("ApiServer is used before start()")
        access = self._way.access
        token = access.token
        if access.token_file is not None:
            token = self._token_of(access.token_file)
        elif self._plugin is not None:
            told = await self._plugin.current()
            if told is not self._told:
                await self._enter(access)
            token = told.token
        if token:
            return f"Bearer {_in_a_header(token.strip())}"  # a token file may end in a newline
        if not access.username:
            return ""
        return "Basic " + base64.b64encode(f"{access.username}:{access.password}".encode()).decode()

    def _read(self) -> Access:
        """Raises CredentialsError."""
        try:
            return access_of(
                kubeconfig=self._kubeconfig,
                context=self._context,
                service_account_dir=self._service_account_dir,
                environ=os.environ,
            )
        except CredentialsError as error:
            raise _unusable(error) from None

    async def _enter(self, access: Access) -> None:
        """Go by it from now on. Raises CredentialsError."""
        self._token_at = float("-inf")
        if access.token_file is not None:
            self._token_of(access.token_file)
        certificate = access.certificate, access.key
        if access.plugin is None:
            self._plugin = None
        else:
            if self._plugin is None or self._plugin.plugin != access.plugin:
                self._plugin = PluginCredentials(access.plugin)
            self._told = await self._plugin.current()
            certificate = self._told.certificate, self._told.key
        if self._way is not None and self._way.certificate == certificate and _same_server(self._way.access, access):
            self._way.access = access
            return
        before_that = self._before
        self._before, self._way = self._way, self._made(access, certificate)
        self._session, self._host = self._way.session, access.server
        given = {"server_hostname": access.tls_server_name, "proxy": access.proxy}
        self._extra = {name: value for name, value in given.items() if value}
        if self._before is not None and self._before.connections is not None:
            self._before.connections.close()  # what is under way comes to its end
        if before_that is not None:
            await before_that.close()

    def _made(self, access: Access, certificate: tuple[bytes, bytes]) -> _Way:
        """Raises CredentialsError."""
        try:
            tls = _tls(access, certificate)
        except (OSError, ValueError) as error:  # certificates or keys that are none
            raise _unusable(error) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S),
            headers=[*HEADERS.items(), *access.impersonated],
        )
        if access.proxy:
            return _Way(access=access, certificate=certificate, session=session, connections=None)
        connections = ConnectionPool(
            URL(access.server, encoded=True),
            headers=[*HEADERS.items(), *access.impersonated],
            tls=tls,
            server_name=access.tls_server_name,
            timeout_s=self._request_timeout_s,
        )
        return _Way(access=access, certificate=certificate, session=session, connections=connections)

    def _token_of(self, path: Path) -> str:
        """The token of a file, read again when it is a minute old. Raises CredentialsError."""
        if time.monotonic() - self._token_at > _TOKEN_S:
            try:
                self._token = path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise CredentialsError(f"the token can't be read: {path}: {error}") from None
            if not self._token:
                raise CredentialsError(f"the token can't be read: {path} is empty")
            self._token_at = time.monotonic()
        return self._token


def _same_server(one: Access, other: Access) -> bool:
    """Whether requests may go the same way, whatever token they carry."""
    bare = {"token": "", "token_file": None, "username": "", "password": "", "plugin": None}
    return replace(one, **bare) == replace(other, **bare)  # type: ignore[arg-type]


def _tls(access: Access, certificate: tuple[bytes, bytes]) -> ssl.SSLContext:
    """Who is trusted, and what is shown. Raises OSError (ssl.SSLError is one), ValueError."""
    trusted = b"\n".join(_CERTIFICATES.findall(access.ca)).decode("ascii")
    if access.ca and not trusted:
        raise ValueError("its certificate-authority holds no certificate")
    context = ssl.create_default_context(cadata=trusted or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # CAs of clusters lack what newer Pythons ask of them, Go does not
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate[0]:
        with tempfile.TemporaryDirectory(prefix="kerf-") as folder:  # OpenSSL takes a key from a file alone
            paths = Path(folder, "certificate"), Path(folder, "key")
            for path, content in zip(paths, certificate, strict=True):
                path.touch(mode=0o600)
                path.write_bytes(content)
            context.load_cert_chain(*paths, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the client key is encrypted")


def _in_a_header(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise CredentialsError("the token holds characters that no header may")
    return token


def _unusable(error: Exception) -> CredentialsError:
    return CredentialsError(
        f"no usable credentials for an API server ({error}); give a kubeconfig with --kubeconfig or KUBECONFIG, "
        "or run in a pod with a service account"
    )
