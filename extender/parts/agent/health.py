"""What the kubelet asks of the agent: a few lines of HTTP, which cost nothing whoever asks."""

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
    """`/healthz` and `/readyz`: 200, or 503 and why not; 400 for what is no request.

    Where there are too many connections, the oldest of the address that has most makes room: nobody locks the kubelet
    out.
    """

    def __init__(self, port: int, live: Callable[[], str], ready: Callable[[], str]) -> None:
        """`live` and `ready` say what is wrong, "" for nothing."""
        self._port = port
        self._faults = {"/healthz": live, "/readyz": ready}
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}
        """Connections and their addresses, the oldest first."""

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else self._port

    @property
    def num_open(self) -> int:
        """How many connections there are."""
        return len(self._open)

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, port=self._port, limit=_MAX_BYTES)

    async def stop(self) -> None:
        """Listen no more, and end what is open."""
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
            writer.transport.abort()  # what was not taken is not waited for
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
        """The answer to what comes. Raises OSError."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _told(_BAD_REQUEST, "no request, or too long a one")
        match head.partition(b"\r\n")[0].split(b" "):
            case [b"GET" | b"HEAD", path, version] if version.startswith(b"HTTP/1."):
                pass
            case _:
                return _told(_BAD_REQUEST, "no request that is answered here: GET /healthz, /readyz")
        state = self._faults.get(path.partition(b"?")[0].decode("latin-1"))
        fault = state() if state is not None else "nothing here"
        return _told(_UNAVAILABLE if fault else _OK, fault or "ok")


def _told(status: str, text: str) -> bytes:
    body = text.encode(errors="replace") + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
