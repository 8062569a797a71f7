"""Who holds which GPU: pods that are bound, bindings under way, and short reservations.

One writer (the event loop) applies what the watch tells and what decisions reserve. A claim moves one way:
RESERVED by the call that decides, BINDING while the API server is asked, UNDECIDED when its answer is lost, BOUND for
as long as the pod exists.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from extender.cluster import objects
from extender.cluster.arrays import ClusterArrays
from extender.cluster.pods import read_holding
from extender.core.clusters import Cluster
from extender.core.nodes import GpuUnit, read_node


class ClaimState(Enum):
    """How firm a claim is."""

    RESERVED = auto()
    """Decided, not yet asked to bind: ends with its TTL."""
    BINDING = auto()
    """The API server is being asked: ends with its answer."""
    UNDECIDED = auto()
    """Asked, with no answer: may take effect yet, so it is given away only after the TTL."""
    BOUND = auto()
    """The pod has its node: ends with the pod."""


@dataclass(slots=True, eq=False)
class Claim:
    """GPUs of one node held for one pod."""

    uid: str
    node: str
    units: int
    gpus: tuple[int, ...]
    state: ClaimState
    since: float
    """Monotonic time of the last change of state."""

    def holds(self, node: str, units: int, gpus: tuple[int, ...]) -> bool:
        """Whether it is a claim to just this."""
        return (self.node, self.units, self.gpus) == (node, units, gpus)


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
        self._memory_tolerance_frac = memory_tolerance_frac
        self._model_aliases = model_aliases or {}
        self._arrays = ClusterArrays()
        self._claims: dict[str, Claim] = {}
        self._claims_on: dict[str, dict[str, Claim]] = {}
        self._passing: deque[tuple[float, Claim]] = deque()  # claims with a TTL and when it may end, in that order
        self._seen_pods: set[str] = set()
        self._crowded: set[str] = set()  # nodes whose claims don't all have room, or GPUs of their own

    # Reading

    def snapshot(self, now: float) -> Cluster:
        """The cluster at this moment, reservations past their TTL left out."""
        self._expire(now)
        return self._arrays.snapshot()

    def claim(self, uid: str) -> Claim | None:
        """What is held for a pod."""
        return self._claims.get(uid)

    def num_claims(self, state: ClaimState) -> int:
        """How many claims are in a state."""
        return sum(claim.state is state for claim in self._claims.values())

    @property
    def arrays(self) -> ClusterArrays:
        """The arrays that snapshots are taken of, for observations to be written into."""
        return self._arrays

    # What the watch tells

    def upsert_node(self, node: objects.Node) -> tuple[str, ...]:
        """A node was added or changed. Returns warnings about values that can't be understood."""
        offer = read_node(
            node.status.allocatable or {},
            node.metadata.labels or {},
            memory_tolerance_frac=self._memory_tolerance_frac,
            aliases=self._model_aliases,
        )
        name = node.metadata.name
        row = self._arrays.row_of.get(name)
        if row is not None and self._arrays.offer(row) == offer:
            return ()  # most events are heartbeats
        for claim in list(self._claims_on.get(name, {}).values()):
            if claim.state is ClaimState.RESERVED:
                self._drop(claim.uid)  # decided on what the node offered before
        self._arrays.set_node(name, offer)
        self._write_row(name)
        return offer.warnings

    def remove_node(self, name: str) -> None:
        """A node is gone. Claims on it stay, in case it comes back."""
        if name in self._arrays.row_of:
            self._arrays.remove_node(name)

    def node_names(self) -> list[str]:
        """The nodes known."""
        return list(self._arrays.row_of)

    def upsert_pod(self, pod: objects.Pod, now: float) -> None:
        """A pod was added or changed, whoever scheduled it."""
        uid = pod.metadata.uid
        self._seen_pods.add(uid)
        if pod.finished:
            self._drop(uid)
        elif pod.spec.node_name:
            holding = read_holding(pod)
            known = self._claims.get(uid)
            if known is not None and known.holds(pod.spec.node_name, holding.units, holding.gpus):
                known.state, known.since = ClaimState.BOUND, now
                return
            self._drop(uid)
            if holding.units:
                self._add(Claim(uid, pod.spec.node_name, holding.units, holding.gpus, ClaimState.BOUND, now))

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, and what it held is free."""
        self._seen_pods.discard(uid)
        self._drop(uid)

    def keep_pods(self, listed: set[str], list_began: float) -> None:
        """Pods that a complete list, begun at that time, does not name are gone."""
        for uid in self._seen_pods - listed:
            self.remove_pod(uid)
        for claim in list(self._claims.values()):
            # Bound by Kerf before the list began and never seen: it came and went between two watches.
            if claim.state is ClaimState.BOUND and claim.uid not in listed and claim.since < list_began:
                self.remove_pod(claim.uid)

    # What decisions do

    def reserve(self, uid: str, node: str, units: int, gpus: tuple[int, ...], now: float) -> None:
        """Hold GPUs for a pod that was decided on, for the TTL; replaces an earlier reservation of the same pod.

        A pod that is bound or being bound keeps what it has.
        """
        if self._settled(uid):
            return
        self._drop(uid)
        claim = Claim(uid, node, units, gpus, ClaimState.RESERVED, now)
        self._add(claim)
        self._passing.append((now + self._ttl_s, claim))

    def release(self, uid: str) -> None:
        """Give back what a pod has reserved; what is bound or being bound stays."""
        if not self._settled(uid):
            self._drop(uid)

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

    def begin_binding(self, uid: str, node: str, units: int, gpus: tuple[int, ...], now: float) -> Claim:
        """Hold GPUs for a pod while the API server is asked to bind it. The claim is the caller's to end."""
        known = self._claims.get(uid)
        if known is not None and known.holds(node, units, gpus):
            known.state, known.since = ClaimState.BINDING, now
            return known
        self._drop(uid)
        claim = Claim(uid, node, units, gpus, ClaimState.BINDING, now)
        self._add(claim)
        return claim

    def end_binding(self, claim: Claim, outcome: ClaimState | None, now: float) -> None:
        """The API server has answered: BOUND, None for not bound, or UNDECIDED when nobody knows yet.

        Does nothing when the watch has told of the pod meanwhile.
        """
        if self._claims.get(claim.uid) is not claim or claim.state is not ClaimState.BINDING:
            return
        if outcome is None:
            self._drop(claim.uid)
            return
        claim.state, claim.since = outcome, now
        if outcome is ClaimState.UNDECIDED:
            self._passing.append((now + self._ttl_s, claim))

    # Inside

    def _settled(self, uid: str) -> bool:
        claim = self._claims.get(uid)
        return claim is not None and claim.state is not ClaimState.RESERVED

    def _expire(self, now: float) -> None:
        while self._passing and self._passing[0][0] <= now:
            _, claim = self._passing.popleft()
            passing = claim.state in (ClaimState.RESERVED, ClaimState.UNDECIDED)
            if self._claims.get(claim.uid) is claim and passing and claim.since + self._ttl_s <= now:
                self._drop(claim.uid)

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

    def _write_row(self, node: str) -> None:
        """Work out a node's occupancy afresh from its claims: nothing is added up that could drift."""
        row = self._arrays.row_of.get(node)
        if row is None:
            return
        offer = self._arrays.offer(row)
        held: set[int] = set()
        untracked = offer.withheld_units
        disputed = False
        for claim in self._claims_on.get(node, {}).values():
            # Indices mean whole GPUs that are there and that nobody else says to hold; the rest counts by number.
            gpus = {gpu for gpu in claim.gpus if gpu < len(offer.gpus)} if offer.unit is GpuUnit.WHOLE else set()
            disputed = disputed or len(gpus - held) < len(claim.gpus)
            untracked += claim.units - len(gpus - held)
            held |= gpus
        if disputed or untracked > (len(offer.gpus) - len(held)) * offer.units_per_gpu:
            self._crowded.add(node)
        else:
            self._crowded.discard(node)
        self._arrays.set_held(row, held, untracked)
