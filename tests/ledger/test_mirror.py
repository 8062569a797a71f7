"""The mirror: what reaches the ledger, when nothing may be decided on it, and devices of ResourceClaims."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from extender.core.resources.nodes import GpuUnit
from extender.kube.background import Tasks
from extender.kube.client import Query, UnreachableError
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import Feed, ReflectorTimes
from extender.ledger.ledger import AllocationState
from extender.ledger.mirror import Mirror
from extender.plugins.dra import _DevicePools
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS
from extender.queueing.pods.objects import decode_pod
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, free_units, ledger_of, node_manifest, pod_manifest, taken, until
from tests.nvidia import MEMORY_LABEL
from tests.plugins.claims import resource_claim, slice_of

SLICES, CLAIMS = _DevicePools.feeds
MAX_AGE_S = 120.0
BUG = RuntimeError("a bug")


class Cluster(MemoryCluster):
    """Nodes, pods and devices; lists fail and watches break off while a path is cut."""

    def __init__(self, *objects: Manifest) -> None:
        super().__init__(objects)
        self.serves_devices = False
        for feed in (SLICES, CLAIMS):
            self._objects[feed.path], self._watchers[feed.path] = {}, set()
        self.cut: dict[str, Exception] = {}
        self.watched: set[str] = set()
        """Paths whose watch is open."""
        self.queries: defaultdict[str, list[Query]] = defaultdict(list)
        """By path."""

    def report(self, feed: Feed[Any], kind: str, item: Any) -> None:
        """Send an event of a device."""
        manifest = msgspec.to_builtins(item)
        self._objects[feed.path] = {} if kind == "DELETED" else {("", item.metadata.name): manifest}
        self._publish(feed.path, kind, manifest)

    def sever(self, path: str, error: Exception) -> None:
        self.cut[path] = error
        self.breathe()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.queries[path].append(query or {})
        if path in self.cut:
            raise self.cut[path]
        return b"{}" if path == SLICES.served_at and self.serves_devices else await super().get(path, query)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        self.queries[path].append(query)
        async for lines in super().watch(path, query):
            self.watched.discard(path)
            if path in self.cut:
                raise self.cut[path]
            yield lines
            self.watched.add(path)


class Rig:
    """Node "n" with two GPUs, one of which pod "p" has, and node "m" with four."""

    def __init__(self, *, max_age_s: float = MAX_AGE_S, **options: Any) -> None:
        self.clock = Clock()
        pod = pod_manifest("p", 1, node="n", assigned="0")
        self.cluster = Cluster(node_manifest("n", 2), node_manifest("m", 4), pod)
        self.ledger = ledger_of()
        self.mirror = Mirror(self.cluster, self.ledger, self.clock, max_age_s=max_age_s, **options)

    def watching(self) -> bool:
        return {NODES_PATH, PODS_PATH} <= self.cluster.watched

    def taken(self, node: str = "n") -> set[int] | None:
        known = node in self.ledger.rows.names()
        return taken(self.ledger, node, self.clock()) if known else None

    def free_units(self, node: str) -> int:
        return free_units(self.ledger.snapshot(self.clock()), node)

    def unit(self, node: str) -> GpuUnit:
        return self.ledger.rows.offer_of(node).unit


@asynccontextmanager
async def mirrored(rig: Rig | None = None) -> AsyncIterator[Rig]:
    """Start a mirror, and stop it at the end."""
    rig = rig or Rig(times=ReflectorTimes(first_backoff_s=0.001, max_backoff_s=0.002))
    assert not rig.mirror.running
    rig.mirror.start()
    try:
        yield rig
        assert rig.mirror.running
    finally:
        await rig.mirror.stop()
    assert not rig.mirror.running


# Nodes and pods.


@in_loop
async def test_nodes_and_pods_are_listed_before_the_mirror_is_fit_for_use() -> None:
    async with mirrored() as rig:
        assert (rig.mirror.fault(), rig.mirror.num_lists) == ("nodes are not synced yet", 0)
        rig.cluster.sever(PODS_PATH, UnreachableError("connection refused"))
        await until(lambda: rig.mirror.fault() == "pods are not synced yet: connection refused")
        assert rig.mirror.age_s() == float("inf")
        del rig.cluster.cut[PODS_PATH]
        await until(lambda: not rig.mirror.fault())
        assert (rig.taken("n"), rig.mirror.num_lists) == ({0}, 2)
        await until(rig.watching)
        rig.clock.now += 10 * MAX_AGE_S
        assert rig.mirror.age_s() == 10 * MAX_AGE_S
    assert rig.mirror.fault() == "the mirror nodes has stopped: cancelled"


@in_loop
async def test_changes_arrive() -> None:
    async with mirrored() as rig:
        await until(rig.watching)
        spec = decode_pod(pod_manifest("new")).spec
        node = node_manifest("o", 1)
        node["status"]["allocatable"]["pods"] = "2"
        rig.cluster.apply(node)
        await until(lambda: rig.taken("o") == set())
        rig.cluster.apply(pod_manifest("q", 1, node="o", assigned="0"))
        await until(lambda: rig.taken("o") == {0})
        assert list(rig.mirror.bound_pods.on("o")) == ["uid-q"]
        assert rig.mirror.bound_pods.have_room("o", spec, ())
        rig.cluster.apply(pod_manifest("q", 1, node="o", assigned="0", phase="Succeeded"))
        await until(lambda: rig.taken("o") == set())
        rig.cluster.delete(pod_manifest("p"))
        await until(lambda: rig.taken("n") == set())
        assert not rig.mirror.bound_pods.knows("uid-p")
        rig.cluster.delete(node_manifest("o"))
        await until(lambda: rig.taken("o") is None)
        assert not rig.mirror.bound_pods.have_room("o", spec, ())


async def listed_again(rig: Rig) -> None:
    """All pods are listed again and watched."""
    rig.cluster.watched.clear()
    async with rig.mirror.pods_held():
        pass
    await until(lambda: PODS_PATH in rig.cluster.watched)


@in_loop
async def test_a_list_frees_pods_bound_before_it_that_it_lacks() -> None:
    async with mirrored() as rig:
        await until(lambda: rig.taken() == {0})
        claim = rig.ledger.allocation("uid-p")
        assert claim is not None
        assert claim.since == rig.clock.now
        unseen = rig.ledger.begin_binding("unseen", "n", whole_gpus(1, (1,)), rig.clock())
        rig.ledger.end_binding(unseen, AllocationState.BOUND, rig.clock())
        await listed_again(rig)
        assert rig.taken() == {0, 1}, "it may be younger than the list"
        rig.clock.now += 1
        await listed_again(rig)
        assert rig.taken() == {0}


@in_loop
async def test_nodes_alone() -> None:
    async with mirrored(Rig(nodes_alone=True, page_size=7)) as rig:
        await until(lambda: not rig.mirror.fault())
        assert list(rig.mirror.tasks.names) == ["mirror nodes", "mirror devices"]
        assert list(rig.cluster.queries) == [NODES_PATH]
        assert rig.cluster.queries[NODES_PATH][0]["limit"] == "7"
        assert rig.ledger.rows.names() == ["n", "m"]


# When it may not be trusted.


@in_loop
async def test_a_mirror_that_was_cut_off_too_long_is_at_fault_until_it_is_current_again() -> None:
    async with mirrored() as rig:
        await until(rig.watching)
        rig.cluster.sever(PODS_PATH, UnreachableError("connection reset"))
        rig.clock.now += MAX_AGE_S
        rig.cluster.apply(node_manifest("o", 1))
        await until(lambda: rig.taken("o") == set())  # an event of nodes says nothing about pods
        assert (rig.mirror.age_s(), rig.mirror.fault()) == (MAX_AGE_S, "")
        rig.clock.now += 1
        assert rig.mirror.fault() == "pods were last current 121 s ago: connection reset"
        del rig.cluster.cut[PODS_PATH]
        await until(lambda: not rig.mirror.fault())


@in_loop
async def test_an_open_watch_that_is_silent_for_too_long_is_a_fault() -> None:
    async with mirrored() as rig:
        await until(rig.watching)
        rig.clock.now += MAX_AGE_S + 1
        assert rig.mirror.fault() == "nodes were last current 121 s ago: the watch is silent"
        rig.cluster.apply(node_manifest("o", 1))
        await until(lambda: rig.taken("o") == set())
        assert rig.mirror.fault() == "pods were last current 121 s ago: the watch is silent"


@pytest.mark.parametrize("max_age_s", [6.0, MAX_AGE_S])
@in_loop
async def test_a_watch_ends_long_before_its_silence_would_be_a_fault(max_age_s: float) -> None:
    async with mirrored(Rig(max_age_s=max_age_s)) as rig:
        await until(rig.watching)
    for path in (NODES_PATH, PODS_PATH):
        assert max_age_s / 6 <= float(rig.cluster.queries[path][-1]["timeoutSeconds"]) <= max_age_s / 3


@pytest.mark.parametrize(("path", "name"), [(NODES_PATH, "nodes"), (PODS_PATH, "pods")])
@in_loop
async def test_a_dead_task_is_a_fault_until_it_is_back_and_has_listed_again(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.kube.watches.Tasks", partial(Tasks, first_pause_s=0.02))
    async with mirrored() as rig:
        await until(rig.watching)
        num_lists = rig.mirror.num_lists
        rig.cluster.sever(path, BUG)
        await until(lambda: rig.mirror.fault() == f"the mirror {name} has stopped: a bug")
        rig.cluster.delete(pod_manifest("p"))
        del rig.cluster.cut[path]
        await until(lambda: not rig.mirror.fault() and rig.mirror.num_lists > num_lists)
        await until(lambda: rig.taken() == set())


# What can't be read.


def unreadable(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": 7}}


@in_loop
async def test_a_pod_that_was_never_read_holds_its_whole_node_until_it_is() -> None:
    async with mirrored() as rig:
        rig.cluster.apply(unreadable(pod_manifest("x", 1, node="m", assigned="0")))
        await until(lambda: rig.mirror.num_unread == 1)
        assert (rig.free_units("m"), rig.free_units("n"), rig.mirror.fault()) == (0, 1, "")
        rig.cluster.apply(pod_manifest("x", 1, node="m", assigned="0"))
        await until(lambda: rig.taken("m") == {0} and rig.free_units("m") == 3)
        rig.cluster.apply(unreadable(pod_manifest("x", 1, node="m", assigned="0")))
        await until(lambda: rig.mirror.num_unread == 2)
        assert rig.free_units("m") == 3, "it holds what it was known to hold"
        for finished in (True, False):
            rig.cluster.apply(unreadable(pod_manifest("y", node="m")))
            await until(lambda: rig.free_units("m") == 0)
            if finished:
                rig.cluster.apply(unreadable(pod_manifest("y", node="m", phase="Failed")))
            else:
                rig.cluster.delete(pod_manifest("y"))
            await until(lambda: rig.free_units("m") == 3)


@in_loop
async def test_on_a_node_that_can_not_be_read_nothing_is_placed_until_it_can() -> None:
    async with mirrored() as rig:
        await until(rig.watching)
        rig.cluster.apply(unreadable(node_manifest("n", 2)))
        await until(lambda: rig.taken("n") is None)
        rig.cluster.apply(node_manifest("n", 2))
        await until(lambda: rig.taken("n") == {0})


@pytest.mark.parametrize("readable_first", [True, False])
@in_loop
async def test_an_edit_changes_nothing_though_the_pod_could_not_be_read_for_a_while(readable_first: bool) -> None:
    async with mirrored() as rig:
        await until(rig.watching)
        name = "p" if readable_first else "q"
        before = dict(rig.mirror.bound_pods.on("n"))
        rig.cluster.apply(unreadable(pod_manifest(name, 1, node="n")))
        await until(lambda: rig.mirror.num_unread == 1)
        if readable_first:
            assert rig.mirror.bound_pods.on("n") == before
        else:
            rig.cluster.apply(pod_manifest(name, 1, node="n", assigned="0"))
            rig.cluster.delete(pod_manifest("p"))
            await until(lambda: rig.taken() == {0} and rig.free_units("n") == 1)
        await listed_again(rig)
        rig.cluster.apply(pod_manifest(name, 1, node="n", assigned="1"))
        await until(lambda: rig.ledger.num_edits_ignored == 1)
        assert rig.taken() == {0}


@in_loop
async def test_warnings_name_the_object(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    doubtful = node_manifest("d", 2)
    doubtful["metadata"]["labels"][MEMORY_LABEL] = "lots"
    doubtful["metadata"]["annotations"] = {_GIVEN: "[]"}
    rig.cluster.apply(doubtful)
    rig.cluster.apply(pod_manifest("q", 1, node="n", assigned="zero"))
    async with mirrored(rig):
        await until(lambda: rig.mirror.bound_pods.knows("uid-q"))
    messages = [record.getMessage() for record in caplog.records if record.name == "extender.ledger.mirror"]
    starts = f"node d: {MEMORY_LABEL}", f"node d: {_GIVEN}", f"pod default/q: {ASSIGNED_GPUS}: "
    assert [message.startswith(start) for message, start in zip(messages, starts, strict=True)] == [True] * 3


# Devices.


@in_loop
async def test_devices_are_mirrored_as_they_come_and_go() -> None:
    rig = Rig()
    rig.cluster.apply(node_manifest("d"))
    rig.cluster.serves_devices = True
    claim, gpus = resource_claim("a", devices=("gpu-1", "gpu-2")), slice_of("d", 4)
    rig.cluster.report(SLICES, "ADDED", gpus)
    rig.mirror.hub.cache(CLAIMS).upsert(resource_claim("gone", devices=("gpu-0",)))
    assert rig.ledger.num_claim_devices() == {"default": 1}
    async with mirrored(rig):
        await until(lambda: rig.unit("d") is GpuUnit.CLAIM and CLAIMS.path in rig.cluster.watched)
        assert rig.ledger.num_claim_devices() == {}, "the list does not have it"
        rig.cluster.report(CLAIMS, "ADDED", claim)
        await until(lambda: rig.ledger.num_claim_devices() == {"default": 2})
        rig.cluster.report(CLAIMS, "DELETED", claim)
        await until(lambda: rig.ledger.num_claim_devices() == {})
        rig.cluster.report(SLICES, "DELETED", gpus)
        await until(lambda: rig.unit("d") is GpuUnit.NONE)
    assert len(rig.cluster.queries[SLICES.served_at]) == 1


@in_loop
async def test_devices_are_not_listed_where_the_api_server_does_not_serve_them() -> None:
    async with mirrored() as rig:
        await until(lambda: rig.cluster.queries[SLICES.served_at] and rig.watching())
        assert len(rig.cluster.queries[SLICES.served_at]) == 1, "now and then"
        assert list(rig.mirror.tasks.names) == ["mirror nodes", "mirror pods", "mirror devices"]


@pytest.mark.parametrize("what", ["devices", "claims"])
@in_loop
async def test_what_is_not_needed_is_never_fatal(what: str) -> None:
    rig = Rig()
    rig.cluster.serves_devices = True
    rig.cluster.cut[SLICES.served_at if what == "devices" else CLAIMS.path] = BUG
    async with mirrored(rig):
        await until(lambda: rig.watching() and rig.mirror.tasks.num_deaths)
        assert (rig.mirror.fault(), rig.mirror.tasks.needs_restart()) == ("", "")
        assert f"the mirror {what} has stopped: a bug" in rig.mirror.tasks.lacking()
