"""Writes nodes' offers and what is held on them into the cluster's arrays, node by node.

Also keeps what kubelets gave to pods, as node agents report it (`plugins.kerf`), and resolves the pod names in that.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.resources.nodes import NO_GPUS, OF_CLAIMS, SLICES, GpuUnit, NodeOffer, NodeReading
from extender.core.vendors.registry import GPU_RESOURCES
from extender.kube import objects
from extender.ledger.allocations import AllocationState, Occupancy, PodAllocation, PodAllocations
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from extender.plugins.kerf import Given
from extender.plugins.nodes import as_noted, read_capacity, read_offer
from extender.plugins.protocol import DevicePlugin
from extender.plugins.registry import NATIVE, plugin_of, plugins


class _GivenGpus:
    """UUIDs of the GPUs that kubelets gave to pods."""

    def __init__(self) -> None:
        self._given: dict[str, Given] = {}
        self._faults: dict[str, tuple[str, ...]] = {}
        self._owner: dict[str, dict[str, str]] = {}  # by node and `namespace/name`: the UID, "" for none
        self.starting = True
        """Whether the first complete list of pods is still to come: an entry may be about a pod not seen yet."""

    def set(self, node: str, given: Given, uids: Mapping[str, str], faults: tuple[str, ...] = ()) -> bool:
        """Set a node's report; return whether it has changed.

        `uids` are the UIDs of the node's pods by name, `faults` are sentences about unreadable parts.
        """
        before = self._given.get(node, {})
        if given == before and faults == self._faults.get(node, ()):
            return False
        self._faults[node] = faults
        owners = self._owner.get(node, {})
        self._owner[node] = {
            name: owners[name] if name in owners and before.get(name) == uuids else uids.get(name, "")
            for name, uuids in given.items()
            if "/" in name and (name in uids or name in owners or not self.starting)
        }
        self._given[node] = given
        return True

    def note_pod(self, node: str, name: str, uid: str) -> None:
        """Note a pod that the watch reports for the first time."""
        if self.starting and name in self._given.get(node, ()):
            self._owner[node].setdefault(name, uid)

    def of(self, node: str, name: str, uid: str) -> tuple[str, ...] | None:
        """Return the UUIDs that a pod was given, None if not reported."""
        given = self._given.get(node)
        if not given or not name:
            return None
        by_name = given.get(name) if self._owner[node].get(name) == uid else None
        return given.get(uid, by_name)

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._given.pop(node, None)
        self._faults.pop(node, None)
        self._owner.pop(node, None)


_MAX_DOUBTS: Final = 8


class NodeState(NamedTuple):
    """The state of a node that a Binding is decided on."""

    offer: NodeOffer
    overbooked: bool


@dataclass(slots=True)
class _Node:
    manifest: objects.Node
    plugin: DevicePlugin
    cpu_milli: int
    memory_mib: int


class NodeRows:
    """The nodes and their rows in the arrays. Not thread-safe."""

    def __init__(self, reading: NodeReading, reservation_ttl_s: float) -> None:
        self._reading = reading
        self.arrays = ClusterArrays()
        self.allocations = PodAllocations(reservation_ttl_s, self.write)
        self.given = _GivenGpus()
        self.stocks = tuple(stock for plugin in plugins() if (stock := plugin.stock(reading)) is not None)
        """Devices that plugins publish in objects of their own."""
        self.pools = next(iter(self.stocks), None)
        """Devices for ResourceClaims, None without a plugin for them."""
        self.owned = self.pools.owned if self.pools is not None else None
        """The devices that Kerf itself allocates to ResourceClaims, None if it allocates none."""
        self._nodes: dict[str, _Node] = {}
        self.mistaken: dict[str, list[PodAllocation]] = {}
        """By node: allocations of pods whose annotations name other GPUs than they were given."""
        self._overbooked: set[str] = set()
        self.written: set[str] = set()
        """Nodes whose allocations or offer have changed since the reader of this set cleared it."""
        self.closed: frozenset[str] = frozenset()
        """Nodes on which nothing is allocated, whatever is free."""
        self._requested: dict[str, tuple[str, int, int]] = {}  # by pod: node, CPU milli, memory MiB
        self._requested_on: dict[str, tuple[int, int]] = {}  # by node; integers, so that sums can't drift

    # Reading

    def enable_quarantine(self) -> None:
        """Keep new pods off quarantined nodes from now on."""
        self._reading = replace(self._reading, sets_aside=True)

    def names(self) -> list[str]:
        """Return the names of the nodes."""
        return list(self._nodes)

    def manifest(self, node: str) -> objects.Node | None:
        """Return the last known object of a node, None if unknown."""
        known = self._nodes.get(node)
        return known.manifest if known else None

    def plugin_on(self, node: str) -> DevicePlugin:
        """Return the device plugin of a node."""
        known = self._nodes.get(node)
        return known.plugin if known else NATIVE

    def offer_of(self, node: str) -> NodeOffer:
        """Return a node's offer, an empty one if unknown."""
        row = self.arrays.row_of.get(node)
        return NO_GPUS if row is None else self.arrays.offer(row)

    def state_of(self, node: str) -> NodeState:
        """Return a node's offer, and whether the node is overbooked."""
        return NodeState(self.offer_of(node), node in self._overbooked)

    @property
    def num_overbooked(self) -> int:
        """Nodes that are overbooked, or have a GPU that two pods hold."""
        return len(self._overbooked & self._nodes.keys())

    def holders(self, node: str) -> list[PodAllocation]:
        """Return the allocations on a node, without those of ResourceClaims' devices, which a stock accounts for."""
        of_claims = self.offer_of(node).unit in OF_CLAIMS
        return [held for held in self.allocations.on(node) if not (of_claims and self._is_stocked(held))]

    def reserved_gpus(self, node: str) -> frozenset[int]:
        """Return the indices of a node's reserved GPUs."""
        reserved = (held for held in self.allocations.on(node) if held.state is AllocationState.RESERVED)
        return frozenset(index for held in reserved for index in held.gpus)

    def num_reserved(self, node: str) -> float:
        """Return how many of a node's GPUs are reserved; half of one counts as 0.5."""
        units_per_gpu = max(self.offer_of(node).units_per_gpu, 1)
        num_gpus = 0.0
        for held in self.allocations.on(node):
            if held.state is AllocationState.RESERVED:
                parts = () if units_per_gpu > 1 else held.holding.parts  # a time slice may be of any GPU
                num_gpus += sum(part.milli for part in parts) / WHOLE_MILLI + (held.units - len(parts)) / units_per_gpu
        return num_gpus

    def doubts(self, node: str) -> list[str]:
        """Return sentences about implausible reports of what pods were given; their assignments count instead."""
        offer = self.offer_of(node)
        if offer.unit is not GpuUnit.WHOLE and offer.unit not in SLICES:
            return []
        doubts, holders_of = [], defaultdict[str, list[str]](list)
        for allocation in self.allocations.on(node):
            uuids = self.given.of(node, allocation.pod, allocation.uid) or ()
            if uuids and allocation.given_by_kubelet is None:
                given = ", ".join(uuids)[:200]
                doubts.append(f"{allocation.pod} can't have {given}: not as many GPUs of this node as it requests")
            for uuid in uuids:
                holders_of[uuid].append(allocation.pod)
                holders = list(dict.fromkeys(holders_of[uuid]))
                if len(holders_of[uuid]) > offer.units_per_gpu and len(holders) > 1:
                    all_ = "both" if len(holders) == 2 else "all"
                    doubts.append(f"{' and '.join(holders)} are {all_} reported to have {uuid}: {all_} count")
        return doubts[:_MAX_DOUBTS]

    def without(self, node: str, uids: Collection[str], *, if_open: bool = False) -> Cluster | None:
        """Return the cluster of a node alone without these pods, None if unknown; with `if_open` as if not closed."""
        row = self.arrays.row_of.get(node)
        if row is None:
            return None
        occupancy = self._occupancy(row, node, uids)
        if not if_open:
            return self.arrays.alone(row, self._held_on(node, occupancy))
        return replace(self.arrays.alone(row, occupancy.held_amounts), closed=np.zeros(1, np.bool_))

    def extended(self, added: Iterable[objects.Node]) -> Cluster:
        """Return the cluster with further empty nodes; these rows stay as they are."""
        arrays = deepcopy(self.arrays)
        for node in added:
            offer = self._read_devices(node)  # a copy of a quarantined node is not quarantined
            occupancy = Occupancy(offer)
            occupancy.book(())
            row = arrays.set_node(node.metadata.name, offer)
            arrays.set_held(row, occupancy.held_amounts)
            arrays.set_capacity(row, *read_capacity(node))
            arrays.set_compute(row, *read_capacity(node))
        return arrays.snapshot()

    def without_holders(self) -> "NodeRows":
        """Return the rows without allocations, for `extended` in another process."""
        other = NodeRows(self._reading, 0.0)
        other.arrays = self.arrays
        return other

    # Writing

    def upsert(self, node: objects.Node) -> bool:
        """Add or update a node; return whether its offer has changed."""
        name = node.metadata.name
        known, plugin = self._nodes.get(name), plugin_of(node)
        self._nodes[name] = _Node(node, plugin, *read_capacity(node))
        if known is None or plugin is not known.plugin:
            for allocation in self.allocations.on(name):
                allocation.holding = allocation.holding_on(plugin)
            self.write(name)
        offer, row = self._read_offer(node), self.arrays.row_of.get(name)
        changed = row is None or self.arrays.offer(row) != offer
        if changed:
            self.arrays.set_node(name, offer)
        self.arrays.set_capacity(self.arrays.row_of[name], *read_capacity(node))
        self._write_compute(name)
        return changed

    def remove(self, name: str) -> None:
        """Remove a node. Its allocations stay, in case it comes back."""
        if self._nodes.pop(name, None) is not None:
            self.written.add(name)
            self.arrays.remove_node(name)
            self.mistaken.pop(name, None)
            self.given.forget(name)

    def request(self, uid: str, node: str, cpu_milli: int, memory_mib: int) -> str:
        """Set a pod's CPU and memory requests on a node, none if `node` is ""; return its previous node or ""."""
        before, now = self._requested.pop(uid, None), (node, cpu_milli, memory_mib)
        if node:
            self._requested[uid] = now
        if before == now:
            return node
        if before is not None:
            self._add_requested(before[0], -before[1], -before[2])
        if node:
            self._add_requested(*now)
        return before[0] if before is not None else ""

    def write(self, node: str) -> None:
        """Recompute a node's row from its allocations, rather than by increments that could drift."""
        self.written.add(node)
        row = self.arrays.row_of.get(node)
        if row is None:
            return
        occupancy = self._occupancy(row, node)
        (self._overbooked.add if occupancy.overbooked else self._overbooked.discard)(node)
        self.arrays.set_held(row, self._held_on(node, occupancy))
        self.arrays.set_closed(row, closed=node in self.closed)
        if self.owned is not None:
            self.arrays.set_devices(row, self.owned.devices_on(node))
        if mistaken := [allocation for allocation in self.allocations.on(node) if allocation.mistaken]:
            self.mistaken[node] = mistaken
        else:
            self.mistaken.pop(node, None)

    def close(self, nodes: Collection[str]) -> None:
        """Allocate no GPUs of these nodes from now on, and reopen all others. What is held stays held."""
        before, self.closed = self.closed, frozenset(nodes)
        for node in sorted(before ^ self.closed):
            self.write(node)

    def _held_on(self, node: str, occupancy: Occupancy) -> HeldAmounts:
        """Return what is held on a node: everything if it is closed."""
        return occupancy.fully_held if node in self.closed else occupancy.held_amounts

    def _add_requested(self, node: str, cpu_milli: int, memory_mib: int) -> None:
        cpu_before, memory_before = self._requested_on.get(node, (0, 0))
        self._requested_on[node] = cpu_before + cpu_milli, memory_before + memory_mib
        self._write_compute(node)

    def _write_compute(self, node: str) -> None:
        known, (cpu_milli, memory_mib) = self._nodes.get(node), self._requested_on.get(node, (0, 0))
        if known is not None and node in self.arrays.row_of:
            row = self.arrays.row_of[node]
            self.arrays.set_compute(row, known.cpu_milli - cpu_milli, known.memory_mib - memory_mib)

    def _read_offer(self, node: objects.Node) -> NodeOffer:
        """Return a node's offer, with its quarantine applied."""
        return as_noted(self._read_devices(node), node, self._reading)

    def _read_devices(self, node: objects.Node) -> NodeOffer:
        """Return the GPUs that the kubelet offers, else those in plugins' own objects."""
        offer = read_offer(node, self._reading)
        allocatable = node.status.allocatable or {}
        # The kubelet keeps reporting 0 for the resource of a plugin that is gone.
        reported = any(str(allocatable.get(name, "0")) != "0" for name in GPU_RESOURCES)
        if reported or offer.unit is GpuUnit.PART:
            return offer
        stocked = (stock.offer_of(node.metadata.name) for stock in self.stocks)
        return next((devices for devices in stocked if devices is not None), offer)

    def _occupancy(self, row: int, node: str, without: Collection[str] = ()) -> Occupancy:
        """Return the sums of a node's allocations, leaving out some pods'."""
        offer = self.arrays.offer(row)
        occupancy = Occupancy(offer)
        holdings = []
        for allocation in self.holders(node):
            if allocation.uid not in without:
                given = self.given.of(node, allocation.pod, allocation.uid)
                allocation.given_by_kubelet = None if given is None else occupancy.as_given(allocation.holding, given)
                holdings.append(allocation.held)
        if offer.unit in OF_CLAIMS:
            holdings += [holding for stock in self.stocks for holding in stock.holdings_on(node)]
        occupancy.book(holdings)
        return occupancy

    def _is_stocked(self, allocation: PodAllocation) -> bool:
        """Whether a stock accounts for its devices: ResourceClaims' devices outlive a pod, or serve several."""
        return allocation.state is AllocationState.BOUND or any(stock.serves(allocation.uid) for stock in self.stocks)
