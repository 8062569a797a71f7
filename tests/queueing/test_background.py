"""A queue's background work: rounds when they are due, and the tasks that its options enable."""

import asyncio
from collections.abc import Callable

import pytest

from extender.core.orders import Order
from extender.kube.client import ApiError
from extender.kube.objects import Metadata, Pod
from extender.kube.watches import NODES
from extender.queueing.controller import _NAMESPACES
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node
from tests.ledger.builders import until
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import Api, Rig, idle

NAMESPACES, ROUNDS = "queue's mirror of namespaces", "queue"
FINISHED, PREEMPTED = "queue's list of finished pods", "end of preempted gangs"


def test_the_options_decide_what_runs_and_the_service_can_do_without_it() -> None:
    by_default = {NAMESPACES, ROUNDS, FINISHED, PREEMPTED}
    rows: list[tuple[Callable[[], Rig], set[str]]] = [
        (Rig, by_default),
        (lambda: Rig(order=Order.FIFO, gangs_end_whole=False), {NAMESPACES, ROUNDS}),
        (lambda: Rig(gang_timeout_s=60.0), by_default | {"eviction of incomplete gangs"}),
        (DirectRig, by_default | {"queue's follower"}),
    ]

    async def story(make: Callable[[], Rig], works: set[str]) -> None:
        queue = make().queue
        queue.start()
        await idle()
        assert (set(queue.tasks.names), queue.tasks.num_deaths) == (works, 0)
        await queue.stop()
        assert queue.tasks.fault() == ""

    for make, works in rows:
        asyncio.run(story(make, works))


def test_a_task_that_has_died_is_reported_and_makes_nothing_else_fail() -> None:
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
        """Wait until no further round begins."""
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
    """Keeps a place for pod `kept`."""

    def others(self, waiting: list[Entry]) -> list[Entry]:
        return [entry for entry in waiting if entry.uid != "kept"]

    def place_kept(self, pod: Pod) -> str:
        return "m" if pod.metadata.uid == "kept" else ""


def test_what_keeps_places_decides_whose_nodes_a_round_may_choose() -> None:
    rig = Rig()
    rig.node("n", 2)
    for name in ("kept", "other"):
        rig.pod(name, 1)
    kept = Pod(Metadata(uid="kept"))
    rig.kept_places = Places()
    rig.round()
    assert (rig.placed(), rig.queue.place_kept(kept)) == (["other"], "m")
    rig.kept_places = None
    rig.round()
    assert (rig.placed(), rig.queue.place_kept(kept)) == (["kept", "other"], "")


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


@pytest.mark.parametrize("error", [None, ApiError(403, "Forbidden", "cannot list pods")])
def test_run_times_of_pods_that_ended_before_the_start_are_learned_where_they_can_be_listed(
    error: ApiError | None, caplog: pytest.LogCaptureFixture
) -> None:
    ended = {
        "metadata": {"name": "a", "namespace": "ns", "uid": "a"},
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Succeeded",
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-01-01T01:00:00Z"}}}],
        },
    }

    class Listing(Api):
        async def get(self, path: str, query: object = None) -> bytes:
            if path == "/api/v1/pods" and error is not None:
                raise error
            return await super().get(path, query)

    rig = Rig(api=Listing())
    rig.api.pods["a"] = ended

    async def story() -> None:
        rig.queue.start()
        await idle()
        await rig.queue.stop()

    asyncio.run(story())
    assert rig.queue.tasks.num_deaths == 0
    logged = [message for message in caplog.messages if "finished pods" in message]
    if error is None:
        assert rig.queue.durations.expected_s(("ns",)) == pytest.approx(3600.0)
        assert logged == []
    else:
        assert not rig.queue.durations.knows(("ns",))
        assert "cannot list pods" in logged[0]


def test_a_new_leader_forgets_pods_that_one_before_may_have_written_on_and_what_they_hold() -> None:
    asked, direct = Rig(), DirectRig()
    for rig in (asked, direct):
        rig.node("n", 1)
        rig.pod("a", 1)
        rig.round()
        assert rig.ledger.allocation("a") is not None
        asyncio.run(rig.queue.catch_up())
    assert list(asked.queue.backlog.entries) == ["a"], "whatever is written there, it is asked about each pod"
    assert (dict(direct.queue.backlog.entries), direct.free()) == ({}, 1)
