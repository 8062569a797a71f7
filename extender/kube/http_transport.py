"""Base class of the aiohttp clients of an API server."""

from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
from yarl import URL

from extender.kube.transport import ApiError, Query, UnreachableError, api_error, describe

HEADERS: Final = {"Accept": "application/json", "User-Agent": "kerf", "Accept-Encoding": "identity"}
_CONTENT_TYPES: Final = {
    "POST": "application/json",
    "PATCH": "application/merge-patch+json",
    "APPLY": "application/apply-patch+yaml",
}
"""By method; APPLY is sent as a PATCH of another content type."""
_IDLE_WATCH_S: Final = 90.0  # bookmarks come about once a minute: longer silence is a dead connection
_LATE_S: Final = 5.0  # how late the server may end a watch


class HttpTransport:
    """An API server over HTTP; subclasses supply its address and the credentials."""

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._host = ""
        """The server's address, `https://...`."""
        self._extra: dict[str, Any] = {}
        """Further arguments of each request."""

    async def renew(self) -> None:
        """Read the credentials again. Raises CredentialsError."""
        raise NotImplementedError

    async def authorization(self) -> str:
        """Value of the `Authorization` header, "" for none. Raises CredentialsError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Send a GET request. Raises ApiError, UnreachableError."""
        return await self._request("GET", path, query=query)

    async def post(self, path: str, body: bytes) -> bytes:
        """Create an object. Raises ApiError, UnreachableError."""
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: bytes) -> bytes:
        """Apply a JSON merge patch. Raises ApiError, UnreachableError."""
        return await self._request("PATCH", path, body=body)

    async def ensure(self, path: str, body: bytes) -> bytes:
        """Server-side apply as manager `kerf`. Raises ApiError, UnreachableError."""
        return await self._request("APPLY", path, query={"fieldManager": "kerf", "force": "true"}, body=body)

    async def delete(self, path: str) -> None:
        """Delete an object, if it exists. Raises ApiError, UnreachableError."""
        try:
            await self._request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """Yield events in batches of JSON lines until the server ends the watch. Raises as `get` does."""
        # Silence beyond the requested duration also means a dead connection, or a proxy that drops data.
        idle_s = min(_IDLE_WATCH_S, float(query.get("timeoutSeconds", _IDLE_WATCH_S)) + _LATE_S)
        limit = aiohttp.ClientTimeout(total=None, connect=self._request_timeout_s, sock_read=idle_s)
        try:
            async with await self._open_watch(path, query, limit) as response:
                if response.status >= 400:
                    raise api_error(response.status, await response.read())
                yield []  # the stream is open
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"watch of {path}: {describe(error)}") from error

    async def _open_watch(self, path: str, query: Query, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        response = await self._send("GET", path, query, None, limit)
        if response.status != 401:
            return response
        response.release()
        await self.renew()
        return await self._send("GET", path, query, None, limit)

    async def _request(self, method: str, path: str, *, query: Query | None = None, body: bytes | None = None) -> bytes:
        try:
            status, content = await self.exchange(method, path, query, body)
            if status == 401:
                # A short-lived credential has expired. The server did nothing, so even writes can be retried.
                await self.renew()
                status, content = await self.exchange(method, path, query, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {describe(error)}") from error
        if status >= 400:
            raise api_error(status, content)
        return content

    async def exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        """Return status and body of one response. Raises OSError, aiohttp.ClientError, CredentialsError."""
        limit = aiohttp.ClientTimeout(total=self._request_timeout_s)
        async with await self._send(method, path, query, body, limit) as response:
            return response.status, await response.read()

    async def _send(
        self, method: str, path: str, query: Query | None, body: bytes | None, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = await self.headers(method, body)  # may replace the session
        if self._session is None:
            raise RuntimeError("an API server is used before start()")
        return await self._session.request(
            "PATCH" if method == "APPLY" else method,
            URL(self._host + path, encoded=True),
            params=query,
            data=body,
            headers=headers,
            timeout=limit,
            **self._extra,
        )

    async def headers(self, method: str, body: bytes | None) -> dict[str, str]:
        """Return the headers specific to a request. Raises CredentialsError."""
        headers = {} if body is None else {"Content-Type": _CONTENT_TYPES[method]}
        if authorization := await self.authorization():
            headers["Authorization"] = authorization
        return headers
