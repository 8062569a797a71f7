"""The view of a cluster that a batch is planned on, and what the queue knows of nodes for it beside their GPUs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster, Longs
from extender.kube.cache import Cache
from extender.kube.objects import Node
from extender.ledger.tenants import Crowd
from extender.planning.neighbours import Neighbours
from extender.planning.plans import PlanPod, View
from extender.plugins.pod_demands import offered_of
from extender.queueing.pods.batches import Room, room_of
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.restrictions import Kinds, Terrain, domain_of
from extender.queueing.pods.surroundings import Surroundings

Taken = Iterable[tuple[str, Room]]
"""What pods take of nodes that the cluster's own figures don't have yet; GPUs are reserved in the ledger itself."""

_MOST_OFFERED: Final = 64
_ALL_PODS: Final = 2**31
"""More than any kubelet takes."""


class _Ground:
    """What of a view does not change while nodes don't: where pods may go, and (3, N) allocatable CPU, memory, pods."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self.terrain = Terrain(cluster, nodes)
        self._nodes = [(row, node) for node in nodes if (row := cluster.row_of.get(node.metadata.name)) is not None]
        self._offered: dict[str, Longs] = {}
        self._allocatable: Longs = np.zeros((3, cluster.num_nodes), np.int64)
        for row, node in self._nodes:
            self._allocatable[:, row] = room_of(node)

    def offered(self, resource: str) -> Longs:
        """(N,) how much of a resource the nodes offer."""
        found = self._offered.get(resource)
        if found is None:
            found = np.zeros(self._allocatable.shape[1], np.int64)
            for row, node in self._nodes:
                found[row] = offered_of(node, resource)
            if len(self._offered) >= _MOST_OFFERED:
                self._offered.clear()  # pods may name any
            self._offered[resource] = found
        return found

    def view(
        self,
        cluster: Cluster,
        kinds: Kinds,
        batch: Iterable[PlanPod],
        taken: Taken,
        reserve_frac: float,
        *,
        num_pods: Mapping[str, int],
        neighbours: Neighbours | None,
    ) -> View:
        free = self._allocatable.copy()
        free[0], free[1] = cluster.cpu_free_milli, cluster.memory_free_mib
        empty = self._allocatable.copy()
        empty[:2] -= np.ceil(self._allocatable[:2] * reserve_frac).astype(np.int64)
        free[:2] -= self._allocatable[:2] - empty[:2]
        for node, room in taken:
            if (row := cluster.row_of.get(node)) is not None:
                free[:, row] -= room
        if num_pods:
            free[2] -= [num_pods.get(name, 0) for name in cluster.node_names]
        cpu, memory, slots = np.maximum(free, 0)
        return View(
            cluster=cluster,
            cpu_allocatable_milli=self._allocatable[0],
            memory_allocatable_mib=self._allocatable[1],
            cpu_free_milli=cpu,
            memory_free_mib=memory,
            pods_free=slots,
            allowed=kinds.masks(self.terrain),
            domains={pod.topology: self.terrain.domains(pod.topology) for pod in batch if pod.topology},
            empty=empty,
            refusals=kinds.refusals(),
            neighbours=neighbours,
        )


def view_of(
    cluster: Cluster,
    nodes: Sequence[Node],
    kinds: Kinds,
    batch: Collection[PlanPod] = (),
    *,
    num_pods: Mapping[str, int] | None = None,
    crowd: Crowd | None = None,
    left: Taken = (),
    reserve_frac: float = 0.0,
) -> View:
    """The view for a batch; `num_pods` run on each node, `crowd` is who they are, `left` is what pods give back of
    nodes by going, `reserve_frac` the part of CPU and memory to keep."""
    taken = [(node, Room(-room.cpu_milli, -room.memory_mib, -room.pods)) for node, room in left]
    ground = _Ground(cluster, nodes)
    around = Surroundings(crowd or Crowd(), ground.terrain, kinds, batch, ground.offered)
    neighbours = around.work()
    return ground.view(cluster, kinds, batch, taken, reserve_frac, num_pods=num_pods or {}, neighbours=neighbours)


class NodeBook:
    """Nodes by name. What does not change between rounds is kept."""

    def __init__(self, nodes: Cache[Node, Node], on_change: Callable[[], None], crowd: Crowd | None = None) -> None:
        """`crowd` is who runs on them."""
        self._nodes = nodes
        self.crowd = crowd if crowd is not None else Crowd()
        self._on_change = on_change
        self._version = 0
        self._version_of: dict[str, int] = {}
        self._kept: tuple[object, _Ground] | None = None

    def changed(self, old: Node | None, new: Node | None) -> None:
        """Tell of what a view is made of; heartbeats change nothing here."""
        if _facts(old) == _facts(new):
            return
        self._version += 1
        if new is not None:
            self._version_of[new.metadata.name] = self._version
        elif old is not None:
            self._version_of.pop(old.metadata.name, None)
        self._on_change()

    def __contains__(self, name: str) -> bool:
        return self._nodes.named(name) is not None

    def get(self, name: str) -> Node | None:
        """A node as it was last told, None where there is none of that name."""
        return self._nodes.named(name)

    def version_of(self, name: str) -> int:
        """Another number each time that something has changed of a node which a view is made of."""
        return self._version_of.get(name, 0)

    def labels_of(self, name: str) -> Mapping[str, str]:
        """What a node says of itself."""
        node = self._nodes.named(name)
        return (node.metadata.labels or {}) if node is not None else {}

    def domain_of(self, node: str, topology: str) -> dict[str, str]:
        """The label that keeps a pod to a node's domain."""
        return domain_of(self._nodes.named(node), topology)

    async def view(
        self,
        cluster: Cluster,
        kinds: Kinds,
        batch: Collection[PlanPod],
        on_way: Iterable[Entry],
        reserve_frac: float,
        closed: Iterable[str] = (),
    ) -> View:
        """The view of a cluster for a batch, less what is on its way; closed nodes take nobody. All as it is when this
        begins: where pods may go is worked out in portions."""
        key = (self._version, cluster.node_names)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, _Ground(cluster, list(self._nodes.values()))
        ground = self._kept[1]
        placed = [
            (entry.planned, entry.node)
            for entry in on_way
            if entry.planned is not None and entry.uid not in self.crowd  # a watch tells of them before another does
        ]
        taken = [(node, Room(pod.cpu_milli, pod.memory_mib, 1)) for pod, node in placed]
        taken += [(name, Room(pods=_ALL_PODS)) for name in closed]
        await kinds.work_out(ground.terrain)
        around = Surroundings(self.crowd, ground.terrain, kinds, batch, ground.offered, placed)
        neighbours = await around.work_in_turns()
        return ground.view(
            cluster, kinds, batch, taken, reserve_frac, num_pods=self.crowd.num_pods, neighbours=neighbours
        )


def _facts(node: Node | None) -> Any:
    """All that a view is made of."""
    return node and (node.metadata.labels, node.spec, node.status.allocatable)
