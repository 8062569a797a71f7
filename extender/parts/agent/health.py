"""A minimal HTTP server for the kubelet's probes of the agent."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

_MAX_BYTES: Final = 4096
_TIMEOUT_S: Final = 5.0
_MAX_CONNECTIONS: Final = 64
_OK: Final = "200 OK"
_UNAVAILABLE: Final = "503 Service Unavailable"
_BAD_REQUEST: Final = "400 Bad Request"


class Health:
    """`/healthz` and `/readyz`: 200, or 503 with the reason; 400 for an invalid request.

    With too many connections, the oldest of the address with the most is closed, so that no client locks the kubelet
    out.
    """

    def __init__(self, port: int, live: Callable[[], str], ready: Callable[[], str]) -> None:
        """`live` and `ready` return what is wrong, "" for nothing."""
        self._port = port
        self._faults = {"/healthz": live, "/readyz": ready}
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}
        """Connections and their addresses, the oldest first."""

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else self._port

    @property
    def num_open(self) -> int:
        """Number of open connections."""
        return len(self._open)

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, port=self._port, limit=_MAX_BYTES)

    async def stop(self) -> None:
        """Stop listening, and abort open connections."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self._open[writer] = str(peer[0]) if peer else ""
        self._make_room()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (OSError, TimeoutError):
            writer.transport.abort()  # don't wait for unsent data
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _make_room(self) -> None:
        if len(self._open) > _MAX_CONNECTIONS:
            most, _ = Counter(self._open.values()).most_common(1)[0]
            oldest = next(writer for writer, address in self._open.items() if address == most)
            del self._open[oldest]
            oldest.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """Read a request and return the response. Raises OSError."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _response(_BAD_REQUEST, "not a request, or too long")
        match head.partition(b"\r\n")[0].split(b" "):
            case [b"GET" | b"HEAD", path, version] if version.startswith(b"HTTP/1."):
                pass
            case _:
                return _response(_BAD_REQUEST, "only GET /healthz and /readyz are served here")
        state = self._faults.get(path.partition(b"?")[0].decode("latin-1"))
        fault = state() if state is not None else "nothing here"
        return _response(_UNAVAILABLE if fault else _OK, fault or "ok")


def _response(status: str, text: str) -> bytes:
    body = text.encode(errors="replace") + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
