"""Why pods wait, as it is written on them."""

import asyncio
from collections.abc import Callable

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.notes import Notes
from tests.queueing.watches import pod

LEFT_OUT, FORBIDDEN = Code.LEFT_OUT.reason(), Code.FORBIDDEN.reason()


class Writer:
    """Keeps what is written: the pod, why it waits, and how often it was passed over."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, int]] = []
        self.fail: Callable[[str], ClusterError | None] = lambda name: None
        self.gone: str = ""
        self.may = asyncio.Event()
        self.may.set()

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        name = pod.metadata.name
        if (error := self.fail(name)) is not None:
            raise error
        self.notes.append((name, reason, count))
        await self.may.wait()
        return name != self.gone

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.notes]


class Noted:
    """Notes of a test's own, at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.writer = Writer()
        self.notes = Notes(self.writer, lambda: self.now)  # type: ignore[arg-type]

    def write(self, at: float, *entries: Entry) -> int:
        """How many were written by then."""
        self.now = at
        asyncio.run(self.notes.write(entries))
        return len(self.writer.notes)


def waits(name: str = "p", namespace: str = "ns") -> Entry:
    entry = Entry(pod(name, namespace=namespace), created=0.0, seen=0.0)
    entry.pass_over(LEFT_OUT, 0.0)
    return entry


def test_why_a_pod_waits_is_written_once_and_again_after_a_nomination_took_it_off() -> None:
    noted, entry = Noted(), waits()
    assert [noted.write(moment, entry) for moment in (0.9, 1.0, 40.0, 80.0)] == [0, 1, 1, 1]
    entry.reserve("n")
    assert noted.write(120.0, entry) == 1
    entry.put_back(121.0)
    entry.pass_over(LEFT_OUT, 0.0)
    assert [noted.write(moment, entry) for moment in (122.0, 160.0)] == [2, 2]


def test_another_reason_is_written_half_a_minute_after_the_one_before() -> None:
    noted, entry = Noted(), waits()
    noted.write(2.0, entry)
    entry.pass_over(FORBIDDEN, 0.0)
    assert [noted.write(moment, entry) for moment in (3.0, 31.9, 32.0)] == [1, 1, 2]
    told = [("p", str(LEFT_OUT), 1), ("p", str(FORBIDDEN), 2)]
    assert noted.writer.notes == told
    assert noted.write(100.0, Entry(pod("never-passed-over"), created=0.0, seen=0.0)) == 2


def test_a_pod_is_told_once_it_has_waited_for_a_second() -> None:
    noted, entry = Noted(), Entry(pod(), created=0.0, seen=100.0)
    entry.pass_over(LEFT_OUT, 100.0)
    assert [noted.write(moment, entry) for moment in (100.9, 101.0)] == [0, 1]


def test_what_the_api_server_has_against_one_pod_keeps_no_other_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noted, large, other = Noted(), waits("large"), waits("other")
    noted.writer.fail = lambda name: ApiError(422, "Invalid", "annotations: Too long") if name == "large" else None
    assert noted.write(2.0, large, other) == 1
    assert noted.writer.names == ["other"]
    assert caplog.messages == ["could not write on pod ns/large why it waits: 422 Invalid: annotations: Too long"]
    noted.writer.fail = lambda name: None
    assert [noted.write(moment, large, other) for moment in (31.9, 32.0)] == [1, 2]
    assert noted.writer.names == ["other", "large"]


def test_while_no_api_server_answers_the_others_wait_for_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    noted, first, second = Noted(), waits("first"), waits("second")
    noted.writer.fail = lambda name: UnreachableError("cut")
    assert noted.write(2.0, first, second) == 0
    assert caplog.messages == ["could not write on pods why they wait: cut"]
    noted.writer.fail = lambda name: None
    assert noted.write(3.0, first, second) == 1
    assert noted.writer.names == ["second"]


def test_a_pod_that_was_gone_is_told_once_it_is_there() -> None:
    noted, entry = Noted(), waits()
    noted.writer.gone = "p"
    noted.write(2.0, entry)
    noted.writer.gone = ""
    assert [noted.write(moment, entry) for moment in (31.9, 32.0, 100.0)] == [1, 2, 2]


def test_of_many_fifty_are_told_at_a_time_namespaces_in_turn() -> None:
    noted = Noted()
    entries = [waits(f"a{number}", "a") for number in range(60)] + [waits("b", "b")]
    assert [noted.write(moment, *entries) for moment in (2.0, 2.0, 2.0)] == [50, 61, 61]
    assert noted.writer.names[:3] == ["a0", "b", "a1"]


def test_one_batch_is_written_after_the_other_and_who_is_let_go_meanwhile_is_not_told() -> None:
    noted, first, second = Noted(), waits("first"), waits("second")
    noted.now = 2.0

    async def run() -> None:
        noted.writer.may.clear()
        batch = asyncio.create_task(noted.notes.write([first, second]))
        await asyncio.sleep(0)
        await asyncio.wait_for(noted.notes.write([second]), 10.0)
        assert noted.writer.names == ["first"]
        second.reserve("n")
        noted.writer.may.set()
        await batch

    asyncio.run(run())
    assert noted.writer.names == ["first"]
