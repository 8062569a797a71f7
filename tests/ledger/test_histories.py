"""Any history of nodes, pods, reservations and Bindings, beside a slow model of the ledger."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from extender.ledger.ledger import AllocationState, PodAllocation
from extender.plugins.holdings import whole_gpus
from tests.ledger.builders import TTL_S, free_units, ledger_of, node_object, pod_object

Indices = tuple[int, ...]


@dataclass
class Held:
    """An allocation in the model."""

    node: str
    units: int
    gpus: Indices
    state: AllocationState
    since: float
    decided: Indices | None = None
    """GPUs that were sent with a Binding."""
    sent: int = 0
    """Units that were sent with it."""
    disputed: bool = False
    """Whether what the watch reported counts besides."""


@dataclass
class Model:
    """The ledger in dictionaries; everything is computed when it is needed."""

    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Allocatable GPUs and replicas of each."""
    held: dict[str, Held] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    told: dict[str, tuple[int, Indices]] = field(default_factory=dict)
    """Units and GPUs of each pod with a node, as the watch first reported them."""
    now: float = 0.0

    def on(self, node: str) -> list[Held]:
        return [held for held in self.held.values() if held.node == node]

    def forget(self, uid: str) -> None:
        self.seen.discard(uid)
        self.told.pop(uid, None)
        self.held.pop(uid, None)

    def settled(self, uid: str) -> bool:
        return uid in self.held and self.held[uid].state is not AllocationState.RESERVED


NAMES = st.sampled_from(["a", "b", "c"])
UIDS = st.sampled_from([f"u{number}" for number in range(8)])
GPUS = st.sets(st.integers(0, 5), min_size=1, max_size=3)


