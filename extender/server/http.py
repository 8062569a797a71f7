"""HTTP connections whose requests come in within their time, and whose answers are taken within theirs."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from extender.server.connection_limits import Doors

CLIENT_CERTIFICATE = "client_certificate"
"""In the state of a request that came with a certificate which the TLS context has verified."""


_VERBS = frozenset({b"/filter", b"/prioritize", b"/preempt", b"/bind", b"/others/filter", b"/others/prioritize"})
_quiet = logging.getLogger("uvicorn.error.connections")
_quiet.setLevel(logging.ERROR)  # uvicorn warns of each request that is none: whoever reaches a port would fill the log
_MAX_HEAD_BYTES = 1 << 16
_MAX_AHEAD = 16
"""Requests that a client may send before earlier ones are answered. No caller of Kerf's sends any, and uvicorn, which
reads on whenever one is answered, would keep them all."""


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with an end for whoever is slow."""

    def __init__(self, *args: Any, doors: Doors | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.logger = _quiet
        self._doors = doors or Doors()
        self.address, self.certified, self.scheduling, self.since = "", False, False, 0.0
        self._coming_in: asyncio.TimerHandle | None = None
        self._not_taken: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    @property
    def answering(self) -> bool:
        """Whether a request has come in whole, and is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.getpeercert(binary_form=True) is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: True}
            self.certified = True
        super().connection_made(transport)
        self.address, self.since = self.client[0] if self.client else "", self.loop.time()
        self._begin()
        self._doors.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._taken()
        self._doors.leave(self)
        self._doors.bodies.ended(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._coming_in is None:
            self._begin()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.leave()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._coming_in is None:
            self._begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -(1 << 62)  # what follows is the body, whose endpoint knows how large it may be
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_AHEAD:
            self.leave()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if not self.cycle.response_complete:  # what comes after an answer is not kept
            of_verb = self.scope["raw_path"] in _VERBS
            self._doors.bodies.came(self, len(body), self.loop.time(), of_verb=of_verb)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._end()
        self._head_bytes, self.since = 0, self.loop.time()
        if self.scope["raw_path"] in _VERBS and not self._doors.limits.verbs_by_certificate:
            self.scheduling = True
            self._doors.bodies.knows(self.address)

    def on_response_complete(self) -> None:
        self._doors.bodies.ended(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._not_taken = self.loop.call_later(self._doors.limits.answer_s, self.leave)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def leave(self) -> None:
        """End the connection at once: to close it would wait until the client has taken what is written."""
        self.transport.abort()

    def _taken(self) -> None:
        if self._not_taken is not None:
            self._not_taken.cancel()
            self._not_taken = None

    def _begin(self) -> None:
        self._coming_in = self.loop.call_later(self._doors.limits.request_s, self.leave)

    def _end(self) -> None:
        if self._coming_in is not None:
            self._coming_in.cancel()
            self._coming_in = None
