"""What goes on of a queue by itself: rounds when they are due, and beside them what its options ask for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from extender.core.orders import Order
from extender.kube.client import ApiError
from extender.kube.objects import Metadata, Pod
from extender.kube.watches import NODES
from extender.queueing.controller import _NAMESPACES
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.running_pods import owners_of
from tests.ledger.builders import until
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import Api, Rig

NAMESPACES, ROUNDS = "queue's mirror of namespaces", "queue"
FINISHED, PREEMPTED = "queue's list of finished pods", "end of preempted gangs"


async def idle() -> None:
    """All that goes on has its turn a few times."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("make", "works"),
    [
        pytest.param(Rig, {NAMESPACES, ROUNDS, FINISHED, PREEMPTED}, id="by default"),
        pytest.param(
            lambda: Rig(order=Order.FIFO, gangs_end_whole=False), {NAMESPACES, ROUNDS}, id="in the order of creation"
        ),
        pytest.param(
            lambda: Rig(gang_timeout_s=60.0),
            {NAMESPACES, ROUNDS, FINISHED, PREEMPTED, "eviction of incomplete gangs"},
            id="gangs are given up",
        ),
        pytest.param(
            DirectRig,
            {NAMESPACES, ROUNDS, FINISHED, PREEMPTED, "queue's follower"},
            id="kube-scheduler binds by itself",
        ),
    ],
)
def test_what_goes_on_is_what_the_options_ask_for_and_the_service_can_do_without(
    make: Callable[[], Rig], works: set[str]
) -> None:
    async def story() -> None:
        queue = make().queue
        queue.start()
        await idle()
        assert set(queue.tasks.names) == works
        assert queue.tasks.num_deaths == 0
        await queue.stop()
        assert queue.tasks.fault() == ""

    asyncio.run(story())


def test_what_of_it_has_died_is_said_and_makes_nothing_else_fail() -> None:
    class Broken(Api):
        async def get(self, path: str, query: object = None) -> bytes:
            raise ValueError("broken")

    async def story() -> None:
        queue = Rig(api=Broken()).queue
        queue.start()
        await idle()
        assert queue.tasks.lacking() == [f"the {name} has stopped: broken" for name in (NAMESPACES, FINISHED)]
        assert queue.tasks.fault() == ""
        await queue.stop()

    asyncio.run(story())


def test_a_round_begins_when_something_has_changed_or_the_last_one_is_long_ago() -> None:
    rig = Rig(interval_s=0.001, retry_s=5.0)
    rig.node("n", 2)
    counts = rig.queue.counts

    async def quiet() -> None:
        """What was begun goes on to its end, and then no round begins by itself."""
        before = -1
        async with asyncio.timeout(30):
            while counts.rounds != before:
                before = counts.rounds
                await asyncio.sleep(0.02)

    async def story() -> None:
        rig.queue.start()
        await quiet()
        assert counts.rounds == 0, "nobody waits"
        rig.pod("a", 1)
        await until(lambda: rig.node_of("a"))
        rig.bind("a")
        rig.pod("large", 2)
        rig.pod("huge", 3)
        await until(lambda: all(rig.queue.backlog.entries[name].skips.reason for name in ("large", "huge")))
        await quiet()
        rig.ledger.remove_pod("a")
        await until(lambda: rig.node_of("large"))
        await quiet()
        before = counts.rounds
        rig.now += 4.75
        await quiet()
        assert counts.rounds == before
        rig.now += 0.25
        await until(lambda: counts.rounds > before)
        await quiet()
        rig.pod("too large", 9)
        await quiet()
        label = decode_node({"metadata": {"name": "n", "uid": "n", "labels": {"zone": "1"}}})
        opts_in = decode_node({"metadata": {"name": "ns", "uid": "ns", "labels": {"kerf.dev/queue": "enabled"}}})
        for feed, news in ((NODES, label), (_NAMESPACES, opts_in)):
            before = counts.rounds
            rig.hub.cache(feed).upsert(news)  # and the ledger is not told
            await until(lambda before=before: counts.rounds > before)  # type: ignore[misc]
            await quiet()
        assert rig.queue.tasks.num_deaths == 0
        assert counts.round_s == 0.0
        await rig.queue.stop()

    asyncio.run(story())


