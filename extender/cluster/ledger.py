"""Who holds which GPU: pods that are bound, bindings under way, and short reservations.

One writer (the event loop) applies what the watch tells and what decisions reserve. A claim moves one way:
RESERVED by the call that decides, BINDING while the API server is asked, UNDECIDED when its answer is lost, BOUND for
as long as the pod exists.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum, auto

from extender.cluster import objects
from extender.cluster.arrays import ClusterArrays
from extender.cluster.claims import DevicePools
from extender.cluster.contracts.native import read_given
from extender.cluster.contracts.readers import Plugin, read_plugin
from extender.cluster.contracts.readings import NodeReading
from extender.cluster.cycles import Cycles
from extender.cluster.holdings import Holding
from extender.cluster.inventories import read_capacity, read_offer
from extender.cluster.occupancies import Occupancy
from extender.cluster.pods import completed, read_compute, read_holding, read_pod_request, read_policy
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
        self._given: dict[str, dict[str, tuple[str, ...]]] = {}  # by node: UUIDs the kubelet gave, by pod
        self._capacity: dict[str, _Compute] = {}  # by node
        self._requested: dict[str, tuple[str, int, int]] = {}  # by pod: node, CPU milli, memory MiB
        self._requested_on: dict[str, _Compute] = {}  # by node; whole numbers, so that the sums can't drift
        self.cycles = Cycles(self.release)
        """What gangs were told that are not being bound yet."""
        self.num_unreadable = 0
        """Pods and nodes, counted at each change, of which something could not be read and was taken as held."""

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
        return list(self._claims_on.get(node, {}).values())

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
        self._plugins[name] = read_plugin(node)
        given, faults = read_given(node.metadata.annotations or {})
        moved = given != self._given.get(name, {})
        self._given[name] = given
        if row is not None and self._arrays.offer(row) == offer:
            if moved:
                self._write_row(name)
            self._write_capacity(row, name)
            return faults if moved else ()  # most events are heartbeats
        for claim in list(self._claims_on.get(name, {}).values()):
            if claim.state is ClaimState.RESERVED:
                self._drop(claim.uid)  # decided on what the node offered before
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
            for facts in (self._nodes, self._capacity, self._plugins, self._given):
                facts.pop(name, None)

    def node_names(self) -> list[str]:
        """The nodes known."""
        return list(self._arrays.row_of)

    def upsert_pod(self, pod: objects.Pod, now: float) -> tuple[str, ...]:
        """A pod was added or changed, whoever scheduled it. Returns warnings about values that can't be understood."""
        uid = pod.metadata.uid
        self._seen_pods.add(uid)
        if pod.finished:
            self._drop(uid)
            self._set_requested(uid, "", 0, 0)
            return ()
        node = pod.spec.node_name
        if not node:
            return ()
        self._set_requested(uid, node, *read_compute(pod.spec))
        holding, fault = read_holding(pod)
        known = self._claims.get(uid)
        if known is not None and known.holds(node, holding):
            known.state, known.since = ClaimState.BOUND, now
            if not known.pod:
                known.pod = pod.key
                if known.pod in self._given.get(node, ()):
                    self._write_row(node)
            return ()
        self._drop(uid)
        if holding:
            self._add(Claim(uid, node, holding, ClaimState.BOUND, now, pod.key))
        self.num_unreadable += bool(fault)
        return (fault,) if fault else ()

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, and what it held is free."""
        self._seen_pods.discard(uid)
        self._drop(uid)
        self._set_requested(uid, "", 0, 0)

    def keep_pods(self, listed: set[str], list_began: float) -> None:
        """Pods that a complete list, begun at that time, does not name are gone."""
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
            known.state, known.since = ClaimState.BINDING, now
            return known
        self._drop(uid)
        claim = Claim(uid, node, holding, ClaimState.BINDING, now)
        self._add(claim)
        return claim

    def end_binding(self, claim: Claim, outcome: ClaimState | None, now: float) -> None:
        """The API server has answered: BOUND, None for not bound, or UNDECIDED when nobody knows yet.

        What is undecided ends by a second call. Does nothing when the watch has told of the pod meanwhile.
        """
        if self._claims.get(claim.uid) is not claim or claim.state not in (ClaimState.BINDING, ClaimState.UNDECIDED):
            return
        if outcome is None:
            self._drop(claim.uid)
            self._forget_requested(claim.uid)
            return
        claim.state, claim.since = outcome, now

    def hold_as_read(self, pod: objects.Pod, now: float) -> Claim | None:
        """Hold what a pod says that was read and has a node, UNDECIDED until the watch or a second look tells.

        Takes the place of what was held for it so far: nothing of it may be given away in between. None when it holds
        nothing, or the watch has told already.
        """
        known, node = self._claims.get(pod.metadata.uid), pod.spec.node_name
        if not node or (known is not None and known.state is ClaimState.BOUND):
            return None
        self._drop(pod.metadata.uid)
        holding, _ = read_holding(pod)
        if not holding:
            return None
        claim = Claim(pod.metadata.uid, node, holding, ClaimState.UNDECIDED, now)
        self._add(claim)
        return claim

    # Inside

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
        given = self._given.get(node, {})
        holdings = [
            occupancy.as_given(claim.holding, given[claim.pod]) if claim.pod in given else claim.holding
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
