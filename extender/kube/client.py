"""How Kerf speaks to an API server: four calls behind a seam, so that a cluster in memory can stand in for one.

kubeconfig, in-cluster credentials and TLS are the official client's work; requests go straight to the server, since
the client's models cost a hundred times what narrow decoding does.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import msgspec
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from yarl import URL

from extender.kube import objects
from extender.kube.connections import MAX_CONNECTIONS, MAX_IDLE_S, ConnectionPool
from extender.kube.decoding import Decoder
from extender.kube.yaml_faults import yaml_fault

Query = Mapping[str, str]

_HEADERS: Final = {"Accept": "application/json", "User-Agent": "kerf", "Accept-Encoding": "identity"}
_IDLE_WATCH_S: Final = 90.0  # bookmarks come about once a minute: silence for longer is a dead connection
_LATE_S: Final = 5.0  # how late the end of a watch may come
_status_decoder: Final = Decoder(objects.Status)
_CONTENT_TYPES: Final = {
    "POST": "application/json",
    "PATCH": "application/merge-patch+json",
    "APPLY": "application/apply-patch+yaml",
}
"""By method; APPLY is a PATCH of another type."""


class ClusterError(Exception):
    """Base of everything that goes wrong with an API server.

    ClusterError
    ├── ApiError            it answered, with a status that is no success
    ├── UnreachableError    it did not answer; whether it did what was asked is unknown
    └── CredentialsError    no usable kubeconfig or service account
    """


class ApiError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class UnreachableError(ClusterError):
    """No answer: refused, reset, or timed out. A write may or may not have happened."""


class CredentialsError(ClusterError):
    """No usable kubeconfig or service account."""


class Transport(Protocol):
    """An API server, or what stands in for one."""

    async def start(self) -> None:
        """Make ready to be called. Raises CredentialsError."""

    async def close(self) -> None:
        """Let go of all connections."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Read. Raises ApiError, UnreachableError."""

    async def post(self, path: str, body: bytes) -> bytes:
        """Create. Raises ApiError, UnreachableError."""

    async def patch(self, path: str, body: bytes) -> bytes:
        """Change by a JSON merge patch. Raises ApiError, UnreachableError."""

    async def ensure(self, path: str, body: bytes) -> bytes:
        """Create what is not there, by server-side apply as manager `kerf`. Raises ApiError, UnreachableError."""

    def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """Events as they come, in batches of JSON lines; ends when the server ends it. Raises as `get` does."""


