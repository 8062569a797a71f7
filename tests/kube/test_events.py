"""Events are written in the background: lost ones are counted, and nothing waits for them."""

import itertools
import re
from collections import deque
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.events import EventRecorder
from tests.docs.pages import ROOT
from tests.kube.loops import in_loop
from tests.ledger.builders import Fault, FaultyTransport, until


def emit(recorder: EventRecorder, name: str = "p", message: str = "Assigned GPU 0 on node n") -> None:
    recorder.emit("team", name, "u", reason="GPUsAssigned", message=message)


async def written(*messages: str, name: str = "p") -> list[Any]:
    """The Events of some messages, as they are sent."""
    transport = FaultyTransport()
    recorder = EventRecorder(transport)
    for message in messages:
        emit(recorder, name, message)
    recorder.start()
    await recorder.stop()
    assert {call[:2] for call in transport.calls} == {("POST", "/api/v1/namespaces/team/events")}
    return [msgspec.json.decode(body) for _, _, body in transport.calls]


@in_loop
async def test_an_event_is_about_its_pod() -> None:
    (event,) = await written("Assigned GPU 0 on node n")
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


@in_loop
async def test_names_and_messages_keep_the_limits_of_the_api_server() -> None:
    rows = {
        "a\nb\tc": "a b c",
        "\x1b[2Jcleared": "\\x1b[2Jcleared",
        "word " * 400: "word " * 204 + "...",
        "x" * 2000: "x" * 1020 + " ...",
    }
    events = await written(*rows, name="p" * 253)
    assert [event["message"] for event in events] == list(rows.values())
    assert {(len(event["metadata"]["name"]), event["involvedObject"]["name"]) for event in events} == {(253, "p" * 253)}


@in_loop
async def test_lost_events_are_counted() -> None:
    faults = [Fault(ApiError(403, "Forbidden", "no")), Fault(UnreachableError("refused"))]
    transport = FaultyTransport(posts=deque(faults))
    recorder = EventRecorder(transport)
    for _ in range(10_003):
        emit(recorder)
    assert recorder.num_lost == 3, "10,000 wait"
    recorder.start()
    await recorder.stop()
    assert (recorder.num_lost, len(transport.inner.events)) == (5, 9_998)


@pytest.mark.slow
@in_loop
async def test_events_wait_until_no_more_come_but_not_for_long() -> None:
    transport = FaultyTransport()
    now, looks, last_look = [0.0], itertools.count(), [0]

    def clock() -> float:
        last_look[0] = next(looks)
        return now[0]

    recorder, num_written = EventRecorder(transport, clock), list[int]()
    recorder.start()
    for _ in range(32):  # a burst of 32 s, with two Events a second
        emit(recorder)
        before = last_look[0]
        await until(lambda: last_look[0] > before + 2)  # noqa: B023 - both writers have looked
        num_written.append(len(transport.inner.events))
        now[0] += 1.0
        emit(recorder)
    await recorder.stop()
    assert num_written[:29] == [0] * 29
    assert num_written[-1] > 0
    assert len(transport.inner.events) == 64


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
