import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.kube.memory import MemoryCluster
from extender.plugins.nvidia.hami import BIND_PHASE, NODE_LOCK, _format_lock, _NodeLocks
from extender.plugins.protocol import LockError
from tests.ledger.builders import Clock, FaultyTransport, node_manifest, pod_manifest

NOW = 1795241852.0


def locks_on(
    transport: MemoryCluster | FaultyTransport,
    *,
    clock: Callable[[], float] | None = None,
    wall: Clock | None = None,
    wait_s: float = 1.0,
) -> _NodeLocks:
    loop = asyncio.get_running_loop()
    return _NodeLocks(transport, clock or loop.time, wall or Clock(NOW), wait_s=wait_s)


def lock_of(cluster: MemoryCluster) -> str | None:
    found: str | None = cluster.node("n1")["metadata"].get("annotations", {}).get(NODE_LOCK)
    return found


def set_lock(cluster: MemoryCluster, lock: str) -> None:
    manifest = node_manifest("n1", 1)
    manifest["metadata"]["annotations"] = {NODE_LOCK: lock, "other": "stays"}
    cluster.apply(manifest)


def test_a_free_node_is_locked_for_the_pod_and_released() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster([node_manifest("n1", 1)])
        locks = locks_on(cluster)

        await locks.take("n1", "default", "a")
        assert lock_of(cluster) == _format_lock("default", "a", NOW)
        await locks.take("n1", "default", "a")  # again, as after a lost answer

        await locks.release("n1", "default", "a")
        assert lock_of(cluster) is None

    asyncio.run(scenario())


def test_a_lock_that_stands_is_respected() -> None:
    async def scenario() -> None:
        allocating = pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"})
        cluster = MemoryCluster([allocating])
        set_lock(cluster, _format_lock("default", "b", NOW))

        with pytest.raises(LockError, match="default/b"):
            await locks_on(cluster, wait_s=0.1).take("n1", "default", "a")
        assert lock_of(cluster) == _format_lock("default", "b", NOW)

    asyncio.run(scenario())


def test_the_next_pod_has_the_lock_as_soon_as_the_plugin_lets_it_go() -> None:
    async def scenario() -> None:
        allocating = pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"})
        cluster = MemoryCluster([allocating])
        set_lock(cluster, _format_lock("default", "b", NOW))
        locks = locks_on(cluster, wait_s=5)

        waiting = asyncio.create_task(locks.take("n1", "default", "a"))
        await asyncio.sleep(0)
        await locks.release("n1", "default", "b")  # what the plugin does
        await waiting

        assert lock_of(cluster) == _format_lock("default", "a", NOW)
        assert cluster.node("n1")["metadata"]["annotations"]["other"] == "stays"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("holder", "age_s"),
    [
        (pod_manifest("b", 1, phase="Pending"), 31),
        (pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"}), 301),
    ],
    ids=["pod never bound", "expired"],
)
def test_an_old_lock_is_taken_over(holder: dict[str, object], age_s: float) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster([holder])
        set_lock(cluster, _format_lock("default", "b", NOW - age_s))

        await locks_on(cluster).take("n1", "default", "a")

        assert lock_of(cluster) == _format_lock("default", "a", NOW)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "holder",
    [
        None,
        pod_manifest("b", 1, node="n2", phase="Pending", annotations={BIND_PHASE: "allocating"}),
        pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "success"}),
        pod_manifest("b", 1, node="n1", phase="Running", annotations={BIND_PHASE: "allocating"}),
    ],
    ids=["pod is gone", "pod is elsewhere", "pod is served", "pod runs"],
)
def test_a_lock_that_its_pod_no_longer_needs_is_taken_over_when_nobody_lets_it_go(
    holder: dict[str, Any] | None,
) -> None:
    """Not at once: the plugin lets it go as soon as its pod is served, and whose it is by then it does not look at."""

    async def scenario() -> None:
        cluster, clock = MemoryCluster([holder] if holder else []), Clock()
        locks = locks_on(cluster, clock=clock, wait_s=0.0)
        for served in ("b", "c"):  # another pod's lock is another one
            set_lock(cluster, _format_lock("default", served, NOW - 1))
            if holder:
                cluster.apply({**holder, "metadata": {**holder["metadata"], "name": served, "uid": f"uid-{served}"}})
            with pytest.raises(LockError):
                await locks.take("n1", "default", "a")
            assert lock_of(cluster) == _format_lock("default", served, NOW - 1)
            clock.now += 4.75
        with pytest.raises(LockError):
            await locks.take("n1", "default", "a")
        clock.now += 0.25
        await locks.take("n1", "default", "a")

        assert lock_of(cluster) == _format_lock("default", "a", NOW)

    asyncio.run(scenario())