class ApiServer:
    """A real API server."""

    def __init__(
        self, *, kubeconfig: str = "", context: str = "", service_account_dir: Path, request_timeout_s: float = 10.0
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._service_account_dir = service_account_dir
        self._request_timeout_s = request_timeout_s
        self._configuration: Configuration | None = None
        self._session: aiohttp.ClientSession | None = None
        self._connections: ConnectionPool | None = None
        self._extra: dict[str, str] = {}

    async def start(self) -> None:
        configuration = await self._load_configuration()
        try:
            tls = RESTClientObject(configuration).ssl_context
        except OSError as error:  # certificates or keys that are missing, or none
            raise _unusable(error) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S),
            headers=_HEADERS,
        )
        self._configuration, self._session = configuration, session
        if configuration.tls_server_name:
            self._extra["server_hostname"] = configuration.tls_server_name
        if configuration.proxy:
            self._extra["proxy"] = configuration.proxy
            return
        self._connections = ConnectionPool(
            URL(configuration.host, encoded=True),
            headers=_HEADERS,
            tls=tls,
            server_name=configuration.tls_server_name or "",
            timeout_s=self._request_timeout_s,
        )

    async def close(self) -> None:
        if self._connections is not None:
            self._connections.close()
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        return await self._request("GET", path, query=query)

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: bytes) -> bytes:
        return await self._request("PATCH", path, body=body)

    async def ensure(self, path: str, body: bytes) -> bytes:
        return await self._request("APPLY", path, query={"fieldManager": "kerf", "force": "true"}, body=body)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        # Silence for longer than the server was asked to watch is a dead connection as well, or a proxy that swallows.
        idle_s = min(_IDLE_WATCH_S, float(query.get("timeoutSeconds", _IDLE_WATCH_S)) + _LATE_S)
        limit = aiohttp.ClientTimeout(total=None, connect=self._request_timeout_s, sock_read=idle_s)
        try:
            async with await self._open_watch(path, query, limit) as response:
                if response.status >= 400:
                    raise _api_error(response.status, await response.read())
                yield []  # the stream is open, though nothing has happened yet
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"watch of {path}: {_describe(error)}") from error

    async def _open_watch(self, path: str, query: Query, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        response = await self._send("GET", path, query, None, limit)
        if response.status != 401:
            return response
        response.release()
        self._configuration = await self._load_configuration()
        return await self._send("GET", path, query, None, limit)

    async def _request(self, method: str, path: str, *, query: Query | None = None, body: bytes | None = None) -> bytes:
        try:
            status, content = await self._exchange(method, path, query, body)
            if status == 401:
                # A short-lived credential has run out. Nothing was done, so trying again is safe, writes too.
                self._configuration = await self._load_configuration()
                status, content = await self._exchange(method, path, query, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {_describe(error)}") from error
        if status >= 400:
            raise _api_error(status, content)
        return content

    async def _exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        if self._connections is not None and not query:
            return await self._connections.exchange(method, path, await self._headers(method, body), body)
        limit = aiohttp.ClientTimeout(total=self._request_timeout_s)
        async with await self._send(method, path, query, body, limit) as response:
            return response.status, await response.read()

    async def _send(
        self, method: str, path: str, query: Query | None, body: bytes | None, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._configuration is None or self._session is None:
            raise RuntimeError("ApiServer is used before start()")
        return await self._session.request(
            "PATCH" if method == "APPLY" else method,
            URL(self._configuration.host + path, encoded=True),
            params=query,
            data=body,
            headers=await self._headers(method, body),
            timeout=limit,
            **self._extra,  # type: ignore[arg-type]
        )

    async def _headers(self, method: str, body: bytes | None) -> dict[str, str]:
        """What a request carries of its own. Raises CredentialsError."""
        if self._configuration is None:
            raise RuntimeError("ApiServer is used before start()")
        headers = {} if body is None else {"Content-Type": _CONTENT_TYPES[method]}
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except ConfigException as error:  # a service account's token is read again every minute
            raise CredentialsError(f"the service account's token can't be read again: {error}") from error
        if token:
            headers["Authorization"] = token.strip()  # a token file may end in a newline
        elif self._configuration.username:
            headers["Authorization"] = self._configuration.get_basic_auth_token() or ""
        return headers

    async def _load_configuration(self) -> Configuration:
        configuration = Configuration()
        try:
            if not self._kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
                InClusterConfigLoader(
                    token_filename=str(self._service_account_dir / "token"),
                    cert_filename=str(self._service_account_dir / "ca.crt"),
                ).load_and_set(configuration)
            else:
                await load_kube_config(
                    self._kubeconfig or None, context=self._context or None, client_configuration=configuration
                )
        except (ConfigException, OSError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
            # The loader meets a missing file with TypeError and an empty one with AttributeError.
            raise _unusable(error) from error
        return configuration


def _unusable(error: Exception) -> CredentialsError:
    fault = yaml_fault(error) if isinstance(error, yaml.YAMLError) else error
    return CredentialsError(
        f"no usable credentials for an API server ({fault}); give a kubeconfig with --kubeconfig or KUBECONFIG, "
        "or run in a pod with a service account"
    )


def _api_error(status: int, content: bytes) -> ApiError:
    try:
        answer = _status_decoder.decode(content)
    except msgspec.DecodeError:
        return ApiError(status, "", content[:200].decode(errors="replace").strip())
    return ApiError(status, answer.reason, answer.message)


def _describe(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__
