"""What the queue knows of nodes beside their GPUs, and the view that a round is planned on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from extender.cluster import objects
from extender.core.clusters import Cluster
from extender.queueing.batches import view_of
from extender.queueing.manifests import Node
from extender.queueing.plans import PlanPod, View
from extender.queueing.restrictions import Kinds, Terrain, domain_of


@dataclass(frozen=True, slots=True)
class Booked:
    """A pod on its way to a node, which the cluster's own figures don't have yet."""

    pod: PlanPod
    node: str


class NodeBook:
    """Nodes by name; the sink of a reflector of nodes. What does not change between rounds is kept."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, str] = {}  # by uid
        self._version = 0
        self._kept: tuple[object, View, Terrain] | None = None

    def upsert(self, item: objects.Node) -> None:
        """A node was added or changed; heartbeats change nothing here."""
        if not isinstance(item, Node):
            raise TypeError("nodes of the queue are decoded with what the queue reads")
        known = self._nodes.get(item.metadata.name)
        self._names[item.metadata.uid] = item.metadata.name
        if known is None or _facts(known) != _facts(item):
            self._nodes[item.metadata.name] = item
            self._touch()

    def remove(self, item: objects.Node) -> None:
        """A node is gone."""
        self._names.pop(item.metadata.uid, None)
        if self._nodes.pop(item.metadata.name, None) is not None:
            self._touch()

    def keep(self, items: set[str], list_began: float) -> None:
        """Nodes that a complete list does not name are gone."""
        for uid in self._names.keys() - items:
            name = self._names.pop(uid)
            if name not in self._names.values():
                self._nodes.pop(name, None)
                self._touch()

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def domain_of(self, node: str, topology: str) -> dict[str, str]:
        """The label that keeps a pod to a node's domain."""
        return domain_of(self._nodes.get(node), topology)

    def view(
        self, cluster: Cluster, kinds: Kinds, topologies: Iterable[str], booked: Iterable[Booked], reserve_frac: float
    ) -> View:
        """The view of a cluster, what is on its way taken off; GPUs on their way are reserved in the ledger itself."""
        key = (self._version, cluster.node_names, reserve_frac)
        if self._kept is None or self._kept[0] != key:
            nodes = list(self._nodes.values())
            terrain = Terrain(cluster, nodes)
            made = view_of(cluster, nodes, Kinds(), reserve_frac=reserve_frac, terrain=terrain)
            self._kept = key, made, terrain
        _, kept, terrain = self._kept
        domains = {topology: terrain.domains(topology) for topology in topologies}
        kept = replace(kept, allowed=kinds.masks(terrain), domains=domains)
        cpu = cluster.cpu_free_milli - np.ceil(kept.cpu_allocatable_milli * reserve_frac).astype(np.int64)
        memory = cluster.memory_free_mib - np.ceil(kept.memory_allocatable_mib * reserve_frac).astype(np.int64)
        slots = kept.pods_free.copy()
        for item in booked:
            row = cluster.row_of.get(item.node)
            if row is not None:
                cpu[row] -= item.pod.cpu_milli
                memory[row] -= item.pod.memory_mib
                slots[row] -= 1
        return replace(kept, cluster=cluster, cpu_free_milli=cpu, memory_free_mib=memory, pods_free=slots)

    def _touch(self) -> None:
        self._version += 1
        self._changed()


def _facts(node: Node) -> object:
    """All that a view is made of."""
    return node.metadata.labels, node.spec, node.status.allocatable
