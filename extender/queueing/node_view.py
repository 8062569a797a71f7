"""Builds the view of the cluster that a batch is planned on, with the nodes' CPU, memory, pods and restrictions."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster, Longs
from extender.kube.cache import Cache
from extender.kube.objects import Node
from extender.ledger.bound_pods import BoundPodIndex
from extender.planning.neighbours import Neighbours
from extender.planning.plans import ALL_PODS, PlanPod, View
from extender.plugins.pod_demands import offered_of
from extender.queueing.pods.batches import Room, room_of
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.restrictions import NodeRestrictions, RestrictionKinds, domain_of
from extender.queueing.pods.surroundings import NeighboursBuilder

Taken = Iterable[tuple[str, Room]]
"""What pods take of nodes beyond the cluster's figures, without GPUs, which are reserved in the ledger."""

_MOST_OFFERED: Final = 64


class _NodeInputs:
    """The part of a view that depends on nodes only: restrictions, and (3, N) allocatable CPU, memory and pods."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self.terrain = NodeRestrictions(cluster, nodes)
        self._nodes = [(row, node) for node in nodes if (row := cluster.row_of.get(node.metadata.name)) is not None]
        self._offered: dict[str, Longs] = {}
        self._allocatable: Longs = np.zeros((3, cluster.num_nodes), np.int64)
        for row, node in self._nodes:
            self._allocatable[:, row] = room_of(node)

    def offered(self, resource: str) -> Longs:
        """Return (N,) how much of a resource the nodes offer."""
        units = self._offered.get(resource)
        if units is None:
            units = np.zeros(self._allocatable.shape[1], np.int64)
            for row, node in self._nodes:
                units[row] = offered_of(node, resource)
            if len(self._offered) >= _MOST_OFFERED:
                self._offered.clear()  # pods may name any resource
            self._offered[resource] = units
        return units

    def view(
        self,
        cluster: Cluster,
        kinds: RestrictionKinds,
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
    kinds: RestrictionKinds,
    batch: Collection[PlanPod] = (),
    *,
    num_pods: Mapping[str, int] | None = None,
    crowd: BoundPodIndex | None = None,
    left: Taken = (),
    reserve_frac: float = 0.0,
) -> View:
    """Return the view for a batch.

    `num_pods` are the pods on each node, `crowd` the bound pods, `left` what leaving pods free, and `reserve_frac` the
    fraction of CPU and memory to keep free.
    """
    taken = [(node, Room(-room.cpu_milli, -room.memory_mib, -room.pods)) for node, room in left]
    inputs = _NodeInputs(cluster, nodes)
    neighbours = NeighboursBuilder(crowd or BoundPodIndex(), inputs.terrain, kinds, batch, inputs.offered).work()
    return inputs.view(cluster, kinds, batch, taken, reserve_frac, num_pods=num_pods or {}, neighbours=neighbours)


class NodeBook:
    """The nodes by name, with a cache of the inputs of views that depend on nodes only."""

    def __init__(
        self, nodes: Cache[Node, Node], on_change: Callable[[], None], crowd: BoundPodIndex | None = None
    ) -> None:
        """`crowd` are the bound pods."""
        self._nodes = nodes
        self.bound_pod_index = crowd if crowd is not None else BoundPodIndex()
        self._on_change = on_change
        self._version = 0
        self._version_of: dict[str, int] = {}
        self._kept: tuple[object, _NodeInputs] | None = None

    def changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a node, ignoring heartbeats."""
        if _view_fields(old) == _view_fields(new):
            return
        self._version += 1
        if new is not None:
            self._version_of[new.metadata.name] = self._version
        elif old is not None:
            self._version_of.pop(old.metadata.name, None)
        self._on_change()

    def __contains__(self, name: str) -> bool:
        return self._nodes.find(name) is not None

    def get(self, name: str) -> Node | None:
        """Return the last known object of a node, None if unknown."""
        return self._nodes.find(name)

    def version_of(self, name: str) -> int:
        """Return a number that changes with each relevant change of a node."""
        return self._version_of.get(name, 0)

    def labels_of(self, name: str) -> Mapping[str, str]:
        """Return a node's labels."""
        node = self._nodes.find(name)
        return (node.metadata.labels or {}) if node is not None else {}

    def domain_of(self, node: str, topology: str) -> dict[str, str]:
        """Return the label that keeps a pod to a node's domain."""
        return domain_of(self._nodes.find(node), topology)

    async def view(
        self,
        cluster: Cluster,
        kinds: RestrictionKinds,
        batch: Collection[PlanPod],
        on_way: Iterable[Entry],
        reserve_frac: float,
        closed: Iterable[str] = (),
    ) -> View:
        """Return the view of a cluster for a batch, less what pods on their way take; closed nodes have no room.

        Computed in portions, on the state at the start.
        """
        key = (self._version, cluster.node_names)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, _NodeInputs(cluster, list(self._nodes.values()))
        inputs = self._kept[1]
        placed = [
            (entry.planned, entry.node)
            for entry in on_way
            if entry.planned is not None
            and entry.uid not in self.bound_pod_index  # one watch may be ahead of the other
        ]
        taken = [(node, Room(pod.cpu_milli, pod.memory_mib, 1)) for pod, node in placed]
        taken += [(name, Room(pods=ALL_PODS)) for name in closed]
        await kinds.work_out(inputs.terrain)
        builder = NeighboursBuilder(self.bound_pod_index, inputs.terrain, kinds, batch, inputs.offered, placed)
        neighbours = await builder.work_in_turns()
        return inputs.view(
            cluster, kinds, batch, taken, reserve_frac, num_pods=self.bound_pod_index.num_pods, neighbours=neighbours
        )


def _view_fields(node: Node | None) -> Any:
    """Return the fields that a view depends on."""
    return node and (node.metadata.labels, node.spec, node.status.allocatable)