class Places:
    """Keeps none."""

    def others(self, waiting: list[Entry]) -> list[Entry]:
        return waiting

    def place_kept(self, pod: Pod) -> str:
        return ""


def test_what_keeps_places_says_whose_nodes_a_round_may_choose_and_what_is_kept() -> None:
    class One(Places):
        def others(self, waiting: list[Entry]) -> list[Entry]:
            return [entry for entry in waiting if entry.uid != "kept"]

        def place_kept(self, pod: Pod) -> str:
            return "m" if pod.metadata.uid == "kept" else ""

    rig = Rig()
    rig.node("n", 2)
    rig.pod("kept", 1)
    rig.pod("other", 1)
    rig.kept_places = One()
    asyncio.run(rig.queue.run_round())
    assert (rig.node_of("kept"), rig.node_of("other")) == ("", "n")
    assert rig.queue.place_kept(Pod(Metadata(uid="kept"))) == "m"
    rig.kept_places = None
    asyncio.run(rig.queue.run_round())
    assert rig.node_of("kept") == "n"
    assert rig.queue.place_kept(Pod(Metadata(uid="kept"))) == ""


def test_a_round_that_fails_is_counted_and_the_next_one_is_begun(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(interval_s=0.001, retry_s=0.0)
    rig.node("n", 1)
    rig.pod("a", 1)

    class Broken(Places):
        def others(self, waiting: list[Entry]) -> list[Entry]:
            if rig.queue.counts.errors < 2:
                raise ValueError("broken")
            return waiting

    async def story() -> None:
        rig.kept_places = Broken()
        rig.queue.start()
        await until(lambda: rig.node_of("a"))
        await rig.queue.stop()

    asyncio.run(story())
    assert rig.queue.counts.errors == 2
    assert caplog.messages.count("a round of the queue failed") == 2


def ended(name: str) -> dict[str, Any]:
    """A pod of a Job that has run for an hour."""
    owner = {"kind": "Job", "name": "job", "uid": "job", "controller": True}
    state = {"terminated": {"finishedAt": "2026-01-01T01:00:00Z"}}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": [owner]},
        "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {
            "phase": "Succeeded",
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"state": state}],
        },
    }


@pytest.mark.parametrize("error", [None, ApiError(403, "Forbidden", "cannot list pods")])
def test_how_long_pods_ran_that_ended_before_the_start_is_learned_where_that_can_be_read(
    error: ApiError | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Listing(Api):
        async def get(self, path: str, query: object = None) -> bytes:
            if path == "/api/v1/pods" and error is not None:
                raise error
            return await super().get(path, query)

    rig = Rig(api=Listing())
    owners = owners_of(decode_pod(ended("next")), 1.0)
    rig.api.pods |= {name: ended(name) for name in ("a", "b", "c")}

    async def story() -> None:
        rig.queue.start()
        await idle()
        await rig.queue.stop()

    asyncio.run(story())
    assert rig.queue.tasks.num_deaths == 0
    told = [message for message in caplog.messages if "finished pods" in message]
    if error is None:
        assert rig.queue.durations.expected_s(owners) == pytest.approx(3600.0)
        assert told == []
    else:
        assert not rig.queue.durations.knows(owners)
        assert "cannot list pods" in told[0]


# A new leader


def test_a_new_leader_knows_of_no_pod_where_one_before_may_have_written_on_any() -> None:
    asked, direct = Rig(), DirectRig()
    for rig in (asked, direct):
        rig.pod("a", 1)
        asyncio.run(rig.queue.catch_up())
    assert list(asked.queue.backlog.entries) == ["a"], "whatever is written there, it is asked about each pod"
    assert not direct.queue.backlog.entries
