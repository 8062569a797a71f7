"""What the kubelet asks of the agent: a few lines of HTTP, which cost nothing."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

_MAX_BYTES: Final = 4096
_TIMEOUT_S: Final = 5.0


class Health:
    """`/healthz` and `/readyz`: 200, or 503 and why not."""

    def __init__(self, port: int, live: Callable[[], str], ready: Callable[[], str]) -> None:
        """`live` and `ready` say what is wrong, "" for nothing."""
        self._port = port
        self._faults = {"/healthz": live, "/readyz": ready}
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else self._port

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._answer, port=self._port, limit=_MAX_BYTES)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode("latin-1")
                fault = self._faults[path]() if path in self._faults else "nothing here"
                status = "503 Service Unavailable" if fault else "200 OK"
                body = (fault or "ok").encode(errors="replace") + b"\n"
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
                writer.write(body)
                await writer.drain()
        writer.close()
