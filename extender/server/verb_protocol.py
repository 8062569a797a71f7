"""Calls of kube-scheduler and of webhooks, answered by the HTTP protocol itself.

uvicorn makes a task, an event and three messages of each request, which cost more than most decisions. A plain request
skips them: a POST over HTTP/1.1, not pipelined, with nothing that only browsers and curl send. All others go through
the app, which gives the same answers.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from extender.server.connections import TimedProtocol


class Answer(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: bytes
    closes: bool
    """Whether the headers say that the connection is closed."""


class Verb(Protocol):
    """The handler of one path."""

    @property
    def max_bytes(self) -> int:
        """Size of the largest body."""

    def refusal(self, scope: Scope) -> object | None:
        """Why a request is refused before its body is read, None if it is not."""

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        """The answer to a complete body."""

    def too_large(self) -> Answer:
        """The answer to a body of more than `max_bytes`."""


class _NoEvent:
    """Replaces the event that wakes the task of a request: there is no task."""

    def set(self) -> None:
        """Do nothing."""


class _Cycle:
    """A request and its response; replaces uvicorn's `RequestResponseCycle`."""

    message_event: Final = _NoEvent()

    def __init__(self, verb: Verb, *, keep_alive: bool) -> None:
        self.verb, self.keep_alive = verb, keep_alive
        self.body = bytearray()
        self.more_body = True
        self.response_complete = self.disconnected = False


class VerbProtocol(TimedProtocol):
    """HTTP/1.1 with the verbs answered at once."""

    def __init__(self, *args: Any, verbs: Mapping[bytes, Verb], **named: Any) -> None:
        """`verbs` by raw path."""
        super().__init__(*args, **named)
        self._verbs = verbs

    def on_headers_complete(self) -> None:
        verb = self._verb()
        if verb is None:
            super().on_headers_complete()
            return
        self.head_complete()
        self.cycle = _Cycle(verb, keep_alive=self.parser.should_keep_alive())  # type: ignore[assignment]

    def _verb(self) -> Verb | None:
        """The verb that answers a request, None for the app."""
        verb, parser = self._verbs.get(self.url), self.parser
        before: Any = self.cycle  # None before the first request
        if verb is None or parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
            return None
        if self.expect_100_continue or parser.should_upgrade() or self.flow.write_paused:
            return None
        if before is not None and not before.response_complete:
            return None
        scope: Any = self.scope
        scope["path"], scope["raw_path"] = self.url.decode("latin-1"), self.url
        return None if verb.refusal(scope) else verb

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if type(cycle) is not _Cycle:
            super().on_body(body)
        elif not cycle.response_complete:  # data after the response is dropped
            cycle.body += body
            self.count_body(len(body))
            if len(cycle.body) > cycle.verb.max_bytes:
                self._respond(cycle, cycle.verb.too_large())

    def on_message_complete(self) -> None:
        super().on_message_complete()
        cycle: Any = self.cycle
        if type(cycle) is not _Cycle or cycle.response_complete:
            return
        try:
            answer = cycle.verb.answer(bytes(cycle.body))
        except Exception:
            self._fail(cycle)
            return
        if isinstance(answer, Answer):
            self._respond(cycle, answer)
            return
        task = self.loop.create_task(self._respond_later(cycle, answer))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _respond_later(self, cycle: _Cycle, answer: Awaitable[Answer]) -> None:
        try:
            self._respond(cycle, await answer)
        except BaseException:
            self._fail(cycle)

    def _fail(self, cycle: _Cycle) -> None:
        """Log an unexpected error, as uvicorn does."""
        self.logger.exception("Exception in ASGI application\n")
        content = b"Internal Server Error"
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(content))]
        self._respond(cycle, Answer(500, [*headers, (b"connection", b"close")], content, closes=True))

    def _respond(self, cycle: _Cycle, answer: Answer) -> None:
        if cycle.disconnected or cycle.response_complete:
            return
        headers = [*self.server_state.default_headers, *answer.headers]
        if not (cycle.keep_alive or answer.closes):
            headers.append((b"connection", b"close"))
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[answer.status], head, answer.content))
        cycle.response_complete = True
        if answer.closes or not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
