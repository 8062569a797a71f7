"""The mirror with devices of ResourceClaims, and with those who listen: what it asks for, tells and keeps."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from extender.core.resources.nodes import GpuUnit
from extender.kube import objects
from extender.kube.client import ApiError, Query
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import BOUND_PODS, NODES, ReflectorTimes
from extender.ledger.ledger import ClaimState, Ledger
from extender.ledger.mirror import Mirror
from extender.plugins.dra import _DevicePools
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import _GIVEN
from tests.ledger.builders import Clock, FaultyTransport, node_manifest, pod_manifest, until
from tests.nvidia import MEMORY_LABEL
from tests.plugins.claims import resource_claim, slice_of

SLICES, CLAIMS = _DevicePools.feeds


@dataclass
class DeviceTransport(FaultyTransport):
    """A cluster in memory that serves devices besides, where told so."""

    items: dict[str, list[Manifest]] = field(default_factory=lambda: {SLICES.path: [], CLAIMS.path: []})
    lines: dict[str, asyncio.Queue[bytes]] = field(default_factory=dict)
    devices: bytes | Exception = b"{}"
    """What is answered to who asks for the API."""
    opened: Counter[str] = field(default_factory=Counter)
    """Watches that began, by path."""
    limits: set[str] = field(default_factory=set)
    """Most objects of a page that were asked for."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.calls.append(("GET", path, b""))
        self.limits |= {value for key, value in (query or {}).items() if key == "limit"}
        if path == SLICES.served_at:
            if isinstance(self.devices, Exception):
                raise self.devices
            return self.devices
        if path in self.items:
            return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": self.items[path]})
        return await self.inner.get(path, query)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        self.opened[path] += 1
        if path in self.items:
            self.lines[path] = queue = asyncio.Queue[bytes]()
            yield []
            while True:
                yield [await queue.get()]
        async for lines in self.inner.watch(path, query):
            yield lines

    def tell(self, path: str, kind: str, item: Manifest) -> None:
        """A line of a watch."""
        metadata = {**item["metadata"], "resourceVersion": "2"}
        self.lines[path].put_nowait(msgspec.json.encode({"type": kind, "object": {**item, "metadata": metadata}}))

    def num_asked(self, path: str) -> int:
        return sum(asked == path for _, asked, _ in self.calls)


def unreadable(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": 7}}


async def listed_again(rig: "Rig") -> None:
    """Once all pods have been listed again."""
    async with rig.mirror.pods_held():
        pass


class Rig:
    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.transport = DeviceTransport(MemoryCluster([node_manifest("n"), node_manifest("m", 4)]))
        self.cluster = self.transport.inner
        self.ledger = Ledger(reservation_ttl_s=30.0)
        times = ReflectorTimes(first_backoff_s=0.001, max_backoff_s=0.002)
        self.mirror = Mirror(self.transport, self.ledger, self.clock, max_age_s=120.0, times=times, **options)

    def unit(self) -> GpuUnit:
        cluster = self.ledger.snapshot(self.clock())
        return GpuUnit(int(cluster.unit[cluster.row_of["n"]])) if "n" in cluster.row_of else GpuUnit.NONE

    def taken(self, node: str = "m") -> set[int]:
        cluster = self.ledger.snapshot(self.clock())
        milli = cluster.gpu_free_milli[cluster.row_of[node]].tolist() if node in cluster.row_of else []
        return {index for index, free in enumerate(milli) if not free}

    def tell_of_pod(self, assigned: str) -> None:
        """A pod with one GPU of node m."""
        self.cluster.apply(pod_manifest("p", 1, node="m", assigned=assigned))


def mirrored(rig: Rig, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        rig.mirror.start()
        assert rig.mirror.running
        try:
            await until(lambda: not rig.mirror.fault())
            await scenario(rig)
        finally:
            await rig.mirror.stop()
        assert not rig.mirror.running

    assert not rig.mirror.running
    asyncio.run(run())


# Devices.


def test_devices_are_mirrored_as_they_come_and_go() -> None:
    rig = Rig()
    claim = msgspec.to_builtins(resource_claim("a", devices=("gpu-1", "gpu-2")))
    gpus = msgspec.to_builtins(slice_of("n", 4))
    rig.transport.items[SLICES.path].append(gpus)
    rig.mirror.hub.cache(CLAIMS).upsert(resource_claim("gone", devices=("gpu-0",)))
    assert rig.ledger.num_claimed() == {"default": 1}

    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.unit() is GpuUnit.CLAIM and CLAIMS.path in rig.transport.lines)
        assert rig.ledger.num_claimed() == {}, "the list does not name it"
        rig.transport.tell(CLAIMS.path, "ADDED", claim)
        await until(lambda: rig.ledger.num_claimed() == {"default": 2})
        rig.transport.tell(CLAIMS.path, "DELETED", claim)
        await until(lambda: rig.ledger.num_claimed() == {})
        rig.transport.tell(SLICES.path, "DELETED", gpus)
        await until(lambda: rig.unit() is GpuUnit.NONE)

    mirrored(rig, scenario)
    assert rig.transport.num_asked(SLICES.served_at) == 1


def test_devices_are_not_asked_for_where_the_api_server_does_not_serve_them() -> None:
    rig = Rig()
    rig.transport.devices = ApiError(404, "NotFound", "no such API")

    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.transport.num_asked(SLICES.served_at))
        for _ in range(20):
            await asyncio.sleep(0)
        assert rig.transport.num_asked(SLICES.served_at) == 1, "now and then"
        assert list(rig.mirror.tasks.names) == ["mirror nodes", "mirror pods", "mirror devices"]

    mirrored(rig, scenario)


