"""Keeps Kerf's certificates up to date in a Secret, in the files that the server reads, and in webhooks' caBundle.

All replicas do this independently. The Secret is authoritative: it is written with the resourceVersion that was read,
so that one replica succeeds and the others take over its certificates. A Secret that is deleted or damaged is restored
from this process's certificates while these are valid.
"""

import asyncio
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.kube import records
from extender.kube.background import Background, Backoff
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.parts.certificates import own
from extender.parts.certificates.settings import CertificateSettings
from extender.server.certificates import CertificateFiles

logger = logging.getLogger(__name__)

_HOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CHECK_S: Final = 10.0
_VALID: Final = timedelta(days=90)
"""Validity of the server's certificate; it is renewed when a third is left."""
_FIRST_RETRY_S: Final = 0.5
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_decoder: Final = Decoder(dict[str, Any], whole=True)


class CertificateKeeper(Background):
    """Reconciles the certificates of one Secret."""

    def __init__(
        self,
        transport: Transport,
        settings: CertificateSettings,
        files: CertificateFiles,
        now: Callable[[], datetime],
        look_s: float = _CHECK_S,
    ) -> None:
        super().__init__("certificates", needed=False)
        self._transport = transport
        namespace, _, self._name = settings.secret.partition("/")
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{self._name}"
        self._webhooks = settings.webhooks
        self._wanted = own.CertificateSpec(settings.hosts, settings.client, _VALID)
        self._files = files
        self._now = now
        self._look_s = look_s
        self._held: dict[str, bytes] = {}
        self._written = asyncio.Event()
        self._backoff = Backoff(_FIRST_RETRY_S, self._look_s)

    async def ready(self) -> None:
        """Wait until the files exist, which the server needs."""
        await self._written.wait()

    async def run(self) -> None:
        while True:
            pause_s = await self._try()
            await asyncio.sleep(pause_s)

    async def _try(self) -> float:
        """Reconcile once; returns the seconds until the next time."""
        try:
            await self._reconcile()
        except (ClusterError, msgspec.DecodeError, OSError, ValueError) as error:
            conflict = isinstance(error, ApiError) and error.status == _CONFLICT  # another replica did the same
            pause_s = self._backoff.failed(error)
            if self._backoff.is_news and not conflict:
                logger.warning("certificates in Secret %s/%s: %s", self._namespace, self._name, error)
            return pause_s
        self._backoff.succeeded()
        return self._look_s

    async def _reconcile(self) -> None:
        """Update the Secret, then the webhooks' caBundle, then the files. Raises ClusterError, DecodeError, OSError."""
        secret = await self._secret()
        data = _data_of(secret)
        if why := own.fault(data, self._wanted, self._now()):
            data |= self._replacement(data)
            await self._write_secret(secret, data)
            logger.info("certificates in Secret %s/%s were replaced: %s", self._namespace, self._name, why)
        bundle = b64encode(data[own.CA]).decode()
        for name in self._webhooks:
            await self._update_webhook(name, bundle)
        if data != self._held:
            self._write_files(data)
            self._held = data
            self._written.set()

    def _replacement(self, data: dict[str, bytes]) -> dict[str, bytes]:
        """The certificates that this process holds if they are valid, else new ones."""
        now = self._now()
        if self._held and not own.fault(self._held, self._wanted, now):
            return self._held
        return own.renewed(data, self._wanted, now)

    async def _secret(self) -> dict[str, Any]:
        """The Secret, created empty if it does not exist. Raises ClusterError, DecodeError."""
        try:
            return _decoder.decode(await self._transport.get(self._path))
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
        # By server-side apply, as RBAC can limit that to a name, unlike `create`.
        metadata = {"name": self._name, "namespace": self._namespace}
        empty = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
        return _decoder.decode(await self._transport.ensure(self._path, msgspec.json.encode(empty)))

    async def _write_secret(self, secret: dict[str, Any], data: dict[str, bytes]) -> None:
        """Write the Secret. Raises ApiError 409 if another replica was first."""
        encoded = {name: b64encode(content).decode() for name, content in data.items()}
        await records.write(self._transport, self._path, secret["metadata"]["resourceVersion"], data=encoded)

    async def _update_webhook(self, name: str, bundle: str) -> None:
        """Set the caBundle of a webhook configuration, if it exists. Raises ClusterError, DecodeError."""
        path = f"{_HOOKS}/{name}"
        try:
            found = _decoder.decode(await self._transport.get(path))
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            return
        hooks = found.get("webhooks") or []
        if all(hook["clientConfig"].get("caBundle") == bundle for hook in hooks):
            return
        for hook in hooks:
            hook["clientConfig"]["caBundle"] = bundle
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "webhooks": hooks}
        await self._transport.patch(path, msgspec.json.encode(body))
        logger.info("caBundle of %s is set to the CA of Secret %s/%s", name, self._namespace, self._name)

    def _write_files(self, data: dict[str, bytes]) -> None:
        """Write all files at once: the server reads them at new connections in the same thread, so it sees no mix."""
        wanted = (
            (self._files.certificate, own.CERTIFICATE),
            (self._files.key, own.KEY),
            (self._files.client_ca, own.CA),
        )
        for path, name in wanted:
            if path is not None:
                _write(path, data[name])


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(0o600)
    temporary.write_bytes(content)
    temporary.replace(path)


def _data_of(secret: dict[str, Any]) -> dict[str, bytes]:
    """The decoded data of a Secret; invalid base64 becomes b""."""
    found: dict[str, bytes] = {}
    for name, text in (secret.get("data") or {}).items():
        try:
            found[name] = b64decode(text, validate=True)
        except (ValueError, TypeError):
            found[name] = b""
    return found
