"""The mirror of the cluster: what reaches the ledger, and why it may not be trusted."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import pytest

from extender.kube.background import Tasks
from extender.kube.client import ApiError, Query, UnreachableError
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import ReflectorTimes
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.plugins.dra import _DevicePools
from tests.ledger.builders import Clock, Fault, FaultyTransport, node_manifest, pod_manifest, until

CLAIMS_PATH, DRA_PATH = _DevicePools.feeds[1].path, _DevicePools.feeds[1].served_at

MAX_AGE_S = 120.0
TIMES = ReflectorTimes(first_backoff_s=0.001, max_backoff_s=0.002)


class CuttableTransport(FaultyTransport):
    """Lists fail, and watches break off and cannot be opened, while a line is cut."""

    def __init__(self) -> None:
        super().__init__(MemoryCluster())
        self.cut: dict[str, Exception] = {}
        self.open: set[str] = set()
        """Paths that are being watched."""
        self.changed = {NODES_PATH: asyncio.Event(), PODS_PATH: asyncio.Event()}

    def sever(self, path: str, error: Exception) -> None:
        self.cut[path] = error
        self.changed[path].set()

    def mend(self, path: str) -> None:
        del self.cut[path]
        self.changed[path].clear()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if path in self.cut:
            raise self.cut[path]
        return b"{}" if path == DRA_PATH and CLAIMS_PATH in self.cut else await super().get(path, query)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        lines = self.inner.watch(path, query)
        while True:
            batch = asyncio.ensure_future(anext(lines))
            severed = asyncio.ensure_future(self.changed[path].wait())
            try:
                await asyncio.wait({batch, severed}, return_when=asyncio.FIRST_COMPLETED)
                if path in self.cut:
                    raise self.cut[path]
            finally:
                severed.cancel()
                batch.cancel()
                self.open.discard(path)
            yield batch.result()
            self.open.add(path)


class Rig:
    def __init__(self, transport: CuttableTransport | None = None) -> None:
        self.clock = Clock()
        self.transport = transport or CuttableTransport()
        self.cluster = self.transport.inner
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.mirror = Mirror(self.transport, self.ledger, self.clock, max_age_s=MAX_AGE_S, times=TIMES)

    def watching(self) -> bool:
        return self.transport.open == {NODES_PATH, PODS_PATH}

    def units_free(self, node: str) -> int:
        cluster = self.ledger.snapshot(self.clock())
        row = cluster.row_of[node]
        return max(0, int(cluster.gpu_idle[row].sum()) - int(cluster.untracked_units[row]))

    def free(self, node: str) -> set[int] | None:
        cluster = self.ledger.snapshot(self.clock())
        if node not in cluster.row_of:
            return None
        return {index for index, free in enumerate(cluster.gpu_idle[cluster.row_of[node]].tolist()) if free}


def mirrored(scenario: Callable[[Rig], Awaitable[None]], *, faults: int = 0, cut: Mapping[str, Exception] = {}) -> Rig:
    """Run a scenario on a mirror, which is stopped in the end."""

    async def run() -> Rig:
        rig = Rig()
        rig.transport.gets = deque([Fault(UnreachableError("refused"))] * faults)
        rig.transport.cut |= cut
        rig.cluster.apply(node_manifest("n", 2))
        rig.cluster.apply(pod_manifest("p", 1, node="n", assigned="0"))
        rig.mirror.start()
        try:
            await scenario(rig)
        finally:
            await rig.mirror.stop()
        return rig

    return asyncio.run(run())


def test_nothing_is_synced_before_the_start() -> None:
    mirror = Mirror(MemoryCluster(), Ledger(reservation_ttl_s=30.0), Clock(), max_age_s=MAX_AGE_S)
    assert (mirror.fault(), mirror.age_s(), mirror.num_lists) == ("nodes are not synced yet", float("inf"), 0)


def test_nodes_and_pods_are_taken_in_before_the_mirror_is_fit_for_use() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: not rig.mirror.fault())
        assert (rig.free("n"), rig.mirror.num_lists) == ({1}, 2)
        await until(rig.watching)
        rig.clock.now += 10 * MAX_AGE_S
        assert rig.mirror.age_s() == 10 * MAX_AGE_S

    mirrored(scenario)


def test_a_fault_before_the_first_sync_says_why() -> None:
    async def scenario(rig: Rig) -> None:
        rig.transport.sever(PODS_PATH, UnreachableError("connection refused"))
        await until(lambda: rig.mirror.fault() == "pods are not synced yet: connection refused")
        assert rig.mirror.age_s() == float("inf")

    mirrored(scenario)


def test_an_api_server_that_comes_up_late_is_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: not rig.mirror.fault())
        assert rig.free("n") == {1}

    mirrored(scenario, faults=6)


def test_changes_arrive() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.cluster.apply(node_manifest("m", 1))
        await until(lambda: rig.free("m") == {0})
        rig.cluster.apply(pod_manifest("q", 1, node="n", assigned="1"))
        await until(lambda: rig.free("n") == set())
        rig.cluster.apply(pod_manifest("q", 1, node="n", assigned="1", phase="Succeeded"))
        await until(lambda: rig.free("n") == {1})
        rig.cluster.delete(pod_manifest("p"))
        await until(lambda: rig.free("n") == {0, 1})
        rig.cluster.delete(node_manifest("n"))
        await until(lambda: rig.free("n") is None)

    mirrored(scenario)


def test_a_node_created_again_under_its_name_is_kept() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.cluster.delete(node_manifest("n"))
        rig.cluster.apply(node_manifest("n", 4, uid="another"))
        await until(lambda: rig.free("n") == {1, 2, 3})

    mirrored(scenario)


def test_what_changed_unseen_is_found_by_the_next_list() -> None:
    async def scenario(rig: Rig) -> None:
        for name in ("m", "o"):
            rig.cluster.apply(node_manifest(name, 1))
        await until(rig.watching)
        for path in (NODES_PATH, PODS_PATH):
            rig.transport.sever(path, ApiError(410, "Expired", "too old resource version"))
        await until(lambda: not rig.transport.open)
        rig.cluster.delete(node_manifest("m"))
        rig.cluster.delete(node_manifest("n"))
        rig.cluster.apply(node_manifest("n", 4, uid="another"))
        rig.cluster.delete(pod_manifest("p"))
        rig.cluster.apply(pod_manifest("q", 1, node="n", assigned="3"))
        for path in (NODES_PATH, PODS_PATH):
            rig.transport.mend(path)
        await until(lambda: rig.mirror.num_lists == 4)
        # "m" is gone, "n" was created again under its name, "o" stayed.
        assert (rig.free("m"), rig.free("n"), rig.free("o")) == (None, {0, 1, 2}, {0})

    mirrored(scenario)


def test_a_mirror_that_was_cut_off_too_long_is_at_fault_until_it_is_current_again() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.transport.sever(PODS_PATH, UnreachableError("connection reset"))
        rig.clock.now += MAX_AGE_S
        rig.cluster.apply(node_manifest("m", 1))
        await until(lambda: rig.free("m") == {0})  # what is told of nodes is no word about pods
        assert (rig.mirror.age_s(), rig.mirror.fault()) == (MAX_AGE_S, "")
        rig.clock.now += 1
        assert rig.mirror.fault() == "pods were last current 121 s ago: connection reset"
        rig.transport.mend(PODS_PATH)
        await until(lambda: not rig.mirror.fault())

    mirrored(scenario)


@pytest.mark.parametrize(("path", "name"), [(NODES_PATH, "nodes"), (PODS_PATH, "pods")])
def test_a_dead_task_is_a_fault_until_it_is_back_and_has_listed_anew(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.kube.watches.Tasks", partial(Tasks, first_pause_s=0.02))

    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        num_lists = rig.mirror.num_lists
        rig.transport.sever(path, RuntimeError("a bug"))
        await until(lambda: rig.mirror.fault() == f"the mirror {name} has stopped: a bug")
        rig.cluster.delete(pod_manifest("p"))
        rig.transport.mend(path)
        await until(lambda: not rig.mirror.fault())
        await until(lambda: rig.mirror.num_lists > num_lists)
        await until(lambda: rig.free("n") == {0, 1})

    mirrored(scenario)


def test_what_is_not_needed_is_never_fatal() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        await until(lambda: rig.mirror.tasks.num_deaths > 0)
        assert (rig.mirror.fault(), rig.mirror.tasks.hopeless()) == ("", "")
        assert "the mirror claims has stopped: a bug" in rig.mirror.tasks.lacking()

    mirrored(scenario, cut={CLAIMS_PATH: RuntimeError("a bug")})


def test_an_open_watch_that_is_silent_for_too_long_is_a_fault() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.clock.now += MAX_AGE_S + 1
        assert rig.mirror.fault() == "nodes were last current 121 s ago: the watch is silent"
        rig.cluster.apply(node_manifest("m", 1))
        await until(lambda: rig.free("m") == {0})
        assert rig.mirror.fault() == "pods were last current 121 s ago: the watch is silent"

    mirrored(scenario)


@pytest.mark.parametrize("max_age_s", [6.0, MAX_AGE_S])
def test_a_watch_ends_long_before_its_silence_would_be_a_fault(max_age_s: float) -> None:
    asked: list[float] = []

    class Asked(CuttableTransport):
        def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
            asked.append(float(query["timeoutSeconds"]))
            return super().watch(path, query)

    async def run() -> None:
        rig = Rig(Asked())
        rig.mirror = Mirror(rig.transport, rig.ledger, rig.clock, max_age_s=max_age_s)
        rig.mirror.start()
        await until(lambda: len(asked) >= 2)
        await rig.mirror.stop()

    asyncio.run(run())
    assert all(max_age_s / 6 <= timeout_s <= max_age_s / 3 for timeout_s in asked[:2])


# What can't be read.


def unreadable(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": 7}, "kind": manifest["kind"]}


def test_a_pod_that_was_never_read_holds_its_whole_node_until_it_is() -> None:
    async def scenario(rig: Rig) -> None:
        rig.cluster.apply(node_manifest("m", 4))
        rig.cluster.apply(unreadable(pod_manifest("x", 1, node="m", assigned="0")))
        await until(lambda: rig.mirror.num_unread == 1)
        assert (rig.units_free("m"), rig.units_free("n"), rig.mirror.fault()) == (0, 1, "")
        rig.cluster.apply(pod_manifest("x", 1, node="m", assigned="0"))
        await until(lambda: rig.free("m") == {1, 2, 3} and rig.units_free("m") == 3)
        rig.cluster.apply(unreadable(pod_manifest("x", 1, node="m", assigned="0")))
        await until(lambda: rig.mirror.num_unread == 2)
        assert rig.units_free("m") == 3, "it holds what it was known to hold"
        rig.cluster.delete(pod_manifest("x"))
        await until(lambda: rig.units_free("m") == 4)

    mirrored(scenario)


@pytest.mark.parametrize("gone", ["finished", "deleted"])
def test_a_pod_that_was_never_read_holds_nothing_when_it_has_ended(gone: str) -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.cluster.apply(unreadable(pod_manifest("x", node="n")))
        await until(lambda: rig.units_free("n") == 0)
        if gone == "finished":
            rig.cluster.apply(unreadable(pod_manifest("x", node="n", phase="Failed")))
        else:
            rig.cluster.delete(pod_manifest("x"))
        await until(lambda: rig.units_free("n") == 1)

    mirrored(scenario)


def test_on_a_node_that_can_not_be_read_nothing_is_placed_until_it_can() -> None:
    async def scenario(rig: Rig) -> None:
        await until(rig.watching)
        rig.cluster.apply(unreadable(node_manifest("n", 2)))
        await until(lambda: rig.free("n") is None)
        rig.cluster.apply(node_manifest("n", 2))
        await until(lambda: rig.free("n") == {1})

    mirrored(scenario)


def test_stopped_is_a_fault() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: not rig.mirror.fault())

    rig = mirrored(scenario)
    assert rig.mirror.fault() == "the mirror nodes has stopped: cancelled"
