"""Bursts of pods, and any history of nodes, pods, reservations and bindings, beside a slow model of the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from extender.core.clusters import Cluster
from extender.core.evaluations import Memo, evaluate
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.ledger import Claim, ClaimState, Ledger
from extender.plugins.holdings import whole_gpus
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import TTL_S, Clock, free_units, ledger_of, node_object, pod_object


def place(placer: Placer, uid: str, request: GpuRequest, names: Iterable[str]) -> str | None:
    placement = placer.place(PodIdentity("default", uid, uid), request, POLICIES["bestfit"], list(names))
    placer.reserve(placement)
    return placement.node


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_a_burst_never_promises_a_gpu_twice(gpus: int) -> None:
    ledger = ledger_of(**{f"n{number}": 8 for number in range(10)})
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())
    placed = [place(placer, f"u{number}", GpuRequest(gpus), ledger.rows.names()) for number in range(100)]
    assert len([node for node in placed if node]) == 10 * (8 // gpus)
    promised = [
        (claim.node, gpu) for number in range(100) if (claim := ledger.claim(f"u{number}")) for gpu in claim.gpus
    ]
    assert len(promised) == len(set(promised)) == 10 * (8 // gpus) * gpus


@dataclass
class Held:
    """A claim as the slow model of the ledger keeps it."""

    node: str
    units: int
    gpus: tuple[int, ...]
    state: ClaimState
    since: float
    decided: tuple[int, ...] | None = None
    """GPUs that were sent with a Binding."""
    disputed: bool = False
    """Whether what the watch told counts besides."""


@dataclass
class Model:
    """The ledger, kept the slow way: dictionaries only, everything computed when it is asked."""

    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Allocatable GPUs and replicas of each."""
    held: dict[str, Held] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    told: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Units and GPUs that the watch first told of each pod with a node."""
    past_plugin: set[str] = field(default_factory=set)
    """Pods that have asked by annotation alone."""
    now: float = 0.0

    def free_units(self, node: str) -> int:
        gpus, replicas = self.nodes[node]
        return max(gpus * replicas - sum(held.units for held in self.held.values() if held.node == node), 0)

    def forget_expired(self) -> None:
        for uid, held in list(self.held.items()):
            if held.state is ClaimState.RESERVED and held.since + TTL_S <= self.now:
                del self.held[uid]

    def settled(self, uid: str) -> bool:
        return uid in self.held and self.held[uid].state is not ClaimState.RESERVED


NAMES = st.sampled_from(["a", "b", "c"])


UIDS = st.sampled_from([f"u{number}" for number in range(8)])


REQUESTS = st.sampled_from(
    [
        GpuRequest(1),
        GpuRequest(2),
        GpuRequest(1, AskedUnit.WHOLE, memory_each_mib=15000),
        GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20000),
    ]
)


class LedgerHistory(RuleBasedStateMachine):
    """Any history of nodes, pods, reservations and bindings, beside the slow model of it."""

    bindings = Bundle("bindings")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(reservation_ttl_s=TTL_S)
        self.model = Model()
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.memo = Memo()
        self.snapshots: list[tuple[Cluster, list[list[bool]], list[int]]] = []
        self.own_units: dict[int, int] = {}

    def clock(self) -> float:
        return self.model.now

    @rule(seconds=st.sampled_from([0.5, 10.0, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds
        self.model.forget_expired()

    @rule(name=NAMES, gpus=st.integers(0, 4), replicas=st.sampled_from([1, 1, 1, 2]))
    def set_node(self, name: str, gpus: int, replicas: int) -> None:
        self.ledger.upsert_node(node_object(name, gpus, replicas=replicas))
        offer = (gpus, replicas) if gpus else (0, 1)
        if self.model.nodes.get(name) != offer:
            for uid, held in list(self.model.held.items()):
                if (held.node, held.state) == (name, ClaimState.RESERVED):
                    del self.model.held[uid]
        self.model.nodes[name] = offer

    @rule(name=NAMES)
    def remove_node(self, name: str) -> None:
        self.ledger.remove_node(name)
        self.model.nodes.pop(name, None)

    @rule(uid=UIDS, request=REQUESTS)
    def decide(self, uid: str, request: GpuRequest) -> None:
        """Filter: decide over all nodes and reserve."""
        if not self.model.settled(uid):
            self.model.held.pop(uid, None)
        room = {node: self.model.free_units(node) for node in self.model.nodes}
        placement = self.placer.place(
            PodIdentity("default", uid, uid), request, POLICIES["bestfit"], sorted(self.model.nodes)
        )
        self.placer.reserve(placement)
        if placement.node is None:
            if request == GpuRequest(1):
                # A plugin that picks by itself shares no node with pods that it does not know.
                apart = {held.node for other, held in self.model.held.items() if other in self.model.past_plugin}
                assert not any(room[node] for node in room.keys() - apart), "a free unit was overlooked"
            return
        if request.unit is AskedUnit.WHOLE:
            self.model.past_plugin.add(uid)
        gpus = placement.decision.gpus
        units = request.count or len(gpus)
        assert units <= room[placement.node], "more was promised than is free"
        tracked = {gpu for held in self.model.held.values() if held.node == placement.node for gpu in held.gpus}
        if self.model.nodes[placement.node][1] == 1:
            assert len(gpus) == units
            assert not tracked & set(gpus), "a GPU was promised twice"
        if not self.model.settled(uid):
            self.model.held[uid] = Held(placement.node, units, gpus, ClaimState.RESERVED, self.model.now)

    @rule(uid=UIDS)
    def release(self, uid: str) -> None:
        self.ledger.release(uid)
        if not self.model.settled(uid):
            self.model.held.pop(uid, None)

    @rule(target=bindings, uid=UIDS)
    def begin_binding(self, uid: str) -> object:
        """Bind what is reserved."""
        self.model.forget_expired()
        held = self.model.held.get(uid)
        if held is None or held.state is not ClaimState.RESERVED:
            return multiple()
        claim = self.ledger.begin_binding(uid, held.node, whole_gpus(held.units, held.gpus), self.model.now)
        held.state, held.decided = ClaimState.BINDING, held.gpus
        return claim, held

    @rule(binding=consumes(bindings), outcome=st.sampled_from([ClaimState.BOUND, ClaimState.UNDECIDED, None]))
    def end_binding(self, binding: tuple[Claim, Held], outcome: ClaimState | None) -> None:
        claim, held = binding
        self.ledger.end_binding(claim, outcome, self.model.now)
        if self.model.held.get(claim.uid) is not held:
            return
        told = self.model.told.get(claim.uid)
        if outcome is None and told is None:
            del self.model.held[claim.uid]
        elif outcome is None:
            assert told is not None
            held.state, held.decided = ClaimState.BOUND, None
            held.units, held.gpus = told
        else:
            held.state, held.disputed = outcome, held.disputed and outcome is not ClaimState.BOUND
            self.weigh(held, told)
        held.since = self.model.now

    def weigh(self, held: Held, told: tuple[int, tuple[int, ...]] | None) -> None:
        """What is held where Binding and watch may both be true. Equal units on both sides: a pod's are one number."""
        assert held.decided is not None
        own = held.units if told is None else self.own_units[id(held)]
        held.units, held.gpus = own, held.decided
        if told is not None and held.disputed:
            units, gpus = told
            both = held.decided + tuple(gpu for gpu in gpus if gpu not in held.decided)
            sides = ((own, held.decided), (units, gpus))
            unknown = max(0, *(count - len(known) - len(set(both) - set(known)) for count, known in sides))
            held.units, held.gpus = len(both) + unknown, both

    @rule(uid=UIDS)
    def tell_of_own_pod(self, uid: str) -> None:
        """The watch tells of a pod that Kerf bound, before or after the answer to its binding."""
        held = self.model.held.get(uid)
        if held is not None and held.state is not ClaimState.RESERVED:
            self.tell(uid, held.node, held.units, held.gpus)

    @rule(uid=UIDS, node=NAMES, gpus=st.sets(st.integers(0, 5), min_size=1, max_size=3), known=st.booleans())
    def tell_of_foreign_pod(self, uid: str, node: str, gpus: set[int], known: bool) -> None:
        """The watch tells of a pod that somebody else bound, with indices or without."""
        self.tell(uid, node, len(gpus), tuple(sorted(gpus)) if known else ())

    def tell(self, uid: str, node: str, units: int, gpus: tuple[int, ...]) -> None:
        assigned = ",".join(map(str, gpus)) if gpus else None
        self.ledger.upsert_pod(pod_object(uid, units, uid=uid, node=node, assigned=assigned), self.model.now)
        self.model.seen.add(uid)
        if uid in self.model.told:
            return
        self.model.told[uid] = units, gpus
        known = self.model.held.get(uid)
        if known is None or known.node != node or known.state is ClaimState.RESERVED:
            self.model.held[uid] = Held(node, units, gpus, ClaimState.BOUND, self.model.now)
            return
        same = (known.units, known.gpus) == (units, gpus)
        self.own_units[id(known)] = known.units
        if known.state is not ClaimState.BOUND:
            if same or known.state is ClaimState.UNDECIDED:
                known.state, known.since = ClaimState.BOUND, self.model.now
            known.disputed = not same
        self.weigh(known, (units, gpus))

    @rule(uid=UIDS)
    def tell_of_pending_pod(self, uid: str) -> None:
        self.ledger.upsert_pod(pod_object(uid, 1, uid=uid), self.model.now)
        self.model.seen.add(uid)

    @rule(uid=UIDS, node=NAMES, phase=st.sampled_from(["Succeeded", "Failed"]))
    def finish(self, uid: str, node: str, phase: str) -> None:
        self.ledger.upsert_pod(pod_object(uid, 1, uid=uid, node=node, phase=phase), self.model.now)
        self.model.seen.add(uid)
        self.model.told.pop(uid, None)
        self.model.held.pop(uid, None)

    @rule(uid=UIDS)
    def delete(self, uid: str) -> None:
        self.ledger.remove_pod(uid)
        self.model.seen.discard(uid)
        self.model.told.pop(uid, None)
        self.model.held.pop(uid, None)

    @rule(listed=st.sets(UIDS))
    def relist(self, listed: set[str]) -> None:
        """A list that names some of the pods; those it names had been told of."""
        listed &= self.model.seen
        self.ledger.keep_pods(set(listed), self.model.now)
        for uid in self.model.seen - listed:
            self.model.told.pop(uid, None)
            self.model.held.pop(uid, None)
        self.model.seen = listed
        for uid, held in list(self.model.held.items()):
            if held.state is ClaimState.BOUND and uid not in listed and held.since < self.model.now:
                del self.model.held[uid]
                self.model.told.pop(uid, None)

    @invariant()
    def claims_are_those_of_the_model(self) -> None:
        self.ledger.snapshot(self.model.now)
        for number in range(8):
            claim, held = self.ledger.claim(f"u{number}"), self.model.held.get(f"u{number}")
            assert (claim is None) == (held is None)
            if claim and held:
                assert (claim.node, claim.units, claim.gpus, claim.state) == (
                    held.node,
                    held.units,
                    held.gpus,
                    held.state,
                )

    @invariant()
    def free_units_are_what_the_claims_leave(self) -> None:
        cluster = self.ledger.snapshot(self.model.now)
        assert set(cluster.row_of) == set(self.model.nodes)
        for node in self.model.nodes:
            assert free_units(cluster, node) == self.model.free_units(node)

    @invariant()
    def the_gpus_not_free_are_those_that_somebody_says_to_hold(self) -> None:
        cluster = self.ledger.snapshot(self.model.now)
        for node, (gpus, replicas) in self.model.nodes.items():
            said = {gpu for held in self.model.held.values() if held.node == node for gpu in held.gpus}
            free = set(np.flatnonzero(cluster.gpu_idle[cluster.row_of[node]]).tolist())
            assert free == set(range(gpus)) - (said if replicas == 1 else set())

    @invariant()
    def what_is_remembered_is_what_is(self) -> None:
        cluster = self.ledger.snapshot(self.model.now)
        for request in (GpuRequest(2), GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20000)):
            remembered = self.memo.evaluate(cluster, request, POLICIES["bestfit"]).evaluation
            plain = evaluate(cluster, request, POLICIES["bestfit"], np.arange(cluster.num_nodes))
            assert remembered.score.tolist() == plain.score.tolist()
            assert remembered.available.tolist() == plain.available.tolist()

    @precondition(lambda self: len(self.snapshots) < 10)
    @rule()
    def take_snapshot(self) -> None:
        cluster = self.ledger.snapshot(self.model.now)
        self.snapshots.append((cluster, cluster.gpu_idle.tolist(), cluster.untracked_units.tolist()))

    @invariant()
    def snapshots_stay_as_they_were(self) -> None:
        for cluster, gpu_free, untracked in self.snapshots:
            assert cluster.gpu_idle.tolist() == gpu_free
            assert cluster.untracked_units.tolist() == untracked


TestLedgerHistory = LedgerHistory.TestCase


TestLedgerHistory.settings = settings(stateful_step_count=50)
