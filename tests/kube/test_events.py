"""Events are written in the background: what is lost is counted, never waited for."""

import asyncio
import itertools
import re
from collections import deque

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.events import EventRecorder
from tests.docs.pages import ROOT
from tests.ledger.builders import Fault, FaultyTransport, until


def emit(recorder: EventRecorder, name: str = "p", message: str = "Assigned GPU 0 on node n") -> None:
    recorder.emit("team", name, "u", reason="GPUsAssigned", message=message)


def test_an_event_is_about_its_pod() -> None:
    transport = FaultyTransport()
    recorder = EventRecorder(transport)

    async def run() -> None:
        recorder.start()
        emit(recorder)
        await recorder.stop()

    asyncio.run(run())
    ((verb, path, body),) = transport.calls
    assert (verb, path) == ("POST", "/api/v1/namespaces/team/events")
    event = msgspec.json.decode(body)
    assert event["metadata"].pop("name").startswith("p.")
    assert event.pop("firstTimestamp") == event.pop("lastTimestamp")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "u"},
        "type": "Normal",
        "reason": "GPUsAssigned",
        "message": "Assigned GPU 0 on node n",
        "source": {"component": "kerf"},
        "reportingComponent": "kerf",
        "reportingInstance": "kerf",
        "count": 1,
    }


def test_names_and_messages_keep_the_api_servers_limits() -> None:
    transport = FaultyTransport()
    recorder = EventRecorder(transport)

    async def run() -> None:
        recorder.start()
        emit(recorder, "p" * 253, "m" * 5000)
        await recorder.stop()

    asyncio.run(run())
    event = msgspec.json.decode(transport.calls[0][2])
    assert (len(event["metadata"]["name"]), len(event["message"])) == (253, 1024)
    assert event["involvedObject"]["name"] == "p" * 253


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", "no"), UnreachableError("refused")], ids=str)
def test_a_refused_event_is_counted_and_the_next_is_written(error: ClusterError) -> None:
    transport = FaultyTransport(posts=deque([Fault(error)]))
    recorder = EventRecorder(transport)

    async def run() -> None:
        recorder.start()
        for name in ("a", "b", "c"):
            emit(recorder, name)
        await recorder.stop()

    asyncio.run(run())
    assert recorder.num_lost == 1
    assert len(transport.inner.events) == 2


def test_too_many_waiting_events_are_lost_and_nobody_waits() -> None:
    recorder = EventRecorder(FaultyTransport())
    for _ in range(10_003):
        emit(recorder)
    assert recorder.num_lost == 10_003 - 10_000


def test_stop_writes_what_is_waiting() -> None:
    transport = FaultyTransport()
    recorder = EventRecorder(transport)

    async def run() -> None:
        for _ in range(50):
            emit(recorder)
        recorder.start()
        await recorder.stop()

    asyncio.run(run())
    assert (len(transport.inner.events), recorder.num_lost) == (50, 0)


@pytest.mark.slow
def test_events_wait_until_no_more_come_but_not_for_long() -> None:
    transport = FaultyTransport()
    now = [0.0]
    looks = itertools.count()
    last_look = 0

    def clock() -> float:
        nonlocal last_look
        last_look = next(looks)
        return now[0]

    async def both_have_looked() -> None:
        """Both writers have found out whether they may write."""
        before = last_look
        await until(lambda: last_look > before + 2)

    recorder = EventRecorder(transport, clock)
    written: list[int] = []

    async def run() -> None:
        recorder.start()
        for _ in range(32):  # a burst of 32 s, an event each second
            emit(recorder)
            await both_have_looked()
            written.append(len(transport.inner.events))
            now[0] += 1.0
            emit(recorder)
        await recorder.stop()

    asyncio.run(run())
    assert written[:29] == [0] * 29
    assert written[-1] > 0
    assert len(transport.inner.events) == 64


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("a\nb\tc", "a b c"),
        ("\x1b[2Jcleared", "\\x1b[2Jcleared"),
        ("word " * 400, "word " * 204 + "..."),
        ("x" * 2000, "x" * 1020 + " ..."),
    ],
)
def test_a_message_is_one_line_of_whole_words(message: str, written: str) -> None:
    transport = FaultyTransport()
    recorder = EventRecorder(transport)

    async def run() -> None:
        recorder.start()
        emit(recorder, message=message)
        await recorder.stop()

    asyncio.run(run())
    ((_, _, body),) = transport.calls
    assert msgspec.json.decode(body)["message"] == written


def test_reasons_are_camel_case_and_short_as_kubectl_shows_them() -> None:
    reasons = {
        reason
        for path in (ROOT / "extender").rglob("*.py")
        for reason in re.findall(r'reason="(\w+)", message=', path.read_text())
    }
    assert {"GPUsAssigned", "GPUsCorrected"} <= reasons
    assert [
        reason for reason in reasons if not re.fullmatch(r"(?:[A-Z][A-Za-z]+){1,5}", reason) or len(reason) > 20
    ] == []
