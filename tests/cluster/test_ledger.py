"""Who holds which GPU: claims from decision to deletion, and what they leave free."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from extender.cluster.holdings import whole_gpus
from extender.cluster.ledger import Claim, ClaimState, Ledger
from extender.cluster.placements import Placer, PodIdentity
from extender.core.clusters import Cluster
from extender.core.decisions import Memo, evaluate
from extender.core.nodes import MEMORY_LABEL, SHARED_GPU_RESOURCE
from extender.core.policies import POLICIES
from extender.core.requests import AskedUnit, GpuRequest
from tests.cluster.builders import Clock, node_object, pod_object

TTL_S = 30.0


def ledger_of(**gpus: int) -> Ledger:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    for name, num_gpus in gpus.items():
        ledger.upsert_node(node_object(name, num_gpus))
    return ledger


def free_gpus(ledger: Ledger, node: str, now: float = 0.0) -> set[int]:
    cluster = ledger.snapshot(now)
    return {index for index, free in enumerate(cluster.gpu_idle[cluster.row_of[node]].tolist()) if free}


def free_units(cluster: Cluster, node: str) -> int:
    row = cluster.row_of[node]
    free = int(cluster.gpu_idle[row].sum()) * int(cluster.units_per_gpu[row])
    return max(free - int(cluster.untracked_units[row]), 0)


def free(ledger: Ledger, node: str, now: float = 0.0) -> int:
    return free_units(ledger.snapshot(now), node)


# Reservations.


def test_a_reservation_holds_until_its_ttl_ends() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("u", "n", whole_gpus(2, (0, 1)), 100.0)
    assert free_gpus(ledger, "n", 100.0 + TTL_S - 0.001) == {2, 3}
    assert free_gpus(ledger, "n", 100.0 + TTL_S) == {0, 1, 2, 3}
    assert ledger.claim("u") is None


def test_a_pod_has_one_reservation_the_last_one() -> None:
    ledger = ledger_of(a=2, b=2)
    ledger.reserve("u", "a", whole_gpus(1, (0,)), 0.0)
    ledger.reserve("u", "b", whole_gpus(1, (1,)), 20.0)
    assert (free_gpus(ledger, "a", 20.0), free_gpus(ledger, "b", 20.0)) == ({0, 1}, {0})
    # The first one's time is up at 30: it must not take the second one, which lasts until 50, with it.
    assert (free_gpus(ledger, "b", 49.9), free_gpus(ledger, "b", 50.0)) == ({0}, {0, 1})


def test_what_is_released_is_free() -> None:
    ledger = ledger_of(n=2)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.release("u")
    assert free_gpus(ledger, "n") == {0, 1}
    ledger.release("nobody")


def test_slices_are_reserved_by_number() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(node_object("n", 2, resource=SHARED_GPU_RESOURCE, replicas=4))
    ledger.reserve("u", "n", whole_gpus(3), 0.0)
    assert free(ledger, "n") == 2 * 4 - 3


# Bindings.


@pytest.mark.parametrize(
    ("outcome", "held", "held_after_ttl"),
    [
        pytest.param(ClaimState.BOUND, {1}, {1}, id="bound: held as long as the pod"),
        pytest.param(None, set(), set(), id="refused: free at once"),
        pytest.param(ClaimState.UNDECIDED, {1}, {1}, id="nobody knows: held until somebody does"),
    ],
)
def test_a_binding_ends_with_its_answer(outcome: ClaimState | None, held: set[int], held_after_ttl: set[int]) -> None:
    ledger = ledger_of(n=2)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 10.0)
    assert free_gpus(ledger, "n", 10.0) == {0}
    assert free_gpus(ledger, "n", 10.0 + 10 * TTL_S) == {0}, "a binding under way has no TTL"
    ledger.end_binding(claim, outcome, 400.0)
    assert free_gpus(ledger, "n", 400.0 + TTL_S - 0.001) == {0, 1} - held
    assert free_gpus(ledger, "n", 400.0 + TTL_S) == {0, 1} - held_after_ttl


@pytest.mark.parametrize(("outcome", "held"), [(ClaimState.BOUND, {1}), (None, set())])
def test_what_is_undecided_ends_when_somebody_knows(outcome: ClaimState | None, held: set[int]) -> None:
    ledger = ledger_of(n=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    ledger.end_binding(claim, ClaimState.UNDECIDED, 0.0)
    ledger.end_binding(claim, outcome, 1.0)
    assert free_gpus(ledger, "n", 1000.0) == {0, 1} - held


@pytest.mark.parametrize("outcome", [ClaimState.BOUND, ClaimState.UNDECIDED, None])
def test_the_watch_has_the_last_word_over_the_answer(outcome: ClaimState | None) -> None:
    ledger = ledger_of(n=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="1"), 1.0)
    ledger.end_binding(claim, outcome, 2.0)
    known = ledger.claim("u")
    assert known is not None
    assert known.state is ClaimState.BOUND
    assert free_gpus(ledger, "n", 1000.0) == {0}


def test_a_pod_deleted_while_it_is_bound_holds_nothing() -> None:
    ledger = ledger_of(n=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    ledger.remove_pod("u")
    ledger.end_binding(claim, ClaimState.BOUND, 1.0)
    assert free_gpus(ledger, "n") == {0, 1}


@pytest.mark.parametrize("state", [ClaimState.BINDING, ClaimState.UNDECIDED, ClaimState.BOUND])
def test_what_is_settled_is_not_reserved_or_released(state: ClaimState) -> None:
    ledger = ledger_of(n=2, other=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    if state is not ClaimState.BINDING:
        ledger.end_binding(claim, state, 0.0)
    ledger.reserve("u", "other", whole_gpus(1, (0,)), 1.0)
    ledger.release("u")
    assert ledger.claim("u") is claim
    assert (free_gpus(ledger, "n"), free_gpus(ledger, "other")) == ({0}, {0, 1})


def test_what_was_read_of_a_pod_is_held_until_somebody_tells() -> None:
    ledger = ledger_of(n=2, m=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    read = ledger.hold_as_read(pod_object("p", 1, uid="u", node="m", assigned="0"), 1.0)
    ledger.end_binding(claim, None, 1.0)
    assert (free_gpus(ledger, "n", 1.0), free_gpus(ledger, "m", 1.0)) == ({0, 1}, {1})
    assert free_gpus(ledger, "m", 1.0 + 10 * TTL_S) == {1}
    assert read is not None
    ledger.end_binding(read, None, 400.0)
    assert free_gpus(ledger, "m", 400.0) == {0, 1}
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="m", assigned="1"), 500.0)
    assert ledger.hold_as_read(pod_object("p", 1, uid="u", node="m", assigned="0"), 501.0) is None
    assert free_gpus(ledger, "m", 501.0) == {0}, "the watch knows better"
    assert ledger.hold_as_read(pod_object("q", 1, uid="unbound"), 501.0) is None


def test_an_event_from_before_the_binding_changes_nothing() -> None:
    ledger = ledger_of(n=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u"), 0.5)
    ledger.end_binding(claim, ClaimState.BOUND, 1.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u"), 1.5)
    assert free_gpus(ledger, "n") == {0}


def test_a_reservation_stands_until_its_node_is_crowded_or_changed() -> None:
    ledger = ledger_of(n=2)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    assert ledger.is_reserved("u", "n")
    assert not ledger.is_reserved("u", "other")
    assert not ledger.is_reserved("nobody", "n")
    ledger.upsert_pod(pod_object("fits-beside", 1, node="n"), 0.0)
    assert ledger.is_reserved("u", "n")
    ledger.upsert_pod(pod_object("too-many", 1, node="n"), 0.0)
    assert not ledger.is_reserved("u", "n"), "3 units on 2 GPUs"


def test_a_reservation_whose_index_another_pod_has_does_not_stand() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(pod_object("foreign", 1, node="n", assigned="0"), 0.0)
    assert not ledger.is_reserved("u", "n")


def test_a_reservation_ends_when_its_node_offers_something_else() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_node(node_object("n", 3))
    assert ledger.claim("u") is None


def test_claims_are_counted_by_state() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("a", "n", whole_gpus(1, (0,)), 0.0)
    ledger.begin_binding("b", "n", whole_gpus(1, (1,)), 0.0)
    ledger.upsert_pod(pod_object("c", 1, node="n"), 0.0)
    assert [ledger.num_claims(state) for state in ClaimState] == [1, 1, 0, 1]


# What the watch tells.


def test_pods_of_every_scheduler_count() -> None:
    ledger = ledger_of(n=4)
    ledger.upsert_pod(pod_object("ours", 1, node="n", assigned="2"), 0.0)
    ledger.upsert_pod(pod_object("theirs", 2, node="n"), 0.0)
    assert free_gpus(ledger, "n") == {0, 1, 3}
    assert free(ledger, "n") == 4 - 1 - 2


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_release(phase: str) -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0"), 0.0)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0", phase=phase), 0.0)
    assert free(ledger, "n") == 2


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
def test_terminating_pods_hold(phase: str) -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0", phase=phase, terminating=True), 0.0)
    assert free_gpus(ledger, "n") == {1}


def test_pods_on_an_unknown_node_count_once_it_appears() -> None:
    ledger = ledger_of()
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 0.0)
    assert ledger.snapshot(0.0).num_nodes == 0
    ledger.upsert_node(node_object("n", 2))
    assert free_gpus(ledger, "n") == {0}


def test_claims_outlive_their_node() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 0.0)
    ledger.remove_node("n")
    assert ledger.node_names() == []
    ledger.remove_node("n")
    ledger.upsert_node(node_object("n", 4))
    assert free_gpus(ledger, "n") == {0, 2, 3}


def test_a_pod_created_again_under_its_name_is_another_pod() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, uid="old", node="n", assigned="0"), 0.0)
    ledger.upsert_pod(pod_object("p", 1, uid="new", node="n", assigned="1"), 0.0)
    assert free_gpus(ledger, "n") == set()
    ledger.remove_pod("old")
    assert free_gpus(ledger, "n") == {0}


@pytest.mark.parametrize(
    ("assigned", "free_now", "units"),
    [
        pytest.param(["0", "0"], {1, 2, 3}, 4 - 1 - 1, id="two pods say the same GPU"),
        pytest.param(["0", "0,1"], {2, 3}, 4 - 1 - 2, id="assignments overlap"),
        pytest.param(["0,1", "0"], {2, 3}, 4 - 2 - 1, id="assignments overlap, the other way round"),
        pytest.param(["0", "9"], {1, 2, 3}, 4 - 1 - 1, id="an index that is not there"),
    ],
)
def test_indices_that_cannot_be_count_by_number(assigned: list[str], free_now: set[int], units: int) -> None:
    ledger = ledger_of(n=4)
    for number, text in enumerate(assigned):
        ledger.upsert_pod(pod_object(f"p{number}", len(text.split(",")), node="n", assigned=text), 0.0)
    assert free_gpus(ledger, "n") == free_now
    assert free(ledger, "n") == units


def test_on_time_slices_an_index_holds_one_slice_and_not_the_gpu() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0"), 0.0)
    ledger.upsert_node(node_object("n", 2, replicas=4))
    assert free(ledger, "n") == 2 * 4 - 1


def test_unhealthy_gpus_are_withheld() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(node_object("n", 2, installed=4))
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="3"), 0.0)
    assert free(ledger, "n") == 4 - (4 - 2) - 1


def test_absurdly_many_units_leave_nothing_free_and_break_nothing() -> None:
    ledger = ledger_of(n=2)
    for name in ("a", "b", "c"):
        ledger.upsert_pod(pod_object(name, 2**31 - 1, node="n"), 0.0)
    assert free(ledger, "n") == 0
    for name in ("a", "b", "c"):
        ledger.remove_pod(f"uid-{name}")
    assert free(ledger, "n") == 2


def test_a_heartbeat_changes_nothing() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 0.0)
    before = ledger.snapshot(0.0)
    ledger.upsert_node(node_object("n", 2))
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 5.0)
    assert ledger.snapshot(5.0) is before


def test_a_node_that_changes_keeps_its_holders() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 0.0)
    ledger.upsert_node(node_object("n", 4, product="NVIDIA-A100-SXM4-80GB", memory_mib=81920))
    assert free_gpus(ledger, "n") == {0, 2, 3}


def test_warnings_come_once_for_each_change() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    node = node_object("n", 2)
    node.metadata.labels = {MEMORY_LABEL: "lots"}
    assert len(ledger.upsert_node(node)) == 1
    assert ledger.upsert_node(node) == ()


def test_tolerance_and_aliases_reach_the_nodes() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S, memory_tolerance_frac=0.05, model_aliases={"small": ["t4"]})
    ledger.upsert_node(node_object("n", 1, memory_mib=15000))
    cluster = ledger.snapshot(0.0)
    assert cluster.gpu_memory_mib[0, 0] == 15360  # 360 missing <= 5 % of 15360 = 768
    assert "small" in cluster.models[cluster.gpu_model[0, 0]].names


# Lists.


def test_pods_that_a_list_no_longer_names_are_gone() -> None:
    ledger = ledger_of(n=4)
    for name in ("a", "b"):
        ledger.upsert_pod(pod_object(name, 1, node="n"), 0.0)
    ledger.keep_pods({"uid-a"}, 10.0)
    assert free(ledger, "n") == 4 - 1
    assert [ledger.claim(uid) is not None for uid in ("uid-a", "uid-b")] == [True, False]


@pytest.mark.parametrize(
    ("list_began", "gone"),
    [
        pytest.param(6.0, True, id="bound before the list began: it came and went unseen"),
        pytest.param(5.0, False, id="bound as the list began: it may be too new for it"),
        pytest.param(4.0, False, id="bound after the list began"),
    ],
)
def test_a_pod_bound_here_and_never_seen(list_began: float, gone: bool) -> None:
    ledger = ledger_of(n=2)
    ledger.end_binding(ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 3.0), ClaimState.BOUND, 5.0)
    ledger.keep_pods(set(), list_began)
    assert (ledger.claim("u") is None) is gone


def test_a_list_leaves_what_is_not_bound_yet() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("reserved", "n", whole_gpus(1, (0,)), 0.0)
    ledger.begin_binding("binding", "n", whole_gpus(1, (1,)), 0.0)
    ledger.keep_pods(set(), 10.0)
    assert free_gpus(ledger, "n") == {2, 3}


# Bursts and arbitrary histories.


def place(placer: Placer, uid: str, request: GpuRequest, names: Iterable[str]) -> str | None:
    placement = placer.place(PodIdentity("default", uid, uid), request, POLICIES["bestfit"], list(names))
    placer.reserve(placement)
    return placement.node


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
def test_a_burst_never_promises_a_gpu_twice(gpus: int) -> None:
    ledger = ledger_of(**{f"n{number}": 8 for number in range(10)})
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())
    placed = [place(placer, f"u{number}", GpuRequest(gpus), ledger.node_names()) for number in range(100)]
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
                assert not any(room.values()), "a free unit was overlooked"
            return
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
TestLedgerHistory.settings = settings(max_examples=100, stateful_step_count=50)
