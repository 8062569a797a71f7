"""Short HTTP/1.1 exchanges on keep-alive connections, by httptools' parser on asyncio's transports.

Most of a binding's cost is HTTP, and a general client takes four times the CPU time. With aiohttp for everything Kerf
took 3.6 ms of CPU a pod instead of 2.9 (docs/research/performance-history.md). Lists, watches and proxies use aiohttp.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, cast

import httptools
from yarl import URL

MAX_CONNECTIONS: Final = 100
MAX_IDLE_S: Final = 60.0  # an API server closes idle connections after 90 s
_MAX_RESPONSE_BYTES: Final = 2**30


class ConnectionPool:
    """Connections to one server."""

    def __init__(
        self,
        base: URL,
        *,
        headers: Iterable[tuple[str, str]],
        tls: ssl.SSLContext | None,
        server_name: str,
        timeout_s: float,
    ) -> None:
        """`headers` are sent with every request, and may repeat names.

        `server_name` is the name expected in the server's certificate, "" for the host.
        """
        self._base_path = base.raw_path.rstrip("/")
        self._host, self._port = base.raw_host or "", base.port or 80
        self._tls = tls if base.scheme == "https" else None
        self._server_name = (server_name or self._host) if self._tls else None
        plain = ("Accept-Encoding", "identity")
        others = [header for header in headers if header[0] != plain[0]]
        self._fixed_head = _header_lines([("Host", base.raw_authority), plain, *others])
        self._timeout_s = timeout_s
        self._idle: deque[_Connection] = deque()
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closed = False

    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request and return the response's status and body. `path` is quoted already.

        Raises OSError if there is no response (TimeoutError is one): whether the request took effect is then unknown.
        """
        target = f"{self._base_path}{path}"
        if not (target.isascii() and target.isprintable() and " " not in target):
            raise ValueError(f"{target[:200]!r} is not a quoted path")
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        head = b"%b %b HTTP/1.1\r\n%b%b%b\r\n" % (
            method.encode(), target.encode(), self._fixed_head, _header_lines(headers.items()), length,
        )  # fmt: skip
        request = head + (body or b"")
        async with asyncio.timeout(self._timeout_s), self._slots:  # includes the wait for a connection
            kept = self._take_idle()
            if kept is not None:
                try:
                    return await self._ask(kept, request)
                except ConnectionError:
                    if method != "GET":
                        raise
                    # The server may have just closed it; repeating a read does no harm.
            return await self._ask(await self._open(), request)

    def close(self) -> None:
        """Close idle connections; those in use close after their exchange."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
        )
        return connection

    async def _ask(self, connection: "_Connection", request: bytes) -> tuple[int, bytes]:
        response = await connection.ask(request)
        if connection.reusable and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _take_idle(self) -> "_Connection | None":
        """The most recently used connection, so that surplus ones expire."""
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle and (self._idle[0].last_used < oldest or not self._idle[0].reusable):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time. Responses need a Content-Length or chunked encoding."""

    def __init__(self) -> None:
        self.last_used = 0.0
        self.reusable = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[tuple[int, bytes]] | None = None
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and return the response's status and body. Raises ConnectionError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the server has closed the connection")
        self.reusable = False
        self._response = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._response
        except BaseException:  # the caller may be cancelled just as the response arrives
            self._transport.abort()  # a late response would be taken for the next one
            raise
        finally:
            self._response = None

    def close(self) -> None:
        """Close it."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    # Callbacks of asyncio and the parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses

    def data_received(self, data: bytes) -> None:
        if self._response is None:
            self.close()  # no request is pending
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the response is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._fail(ConnectionResetError(str(exc) if exc else "the server closed the connection during its response"))

    def on_body(self, body: bytes) -> None:
        self._num_bytes += len(body)
        if self._num_bytes > _MAX_RESPONSE_BYTES:
            self._fail(ConnectionError(f"the response is larger than {_MAX_RESPONSE_BYTES} bytes"))
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return  # interim, such as 100 Continue
        body, self._chunks, self._num_bytes = b"".join(self._chunks), [], 0
        self.last_used = self._loop.time()
        self.reusable = self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            self._response.set_result((status, body))

    def _fail(self, error: ConnectionError) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


def _header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as sent. Raises ValueError for a value with a line break."""
    lines = bytearray()
    for name, value in headers:
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name} has a line break")
        lines += f"{name}: {value}\r\n".encode()
    return bytes(lines)