class LedgerHistory(RuleBasedStateMachine):
    bindings = Bundle("bindings")

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.model = ledger_of(), Model()

    @rule(seconds=st.sampled_from([0.5, 10.0, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds
        for uid, held in list(self.model.held.items()):
            if held.state is AllocationState.RESERVED and held.since + TTL_S <= self.model.now:
                del self.model.held[uid]

    @rule(name=NAMES, gpus=st.integers(0, 4), replicas=st.sampled_from([1, 1, 1, 2]))
    def set_node(self, name: str, gpus: int, replicas: int) -> None:
        self.ledger.upsert_node(node_object(name, gpus, replicas=replicas))
        offer = (gpus, replicas) if gpus else (0, 1)
        if self.model.nodes.get(name) != offer:
            for uid, held in list(self.model.held.items()):
                if (held.node, held.state) == (name, AllocationState.RESERVED):
                    del self.model.held[uid]
        self.model.nodes[name] = offer

    @rule(name=NAMES)
    def remove_node(self, name: str) -> None:
        self.ledger.remove_node(name)
        self.model.nodes.pop(name, None)

    @rule(uid=UIDS, node=NAMES, gpus=GPUS, known=st.booleans())
    def reserve(self, uid: str, node: str, gpus: set[int], known: bool) -> None:
        if node not in self.model.nodes:
            return
        indices = tuple(sorted(gpus)) if known else ()
        self.ledger.reserve(uid, node, whole_gpus(len(gpus), indices), self.model.now)
        if not self.model.settled(uid):
            self.model.held[uid] = Held(node, len(gpus), indices, AllocationState.RESERVED, self.model.now)

    @rule(uid=UIDS)
    def release(self, uid: str) -> None:
        self.ledger.release(uid)
        if not self.model.settled(uid):
            self.model.held.pop(uid, None)

    @rule(target=bindings, uid=UIDS)
    def begin_binding(self, uid: str) -> object:
        """Bind what is reserved."""
        held = self.model.held.get(uid)
        if held is None or held.state is not AllocationState.RESERVED:
            return multiple()
        claim = self.ledger.begin_binding(uid, held.node, whole_gpus(held.units, held.gpus), self.model.now)
        held.state, held.decided, held.sent = AllocationState.BINDING, held.gpus, held.units
        return claim, held

    @rule(
        target=bindings,
        binding=consumes(bindings),
        outcome=st.sampled_from([AllocationState.BOUND, AllocationState.UNDECIDED, None]),
    )
    def end_binding(self, binding: tuple[PodAllocation, Held], outcome: AllocationState | None) -> object:
        """Apply an outcome, after which only an undecided one may change."""
        claim, held = binding
        self.ledger.end_binding(claim, outcome, self.model.now)
        if self.model.held.get(claim.uid) is held and held.state in (
            AllocationState.BINDING,
            AllocationState.UNDECIDED,
        ):
            told = self.model.told.get(claim.uid)
            if outcome is None and told is None:
                del self.model.held[claim.uid]
            elif outcome is None:
                assert told is not None
                held.state, held.decided = AllocationState.BOUND, None
                held.units, held.gpus = told
            else:
                if outcome is AllocationState.BOUND:
                    held.disputed = held.state is AllocationState.UNDECIDED
                held.state = outcome
                self.weigh(held, told)
            held.since = self.model.now
        return binding if outcome is AllocationState.UNDECIDED else multiple()

    def weigh(self, held: Held, told: tuple[int, Indices] | None) -> None:
        """Set what is held where Binding and watch may both be true."""
        if held.decided is None:
            return
        held.units, held.gpus = held.sent, held.decided
        if told is not None and held.disputed:
            both = held.decided + tuple(gpu for gpu in told[1] if gpu not in held.decided)
            sides = ((held.sent, held.decided), told)
            unknown = max(0, *(count - len(known) - len(set(both) - set(known)) for count, known in sides))
            held.units, held.gpus = len(both) + unknown, both

    @rule(uid=UIDS)
    def tell_of_own_pod(self, uid: str) -> None:
        """The watch reports a pod that Kerf bound, before or after the answer to its Binding."""
        held = self.model.held.get(uid)
        if held is not None and held.state is not AllocationState.RESERVED:
            self.tell(uid, held.node, held.units, held.gpus)

    @rule(uid=UIDS, node=NAMES, gpus=GPUS, known=st.booleans())
    def tell_of_foreign_pod(self, uid: str, node: str, gpus: set[int], known: bool) -> None:
        """The watch reports a pod that another client bound, with indices or without."""
        self.tell(uid, node, len(gpus), tuple(sorted(gpus)) if known else ())

    def tell(self, uid: str, node: str, units: int, gpus: Indices) -> None:
        assigned = ",".join(map(str, gpus)) if gpus else None
        pod = pod_object(uid, units, uid=uid, node=node, assigned=assigned)
        if assigned and len(gpus) != units:
            gpus = ()  # the number is certain, the indices are not
        self.ledger.upsert_pod(pod, self.model.now)
        self.model.seen.add(uid)
        if uid in self.model.told:
            return
        told = self.model.told[uid] = units, gpus
        known = self.model.held.get(uid)
        if known is None or known.node != node or known.state is AllocationState.RESERVED:
            self.model.held[uid] = Held(node, units, gpus, AllocationState.BOUND, self.model.now)
            return
        if known.state is not AllocationState.BOUND:
            same = (known.sent, known.decided) == told
            if same or known.state is AllocationState.UNDECIDED:
                known.state, known.since = AllocationState.BOUND, self.model.now
            known.disputed = not same
        self.weigh(known, told)

    @rule(uid=UIDS)
    def tell_of_pending_pod(self, uid: str) -> None:
        self.ledger.upsert_pod(pod_object(uid, 1, uid=uid), self.model.now)
        self.model.seen.add(uid)

    @rule(uid=UIDS, node=NAMES, phase=st.sampled_from(["Succeeded", "Failed"]))
    def finish(self, uid: str, node: str, phase: str) -> None:
        self.ledger.upsert_pod(pod_object(uid, 1, uid=uid, node=node, phase=phase), self.model.now)
        self.model.forget(uid)
        self.model.seen.add(uid)

    @rule(uid=UIDS)
    def delete(self, uid: str) -> None:
        self.ledger.remove_pod(uid)
        self.model.forget(uid)

    @rule(listed=st.sets(UIDS))
    def relist(self, listed: set[str]) -> None:
        """A list has some of the pods that were reported."""
        listed &= self.model.seen
        self.ledger.keep_pods(set(listed), self.model.now)
        unseen = {uid for uid, held in self.model.held.items() if held.state is AllocationState.BOUND}
        for uid in (self.model.seen | unseen) - listed:
            if uid in self.model.seen or self.model.held[uid].since < self.model.now:
                self.model.forget(uid)

    @invariant()
    def each_allocation_is_that_of_the_model(self) -> None:
        self.ledger.snapshot(self.model.now)
        for number in range(8):
            claim, held = self.ledger.allocation(f"u{number}"), self.model.held.get(f"u{number}")
            assert (claim is None) == (held is None)
            if claim and held:
                assert (claim.node, claim.units, claim.gpus) == (held.node, held.units, held.gpus)
                assert claim.state is held.state

    @invariant()
    def what_is_free_is_what_the_allocations_leave(self) -> None:
        cluster = self.ledger.snapshot(self.model.now)
        assert set(cluster.row_of) == set(self.model.nodes)
        for node, (gpus, replicas) in self.model.nodes.items():
            left = gpus * replicas - sum(held.units for held in self.model.on(node))
            assert free_units(cluster, node) == max(left, 0)
            named = {gpu for held in self.model.on(node) for gpu in held.gpus} if replicas == 1 else set()
            assert set(np.flatnonzero(cluster.gpu_idle[cluster.row_of[node]]).tolist()) == set(range(gpus)) - named


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(stateful_step_count=50)