def test_that_devices_can_not_be_mirrored_is_told_and_no_fault() -> None:
    rig = Rig()
    rig.transport.devices = RuntimeError("a bug")

    async def scenario(rig: Rig) -> None:
        await until(rig.mirror.tasks.lacking)
        assert rig.mirror.tasks.lacking() == ["the mirror devices has stopped: a bug"]
        assert rig.mirror.fault() == ""

    mirrored(rig, scenario)


def test_of_nodes_alone_nothing_else_is_asked() -> None:
    rig = Rig(nodes_alone=True, page_size=7)

    async def scenario(rig: Rig) -> None:
        assert list(rig.mirror.tasks.names) == ["mirror nodes", "mirror devices"]
        assert {path for _, path, _ in rig.transport.calls} == {NODES_PATH}
        assert rig.transport.limits == {"7"}
        assert rig.ledger.rows.names() == ["n", "m"]

    mirrored(rig, scenario)


# Who listens, and what is told.


def test_listeners_hear_of_nodes_and_of_pods_that_have_one() -> None:
    heard: list[str] = []

    def hear(old: objects.Named | None, new: objects.Named | None) -> None:
        assert new is not None
        heard.append(new.metadata.name)

    rig = Rig()
    rig.mirror.hub.cache(NODES).subscribe(hear)
    rig.mirror.hub.part(BOUND_PODS).subscribe(hear)

    async def scenario(rig: Rig) -> None:
        assert heard == ["n", "m"]
        rig.tell_of_pod("0")
        await until(lambda: heard == ["n", "m", "p"])

    mirrored(rig, scenario)


def test_what_can_not_be_understood_is_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    doubtful = node_manifest("d", 2)
    doubtful["metadata"]["labels"][MEMORY_LABEL] = "lots"
    doubtful["metadata"]["annotations"] = {_GIVEN: "[]"}
    rig.cluster.apply(doubtful)
    rig.tell_of_pod("zero")

    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.mirror.tenants.knows("uid-p"))

    mirrored(rig, scenario)
    *of_node, of_pod = [record.getMessage() for record in caplog.records if record.name == "extender.ledger.mirror"]
    assert all(message.startswith("node d: ") for message in of_node)
    assert [MEMORY_LABEL in of_node[0], _GIVEN in of_node[1], len(of_node)] == [True, True, 2]
    assert of_pod.startswith("pod default/p: kerf.dev/assigned-gpus: ")


# Who holds what, and since when.


def test_a_list_frees_what_was_bound_before_it_and_is_not_there() -> None:
    rig = Rig()

    async def scenario(rig: Rig) -> None:
        rig.tell_of_pod("0")
        await until(lambda: rig.taken() == {0})
        claim = rig.ledger.claim("uid-p")
        assert claim is not None
        assert claim.since == rig.clock.now
        ghost = rig.ledger.begin_binding("ghost", "m", whole_gpus(1, (1,)), rig.clock())
        rig.ledger.end_binding(ghost, ClaimState.BOUND, rig.clock())
        await listed_again(rig)
        assert rig.taken() == {0, 1}, "it may be younger than the list"
        rig.clock.now += 1
        await listed_again(rig)
        assert rig.taken() == {0}

    mirrored(rig, scenario)


@pytest.mark.parametrize("readable_first", [True, False])
def test_an_edit_changes_nothing_though_the_pod_could_not_be_read_for_a_while(readable_first: bool) -> None:
    rig = Rig()

    async def scenario(rig: Rig) -> None:
        if readable_first:
            rig.tell_of_pod("0")
            await until(lambda: rig.taken() == {0})
        before = dict(rig.mirror.tenants.on("m"))
        rig.cluster.apply(unreadable(pod_manifest("p", 1, node="m")))
        await until(lambda: rig.mirror.num_unread == 1)
        if readable_first:
            assert rig.mirror.tenants.on("m") == before
        else:
            rig.tell_of_pod("0")
            await until(lambda: rig.taken() == {0})
        await listed_again(rig)
        await until(lambda: rig.transport.opened[PODS_PATH] == 2)
        rig.tell_of_pod("2")
        await until(lambda: rig.ledger.num_edits_ignored == 1)
        assert rig.taken() == {0}

    mirrored(rig, scenario)


def test_who_lives_on_a_node_and_what_it_has_are_forgotten_with_them() -> None:
    rig = Rig()
    spec = msgspec.convert(pod_manifest("new"), objects.Pod).spec
    node = node_manifest("m", 4)
    node["status"]["allocatable"]["pods"] = "2"

    async def scenario(rig: Rig) -> None:
        rig.cluster.apply(node)
        rig.tell_of_pod("0")
        await until(lambda: list(rig.mirror.tenants.on("m")) == ["uid-p"])
        await until(lambda: rig.mirror.tenants.have_room("m", spec, ()))
        rig.cluster.delete(pod_manifest("p"))
        await until(lambda: rig.taken() == set())
        assert not rig.mirror.tenants.knows("uid-p")
        rig.cluster.delete(node)
        await until(lambda: "m" not in rig.ledger.rows.names())
        assert not rig.mirror.tenants.have_room("m", spec, ())

    mirrored(rig, scenario)


def test_a_node_that_was_never_read_comes_and_goes_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    node = unreadable(node_manifest("x", 2))

    async def scenario(rig: Rig) -> None:
        rig.cluster.apply(node)
        await until(lambda: rig.mirror.num_unread == 1)
        rig.cluster.delete(node)
        rig.cluster.apply(node_manifest("y", 2))
        await until(lambda: rig.ledger.rows.names() == ["n", "m", "y"])

    mirrored(rig, scenario)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
