"""Calls of kube-scheduler and of webhooks, answered by the HTTP protocol itself.

uvicorn makes a task, an event and three messages of each request, which cost more than most decisions. A plain request
skips them: a POST over HTTP/1.1, not pipelined, with nothing that only browsers and curl send. All others go through
the app, which gives the same answers.

A caller sends the same headers each time, but for the body's length. Once the parser has accepted them on a connection,
the next request with them that comes in one piece is not parsed again.
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

    @property
    def refuses_by_rate(self) -> bool:
        """Whether `refusal` depends on more than the connection and the head of the request."""

    def refusal(self, scope: Scope) -> object | None:
        """Why a request is refused before its body is read, None if it is not."""

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        """The answer to a complete body."""

    def too_large(self) -> Answer:
        """The answer to a body of more than `max_bytes`."""


_MAX_HEADS: Final = 16
"""Heads known of one connection: kube-scheduler's has one for each verb."""
_MAX_HEAD_BYTES: Final = 1 << 10
"""Longer ones are parsed each time."""
_LENGTH: Final = b"\r\nContent-Length: "
"""As Go writes it."""
_MAX_DIGITS: Final = 9


def _split(data: bytes) -> tuple[bytes, bytes] | None:
    """The head without its length, and the body, of a whole request with a short head; None for anything else."""
    end = data.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    begin = data.find(_LENGTH, 0, end) if end > 0 else -1
    if begin < 0:
        return None
    after = data.find(b"\r\n", begin + len(_LENGTH))
    digits = data[begin + len(_LENGTH) : after]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS or end + 4 + int(digits) != len(data):
        return None
    return data[:begin] + data[after:end], data[end + 4 :]


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
        self._accepted: dict[bytes, Verb] = {}
        """Verbs by heads, as from `_split`, that the parser has accepted."""
        self._head: bytes | None = None
        """The head of the request that is being parsed, if it came in one piece."""

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle  # None before the first request
        is_between = not self.receiving and (cycle is None or cycle.response_complete) and not self.flow.write_paused
        split = _split(data) if is_between else None
        self._head = None if split is None else split[0]
        verb = None if split is None else self._accepted.get(split[0])
        if split is None or verb is None or len(split[1]) > verb.max_bytes or self.transport.is_closing():
            super().data_received(data)
            return
        self._unset_keepalive_if_required()
        self.request_complete()
        self.cycle = cycle = _Cycle(verb, keep_alive=True)  # type: ignore[assignment]
        cycle.more_body = False
        self._answer(cycle, split[1])

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
        if self._head is not None and not cycle.verb.refuses_by_rate:
            if len(self._accepted) >= _MAX_HEADS:
                self._accepted.clear()
            self._accepted[self._head] = cycle.verb
        self._answer(cycle, bytes(cycle.body))

    def _answer(self, cycle: _Cycle, body: bytes) -> None:
        try:
            answer = cycle.verb.answer(body)
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
