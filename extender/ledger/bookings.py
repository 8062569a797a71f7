"""The ledger's operations for decisions: reservations, Bindings and their outcomes, and PodGroup scheduling cycles.

For a PodGroup (`spec.schedulingGroup`) kube-scheduler calls filter for one member after another, for each topology
domain if it knows any, and binds none before enough members have a node. Otherwise it reverts everything without
calling extenders. So a member's reservation counts for the other members, but keeps no other pod from a node until a
member is being bound. It is released

- when kube-scheduler asks about a member again: that is a new cycle, or another topology domain;
- when another pod would be rejected because of it. kube-scheduler schedules one pod at a time, so the gang's cycle is
  over. It has failed if a member was rejected, or if kube-scheduler itself counts both pods' GPUs: it would not offer a
  node that the gang is about to use;
- when kube-scheduler has not asked about the gang for a while.

If that was wrong, the gang takes precedence over the pods that its room was given to.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extender.core.resources.nodes import OF_CLAIMS, NodeReading
from extender.kube import objects
from extender.ledger.allocations import AllocationState, PodAllocation
from extender.ledger.rows import NodeRows
from extender.plugins.holdings import NOTHING, Holding
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import Holdings, read_holdings

_QUIET_S: Final = 2.0
"""Bindings begin some milliseconds after the filter call for the last member."""


@dataclass(slots=True)
class _Cycle:
    """The last scheduling cycle of a gang."""

    asked_at: float = 0.0
    """Monotonic time of the last filter call."""
    last: str = ""
    """UID of the member of the last filter call."""
    asked: set[str] = field(default_factory=set)
    """UIDs of the members with a filter call."""
    reserved: dict[str, bool] = field(default_factory=dict)
    """UIDs with a reservation, and whether kube-scheduler itself counts it."""
    is_binding: bool = False
    """Whether a member is being bound: then the cycle succeeded."""
    turned_away: set[str] = field(default_factory=set)
    """UIDs of the rejected members."""
    given_to: list[str] = field(default_factory=list)
    """UIDs of the pods that its room was given to."""


class _Cycles:
    """The recent cycles by gang. Not thread-safe; no method blocks."""

    def __init__(self, release: Callable[[str], None]) -> None:
        """`release` releases a pod's reservation by UID, but nothing that is bound or being bound."""
        self._release = release
        self._cycles: OrderedDict[str, _Cycle] = OrderedDict()  # in the order of their last filter calls
        self._gang_of: dict[str, str] = {}  # by UID of a member
        self.num_given_back = 0
        """Reservations released because kube-scheduler seemed to have given up the gang."""

    def __len__(self) -> int:
        """Number of remembered gangs."""
        return len(self._cycles)

    def ask(self, gang: str, uid: str, now: float) -> None:
        """Note a filter call for a member."""
        cycle = self._cycles.setdefault(gang, _Cycle())
        # kube-scheduler asks about a nominated node alone, then about all: both belong to one cycle.
        if cycle.is_binding or (uid in cycle.asked and uid != cycle.last):
            self._forget(gang)
            cycle = self._cycles[gang] = _Cycle()
        self._cycles.move_to_end(gang)
        cycle.asked_at, cycle.last = now, uid
        cycle.asked.add(uid)
        cycle.turned_away.discard(uid)
        self._gang_of[uid] = gang

    def turn_away(self, gang: str, uid: str) -> None:
        """Note that a member was rejected."""
        if gang in self._cycles:
            self._cycles[gang].turned_away.add(uid)

    def reserve(self, gang: str, uid: str, *, counted: bool) -> None:
        """Note a member's reservation; `counted`: kube-scheduler itself counts it."""
        if gang in self._cycles:
            self._cycles[gang].reserved[uid] = counted

    def begin_binding(self, uid: str) -> None:
        """Note that a pod is being bound: if it is a member, the reservations of its gang stay."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is not None:
            cycle.is_binding = True

    def release_stale_gangs(self, gang: str, uid: str, *, counted: bool) -> bool:
        """Release what other gangs seem to have given up, for a pod about to be rejected; return whether it did."""
        num_before = self.num_given_back
        for other, cycle in self._cycles.items():
            if other == gang or cycle.is_binding:
                continue
            has_failed = bool(cycle.turned_away)
            released = [
                member for member, is_counted in cycle.reserved.items() if has_failed or (counted and is_counted)
            ]
            if released:
                self._give_back(cycle, released)
                cycle.given_to.append(uid)
        return self.num_given_back > num_before

    def claim_back(self, uid: str) -> bool:
        """Release, for a member to be bound after all, what its room was given to; return whether there was any."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is None or not cycle.given_to:
            return False
        for other in cycle.given_to:
            self._release(other)
        cycle.given_to.clear()
        return True

    def expire(self, now: float) -> None:
        """Forget the cycles that have been quiet for `_QUIET_S`."""
        while self._cycles:
            gang, cycle = next(iter(self._cycles.items()))
            if now < cycle.asked_at + _QUIET_S:
                return
            self._forget(gang)

    def _forget(self, gang: str) -> None:
        """End a gang's cycle, releasing its reservations unless a member is being bound."""
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
    """The allocations made by decisions. Not thread-safe; no method blocks."""

    def __init__(self, reading: NodeReading, reservation_ttl_s: float) -> None:
        self.rows = NodeRows(reading, reservation_ttl_s)
        """The nodes."""
        self._allocations = self.rows.allocations
        self._seen_pods: set[str] = set()  # UIDs that the watch has reported
        self._first_readings: dict[str, Holdings] = {}  # by UID: the first reading with a node
        self.cycles = _Cycles(self.release)
        """The recent scheduling cycles of gangs."""

    def allocation(self, uid: str) -> PodAllocation | None:
        """Return a pod's allocation."""
        return self._allocations.get(uid)

    def reserve(
        self, uid: str, node: str, holding: Holding, now: float, *, cpu_milli: int = 0, memory_mib: int = 0
    ) -> None:
        """Reserve GPUs for a pod for the TTL, replacing its earlier reservation.

        A pod that is bound or being bound keeps what it has. CPU and memory count among the node's requests from now
        on, as they will once the watch has reported the pod.
        """
        if self._allocations.is_settled(uid):
            return
        self._allocations.drop(uid)
        allocation = PodAllocation(uid, node, holding, AllocationState.RESERVED, now)
        self._add(allocation)
        self._allocations.begin_ttl(allocation, now)
        if cpu_milli or memory_mib:
            self.rows.request(uid, node, cpu_milli, memory_mib)

    def reserve_as_written(self, pod: objects.Pod, node: str, now: float) -> None:
        """Reserve the assignment written on an unbound pod, and pin it."""
        uid = pod.metadata.uid
        if self._allocations.is_settled(uid):
            return
        self._allocations.drop(uid)
        reading, _ = read_holdings(pod)
        if reading:
            holding = reading.on(self.rows.plugin_on(node))
            self._add(PodAllocation(uid, node, holding, AllocationState.RESERVED, now, annotated=reading, pinned=True))
        self.rows.request(uid, node, *read_compute(pod.spec))

    def pin(self, uid: str) -> None:
        """Keep a pod's reservation until `release`, or until the pod has a node."""
        allocation = self._allocations.get(uid)
        if allocation is not None and allocation.state is AllocationState.RESERVED:
            allocation.pinned = True

    def reassign(self, uid: str, holding: Holding) -> None:
        """Assign GPUs of its node to a bound pod whose GPUs were unknown."""
        allocation = self._allocations.get(uid)
        if allocation is not None and allocation.state is AllocationState.BOUND:
            allocation.holding = allocation.decided = holding
            allocation.reassigned = True
            self.rows.write(allocation.node)

    def release(self, uid: str) -> None:
        """Release a pod's reservation; what is bound or being bound stays."""
        if not self._allocations.is_settled(uid):
            self._end(uid)

    def is_reserved(self, uid: str, node: str) -> bool:
        """Whether a pod's reservation on a node stands: the node exists and is not overbooked."""
        held = self._allocations.get(uid)
        reserved = held is not None and held.state is AllocationState.RESERVED and held.node == node
        return reserved and self.rows.manifest(node) is not None and not self.rows.state_of(node).overbooked

    def renew(self, uid: str, node: str, now: float) -> bool:
        """Renew the TTL of a pod's reservation on a node if it stands; return whether it does."""
        self._expire(now)
        allocation = self._allocations.get(uid)
        if allocation is None or not self.is_reserved(uid, node):
            return False
        self._allocations.begin_ttl(allocation, now)
        return True

    def begin_binding(self, uid: str, node: str, holding: Holding, now: float) -> PodAllocation:
        """Hold GPUs for a pod while its Binding is sent. The caller has to call `end_binding`."""
        self.cycles.begin_binding(uid)
        known = self._allocations.get(uid)
        if known is not None and (known.node, known.holding) == (node, holding):
            known.state, known.since, known.decided = AllocationState.BINDING, now, holding
            return known
        self._allocations.drop(uid)
        allocation = PodAllocation(uid, node, holding, AllocationState.BINDING, now, decided=holding)
        self._add(allocation)
        return allocation

    def end_binding(self, allocation: PodAllocation, outcome: AllocationState | None, now: float) -> None:
        """Apply the outcome of a Binding: BOUND, None for not bound, or UNDECIDED while unknown.

        An undecided one is ended by a second call, which knows the node but not whose Binding took effect. If this
        Binding has failed and the watch has reported the pod meanwhile, what the pod says counts.
        """
        if self.allocation(allocation.uid) is not allocation or allocation.state not in (
            AllocationState.BINDING,
            AllocationState.UNDECIDED,
        ):
            return
        reading = self._first_readings.get(allocation.uid)
        if outcome is None and reading is None:
            self._end(allocation.uid)
            return
        if outcome is None:
            outcome, allocation.decided, allocation.annotated = AllocationState.BOUND, None, reading
        elif outcome is AllocationState.BOUND:
            allocation.disputed = allocation.state is AllocationState.UNDECIDED
        allocation.state, allocation.since = outcome, now
        self._update(allocation)

    def hold_as_read(self, pod: objects.Pod, now: float) -> PodAllocation | None:
        """Hold the assignment of a pod read with a node, UNDECIDED until the watch or a second read confirms it.

        What was held for it on that node stays held, too: this process's Binding may have taken effect and the author
        edited the pod before the answer. Returns None when it holds nothing, has ended, or is known to be bound.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self._allocations.get(uid)
        if not node or (known is not None and known.state is AllocationState.BOUND):
            return None
        if pod.finished:
            self._end(uid)
            return None
        self._allocations.drop(uid)
        decided = known.decided if known is not None and known.node == node else None
        reading = self._first_readings.get(uid) or read_holdings(pod)[0]
        if not reading and decided is None:
            return None
        disputed = decided is not None
        allocation = PodAllocation(
            uid, node, NOTHING, AllocationState.UNDECIDED, now, decided=decided, annotated=reading, disputed=disputed
        )
        allocation.holding = allocation.holding_on(self.rows.plugin_on(node))
        self._add(allocation)
        return allocation

    def _confirm(self, allocation: PodAllocation, pod: objects.Pod, reading: Holdings, now: float) -> None:
        """Note the watch's first report of a pod on the node that this process has chosen for it."""
        allocation.pod = pod.key
        allocation.annotated = allocation.annotated or reading
        if allocation.state is not AllocationState.BOUND:
            same = allocation.decided in (None, allocation.annotated.on(self.rows.plugin_on(allocation.node)))
            if same or allocation.state is AllocationState.UNDECIDED:
                allocation.state, allocation.since = AllocationState.BOUND, now
            allocation.disputed = not same  # until the answer, if any, shows whose Binding it was
        self._update(allocation)

    def _update(self, allocation: PodAllocation) -> None:
        """Recompute what an allocation holds."""
        node, holding = allocation.node, allocation.holding_on(self.rows.plugin_on(allocation.node))
        devices = self.rows.offer_of(node).unit in OF_CLAIMS and allocation.state is AllocationState.BOUND
        if allocation.annotated is not None and not allocation.annotated and (devices or allocation.decided is None):
            self._allocations.drop(allocation.uid)  # ResourceClaims hold their devices, not the pod
        elif holding != allocation.holding or self.rows.given.of(node, allocation.pod, allocation.uid) is not None:
            allocation.holding = holding
            self.rows.write(node)

    def _expire(self, now: float) -> None:
        self.cycles.expire(now)
        for allocation in self._allocations.expired(now):
            self._end(allocation.uid)

    def _add(self, allocation: PodAllocation) -> None:
        if allocation.pod:
            self.rows.given.note_pod(allocation.node, allocation.pod, allocation.uid)
        self._allocations.add(allocation)

    def _end(self, uid: str) -> None:
        """Drop a pod's allocation, and its requests if the watch has not reported it."""
        self._allocations.drop(uid)
        if uid not in self._seen_pods:
            self.rows.request(uid, "", 0, 0)
