"""Who holds which GPU: pods that are bound, bindings under way, and short reservations.

One writer (the event loop) applies what the watch tells and what decisions reserve. A claim moves one way:
RESERVED by the call that decides, BINDING while the API server is asked, UNDECIDED when its answer is lost, BOUND for
as long as the pod exists.

What a bound pod holds is what it was first known to hold: what this process wrote with the Binding, else what the watch
told first. Authors may edit their pods' annotations later; that changes nothing here.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from extender.cluster import objects
from extender.cluster.arrays import ClusterArrays
from extender.cluster.claims import DevicePools
from extender.cluster.contracts.native import GivenGpus, read_given
from extender.cluster.contracts.readers import Plugin, read_plugin
from extender.cluster.contracts.readings import NodeReading
from extender.cluster.cycles import Cycles
from extender.cluster.holdings import NOTHING, Holding, either
from extender.cluster.inventories import read_capacity, read_offer
from extender.cluster.occupancies import Occupancy
from extender.cluster.orphans import MIRROR, Orphans
from extender.cluster.pods import Reading, completed, read_compute, read_holdings, read_pod_request, read_policy
from extender.core.clusters import Cluster
from extender.core.nodes import GPU_RESOURCE, NO_GPUS, SHARED_GPU_RESOURCE, GpuUnit, NodeOffer
from extender.core.requests import PodRequest


class ClaimState(Enum):
    """How firm a claim is."""

    RESERVED = auto()
    """Decided, not yet asked to bind: ends with its TTL."""
    BINDING = auto()
    """The API server is being asked: ends with its answer."""
    UNDECIDED = auto()
    """Asked, with no answer: may take effect yet, so it is given away only once the pod has told."""
    BOUND = auto()
    """The pod has its node: ends with the pod."""


@dataclass(slots=True, eq=False)
class Claim:
    """GPUs of one node held for one pod."""

    uid: str
    node: str
    holding: Holding
    state: ClaimState
    since: float
    """Monotonic time of the last change of state."""
    pod: str = ""
    """`namespace/name`, once the watch has told of it."""
    decided: Holding | None = None
    """What this process has sent with a Binding, None where somebody else's counts."""
    told: Reading | None = None
    """What the pod said when it was first seen with its node."""
    disputed: bool = False
    """Whether `told` may be as true as `decided`: nobody can say whose Binding took effect."""

    def holding_on(self, plugin: Plugin) -> Holding:
        """What it comes to on a node of a plugin."""
        if self.told is None or (self.decided is not None and not self.disputed):
            return self.holding if self.decided is None else self.decided
        told = self.told.on(plugin)
        return told if self.decided is None else either(self.decided, told)

    @property
    def units(self) -> int:
        """GPU units held, whether or not their indices are known."""
        return self.holding.units

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs held, as far as they are known."""
        return self.holding.gpus

    def holds(self, node: str, holding: Holding) -> bool:
        """Whether it is a claim to just this."""
        return self.node == node and self.holding == holding


class NodeState(NamedTuple):
    """What a Binding to a node rests on."""

    offer: NodeOffer
    crowded: bool
    """Whether what is held there does not all have room, or GPUs of its own."""


@dataclass(slots=True)
class _Compute:
    """CPU in milli and main memory in MiB."""

    cpu_milli: int = 0
    memory_mib: int = 0


class Ledger:
    """The cluster as Kerf knows it. Not thread-safe; every method returns at once."""

    def __init__(
        self,
        *,
        reservation_ttl_s: float,
        memory_tolerance_frac: float = 0.02,
        model_aliases: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._ttl_s = reservation_ttl_s
        self._reading = NodeReading(memory_tolerance_frac, model_aliases or {})
        self._arrays = ClusterArrays()
        self._claims: dict[str, Claim] = {}
        self._claims_on: dict[str, dict[str, Claim]] = {}
        self._passing: deque[tuple[float, Claim]] = deque()  # claims with a TTL and when it may end, in that order
        self._seen_pods: set[str] = set()
        self._crowded: set[str] = set()  # nodes whose claims don't all have room, or GPUs of their own
        self._pools = DevicePools(self._reading)
        self._nodes: dict[str, objects.Node] = {}
        self._plugins: dict[str, Plugin] = {}  # by node
        self._given = GivenGpus()
        self._told: dict[str, Reading] = {}  # by pod with a node: what it said first
        self._edited: dict[str, Reading] = {}  # by pod: what it says instead, and in vain
        self._orphans = Orphans()
        self._capacity: dict[str, _Compute] = {}  # by node
        self._requested: dict[str, tuple[str, int, int]] = {}  # by pod: node, CPU milli, memory MiB
        self._requested_on: dict[str, _Compute] = {}  # by node; whole numbers, so that the sums can't drift
        self.cycles = Cycles(self.release)
        """What gangs were told that are not being bound yet."""
        self.num_unreadable = 0
        """Pods and nodes, counted at each change, of which something could not be read and was taken as held."""
        self.num_edits_ignored = 0
        """Edits of bound pods that would have changed what they hold."""

    # Reading

    def snapshot(self, now: float) -> Cluster:
        """The cluster at this moment, reservations past their TTL left out."""
        self._expire(now)
        return self._arrays.snapshot()

    def claim(self, uid: str) -> Claim | None:
        """What is held for a pod."""
        return self._claims.get(uid)

    def claims_on(self, node: str) -> list[Claim]:
        """What is held on a node."""
        return [claim for claim in self._claims_on.get(node, {}).values() if claim.holding]

    def without(self, node: str, uids: Collection[str], now: float) -> Cluster | None:
        """A node alone, as it would be if these pods were gone; None when it is not known."""
        self._expire(now)
        row = self._arrays.row_of.get(node)
        if row is None:
            return None
        occupancy = self._occupancy(row, node, uids)
        return self._arrays.alone(row, occupancy.held, occupancy.untracked, occupancy.mig)

    def extended(self, added: Iterable[objects.Node], now: float) -> Cluster:
        """The cluster with more nodes, nobody on them; the ledger's own arrays stay as they are."""
        self._expire(now)
        arrays = deepcopy(self._arrays)
        for node in added:
            offer = self._read_offer(node)
            occupancy = Occupancy(offer)
            occupancy.settle()
            row = arrays.set_node(node.metadata.name, offer)
            arrays.set_held(row, occupancy.held, occupancy.untracked, occupancy.mig)
            arrays.set_capacity(row, *read_capacity(node))
            arrays.set_compute(row, *read_capacity(node))
        return arrays.snapshot()

    def num_claimed(self) -> Mapping[str, int]:
        """How many devices ResourceClaims hold, by their namespace."""
        return self._pools.num_allocated

    def apart(self, now: float) -> "Ledger":
        """The nodes and what is held of them now, without who holds it: for `extended` in another process."""
        self._expire(now)
        other = Ledger(reservation_ttl_s=self._ttl_s)
        other._reading, other._arrays = self._reading, self._arrays
        return other

    def num_claims(self, state: ClaimState) -> int:
        """How many claims are in a state."""
        return sum(claim.state is state for claim in self._claims.values())

    @property
    def arrays(self) -> ClusterArrays:
        """The arrays that snapshots are taken of, for observations to be written into."""
        return self._arrays

    @property
    def num_crowded(self) -> int:
        """Nodes on which more is held than they have, or the same GPU by two."""
        return len(self._crowded & self._arrays.row_of.keys())

    def plugin_on(self, node: str) -> Plugin:
        """Whose contract a node's device plugin follows."""
        return self._plugins.get(node, Plugin.NATIVE)

    def offer_of(self, node: str) -> NodeOffer:
        """What a node offers; nothing where it is not known."""
        row = self._arrays.row_of.get(node)
        return NO_GPUS if row is None else self._arrays.offer(row)

    def state_of(self, node: str) -> NodeState:
        """What a node offers, and whether that is enough for all that is held there."""
        return NodeState(self.offer_of(node), node in self._crowded)

    def read_request(self, pod: objects.Pod) -> PodRequest:
        """What a pod asks for. Raises RequestError with a sentence for its author."""
        request = read_pod_request(pod)
        if request.gpus is None and pod.spec.resource_claims:
            return completed(replace(request, gpus=self._pools.request_of(pod), policy=read_policy(pod)), pod)
        return request

    # What the watch tells

    def upsert_node(self, node: objects.Node) -> tuple[str, ...]:
        """A node was added or changed. Returns warnings about values that can't be understood."""
        name = node.metadata.name
        self._nodes[name] = node
        offer = self._read_offer(node)
        row = self._arrays.row_of.get(name)
        self._capacity[name] = _Compute(*read_capacity(node))
        self._orphans.set_ready(name, ready=node.ready)
        given, faults = read_given(node.metadata.annotations or {})
        uids = {claim.pod: claim.uid for claim in self._claims_on.get(name, {}).values() if claim.pod}
        moved = self._given.set(name, given, uids)
        plugin = read_plugin(node)
        if plugin is not self._plugins.get(name):
            self._plugins[name] = plugin
            for claim in self._claims_on.get(name, {}).values():
                claim.holding = claim.holding_on(plugin)
            moved = True
        if row is not None and self._arrays.offer(row) == offer:
            if moved:
                self._write_row(name)
            self._write_capacity(row, name)
            return faults if moved else ()  # most events are heartbeats
        for claim in list(self._claims_on.get(name, {}).values()):
            if claim.state is ClaimState.RESERVED:
                self._drop(claim.uid)  # decided on what the node offered before
                self._forget_requested(claim.uid)
        row = self._arrays.set_node(name, offer)
        self._write_row(name)
        self._write_capacity(row, name)
        warnings = (*offer.warnings, *faults)
        self.num_unreadable += bool(warnings)
        return warnings

    def remove_node(self, name: str) -> None:
        """A node is gone. Claims on it stay, in case it comes back."""
        if name in self._arrays.row_of:
            self._arrays.remove_node(name)
            for facts in (self._nodes, self._capacity, self._plugins):
                facts.pop(name, None)
            self._given.forget(name)
            self._orphans.set_ready(name, ready=True)

    def node_names(self) -> list[str]:
        """The nodes known."""
        return list(self._arrays.row_of)

    def upsert_pod(self, pod: objects.Pod, now: float) -> tuple[str, ...]:
        """A pod was added or changed, whoever scheduled it. Returns warnings about values that can't be understood, and
        about edits that change nothing."""
        uid = pod.metadata.uid
        self._seen_pods.add(uid)
        if pod.finished:
            self._forget(uid)
            return ()
        node = pod.spec.node_name
        if not node:
            return ()
        self._set_requested(uid, node, *read_compute(pod.spec))
        reading, fault = read_holdings(pod)
        if uid in self._told:
            return self._warn_of_edit(uid, reading)
        known = self._claims.get(uid)
        if known is None or known.node != node or known.state is ClaimState.RESERVED:
            self._drop(uid)
            known = Claim(uid, node, reading.on(self.plugin_on(node)), ClaimState.BOUND, now, pod.key, told=reading)
            if any(reading):
                self._add(known)
        else:
            self._confirm(known, pod, reading, now)
        self._told[uid] = known.told or reading
        if MIRROR in (pod.metadata.annotations or ()):
            self._orphans.note(uid)
            self._drop_orphans(node, pod.key, reading)
        self.num_unreadable += bool(fault)
        return (fault,) if fault else ()

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, and what it held is free; not that of a static pod, which its kubelet runs on."""
        claim = self._claims.get(uid)
        if claim is None or not self._orphans.adopt(uid, claim.node, claim.pod):
            self._forget(uid)
        self._seen_pods.discard(uid)

    def keep_pods(self, listed: set[str], list_began: float) -> None:
        """Pods that a complete list, begun at that time, does not name are gone."""
        self._given.starting = False
        for uid in self._seen_pods - listed:
            self.remove_pod(uid)
        for claim in list(self._claims.values()):
            # Bound by Kerf before the list began and never seen: it came and went between two watches.
            if claim.state is ClaimState.BOUND and claim.uid not in listed and claim.since < list_began:
                self.remove_pod(claim.uid)

    def upsert_slice(self, item: objects.ResourceSlice) -> None:
        """A ResourceSlice was added or changed."""
        self._restock(self._pools.upsert_slice(item))

    def remove_slice(self, uid: str) -> None:
        """A ResourceSlice is gone."""
        self._restock(self._pools.remove_slice(uid))

    def keep_slices(self, listed: set[str]) -> None:
        """ResourceSlices that a complete list does not name are gone."""
        self._restock(self._pools.keep_slices(listed))

    def upsert_resource_claim(self, claim: objects.ResourceClaim) -> None:
        """A ResourceClaim was added or changed."""
        self._restock(self._pools.upsert_claim(claim))

    def remove_resource_claim(self, uid: str) -> None:
        """A ResourceClaim is gone."""
        self._restock(self._pools.remove_claim(uid))

    def keep_resource_claims(self, listed: set[str]) -> None:
        """ResourceClaims that a complete list does not name are gone."""
        self._restock(self._pools.keep_claims(listed))

    # What decisions do

    def reserve(
        self, uid: str, node: str, holding: Holding, now: float, *, cpu_milli: int = 0, memory_mib: int = 0
    ) -> None:
        """Hold GPUs for a pod that was decided on, for the TTL; replaces an earlier reservation of the same pod.

        A pod that is bound or being bound keeps what it has. With CPU or memory the pod counts among the node's
        requests from now on, as it will once the watch has told of it.
        """
        if self._settled(uid):
            return
        self._drop(uid)
        claim = Claim(uid, node, holding, ClaimState.RESERVED, now)
        self._add(claim)
        if cpu_milli or memory_mib:
            self._set_requested(uid, node, cpu_milli, memory_mib)
        self._passing.append((now + self._ttl_s, claim))

    def release(self, uid: str) -> None:
        """Give back what a pod has reserved; what is bound or being bound stays."""
        if not self._settled(uid):
            self._drop(uid)
            self._forget_requested(uid)

    def is_reserved(self, uid: str, node: str) -> bool:
        """Whether a pod's reservation on a node stands: whatever came to that node since leaves room for it."""
        claim = self._claims.get(uid)
        return (
            claim is not None
            and claim.state is ClaimState.RESERVED
            and claim.node == node
            and node in self._arrays.row_of
            and node not in self._crowded
        )

    def renew(self, uid: str, node: str, now: float) -> bool:
        """Begin the TTL of a pod's reservation on a node anew, if it stands; whether it does."""
        self._expire(now)
        if not self.is_reserved(uid, node):
            return False
        claim = self._claims[uid]
        claim.since = now
        self._passing.append((now + self._ttl_s, claim))
        return True

    def begin_binding(self, uid: str, node: str, holding: Holding, now: float) -> Claim:
        """Hold GPUs for a pod while the API server is asked to bind it. The claim is the caller's to end."""
        self.cycles.begin_binding(uid)
        known = self._claims.get(uid)
        if known is not None and known.holds(node, holding):
            known.state, known.since, known.decided = ClaimState.BINDING, now, holding
            return known
        self._drop(uid)
        claim = Claim(uid, node, holding, ClaimState.BINDING, now, decided=holding)
        self._add(claim)
        return claim

    def end_binding(self, claim: Claim, outcome: ClaimState | None, now: float) -> None:
        """The API server has answered: BOUND, None for not bound, or UNDECIDED when nobody knows yet.

        What is undecided ends by a second call, which knows the node and not whose Binding it was. Where the watch has
        told meanwhile of a pod that says something else, that counts if this Binding has failed.
        """
        if self._claims.get(claim.uid) is not claim or claim.state not in (ClaimState.BINDING, ClaimState.UNDECIDED):
            return
        told = self._told.get(claim.uid)
        if outcome is None and told is None:
            self._drop(claim.uid)
            self._forget_requested(claim.uid)
            return
        if outcome is None:
            outcome, claim.decided, claim.told = ClaimState.BOUND, None, told
        elif outcome is ClaimState.BOUND:
            claim.disputed = claim.state is ClaimState.UNDECIDED
        claim.state, claim.since = outcome, now
        self._settle(claim)

    def hold_as_read(self, pod: objects.Pod, now: float) -> Claim | None:
        """Hold what a pod says that was read and has a node, UNDECIDED until the watch or a second look tells.

        What was held for it on that node so far is held besides: it may be this process' own Binding, and its author
        faster than its answer. None when it holds nothing, has ended, or the watch has told already.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self._claims.get(uid)
        if not node or (known is not None and known.state is ClaimState.BOUND):
            return None
        self._drop(uid)
        if pod.finished:
            self._forget_requested(uid)
            return None
        decided = known.decided if known is not None and known.node == node else None
        told = self._told.get(uid) or read_holdings(pod)[0]
        claim = Claim(
            uid, node, NOTHING, ClaimState.UNDECIDED, now, decided=decided, told=told, disputed=decided is not None
        )
        claim.holding = claim.holding_on(self.plugin_on(node))
        if not any(told) and decided is None:
            return None
        self._add(claim)
        return claim

    # Inside

    def _confirm(self, claim: Claim, pod: objects.Pod, reading: Reading, now: float) -> None:
        """The watch tells for the first time that a pod has the node which this process has chosen for it."""
        claim.pod = pod.key
        claim.told = claim.told or reading
        if claim.state is not ClaimState.BOUND:
            same = claim.decided in (None, claim.told.on(self.plugin_on(claim.node)))
            if same or claim.state is ClaimState.UNDECIDED:
                claim.state, claim.since = ClaimState.BOUND, now
            claim.disputed = not same  # until the answer tells whose Binding that was, if it ever does
        self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        """Work out anew what a claim comes to."""
        holding = claim.holding_on(self.plugin_on(claim.node))
        devices = self.offer_of(claim.node).unit is GpuUnit.CLAIM and claim.state is ClaimState.BOUND
        if claim.told is not None and not any(claim.told) and (devices or claim.decided is None):
            self._drop(claim.uid)  # devices of ResourceClaims are not the pod's
        elif holding != claim.holding or self._given.of(claim.node, claim.pod, claim.uid) is not None:
            claim.holding = holding
            self._write_row(claim.node)

    def _warn_of_edit(self, uid: str, reading: Reading) -> tuple[str, ...]:
        """What is told when a bound pod says something else than it did; once for each edit."""
        if reading == self._told[uid]:
            self._edited.pop(uid, None)
        elif reading != self._edited.get(uid):
            self._edited[uid] = reading
            self.num_edits_ignored += 1
            return ("what it holds was edited after it was bound: ignored",)
        return ()

    def _forget(self, uid: str) -> None:
        """A pod holds nothing any more, and will not come back."""
        for facts in (self._told, self._edited):
            facts.pop(uid, None)
        self._orphans.forget(uid)
        self._drop(uid)
        self._set_requested(uid, "", 0, 0)

    def _drop_orphans(self, node: str, pod: str, reading: Reading) -> None:
        """A static pod's mirror is back: the one before it holds nothing beside it, if this one says the same. What
        says less may be anybody's, for whoever may create pods may write that one is a mirror."""
        for uid in self._orphans.of(node, pod):
            if self._told.get(uid) == reading:
                self._forget(uid)

    def _given_to(self, claim: Claim) -> tuple[str, ...] | None:
        """What the kubelet says to have given a pod."""
        return self._given.of(claim.node, claim.pod, claim.uid) if claim.pod else None

    def _read_offer(self, node: objects.Node) -> NodeOffer:
        """What a node offers; ResourceSlices tell where the kubelet offers no GPUs."""
        offer = read_offer(node, self._reading)
        claimed = self._pools.offer_of(node.metadata.name)
        allocatable = node.status.allocatable or {}
        by_kubelet = GPU_RESOURCE in allocatable or SHARED_GPU_RESOURCE in allocatable or offer.unit is GpuUnit.PART
        return offer if claimed is None or by_kubelet else claimed

    def _restock(self, nodes: set[str]) -> None:
        """Something of these nodes' ResourceSlices, or of what is allocated of them, has changed."""
        for name in nodes & self._nodes.keys():
            self.upsert_node(self._nodes[name])
            self._write_row(name)

    def _settled(self, uid: str) -> bool:
        claim = self._claims.get(uid)
        return claim is not None and claim.state is not ClaimState.RESERVED

    def _expire(self, now: float) -> None:
        self.cycles.expire(now)
        for uid in self._orphans.expired(now):
            self._forget(uid)
        while self._passing and self._passing[0][0] <= now:
            _, claim = self._passing.popleft()
            reserved = self._claims.get(claim.uid) is claim and claim.state is ClaimState.RESERVED
            if reserved and claim.since + self._ttl_s <= now:
                self._drop(claim.uid)
                self._forget_requested(claim.uid)

    def _forget_requested(self, uid: str) -> None:
        """A pod that the watch has not told of requests nothing any more."""
        if uid not in self._seen_pods:
            self._set_requested(uid, "", 0, 0)

    def _add(self, claim: Claim) -> None:
        if claim.pod:
            self._given.meet(claim.node, claim.pod, claim.uid)
        self._claims[claim.uid] = claim
        self._claims_on.setdefault(claim.node, {})[claim.uid] = claim
        self._write_row(claim.node)

    def _drop(self, uid: str) -> None:
        claim = self._claims.pop(uid, None)
        if claim is None:
            return
        on_node = self._claims_on[claim.node]
        del on_node[uid]
        if not on_node:
            del self._claims_on[claim.node]
        self._write_row(claim.node)

    def _set_requested(self, uid: str, node: str, cpu_milli: int, memory_mib: int) -> None:
        """A pod requests so much CPU and main memory of a node; nothing when `node` is ""."""
        before, now = self._requested.get(uid), (node, cpu_milli, memory_mib)
        if before == now or (before is None and not node):
            return
        if before is not None:
            del self._requested[uid]
            self._add_requested(before[0], -before[1], -before[2])
        if node:
            self._requested[uid] = now
            self._add_requested(*now)

    def _add_requested(self, node: str, cpu_milli: int, memory_mib: int) -> None:
        total = self._requested_on.setdefault(node, _Compute())
        total.cpu_milli += cpu_milli
        total.memory_mib += memory_mib
        self._write_compute(node)

    def _write_compute(self, node: str) -> None:
        row, capacity = self._arrays.row_of.get(node), self._capacity.get(node)
        if row is not None and capacity is not None:
            requested = self._requested_on.get(node) or _Compute()
            self._arrays.set_compute(
                row, capacity.cpu_milli - requested.cpu_milli, capacity.memory_mib - requested.memory_mib
            )

    def _write_capacity(self, row: int, node: str) -> None:
        capacity = self._capacity[node]
        self._arrays.set_capacity(row, capacity.cpu_milli, capacity.memory_mib)
        self._write_compute(node)

    def _write_row(self, node: str) -> None:
        """Work out a node's occupancy afresh from its claims: nothing is added up that could drift."""
        row = self._arrays.row_of.get(node)
        if row is None:
            return
        occupancy = self._occupancy(row, node)
        if occupancy.crowded:
            self._crowded.add(node)
        else:
            self._crowded.discard(node)
        self._arrays.set_held(row, occupancy.held, occupancy.untracked, occupancy.mig)

    def _occupancy(self, row: int, node: str, without: Collection[str] = ()) -> Occupancy:
        """What the claims on a node come to, those of some pods left out."""
        offer = self._arrays.offer(row)
        occupancy = Occupancy(offer)
        told = self._given.says(node)
        holdings = [
            occupancy.as_given(claim.holding, given) if told and (given := self._given_to(claim)) else claim.holding
            for claim in self._claims_on.get(node, {}).values()
            if claim.uid not in without
            # Devices that are allocated belong to ResourceClaims, which outlive a pod or serve several.
            and (
                offer.unit is not GpuUnit.CLAIM
                or not (claim.state is ClaimState.BOUND or self._pools.is_served(claim.uid))
            )
        ]
        if offer.unit is GpuUnit.CLAIM:
            holdings += self._pools.holdings_on(node)
        for holding in holdings:
            occupancy.add_shares(holding)
        for holding in holdings:
            occupancy.add_whole(holding)
        occupancy.settle()
        return occupancy
