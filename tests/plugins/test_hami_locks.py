"""HAMi's lock of a node, beside a plugin that releases it and schedulers that leave it behind."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.kube.memory import MemoryCluster
from extender.plugins.nvidia.hami import BIND_PHASE, NODE_LOCK, _format_lock, _NodeLocks
from extender.plugins.protocol import LockError
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, node_manifest, pod_manifest

NOW = 1795241852.0


def lock_for(pod: str, age_s: float = 0.0) -> str:
    return _format_lock("default", pod, NOW - age_s)


def served(name: str = "b", node: str = "n1", phase: str = "allocating", status: str = "Pending") -> dict[str, Any]:
    """A pod of HAMi in a phase of its binding."""
    return pod_manifest(name, 1, node=node, phase=status, annotations={BIND_PHASE: phase})


class Rig:
    """A node and its lock, which pod a is to have."""

    def __init__(self, *pods: dict[str, Any], cluster: MemoryCluster | None = None, wait_s: float = 0.0) -> None:
        self.cluster = cluster or MemoryCluster([node_manifest("n1", 1), *pods])
        self.clock = Clock()
        self.locks = _NodeLocks(self.cluster, self.clock, Clock(NOW), wait_s=wait_s)

    def lock(self, text: str) -> None:
        manifest = node_manifest("n1", 1)
        manifest["metadata"]["annotations"] = {NODE_LOCK: text, "other": "stays"}
        self.cluster.apply(manifest)

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.cluster.node("n1")["metadata"].get("annotations", {})
        return found

    async def takes(self, after_s: float = 0.0) -> bool:
        """Whether pod a gets the lock, some time later."""
        self.clock.now += after_s
        before = self.annotations.get(NODE_LOCK)
        try:
            await self.locks.take("n1", "default", "a")
        except LockError:
            assert self.annotations.get(NODE_LOCK) == before
            return False
        assert self.annotations[NODE_LOCK] == lock_for("a")
        return True


@in_loop
async def test_a_node_is_locked_for_a_pod_and_released() -> None:
    rig = Rig()
    assert await rig.takes()
    assert await rig.takes(), "again, as after a lost response"
    await rig.locks.release("n1", "default", "b")
    assert rig.annotations[NODE_LOCK] == lock_for("a"), "another pod's lock is not released"
    await rig.locks.release("n1", "default", "a")
    assert NODE_LOCK not in rig.annotations
    gone = Rig(cluster=MemoryCluster())
    with pytest.raises(ApiError, match="404"):
        await gone.locks.take("n1", "default", "a")
    await gone.locks.release("n1", "default", "a")


@in_loop
async def test_a_lock_in_use_is_waited_for() -> None:
    rig = Rig(served())
    rig.lock(lock_for("b"))
    with pytest.raises(LockError, match="default/b"):
        await rig.locks.take("n1", "default", "a")
    rig = Rig(served(), wait_s=5)
    rig.lock(lock_for("b"))
    waiting = asyncio.create_task(rig.takes())
    await asyncio.sleep(0)
    await rig.locks.release("n1", "default", "b")  # what the plugin does
    assert await waiting
    assert rig.annotations["other"] == "stays"


@in_loop
async def test_an_old_lock_is_taken_over() -> None:
    unbound = pod_manifest("b", 1, phase="Pending")
    for holder, age_s, taken in ((unbound, 5, False), (unbound, 31, True), (served(), 301, True)):
        rig = Rig(holder)
        rig.lock(lock_for("b", age_s))
        assert await rig.takes() is taken
    for future in ("2031-01-01T00:00:00Z", lock_for("b", -(10**7))):
        rig = Rig(served())
        rig.lock(future)
        assert [await rig.takes(after_s) for after_s in (0.0, 299.0, 2.0)] == [False, False, True], "by this clock"


@in_loop
async def test_a_lock_that_its_pod_no_longer_needs_is_taken_over_after_a_while() -> None:
    """Not at once: the plugin releases it as soon as its pod is served, whoever has it by then."""
    pulling = served()  # its devices were allocated; a plugin that is gone never marks it as served
    pulling["status"]["startTime"] = "2026-11-21T17:00:00Z"
    for holder in (None, served(node="n2"), served(phase="success"), served(status="Running"), pulling):
        rig = Rig()
        for name in ("b", "c"):  # another pod's lock is another one
            rig.lock(lock_for(name, 1))
            if holder:
                rig.cluster.apply({**holder, "metadata": {**holder["metadata"], "name": name, "uid": f"uid-{name}"}})
            assert not await rig.takes()
            rig.clock.now += 4.75
        assert [await rig.takes(after_s) for after_s in (0.0, 0.25)] == [False, True]


@in_loop
async def test_a_node_that_changes_meanwhile_is_read_again() -> None:
    class Restless(MemoryCluster):
        reads = 0

        async def get(self, path: str, query: object = None) -> bytes:
            content = await super().get(path)
            self.reads += 1
            if self.reads == 1:
                self.apply(self.node("n1"))
            return content

    cluster = Restless([node_manifest("n1", 1)])
    assert await Rig(cluster=cluster, wait_s=1.0).takes()
    assert cluster.reads == 2


@in_loop
async def test_pods_of_one_node_have_the_lock_one_after_the_other() -> None:
    rig, held = Rig(wait_s=5), list[str]()

    async def hold(name: str) -> None:
        rig.cluster.apply(served(name))
        await rig.locks.take("n1", "default", name)
        assert rig.annotations[NODE_LOCK] == lock_for(name)
        held.append(name)
        for _ in range(10):  # in which the others run
            await asyncio.sleep(0)
        await rig.locks.release("n1", "default", name)

    await asyncio.gather(*(hold(f"p{index}") for index in range(5)))
    assert sorted(held) == [f"p{index}" for index in range(5)]
