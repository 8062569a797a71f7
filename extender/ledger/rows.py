"""What nodes offer, and what the claims on them leave, written into the cluster's arrays node by node.

What kubelets really gave, node by node (`kerf.GIVEN`), and to which pod each name belongs.
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
from extender.ledger.arrays import ClusterArrays, Held
from extender.ledger.claims import Claim, Claims, ClaimState, Occupancy
from extender.plugins.kerf import Given
from extender.plugins.nodes import as_noted, read_capacity, read_offer
from extender.plugins.protocol import DevicePlugin
from extender.plugins.registry import NATIVE, plugin_of, plugins


class _GivenGpus:
    """UUIDs of the GPUs that pods were given."""

    def __init__(self) -> None:
        self._given: dict[str, Given] = {}
        self._faults: dict[str, tuple[str, ...]] = {}
        self._owner: dict[str, dict[str, str]] = {}  # by node and `namespace/name`: the UID, "" for nobody
        self.starting = True
        """Whether pods may be told of that were there when an entry was written: until they were all listed once."""

    def set(self, node: str, given: Given, uids: Mapping[str, str], faults: tuple[str, ...] = ()) -> bool:
        """A node says so; `uids` are those of its pods by name, `faults` what of it can't be read. Whether it says
        something else than before."""
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

    def meet(self, node: str, name: str, uid: str) -> None:
        """A pod is told of for the first time."""
        if self.starting and name in self._given.get(node, ()):
            self._owner[node].setdefault(name, uid)

    def of(self, node: str, name: str, uid: str) -> tuple[str, ...] | None:
        """What a pod was given, None where that is not told."""
        given = self._given.get(node)
        if not given or not name:
            return None
        by_name = given.get(name) if self._owner[node].get(name) == uid else None
        return given.get(uid, by_name)

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._given.pop(node, None)
        self._faults.pop(node, None)
        self._owner.pop(node, None)


_MAX_DOUBTS: Final = 8


class NodeState(NamedTuple):
    """What a Binding to a node rests on."""

    offer: NodeOffer
    crowded: bool
    """Whether what is held there does not all have room, or GPUs of its own."""


@dataclass(slots=True)
class _Node:
    manifest: objects.Node
    plugin: DevicePlugin
    cpu_milli: int
    memory_mib: int


class NodeRows:
    """Nodes as rows. Not thread-safe."""

    def __init__(self, reading: NodeReading, reservation_ttl_s: float) -> None:
        self._reading = reading
        self.arrays = ClusterArrays()
        self.claims = Claims(reservation_ttl_s, self.write)
        self.given = _GivenGpus()
        self.stocks = tuple(stock for plugin in plugins() if (stock := plugin.stock(reading)) is not None)
        """What device plugins tell by objects of their own."""
        self.pools = next(iter(self.stocks), None)
        """Devices of ResourceClaims, None where the plugin for them is not there."""
        self.owned = self.pools.owned if self.pools is not None else None
        """The devices that Kerf allocates to ResourceClaims, None where it allocates none."""
        self._nodes: dict[str, _Node] = {}
        self.mistaken: dict[str, list[Claim]] = {}
        """By node: whose pods say that they have other GPUs than they were given."""
        self._crowded: set[str] = set()  # nodes whose claims don't all have room, or GPUs of their own
        self.written: set[str] = set()
        """Nodes of which something was given, taken back, or offered in another way, since somebody took these."""
        self.closed: frozenset[str] = frozenset()
        """Nodes of which nothing is given away, whatever of their GPUs is free."""
        self._requested: dict[str, tuple[str, int, int]] = {}  # by pod: node, CPU milli, memory MiB
        self._requested_on: dict[str, tuple[int, int]] = {}  # by node; whole numbers, so that sums can't drift

    # Reading

    def heed_notes(self) -> None:
        """Nodes that Kerf has noted as set aside take no new pods from now on."""
        self._reading = replace(self._reading, sets_aside=True)

    def names(self) -> list[str]:
        """The nodes known."""
        return list(self._nodes)

    def manifest(self, node: str) -> objects.Node | None:
        """A node as it was last told, None where it is not known."""
        known = self._nodes.get(node)
        return known.manifest if known else None

    def plugin_on(self, node: str) -> DevicePlugin:
        """Whose a node's GPUs are."""
        known = self._nodes.get(node)
        return known.plugin if known else NATIVE

    def offer_of(self, node: str) -> NodeOffer:
        """What a node offers; nothing where it is not known."""
        row = self.arrays.row_of.get(node)
        return NO_GPUS if row is None else self.arrays.offer(row)

    def state_of(self, node: str) -> NodeState:
        """What a node offers, and whether that is enough for all that is held there."""
        return NodeState(self.offer_of(node), node in self._crowded)

    @property
    def num_crowded(self) -> int:
        """Nodes on which more is held than they have, or the same GPU by two."""
        return len(self._crowded & self._nodes.keys())

    def holders(self, node: str) -> list[Claim]:
        """Claims on a node, without those whose devices are ResourceClaims': these are a stock's to tell."""
        of_claims = self.offer_of(node).unit in OF_CLAIMS
        return [claim for claim in self.claims.on(node) if not (of_claims and self._is_stocked(claim))]

    def reserved_gpus(self, node: str) -> frozenset[int]:
        """Indices of a node's GPUs that are held for pods not yet asked to bind."""
        reserved = (claim for claim in self.claims.on(node) if claim.state is ClaimState.RESERVED)
        return frozenset(index for claim in reserved for index in claim.gpus)

    def num_reserved(self, node: str) -> float:
        """How many of a node's GPUs that are; half of one counts as 0.5."""
        of_gpu = max(self.offer_of(node).units_per_gpu, 1)
        found = 0.0
        for claim in self.claims.on(node):
            if claim.state is ClaimState.RESERVED:
                parts = () if of_gpu > 1 else claim.holding.parts  # of time slices any may be of any GPU
                found += sum(part.milli for part in parts) / WHOLE_MILLI + (claim.units - len(parts)) / of_gpu
        return found

    def doubts(self, node: str) -> list[str]:
        """What can't be true of what is told that pods of a node were given; what is assigned counts instead."""
        offer = self.offer_of(node)
        if offer.unit is not GpuUnit.WHOLE and offer.unit not in SLICES:
            return []
        doubts, holders_of = [], defaultdict[str, list[str]](list)
        for claim in self.claims.on(node):
            uuids = self.given.of(node, claim.pod, claim.uid) or ()
            if uuids and claim.given is None:
                doubts.append(f"{claim.pod} can't have {_shown(uuids)}: not as many GPUs of this node as it asks")
            for uuid in uuids:
                holders_of[uuid].append(claim.pod)
                holders = list(dict.fromkeys(holders_of[uuid]))
                if len(holders_of[uuid]) > offer.units_per_gpu and len(holders) > 1:
                    all_ = "both" if len(holders) == 2 else "all"
                    doubts.append(f"{' and '.join(holders)} are {all_} said to have {uuid}: {all_} count")
        return doubts[:_MAX_DOUBTS]

    def without(self, node: str, uids: Collection[str], *, if_open: bool = False) -> Cluster | None:
        """A node alone, as it would be if these pods were gone, with `if_open` even if it is closed; None when it is
        not known."""
        row = self.arrays.row_of.get(node)
        if row is None:
            return None
        occupancy = self._occupancy(row, node, uids)
        if not if_open:
            return self.arrays.alone(row, self._left(node, occupancy))
        return replace(self.arrays.alone(row, occupancy.left), closed=np.zeros(1, np.bool_))

    def extended(self, added: Iterable[objects.Node]) -> Cluster:
        """The cluster with more nodes, nobody on them; these rows stay as they are."""
        arrays = deepcopy(self.arrays)
        for node in added:
            offer = self._read_devices(node)  # one made after a node that is set aside is another one
            occupancy = Occupancy(offer)
            occupancy.book(())
            row = arrays.set_node(node.metadata.name, offer)
            arrays.set_held(row, occupancy.left)
            arrays.set_capacity(row, *read_capacity(node))
            arrays.set_compute(row, *read_capacity(node))
        return arrays.snapshot()

    def apart(self) -> "NodeRows":
        """The rows without who holds what: for `extended` in another process."""
        other = NodeRows(self._reading, 0.0)
        other.arrays = self.arrays
        return other

    # Writing

    def upsert(self, node: objects.Node) -> bool:
        """A node was added or changed. Whether what it offers has."""
        name = node.metadata.name
        known, plugin = self._nodes.get(name), plugin_of(node)
        self._nodes[name] = _Node(node, plugin, *read_capacity(node))
        if known is None or plugin is not known.plugin:
            for claim in self.claims.on(name):
                claim.holding = claim.holding_on(plugin)
            self.write(name)
        offer, row = self._read_offer(node), self.arrays.row_of.get(name)
        changed = row is None or self.arrays.offer(row) != offer
        if changed:
            self.arrays.set_node(name, offer)
        self.arrays.set_capacity(self.arrays.row_of[name], *read_capacity(node))
        self._write_compute(name)
        return changed

    def remove(self, name: str) -> None:
        """A node is gone. Claims on it stay, in case it comes back."""
        if self._nodes.pop(name, None) is not None:
            self.written.add(name)
            self.arrays.remove_node(name)
            self.mistaken.pop(name, None)
            self.given.forget(name)

    def request(self, uid: str, node: str, cpu_milli: int, memory_mib: int) -> str:
        """A pod requests so much CPU and main memory of a node; nothing when `node` is "". The node of which it has
        requested something so far, "" for none."""
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
        """Work out a node's occupancy afresh from its claims: nothing is added up that could drift."""
        self.written.add(node)
        row = self.arrays.row_of.get(node)
        if row is None:
            return
        occupancy = self._occupancy(row, node)
        (self._crowded.add if occupancy.crowded else self._crowded.discard)(node)
        self.arrays.set_held(row, self._left(node, occupancy))
        self.arrays.set_closed(row, closed=node in self.closed)
        if self.owned is not None:
            self.arrays.set_devices(row, self.owned.devices_on(node))
        if mistaken := [claim for claim in self.claims.on(node) if claim.mistaken]:
            self.mistaken[node] = mistaken
        else:
            self.mistaken.pop(node, None)

    def close(self, nodes: Collection[str]) -> None:
        """Give nothing of the GPUs of these nodes away from now on, and open all others. What is held stays held."""
        before, self.closed = self.closed, frozenset(nodes)
        for node in sorted(before ^ self.closed):
            self.write(node)

    def _left(self, node: str, occupancy: Occupancy) -> Held:
        """What is to be had of a node: nothing where it is closed."""
        return occupancy.nothing_left if node in self.closed else occupancy.left

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
        """What a node offers, unless it is set aside."""
        return as_noted(self._read_devices(node), node, self._reading)

    def _read_devices(self, node: objects.Node) -> NodeOffer:
        """A plugin's own objects tell where the kubelet offers no GPUs."""
        offer = read_offer(node, self._reading)
        allocatable = node.status.allocatable or {}
        # Of a plugin that is gone the kubelet goes on telling that it offers none.
        told = any(str(allocatable.get(name, "0")) != "0" for name in GPU_RESOURCES)
        if told or offer.unit is GpuUnit.PART:
            return offer
        stocked = (stock.offer_of(node.metadata.name) for stock in self.stocks)
        return next((found for found in stocked if found is not None), offer)

    def _occupancy(self, row: int, node: str, without: Collection[str] = ()) -> Occupancy:
        """What the claims on a node come to, those of some pods left out."""
        offer = self.arrays.offer(row)
        occupancy = Occupancy(offer)
        holdings = []
        for claim in self.holders(node):
            if claim.uid not in without:
                given = self.given.of(node, claim.pod, claim.uid)
                claim.given = None if given is None else occupancy.as_given(claim.holding, given)
                holdings.append(claim.held)
        if offer.unit in OF_CLAIMS:
            holdings += [holding for stock in self.stocks for holding in stock.holdings_on(node)]
        occupancy.book(holdings)
        return occupancy

    def _is_stocked(self, claim: Claim) -> bool:
        """Whether its devices are among a stock's: those that are allocated outlive a pod, or serve several."""
        return claim.state is ClaimState.BOUND or any(stock.serves(claim.uid) for stock in self.stocks)


def _shown(uuids: tuple[str, ...]) -> str:
    return ", ".join(uuids)[:200]
