"""Who holds which GPU: claims from decision to deletion, and what they leave free."""

import pytest

from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.holdings import whole_gpus
from tests.ledger.builders import TTL_S, free_units, ledger_of, node_object, pod_object
from tests.nvidia import MEMORY_LABEL, SHARED_GPU_RESOURCE


def free_gpus(ledger: Ledger, node: str, now: float = 0.0) -> set[int]:
    cluster = ledger.snapshot(now)
    return {index for index, free in enumerate(cluster.gpu_idle[cluster.row_of[node]].tolist()) if free}


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
    assert ledger.rows.names() == []
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
