"""The least HTTP client: one kept-alive loopback connection, whole messages, hardly any time of its own."""

import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_END_OF_HEAD = b"\r\n\r\n"
_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and how long it took from the first byte sent to the last one received."""

    status: int
    body: bytes
    seconds: float


class Client:
    """A connection to one server, open inside the `with` block. Raises OSError when it breaks."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self._address, timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def post(self, path: str, body: bytes) -> Reply:
        """POST JSON, with the headers that kube-scheduler sends."""
        if self._socket is None:
            raise RuntimeError("the client is not open")
        host, port = self._address
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: Go-http-client/1.1\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        message = head.encode() + body
        began = time.perf_counter()
        self._socket.sendall(message)
        received = self._receive_head()
        end = received.index(_END_OF_HEAD)
        status, length = _status_and_length(bytes(received[:end]))
        missing = end + len(_END_OF_HEAD) + length - len(received)
        while missing > 0:
            chunk = self._receive()
            received += chunk
            missing -= len(chunk)
        seconds = time.perf_counter() - began
        return Reply(status, bytes(received[end + len(_END_OF_HEAD) :]), seconds)

    def _receive_head(self) -> bytearray:
        received = bytearray()
        while _END_OF_HEAD not in received:
            received += self._receive()
        return received

    def _receive(self) -> bytes:
        assert self._socket is not None
        chunk = self._socket.recv(_CHUNK_BYTES)
        if not chunk:
            raise ConnectionError(f"{self._address} closed the connection before its answer was complete")
        return chunk


def _status_and_length(head: bytes) -> tuple[int, int]:
    """Both, from a response head with a Content-Length."""
    first, *lines = head.lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    return int(first.split(b" ", 2)[1]), int(headers[b"content-length"])
