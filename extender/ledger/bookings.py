"""What decisions do to the ledger: reservations, bindings under way, what became of them, and pod-group cycles that
kube-scheduler takes back without a word.

For a PodGroup (`spec.schedulingGroup`) kube-scheduler calls filter for one member after another, in several topologies
where it knows of any, and binds nobody before enough of them have a node. If they have not, everything is reverted, and
no extender hears of it. So what is reserved for a member counts for the others of its gang, but as long as none of them
is being bound it keeps nobody else from a node. It is given back

- when a member is asked about once more: that is a new cycle, or another topology;
- when another pod would be turned away for it. kube-scheduler asks about one pod at a time, so the gang's cycle is
  over. It failed if a member was turned away; or else where kube-scheduler counts both pods' GPUs by itself, for it
  would not offer a node that the gang is on its way to;
- when nobody has asked for the gang for a while.

Where that was wrong after all, the gang goes before those that its room was given to.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extender.core.resources.nodes import OF_CLAIMS, NodeReading
from extender.kube import objects
from extender.ledger.claims import Claim, ClaimState
from extender.ledger.rows import NodeRows
from extender.plugins.holdings import NOTHING, Holding
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import Reading, read_holdings

_QUIET_S: Final = 2.0
"""Bindings begin some milliseconds after the last member was asked about."""


@dataclass(slots=True)
class _Cycle:
    """What a gang was told in its last cycle."""

    asked_at: float = 0.0
    """Monotonic time of the last question."""
    last: str = ""
    """Member that was asked about last."""
    asked: set[str] = field(default_factory=set)
    """UIDs of the members asked about."""
    reserved: dict[str, bool] = field(default_factory=dict)
    """UIDs that something is reserved for, and whether kube-scheduler counts it itself."""
    is_binding: bool = False
    """Whether a member is being bound: then the cycle was no failure."""
    turned_away: set[str] = field(default_factory=set)
    """UIDs of the members that found no node."""
    given_to: list[str] = field(default_factory=list)
    """UIDs of the pods that its room was given to."""


class _Cycles:
    """The cycles of late, by gang. Not thread-safe; every method returns at once."""

    def __init__(self, release: Callable[[str], None]) -> None:
        """`release` gives back what is reserved for a pod, by UID; what is bound or being bound it leaves alone."""
        self._release = release
        self._cycles: OrderedDict[str, _Cycle] = OrderedDict()  # the one asked about last is last
        self._gang_of: dict[str, str] = {}  # by UID of a member
        self.num_given_back = 0
        """Reservations given back because kube-scheduler seemed to have given the gang up."""

    def __len__(self) -> int:
        """How many gangs are remembered."""
        return len(self._cycles)

    def ask(self, gang: str, uid: str, now: float) -> None:
        """kube-scheduler asks about a member."""
        cycle = self._cycles.setdefault(gang, _Cycle())
        # A nominated node is asked about alone, then all are: that is one question.
        if cycle.is_binding or (uid in cycle.asked and uid != cycle.last):
            self._forget(gang)
            cycle = self._cycles[gang] = _Cycle()
        self._cycles.move_to_end(gang)
        cycle.asked_at, cycle.last = now, uid
        cycle.asked.add(uid)
        cycle.turned_away.discard(uid)
        self._gang_of[uid] = gang

    def turn_away(self, gang: str, uid: str) -> None:
        """A member that was asked about has found no node."""
        if gang in self._cycles:
            self._cycles[gang].turned_away.add(uid)

    def reserve(self, gang: str, uid: str, *, counted: bool) -> None:
        """Something was reserved for a member; `counted`: kube-scheduler counts it itself."""
        if gang in self._cycles:
            self._cycles[gang].reserved[uid] = counted

    def begin_binding(self, uid: str) -> None:
        """A pod is being bound: if it is a member, its gang was placed, and what is reserved for the others stays."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is not None:
            cycle.is_binding = True

    def make_way(self, gang: str, uid: str, *, counted: bool) -> bool:
        """Give back, for a pod that would be turned away, what gangs seem to have given up; whether there was any."""
        num_before = self.num_given_back
        for other, cycle in self._cycles.items():
            if other == gang or cycle.is_binding:
                continue
            is_over = bool(cycle.turned_away)
            given = [held for held, is_counted in cycle.reserved.items() if is_over or (counted and is_counted)]
            if given:
                self._give_back(cycle, given)
                cycle.given_to.append(uid)
        return self.num_given_back > num_before

    def claim_back(self, uid: str) -> bool:
        """For a member that is to be bound after all: take it from those it was given to; whether there were any."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is None or not cycle.given_to:
            return False
        for other in cycle.given_to:
            self._release(other)
        cycle.given_to.clear()
        return True

    def expire(self, now: float) -> None:
        """Give back what nobody has come for."""
        while self._cycles:
            gang, cycle = next(iter(self._cycles.items()))
            if now < cycle.asked_at + _QUIET_S:
                return
            self._forget(gang)

    def _forget(self, gang: str) -> None:
        """The cycle is over."""
        cycle = self._cycles.pop(gang)
        if not cycle.is_binding:
            self._give_back(cycle, list(cycle.reserved))
        for uid in cycle.asked:
            if self._gang_of.get(uid) == gang:
                del self._gang_of[uid]

    def _give_back(self, cycle: _Cycle, uids: list[str]) -> None:
        for uid in uids:
            del cycle.reserved[uid]
            self._release(uid)
        self.num_given_back += len(uids)


class Bookings:
    """What is held for pods that were decided on. Not thread-safe; every method returns at once."""

    def __init__(self, reading: NodeReading, reservation_ttl_s: float) -> None:
        self.rows = NodeRows(reading, reservation_ttl_s)
        """The nodes."""
        self._claims = self.rows.claims
        self._seen_pods: set[str] = set()  # those that the watch has told of, by UID
        self._told: dict[str, Reading] = {}  # by pod with a node: what it said first
        self.cycles = _Cycles(self.release)
        """What gangs were told that are not being bound yet."""

    def claim(self, uid: str) -> Claim | None:
        """What is held for a pod."""
        return self._claims.get(uid)

    def reserve(
        self, uid: str, node: str, holding: Holding, now: float, *, cpu_milli: int = 0, memory_mib: int = 0
    ) -> None:
        """Hold GPUs for a pod that was decided on, for the TTL; replaces an earlier reservation of the same pod.

        A pod that is bound or being bound keeps what it has. With CPU or memory the pod counts among the node's
        requests from now on, as it will once the watch has told of it.
        """
        if self._claims.is_settled(uid):
            return
        self._claims.drop(uid)
        claim = Claim(uid, node, holding, ClaimState.RESERVED, now)
        self._add(claim)
        self._claims.begin_ttl(claim, now)
        if cpu_milli or memory_mib:
            self.rows.request(uid, node, cpu_milli, memory_mib)

    def reserve_as_written(self, pod: objects.Pod, node: str, now: float) -> None:
        """Hold what is written on a pod without a node that it is to get of this one, as firmly as `make_firm` does."""
        uid = pod.metadata.uid
        if self._claims.is_settled(uid):
            return
        self._claims.drop(uid)
        told, _ = read_holdings(pod)
        if told:
            holding = told.on(self.rows.plugin_on(node))
            self._add(Claim(uid, node, holding, ClaimState.RESERVED, now, told=told, firm=True))
        self.rows.request(uid, node, *read_compute(pod.spec))

    def make_firm(self, uid: str) -> None:
        """A pod's reservation is being written on it, and stands until `release`, or until the pod has a node."""
        claim = self._claims.get(uid)
        if claim is not None and claim.state is ClaimState.RESERVED:
            claim.firm = True

    def assign_anew(self, uid: str, holding: Holding) -> None:
        """What a bound pod of which nobody knew that is given of its node."""
        claim = self._claims.get(uid)
        if claim is not None and claim.state is ClaimState.BOUND:
            claim.holding = claim.decided = holding
            claim.anew = True
            self.rows.write(claim.node)

    def release(self, uid: str) -> None:
        """Give back what a pod has reserved; what is bound or being bound stays."""
        if not self._claims.is_settled(uid):
            self._end(uid)

    def is_reserved(self, uid: str, node: str) -> bool:
        """Whether a pod's reservation on a node stands: whatever came to that node since leaves room for it."""
        claim = self._claims.get(uid)
        reserved = claim is not None and claim.state is ClaimState.RESERVED and claim.node == node
        return reserved and self.rows.manifest(node) is not None and not self.rows.state_of(node).crowded

    def renew(self, uid: str, node: str, now: float) -> bool:
        """Begin the TTL of a pod's reservation on a node anew, if it stands; whether it does."""
        self._expire(now)
        claim = self._claims.get(uid)
        if claim is None or not self.is_reserved(uid, node):
            return False
        self._claims.begin_ttl(claim, now)
        return True

    def begin_binding(self, uid: str, node: str, holding: Holding, now: float) -> Claim:
        """Hold GPUs for a pod while the API server is asked to bind it. The claim is the caller's to end."""
        self.cycles.begin_binding(uid)
        known = self._claims.get(uid)
        if known is not None and (known.node, known.holding) == (node, holding):
            known.state, known.since, known.decided = ClaimState.BINDING, now, holding
            return known
        self._claims.drop(uid)
        claim = Claim(uid, node, holding, ClaimState.BINDING, now, decided=holding)
        self._add(claim)
        return claim

    def end_binding(self, claim: Claim, outcome: ClaimState | None, now: float) -> None:
        """The API server has answered: BOUND, None for not bound, or UNDECIDED when nobody knows yet.

        What is undecided ends by a second call, which knows the node and not whose Binding it was. Where the watch has
        told meanwhile of a pod that says something else, that counts if this Binding has failed.
        """
        if self.claim(claim.uid) is not claim or claim.state not in (ClaimState.BINDING, ClaimState.UNDECIDED):
            return
        told = self._told.get(claim.uid)
        if outcome is None and told is None:
            self._end(claim.uid)
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
        if pod.finished:
            self._end(uid)
            return None
        self._claims.drop(uid)
        decided = known.decided if known is not None and known.node == node else None
        told = self._told.get(uid) or read_holdings(pod)[0]
        if not told and decided is None:
            return None
        disputed = decided is not None
        claim = Claim(uid, node, NOTHING, ClaimState.UNDECIDED, now, decided=decided, told=told, disputed=disputed)
        claim.holding = claim.holding_on(self.rows.plugin_on(node))
        self._add(claim)
        return claim

    def _confirm(self, claim: Claim, pod: objects.Pod, reading: Reading, now: float) -> None:
        """The watch tells for the first time that a pod has the node which this process has chosen for it."""
        claim.pod = pod.key
        claim.told = claim.told or reading
        if claim.state is not ClaimState.BOUND:
            same = claim.decided in (None, claim.told.on(self.rows.plugin_on(claim.node)))
            if same or claim.state is ClaimState.UNDECIDED:
                claim.state, claim.since = ClaimState.BOUND, now
            claim.disputed = not same  # until the answer tells whose Binding that was, if it ever does
        self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        """Work out anew what a claim comes to."""
        holding = claim.holding_on(self.rows.plugin_on(claim.node))
        devices = self.rows.offer_of(claim.node).unit in OF_CLAIMS and claim.state is ClaimState.BOUND
        if claim.told is not None and not claim.told and (devices or claim.decided is None):
            self._claims.drop(claim.uid)  # devices of ResourceClaims are not the pod's
        elif holding != claim.holding or self.rows.given.of(claim.node, claim.pod, claim.uid) is not None:
            claim.holding = holding
            self.rows.write(claim.node)

    def _expire(self, now: float) -> None:
        self.cycles.expire(now)
        for claim in self._claims.expired(now):
            self._end(claim.uid)

    def _add(self, claim: Claim) -> None:
        if claim.pod:
            self.rows.given.meet(claim.node, claim.pod, claim.uid)
        self._claims.add(claim)

    def _end(self, uid: str) -> None:
        """Nothing is held for a pod any more; one that the watch has not told of requests nothing, either."""
        self._claims.drop(uid)
        if uid not in self._seen_pods:
            self.rows.request(uid, "", 0, 0)
