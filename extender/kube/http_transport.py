"""An API server over HTTP, by aiohttp: what all ways of getting credentials have in common."""

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
"""By method; APPLY is a PATCH of another type."""
_IDLE_WATCH_S: Final = 90.0  # bookmarks come about once a minute: silence for longer is a dead connection
_LATE_S: Final = 5.0  # how late the end of a watch may come


class HttpTransport:
    """Base of all: a subclass knows where the API server is, and who asks."""

    def __init__(self, request_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._host = ""
        """Its address, `https://...`."""
        self._extra: dict[str, Any] = {}
        """What each request is made with besides."""

    async def renew(self) -> None:
        """Read the credentials again. Raises CredentialsError."""
        raise NotImplementedError

    async def authorization(self) -> str:
        """The header `Authorization`, "" for none. Raises CredentialsError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Read. Raises ApiError, UnreachableError."""
        return await self._request("GET", path, query=query)

    async def post(self, path: str, body: bytes) -> bytes:
        """Create. Raises ApiError, UnreachableError."""
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: bytes) -> bytes:
        """Change by a JSON merge patch. Raises ApiError, UnreachableError."""
        return await self._request("PATCH", path, body=body)

    async def ensure(self, path: str, body: bytes) -> bytes:
        """Create what is not there, by server-side apply. Raises ApiError, UnreachableError."""
        return await self._request("APPLY", path, query={"fieldManager": "kerf", "force": "true"}, body=body)

    async def delete(self, path: str) -> None:
        """Delete what may be gone already. Raises ApiError, UnreachableError."""
        try:
            await self._request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """Events as they come, in batches of JSON lines; ends when the server ends it. Raises as `get` does."""
        # Silence for longer than the server was asked to watch is a dead connection as well, or a proxy that swallows.
        idle_s = min(_IDLE_WATCH_S, float(query.get("timeoutSeconds", _IDLE_WATCH_S)) + _LATE_S)
        limit = aiohttp.ClientTimeout(total=None, connect=self._request_timeout_s, sock_read=idle_s)
        try:
            async with await self._open_watch(path, query, limit) as response:
                if response.status >= 400:
                    raise api_error(response.status, await response.read())
                yield []  # the stream is open, though nothing has happened yet
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
                # A short-lived credential has run out. Nothing was done, so trying again is safe, writes too.
                await self.renew()
                status, content = await self.exchange(method, path, query, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {describe(error)}") from error
        if status >= 400:
            raise api_error(status, content)
        return content

    async def exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        """Status and body of one answer. Raises OSError, aiohttp.ClientError, CredentialsError."""
        limit = aiohttp.ClientTimeout(total=self._request_timeout_s)
        async with await self._send(method, path, query, body, limit) as response:
            return response.status, await response.read()

    async def _send(
        self, method: str, path: str, query: Query | None, body: bytes | None, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = await self.headers(method, body)  # by which the session may have been made anew
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
        """What a request carries of its own. Raises CredentialsError."""
        headers = {} if body is None else {"Content-Type": _CONTENT_TYPES[method]}
        if authorization := await self.authorization():
            headers["Authorization"] = authorization
        return headers
