"""Client of a Kubernetes API server.

Kerf does not use the official client: its models cost a hundred times as much as narrow decoding. `kubeconfigs`
chooses the server and the credentials.
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
"""Seconds after which a token file is read again."""
_CERTIFICATES: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass
class _Endpoint:
    """The server and open connections to it; replaced when the server or the certificates change."""

    access: Access
    certificate: tuple[bytes, bytes]
    """Client certificate and key, PEM."""
    session: aiohttp.ClientSession
    connections: ConnectionPool | None
    """None when a proxy is used."""

    async def close(self) -> None:
        """Close all connections."""
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
        self._endpoint: _Endpoint | None = None
        self._previous: _Endpoint | None = None
        """Kept open for requests in flight."""
        self._plugin: PluginCredentials | None = None
        self._credentials: Credentials = Credentials()
        """The exec plugin's credentials in use."""
        self._token, self._token_at = "", float("-inf")
        self._renewing = asyncio.Lock()
        self._num_renewed = 0

    @property
    def told(self) -> str:
        """Server, context and user for people to read; read from the files if not started.

        Raises CredentialsError.
        """
        return (self._endpoint.access if self._endpoint is not None else self._read()).told

    async def start(self) -> None:
        """Read the credentials and open the connections. Raises CredentialsError."""
        await self._use(self._read())

    async def close(self) -> None:
        """Close all connections."""
        for endpoint in (self._endpoint, self._previous):
            if endpoint is not None:
                await endpoint.close()

    async def exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        """Return status and body of one response. Raises OSError, aiohttp.ClientError, CredentialsError."""
        if query or self._endpoint is None or self._endpoint.connections is None:
            return await super().exchange(method, path, query, body)
        headers = await self.headers(method, body)  # may replace the endpoint
        if self._endpoint.connections is None:
            return await super().exchange(method, path, query, body)
        return await self._endpoint.connections.exchange(method, path, headers, body)

    async def renew(self) -> None:
        """Read the credentials again, once for all concurrent 401 responses. Raises CredentialsError."""
        number = self._num_renewed
        async with self._renewing:
            if number != self._num_renewed:
                return
            access = self._read()
            if self._plugin is not None and access.plugin == self._plugin.plugin:
                await self._plugin.renew(self._credentials)
            await self._use(access)
            self._num_renewed += 1

    async def authorization(self) -> str:
        """Value of the `Authorization` header, "" for none. Raises CredentialsError."""
        if self._endpoint is None:
            raise RuntimeError("ApiServer is used before start()")
        access = self._endpoint.access
        token = access.token
        if access.token_file is not None:
            token = self._read_token(access.token_file)
        elif self._plugin is not None:
            credentials = await self._plugin.current()
            if credentials is not self._credentials:
                await self._use(access)
            token = credentials.token
        if token:
            return f"Bearer {_checked(token.strip())}"  # a token file may end in a newline
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

    async def _use(self, access: Access) -> None:
        """Use this access for new requests. Raises CredentialsError."""
        self._token_at = float("-inf")
        if access.token_file is not None:
            self._read_token(access.token_file)
        certificate = access.certificate, access.key
        if access.plugin is None:
            self._plugin = None
        else:
            if self._plugin is None or self._plugin.plugin != access.plugin:
                self._plugin = PluginCredentials(access.plugin)
            self._credentials = await self._plugin.current()
            certificate = self._credentials.certificate, self._credentials.key
        if (
            self._endpoint is not None
            and self._endpoint.certificate == certificate
            and _same_server(self._endpoint.access, access)
        ):
            self._endpoint.access = access
            return
        oldest = self._previous
        self._previous, self._endpoint = self._endpoint, self._open(access, certificate)
        self._session, self._host = self._endpoint.session, access.server
        options = {"server_hostname": access.tls_server_name, "proxy": access.proxy}
        self._extra = {name: value for name, value in options.items() if value}
        if self._previous is not None and self._previous.connections is not None:
            self._previous.connections.close()  # requests in flight finish
        if oldest is not None:
            await oldest.close()

    def _open(self, access: Access, certificate: tuple[bytes, bytes]) -> _Endpoint:
        """Raises CredentialsError."""
        try:
            tls = _tls(access, certificate)
        except (OSError, ValueError) as error:  # invalid certificates or keys
            raise _unusable(error) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S),
            headers=[*HEADERS.items(), *access.impersonated],
        )
        if access.proxy:
            return _Endpoint(access=access, certificate=certificate, session=session, connections=None)
        connections = ConnectionPool(
            URL(access.server, encoded=True),
            headers=[*HEADERS.items(), *access.impersonated],
            tls=tls,
            server_name=access.tls_server_name,
            timeout_s=self._request_timeout_s,
        )
        return _Endpoint(access=access, certificate=certificate, session=session, connections=connections)

    def _read_token(self, path: Path) -> str:
        """Return the token in a file, read again after `_TOKEN_S`. Raises CredentialsError."""
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
    """Whether two accesses differ only in their tokens or passwords."""
    bare = {"token": "", "token_file": None, "username": "", "password": "", "plugin": None}
    return replace(one, **bare) == replace(other, **bare)  # type: ignore[arg-type]


def _tls(access: Access, certificate: tuple[bytes, bytes]) -> ssl.SSLContext:
    """Return the TLS context of a server. Raises OSError (ssl.SSLError is one), ValueError."""
    trusted = b"\n".join(_CERTIFICATES.findall(access.ca)).decode("ascii")
    if access.ca and not trusted:
        raise ValueError("its certificate-authority contains no certificate")
    context = ssl.create_default_context(cadata=trusted or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13 rejects many clusters' CAs, Go does not
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate[0]:
        with tempfile.TemporaryDirectory(prefix="kerf-") as folder:  # OpenSSL reads keys from files only
            paths = Path(folder, "certificate"), Path(folder, "key")
            for path, content in zip(paths, certificate, strict=True):
                path.touch(mode=0o600)
                path.write_bytes(content)
            context.load_cert_chain(*paths, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the client key is encrypted")


def _checked(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise CredentialsError("the token contains characters not allowed in a header")
    return token


def _unusable(error: Exception) -> CredentialsError:
    return CredentialsError(
        f"no usable credentials for an API server ({error}); give a kubeconfig with --kubeconfig or KUBECONFIG, "
        "or run in a pod with a service account"
    )
