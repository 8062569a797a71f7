"""Kubernetes objects, a clock that stands still, transports that fail as told, and what is free in a ledger."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from extender.core.clusters import Cluster
from extender.kube import objects
from extender.kube.client import ClusterError, Query
from extender.kube.leadership import Election
from extender.kube.memory import Manifest, MemoryCluster
from extender.ledger.ledger import Ledger
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS, GPUS
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.fence import Fence
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL, REPLICAS_LABEL

TTL_S = 30.0
"""Of reservations."""
T4_MIB = 15360


@dataclass
class Clock:
    """A monotonic clock that moves when it is told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def node_manifest(
    name: str,
    gpus: int = 0,
    *,
    uid: str = "",
    resource: str = GPU_RESOURCE,
    product: str = "Tesla-T4",
    memory_mib: int = T4_MIB,
    replicas: int = 1,
    installed: int | None = None,
) -> Manifest:
    """A node as GPU Feature Discovery labels it; `gpus` are allocatable, `installed` as many unless said."""
    labels = {}
    allocatable = {"cpu": "64"}
    if gpus or installed:
        labels = {
            PRODUCT_LABEL: product,
            COUNT_LABEL: str(gpus if installed is None else installed),
            MEMORY_LABEL: str(memory_mib),
            REPLICAS_LABEL: str(replicas),
        }
        allocatable[resource] = str(gpus * replicas)
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "labels": labels},
        "status": {"allocatable": allocatable},
    }


def pod_manifest(
    name: str,
    gpus: int | str = 0,
    *,
    uid: str = "",
    node: str = "",
    assigned: str | None = None,
    phase: str = "",
    annotations: dict[str, str] | None = None,
    resource: str = GPU_RESOURCE,
    terminating: bool = False,
) -> Manifest:
    """A pod with one container; bound when it has a node, its GPUs known when `assigned` names them."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": uid or f"uid-{name}",
        "annotations": {**(annotations or {}), **({} if assigned is None else {ASSIGNED_GPUS: assigned})},
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    resources = {resource: str(gpus)} if gpus else {}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [{"resources": {"requests": resources, "limits": resources}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": phase or ("Running" if node else "Pending")},
    }


def node_object(*args: Any, **kwargs: Any) -> objects.Node:
    """A node as the reflector decodes it."""
    return decode_node(node_manifest(*args, **kwargs))


def described_node(
    *uuids: str, given: dict[str, list[str]] | None = None, broken: Collection[str] = (), ready: bool = True
) -> objects.Node:
    """Node "n" whose annotation lists its T4s, GPU-0 to GPU-3 unless said, and what the kubelet gave to whom."""
    uuids = uuids or ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    manifest = node_manifest("n", len(uuids))
    gpus = [
        {"index": index, "uuid": uuid, "memory_mib": T4_MIB, "healthy": uuid not in broken}
        for index, uuid in enumerate(uuids)
    ]
    manifest["metadata"]["annotations"] = {GPUS: json.dumps(gpus), _GIVEN: json.dumps(given or {})}
    manifest["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return decode_node(manifest)


def pod_object(*args: Any, **kwargs: Any) -> objects.Pod:
    """A pod as the reflector decodes it."""
    return decode_pod(pod_manifest(*args, **kwargs))


@dataclass
class Fault:
    """What happens to one call, before or after it takes effect."""

    error: ClusterError
    took_effect: bool = False


@dataclass
class FaultyTransport:
    """A cluster in memory whose next calls fail as told; records what was asked."""

    inner: MemoryCluster = field(default_factory=MemoryCluster)
    gets: deque[Fault | None] = field(default_factory=deque)
    posts: deque[Fault | None] = field(default_factory=deque)
    patches: deque[Fault | None] = field(default_factory=deque)
    calls: list[tuple[str, str, bytes]] = field(default_factory=list)
    before_post: Callable[[], Awaitable[None]] | None = None
    on_post: Callable[[], None] | None = None
    """Called after a post took effect, before it is answered."""

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self.inner.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.calls.append(("GET", path, b""))
        if self.gets and (fault := self.gets.popleft()):
            raise fault.error
        return await self.inner.get(path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        self.calls.append(("POST", path, body))
        if self.before_post:
            await self.before_post()
        fault = self.posts.popleft() if self.posts else None
        if fault and not fault.took_effect:
            raise fault.error
        answer = await self.inner.post(path, body)
        if self.on_post:
            self.on_post()
        if fault:
            raise fault.error
        return answer

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        self.calls.append(("PATCH", path, body))
        if self.patches and (fault := self.patches.popleft()):
            raise fault.error
        return await self.inner.patch(path, body)

    def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        return self.inner.watch(path, query)


def open_fence(election: Election | None = None) -> Fence:
    """The fence of a process that leads, without rivals unless there is an election."""
    fence = Fence(lambda: 0.0, election)
    fence.take_over("", lambda: float("inf"), str)
    fence.open("only")
    return fence


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds; fails after thirty seconds, since machines are busy."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - conditions here have no event to wait for
            await asyncio.sleep(0.001)


def ledger_of(*nodes: objects.Node, **gpus: int) -> Ledger:
    """A ledger of these nodes, and of nodes with so many GPUs."""
    ledger = Ledger(reservation_ttl_s=TTL_S)
    for node in (*nodes, *(node_object(name, num_gpus) for name, num_gpus in gpus.items())):
        ledger.upsert_node(node)
    return ledger


def free_units(cluster: Cluster, node: str) -> int:
    """Units of a node that nobody holds."""
    row = cluster.row_of[node]
    free = int(cluster.gpu_idle[row].sum()) * int(cluster.units_per_gpu[row])
    return max(free - int(cluster.untracked_units[row]), 0)


def free(ledger: Ledger, node: str = "n", now: float = 0.0) -> list[tuple[int, int]]:
    """(milli, MiB) free of each GPU of a node."""
    cluster = ledger.snapshot(now)
    row = cluster.row_of[node]
    pairs = zip(cluster.gpu_free_milli[row].tolist(), cluster.gpu_free_mib[row].tolist(), strict=True)
    return list(pairs)[: len(ledger.rows.offer_of(node).gpus)]


def taken(ledger: Ledger, node: str = "n", now: float = 0.0) -> set[int]:
    """GPUs of a node without free compute."""
    return {index for index, (milli, _) in enumerate(free(ledger, node, now)) if not milli}


def untracked(ledger: Ledger, node: str = "n", now: float = 0.0) -> int:
    """Units of a node that are held on unknown GPUs."""
    cluster = ledger.snapshot(now)
    return int(cluster.untracked_units[cluster.row_of[node]])
