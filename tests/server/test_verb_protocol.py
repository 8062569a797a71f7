"""Verbs are answered by the protocol as by the app: each request goes through both, byte for byte."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from extender.api.calls import Endpoint
from extender.server import access
from extender.server.connections import OpenConnections
from extender.server.verb_protocol import VerbProtocol
from tests.api import bodies
from tests.api.services import Kerf, running

POD = bodies.pod(gpus=2, uid="u1")
FILTER = bodies.args(POD, ["h100-0", "a100-0", "t4-0", "cpu-0"])


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50000) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None:
        """What is sent has arrived."""

    resume_reading = pause_reading


def sent(path: str, body: bytes, *headers: str, line: str = "POST {} HTTP/1.1") -> bytes:
    lines = (line.format(path), "Host: kerf", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def exchange(kerf: Kerf, chunks: Sequence[bytes], *, by_app: bool) -> tuple[list[bytes], bool, int]:
    """What is written after each chunk, whether the connection is closed, and how many requests the app answers."""
    num_calls = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        await kerf.app(scope, receive, send)

    async def run() -> tuple[list[bytes], bool, int]:
        config = uvicorn.Config(app, ws="none", lifespan="off", access_log=False, proxy_headers=False)
        verbs = {} if by_app else kerf.app.state.plain_verbs
        wire, written = Wire(), []
        protocol = VerbProtocol(
            config=config, server_state=ServerState(), app_state={}, opened=OpenConnections(), verbs=verbs
        )
        protocol.connection_made(wire)
        for chunk in chunks:
            if not wire.closed:
                protocol.data_received(chunk)
            for _ in range(30):
                await asyncio.sleep(0)
            written.append(wire.sent)
        closed = wire.closed
        protocol.connection_lost(None)
        return written, closed, num_calls

    return kerf.run(run())


@pytest.fixture(scope="module")
def kerf() -> Iterator[Kerf]:
    with running(server__max_body_mib=1) as kerf:
        yield kerf


FILTERED = sent("/filter", FILTER)
REFUSED = sent("/filter", b'{"Pod":')
UNSCORED = sent("/prioritize", b"[]")
BIND = sent("/bind", bodies.binding_args(POD, "nowhere"))
LARGE = sent("/filter", b" " * (1 << 20) + FILTER)
NOWHERE = sent("/filter", bodies.args(bodies.pod(gpus=99), ["a100-0", "t4-0"]))
PLAIN = [FILTERED, REFUSED, UNSCORED, BIND, LARGE, sent("/others/filter", FILTER), sent("/preempt", b"")]
OTHERS = [
    sent("/filter", FILTER, line="POST {} HTTP/1.0"),
    sent("/filter", b"", line="GET {} HTTP/1.1"),
    sent("/filter", FILTER, "Expect: 100-continue"),
    sent("/filter", FILTER, "Origin: https://example.com"),
    sent("/filter", FILTER, "Connection: upgrade", "Upgrade: websocket"),
    sent("/filter?x=1", FILTER),
    sent("/version", b"", line="GET {} HTTP/1.1"),
]


@pytest.mark.parametrize("request_", PLAIN, ids=lambda request: request[5:30].split(b" ")[0].decode() or "?")
def test_a_plain_request_is_answered_without_the_app_as_by_it(kerf: Kerf, request_: bytes) -> None:
    written, closed, num_calls = exchange(kerf, [request_], by_app=False)
    assert num_calls == 0
    assert (written, closed, 1) == exchange(kerf, [request_], by_app=True)
    assert written[0].startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("request_", OTHERS, ids=range(len(OTHERS)))
def test_any_other_is_answered_by_the_app(kerf: Kerf, request_: bytes) -> None:
    written, closed, num_calls = exchange(kerf, [request_], by_app=False)
    assert (written, closed, num_calls) == exchange(kerf, [request_], by_app=True)
    assert num_calls == 1


def test_a_request_to_close_is_answered_before_the_connection_is_closed(kerf: Kerf) -> None:
    asked = sent("/filter", FILTER, "Connection: close")
    (written,), closed, num_calls = exchange(kerf, [asked], by_app=False)
    assert closed and not num_calls
    assert b"connection: close" in written


@given(st.data())
def test_however_requests_come_they_are_answered_alike(kerf: Kerf, data: st.DataObject) -> None:
    """In pieces, several at once, plain and others."""
    requests = data.draw(
        st.lists(st.sampled_from([NOWHERE, REFUSED, UNSCORED, BIND, OTHERS[1], OTHERS[-1]]), max_size=5)
    )
    stream = b"".join(requests)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=5)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    by_protocol, closed, _ = exchange(kerf, chunks, by_app=False)
    by_app, closed_by_app, _ = exchange(kerf, chunks, by_app=True)
    assert (by_protocol[-1], closed) == (by_app[-1], closed_by_app)


def test_a_head_is_parsed_once(kerf: Kerf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request alone, in one piece: of those with a head that was parsed only the first is parsed."""
    num_parsed = 0
    begin = VerbProtocol.on_message_begin

    def counted(protocol: VerbProtocol) -> None:
        nonlocal num_parsed
        num_parsed += 1
        begin(protocol)

    monkeypatch.setattr(VerbProtocol, "on_message_begin", counted)
    for requests, parsed in (
        ([NOWHERE, FILTERED, NOWHERE, REFUSED], 1),  # of any length
        ([NOWHERE, UNSCORED, NOWHERE, UNSCORED], 2),
        ([BIND, BIND], 1),
        ([sent("/filter", FILTER, "X: 1"), NOWHERE, sent("/filter", FILTER, "X: 2"), sent("/filter", b"", "X: 1")], 3),
        ([NOWHERE, NOWHERE[:-3], NOWHERE[-3:], NOWHERE], 2),
        ([NOWHERE, NOWHERE + NOWHERE], 3),
        ([NOWHERE, LARGE], 2),
        ([NOWHERE, NOWHERE.replace(b"Content-Length: ", b"Content-Length: +")], 2),
        ([NOWHERE, NOWHERE.replace(b"Content-Length", b"content-length")], 2),
        ([NOWHERE, NOWHERE.replace(b"Content-Length: ", b"Content-Length: 0")], 1),
        ([sent("/filter", FILTER, "Connection: close"), NOWHERE], 1),
        ([sent("/preempt", b"", f"X: {'x' * 1024}")] * 2, 2),
        ([OTHERS[3], OTHERS[3]], 1),  # refused, and closed
    ):
        num_parsed = 0
        written, closed, _ = exchange(kerf, requests, by_app=False)
        assert num_parsed == parsed, requests
        num_parsed = 0
        assert (written, closed) == exchange(kerf, requests, by_app=True)[:2]


def test_a_verb_that_limits_the_rate_is_asked_about_each_request(kerf: Kerf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "refuses_by_rate", True)
    refusals = iter([None, None, access.too_many("so many", 3.0), access.too_many("so many", 3.0)])
    monkeypatch.setattr(Endpoint, "refusal", lambda endpoint, scope: next(refusals))
    written, _, num_calls = exchange(kerf, [NOWHERE] * 3, by_app=False)
    assert num_calls == 1  # which refuses the third
    assert b"HTTP/1.1 429 " in written[-1]


@pytest.mark.parametrize(("path", "reads"), [("/filter", "read_args"), ("/bind", "read_binding_args")])
def test_a_fault_of_kerf_is_answered_too(kerf: Kerf, monkeypatch: pytest.MonkeyPatch, path: str, reads: str) -> None:
    monkeypatch.setattr(f"extender.api.wire.{reads}", Mock(side_effect=ZeroDivisionError))
    (written,), closed, num_calls = exchange(kerf, [sent(path, FILTER)], by_app=False)
    assert closed and not num_calls
    assert written.startswith(b"HTTP/1.1 500 ")
    assert ([written], closed) == exchange(kerf, [sent(path, FILTER)], by_app=True)[:2]
