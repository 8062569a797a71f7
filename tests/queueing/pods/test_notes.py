"""Writing on pods why they wait."""

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


class Noted:
    """Notes with a test's clock, and a writer that records pod, reason and count."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[tuple[str, str, int]] = []
        self.fail: Callable[[str], ClusterError | None] = lambda name: None
        self.gone = ""
        self.may = asyncio.Event()
        self.may.set()
        self.notes = Notes(self, lambda: self.now)  # type: ignore[arg-type]

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        name = pod.metadata.name
        if (error := self.fail(name)) is not None:
            raise error
        self.written.append((name, reason, count))
        await self.may.wait()
        return name != self.gone

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.written]

    def write(self, at: float, *entries: Entry) -> int:
        """How many were written by then."""
        self.now = at
        asyncio.run(self.notes.write(entries))
        return len(self.written)


def waits(name: str = "p", namespace: str = "ns", seen: float = 0.0) -> Entry:
    entry = Entry(pod(name, namespace=namespace), created=0.0, seen=seen)
    entry.pass_over(LEFT_OUT, seen)
    return entry


def test_a_reason_is_written_once_and_again_after_a_nomination_removed_it() -> None:
    noted, entry = Noted(), waits()
    assert [noted.write(moment, entry) for moment in (0.9, 1.0, 40.0, 80.0)] == [0, 1, 1, 1]
    entry.reserve("n")
    assert noted.write(120.0, entry) == 1
    entry.put_back(121.0)
    entry.pass_over(LEFT_OUT, 0.0)
    assert [noted.write(moment, entry) for moment in (122.0, 160.0)] == [2, 2]
    late = waits(seen=200.0)
    assert [noted.write(moment, late) for moment in (200.9, 201.0)] == [2, 3]


def test_another_reason_is_written_30_s_after_the_one_before() -> None:
    noted, entry = Noted(), waits()
    noted.write(2.0, entry)
    entry.pass_over(FORBIDDEN, 0.0)
    assert [noted.write(moment, entry) for moment in (3.0, 31.9, 32.0)] == [1, 1, 2]
    assert noted.written == [("p", str(LEFT_OUT), 1), ("p", str(FORBIDDEN), 2)]
    assert noted.write(100.0, Entry(pod("never-passed-over"), created=0.0, seen=0.0)) == 2


def test_an_error_about_one_pod_delays_no_other_and_one_of_the_api_server_delays_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noted, large, other = Noted(), waits("large"), waits("other")
    noted.fail = lambda name: ApiError(422, "Invalid", "annotations: Too long") if name == "large" else None
    assert noted.write(2.0, large, other) == 1
    assert noted.names == ["other"]
    assert caplog.messages == ["could not write on pod ns/large why it waits: 422 Invalid: annotations: Too long"]
    noted.fail = lambda name: None
    assert [noted.write(moment, large, other) for moment in (31.9, 32.0)] == [1, 2]
    assert noted.names == ["other", "large"]
    noted, first, second = Noted(), waits("first"), waits("second")
    noted.fail = lambda name: UnreachableError("cut")
    assert noted.write(2.0, first, second) == 0
    assert caplog.messages[1:] == ["could not write on pods why they wait: cut"]
    noted.fail = lambda name: None
    assert noted.write(3.0, first, second) == 1
    assert noted.names == ["second"]


def test_a_reason_that_was_not_written_is_written_later() -> None:
    noted, entry = Noted(), waits()
    noted.gone = "p"
    noted.write(2.0, entry)
    noted.gone = ""
    assert [noted.write(moment, entry) for moment in (31.9, 32.0, 100.0)] == [1, 2, 2]


def test_50_are_written_at_a_time_with_namespaces_in_turn() -> None:
    noted = Noted()
    entries = [waits(f"a{number}", "a") for number in range(60)] + [waits("b", "b")]
    assert [noted.write(moment, *entries) for moment in (2.0, 2.0, 2.0)] == [50, 61, 61]
    assert noted.names[:3] == ["a0", "b", "a1"]


def test_one_batch_is_written_after_the_other_and_nothing_on_pods_that_are_released_meanwhile() -> None:
    noted, first, second = Noted(), waits("first"), waits("second")
    noted.now = 2.0

    async def run() -> None:
        noted.may.clear()
        batch = asyncio.create_task(noted.notes.write([first, second]))
        await asyncio.sleep(0)
        await asyncio.wait_for(noted.notes.write([second]), 10.0)
        assert noted.names == ["first"]
        second.reserve("n")
        noted.may.set()
        await batch

    asyncio.run(run())
    assert noted.names == ["first"]
