"""HTTP connections whose answers leave in one write.

uvicorn writes head and body apart: two system calls here, and two packets that wake the caller twice. Both processes
share their cores with kube-scheduler and the API server, so that costs more than decoding a request.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BEGINS = b"HTTP/1.1 "
_HEAD_ENDS = b"\r\n\r\n"
_INFORMATIONAL = b"HTTP/1.1 1"


class WholeAnswers:
    """A transport that holds the head of an answer back until its body, or the loop's next turn, comes."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, or keep until there is more to write with it."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(_HEAD_BEGINS) and data.endswith(_HEAD_ENDS) and not data.startswith(_INFORMATIONAL):
            self._head = data
            self._loop.call_soon(self.flush)  # a streamed body may be long in coming
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write what is held back."""
        if self._head:
            head, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(head)

    def close(self) -> None:
        """Close once all is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


CLIENT_CERTIFICATE = "client_certificate"
"""In the state of a request that came with a certificate which the TLS context has verified."""


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 on a transport that writes whole answers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.getpeercert(binary_form=True) is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: True}
        super().connection_made(WholeAnswers(transport, self.loop))  # type: ignore[arg-type]