def test_a_pod_that_is_about_to_be_bound_keeps_its_lock() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster([pod_manifest("b", 1, phase="Pending")])
        set_lock(cluster, _format_lock("default", "b", NOW - 5))

        with pytest.raises(LockError):
            await locks_on(cluster, clock=Clock(), wait_s=0.0).take("n1", "default", "a")

    asyncio.run(scenario())


def test_somebody_elses_lock_is_not_released() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        set_lock(cluster, _format_lock("default", "b", NOW))

        await locks_on(cluster).release("n1", "default", "a")

        assert lock_of(cluster) == _format_lock("default", "b", NOW)

    asyncio.run(scenario())


def test_a_node_that_changes_meanwhile_is_read_again() -> None:
    class Restless(MemoryCluster):
        """Every node changes between the first read of it and what follows."""

        reads = 0

        async def get(self, path: str, query: object = None) -> bytes:
            found = await super().get(path)
            self.reads += 1
            if self.reads == 1:
                self.apply(self.node("n1"))
            return found

    async def scenario() -> None:
        cluster = Restless([node_manifest("n1", 1)])

        await locks_on(cluster).take("n1", "default", "a")

        assert cluster.reads == 2
        assert lock_of(cluster) == _format_lock("default", "a", NOW)

    asyncio.run(scenario())


def test_a_node_that_is_gone_is_told() -> None:
    async def scenario() -> None:
        with pytest.raises(ApiError, match="404"):
            await locks_on(MemoryCluster()).take("n1", "default", "a")
        await locks_on(MemoryCluster()).release("n1", "default", "a")

    asyncio.run(scenario())


def test_pods_of_one_node_have_the_lock_one_after_the_other() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster([node_manifest("n1", 1)])
        locks = locks_on(cluster, wait_s=5)
        held: list[str] = []

        async def hold(name: str) -> None:
            cluster.apply(pod_manifest(name, 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"}))
            await locks.take("n1", "default", name)
            assert lock_of(cluster) == _format_lock("default", name, NOW)
            held.append(name)
            for _ in range(10):  # in which the others have their turns
                await asyncio.sleep(0)
            await locks.release("n1", "default", name)

        await asyncio.gather(*(hold(f"p{index}") for index in range(5)))

        assert sorted(held) == [f"p{index}" for index in range(5)]

    asyncio.run(scenario())


def test_a_pod_that_pulls_its_image_holds_nobody_up() -> None:
    """Its devices were allocated before; a plugin that is gone never marks it as served."""

    async def scenario() -> None:
        pulling = pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"})
        pulling["status"]["startTime"] = "2026-11-21T17:00:00Z"
        cluster, clock = MemoryCluster([pulling]), Clock()
        set_lock(cluster, _format_lock("default", "b", NOW))
        locks = locks_on(cluster, clock=clock, wait_s=0.0)
        with pytest.raises(LockError):
            await locks.take("n1", "default", "a")  # its plugin lets it go, if it is there
        clock.now += 5.0
        await locks.take("n1", "default", "a")
        assert lock_of(cluster) == _format_lock("default", "a", NOW)

    asyncio.run(scenario())


@pytest.mark.parametrize("lock", ["2031-01-01T00:00:00Z", _format_lock("default", "b", NOW + 10**7)])
def test_a_lock_of_the_future_expires_by_this_clock(lock: str) -> None:
    async def scenario() -> None:
        allocating = pod_manifest("b", 1, node="n1", phase="Pending", annotations={BIND_PHASE: "allocating"})
        cluster, clock = MemoryCluster([allocating]), Clock()
        set_lock(cluster, lock)
        locks = locks_on(cluster, clock=clock, wait_s=0.0)
        for wait_s in (0.0, 299.0):
            clock.now += wait_s
            with pytest.raises(LockError):
                await locks.take("n1", "default", "a")
        clock.now += 2.0
        await locks.take("n1", "default", "a")
        assert lock_of(cluster) == _format_lock("default", "a", NOW)

    asyncio.run(scenario())
