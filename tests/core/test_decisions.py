"""From request to verdict: ties, the wire's levels, and evaluations that are remembered."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.decisions import decide, decide_from_top, decide_on, levels, near_best, ranked
from extender.core.evaluations import Evaluation, Memo, evaluate
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit, Reason
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import NO_GPUS, GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node, pattern, wholly

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
BEST_FIT = POLICIES["bestfit"]
ONE = GpuRequest(1)


def winner(states: dict[str, NodeState], request: GpuRequest = ONE, policy: str = "bestfit") -> str | None:
    cluster = cluster_of(states)
    decision = decide(cluster, request, POLICIES[policy], all_rows(cluster), Memo())
    return None if decision.best is None else cluster.node_names[decision.best]


STATES = {
    "two": node(*[T4] * 2, held=[0]),
    "eight": node(*[T4] * 8, held=[0, 1, 2, 3]),
    "full": node(T4, held=[0]),
    "cpu": node(),
}


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        pytest.param("bestfit", "two", id="0 left over before 3 (T4)"),
        pytest.param("binpack", "two", id="2/2 in use before 5/8"),
        pytest.param("spread", "eight", id="5/8 in use before 2/2"),
    ],
)
def test_the_winner_by_policy(policy: str, name: str) -> None:
    assert winner(STATES, policy=policy) == name


def test_nothing_wins_where_nothing_fits() -> None:
    cluster = cluster_of(STATES)
    decision = decide(cluster, GpuRequest(9), BEST_FIT, all_rows(cluster), Memo())
    assert (decision.best, decision.gpus) == (None, ())
    assert not decision.evaluation.fits.any()


def test_no_candidates_no_winner() -> None:
    cluster = cluster_of(STATES)
    assert decide(cluster, ONE, BEST_FIT, np.array([], np.intp), Memo()).best is None


def test_only_candidates_win() -> None:
    cluster = cluster_of(STATES)
    rows = np.array([cluster.row_of["eight"], cluster.row_of["cpu"]])
    decision = decide(cluster, ONE, BEST_FIT, rows, Memo())
    assert decision.best == cluster.row_of["eight"]
    assert decision.gpus == (4,)
    assert decision.evaluation.reason.tolist() == [Reason.FITS, Reason.NO_GPUS]
    assert decision.version == cluster.version


@given(st.permutations(["a", "b", "c", "d"]))
def test_ties_go_to_the_smaller_name_in_whatever_order_nodes_came(names: list[str]) -> None:
    assert winner({name: node(T4, T4) for name in names}) == "a"


@given(st.permutations(list(STATES)), st.sampled_from(sorted(POLICIES)), st.integers(1, 4))
def test_permutation_of_nodes_changes_no_verdict(names: list[str], policy: str, count: int) -> None:
    permuted = {name: STATES[name] for name in names}
    assert winner(permuted, GpuRequest(count), policy) == winner(STATES, GpuRequest(count), policy)


def test_near_best_are_the_best_in_order() -> None:
    states = {"d": node(T4), "c": node(T4), "b": node(*[T4] * 3), "a": node(*[T4] * 2), "full": node(T4, held=[0])}
    cluster = cluster_of(states)
    decision = decide(cluster, ONE, BEST_FIT, all_rows(cluster), Memo())

    def best(count: int) -> list[str]:
        return [cluster.node_names[row] for row in near_best(cluster, decision, count)]

    # Left over: c 0, d 0, a 1, b 2; full does not fit.
    assert best(10) == ["c", "d", "a", "b"]
    assert best(3) == ["c", "d", "a"]
    assert best(0) == []
    assert near_best(cluster, decision, 1).tolist() == [decision.best]


def few_gpus_left(sizes: list[int]) -> dict[str, NodeState]:
    """Nodes of as many T4 each, named so that names and sizes are in no relation."""
    return {f"n{(7 * number) % len(sizes)}-{number}": node(*[T4] * size) for number, size in enumerate(sizes)}


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4), st.sampled_from(sorted(POLICIES)))
def test_ranked_is_every_row_that_fits_best_first(sizes: list[int], count: int, policy: str) -> None:
    cluster = cluster_of(few_gpus_left(sizes))
    rows = all_rows(cluster)
    evaluated = evaluate(cluster, GpuRequest(count), POLICIES[policy], rows)
    fitting = [row for row in rows.tolist() if evaluated.fits[row]]
    slow = sorted(fitting, key=lambda row: (-evaluated.score[row], cluster.node_names[row]))
    assert list(ranked(cluster, rows, evaluated)) == slow


ASKED = (ONE, GpuRequest(2), GpuRequest(1, AskedUnit.WHOLE, milli=400), GpuRequest(9), GpuRequest(1, AskedUnit.SHARED))


@pytest.mark.parametrize("request_", ASKED, ids=str)
def test_on_a_node_chosen_before_it_is_the_same_verdict_but_for_the_score(request_: GpuRequest) -> None:
    cluster = cluster_of(STATES)
    for policy, row in itertools.product(sorted(POLICIES), all_rows(cluster).tolist()):
        among = decide(cluster, request_, POLICIES[policy], np.array([row]), Memo())
        alone = decide_on(cluster, request_, POLICIES[policy], row, Memo())
        assert alone.evaluation.reason.tolist() == among.evaluation.reason.tolist()
        assert alone.evaluation.available.tolist() == among.evaluation.available.tolist()
        assert alone.evaluation.score.tolist() == [0.0 if among.best == row else -np.inf]
        assert (alone.planned, among.planned) == (True, False)
        assert dataclasses.replace(alone, evaluation=among.evaluation, rows=among.rows, planned=False) == among


@given(st.lists(st.integers(0, 4), max_size=12), st.sets(st.integers(0, 11)), st.integers(1, 4))
def test_from_the_top_is_the_same_verdict(sizes: list[int], offered: set[int], max_tries: int) -> None:
    cluster = cluster_of(few_gpus_left(sizes))
    candidates = {name for row, name in enumerate(cluster.node_names) if row in offered}
    rows = np.array(sorted(cluster.row_of[name] for name in candidates), dtype=np.intp)
    plain = decide(cluster, ONE, BEST_FIT, rows, Memo())
    from_top = decide_from_top(cluster, ONE, BEST_FIT, candidates.__contains__, Memo(), max_tries)
    if from_top is not None:
        assert (from_top.best, from_top.gpus) == (plain.best, plain.gpus)
    else:
        order = list(ranked(cluster, all_rows(cluster), evaluate(cluster, ONE, BEST_FIT, all_rows(cluster))))
        assert plain.best is None or order.index(plain.best) >= max_tries


def evaluation(values: list[float | None]) -> Evaluation:
    reason = [Reason.BUSY if value is None else Reason.FITS for value in values]
    score = [-np.inf if value is None else value for value in values]
    return Evaluation(np.array(reason, np.uint8), np.zeros(len(values), np.int64), np.array(score, np.float64))


@pytest.mark.parametrize(
    ("values", "ranked"),
    [
        pytest.param([], [], id="no rows"),
        pytest.param([None, None], [0, 0], id="nothing fits"),
        pytest.param([3.5], [10], id="one"),
        pytest.param([-1.0, -2.0, -3.0], [10, 9, 8], id="dense: one level each, whatever the distance"),
        pytest.param([1.0, 100.0, 1.0], [9, 10, 9], id="equal values, equal levels"),
        pytest.param([2.0, None, 1.0], [10, 0, 9], id="what does not fit is 0"),
        pytest.param([float(n) for n in range(13)], [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], id="never below 0"),
    ],
)
def test_levels(values: list[float | None], ranked: list[int]) -> None:
    assert levels(evaluation(values)).tolist() == ranked


@given(st.lists(st.none() | st.integers(-20, 20).map(float), max_size=40))
def test_levels_keep_the_order_and_the_range(values: list[float | None]) -> None:
    ranked = levels(evaluation(values)).tolist()
    fitting = [(value, level) for value, level in zip(values, ranked, strict=True) if value is not None]
    for value, level in fitting:
        better = {other for other, _ in fitting if other > value}
        assert level == max(10 - len(better), 0)
    assert all(level == 0 for value, level in zip(values, ranked, strict=True) if value is None)


# Evaluations remembered.

REQUESTS = [
    GpuRequest(1),
    GpuRequest(2, memory_each_mib=20000),
    GpuRequest(1, include=pattern("t4")),
    GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=100_000),
    GpuRequest(2, AskedUnit.SHARED),
]
OFFERS = st.sampled_from(
    [
        NO_GPUS,
        node(T4, T4).offer,
        node(A100).offer,
        node(A100, T4, A100, T4).offer,
        node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=2, withheld=1).offer,
    ]
)
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
CHANGES = st.one_of(
    st.tuples(st.just("set"), NAMES, OFFERS),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("hold"), NAMES, st.sets(st.integers(0, 3)), st.integers(0, 3)),
    st.tuples(st.just("ask"), st.integers(0, len(REQUESTS) - 1), st.sampled_from(sorted(POLICIES))),
)


@given(st.lists(CHANGES, max_size=30), st.integers(1, 4))
def test_what_is_remembered_is_what_evaluate_gives(changes: list[tuple], max_classes: int) -> None:  # type: ignore[type-arg]
    arrays = arrays_of({})
    memo = Memo(max_classes)
    for kind, *values in changes:
        if kind == "ask":
            request, policy = REQUESTS[values[0]], POLICIES[values[1]]
            cluster = arrays.snapshot()
            known = memo.evaluate(cluster, request, policy)
            remembered, checked = known.evaluation, fit(cluster, request, all_rows(cluster))
            assert known.room.tolist() == checked.room.tolist()
            assert known.shares.tolist() == checked.shares.tolist()
            plain = evaluate(cluster, request, policy, all_rows(cluster))
            assert remembered.reason.tolist() == plain.reason.tolist()
            assert remembered.available.tolist() == plain.available.tolist()
            assert remembered.score.tolist() == plain.score.tolist()
        elif kind == "set":
            arrays.set_node(*values)
        elif values[0] in arrays.row_of:
            if kind == "remove":
                arrays.remove_node(values[0])
            else:
                row = arrays.row_of[values[0]]
                held = {index for index in values[1] if index < len(arrays.offer(row).gpus)}
                arrays.set_held(
                    row, Held(wholly(arrays.offer(row), held), arrays.offer(row).withheld_units + values[2])
                )


def asked_again(policy: Policy, request: GpuRequest) -> tuple[list[float], list[float]]:
    """Scores of a request on two nodes of which one after the other got to the same state: remembered, and anew."""
    arrays, memo = arrays_of({"a": node(T4, T4), "b": node(T4, T4)}), Memo()
    for row in (0, 1):
        memo.evaluate(arrays.snapshot(), request, policy)
        arrays.set_held(row, Held(wholly(arrays.offer(row), [0]), 0))
    cluster = arrays.snapshot()
    remembered = memo.evaluate(cluster, request, policy).evaluation.score.tolist()
    return remembered, evaluate(cluster, request, policy, all_rows(cluster)).score.tolist()


@pytest.mark.parametrize(("by_state", "times"), [(True, 2), (False, 3)])
def test_a_state_is_scored_once_where_the_policy_goes_by_it(by_state: bool, times: int) -> None:
    """All nodes, the first node that changed; and the second one, unless its state was met before."""
    asked: list[int] = []

    def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        asked.append(len(rows))
        return fit.free_units.astype(float)

    remembered, anew = asked_again(Policy("counted", score, "", by_state=by_state), ONE)
    assert remembered == anew
    assert len(asked) - 1 == times


def test_a_score_by_name_is_never_another_nodes() -> None:
    def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        return np.array([float(ord(cluster.node_names[row])) for row in rows.tolist()])

    remembered, anew = asked_again(Policy("by name", score, ""), ONE)
    assert remembered == anew == [97.0, 98.0]


def test_a_request_by_uuid_is_looked_at_on_each_node() -> None:
    arrays, memo = arrays_of({name: node(A100, A100, uuids=[f"{name}0", f"{name}1"]) for name in "ab"}), Memo()
    request = GpuRequest(1, uuids=frozenset({"a1"}))
    for row in (0, 1):
        memo.evaluate(arrays.snapshot(), request, BEST_FIT)
        arrays.set_held(row, Held(wholly(arrays.offer(row), [0]), 0))
    assert memo.evaluate(arrays.snapshot(), request, BEST_FIT).evaluation.fits.tolist() == [True, False]


def test_what_is_taken_from_a_memo_is_a_copy() -> None:
    arrays = arrays_of({"a": node(T4), "b": node(T4)})
    memo = Memo()
    cluster = arrays.snapshot()
    decision = decide(cluster, ONE, BEST_FIT, all_rows(cluster), memo)
    arrays.set_held(0, Held(wholly(arrays.offer(0), [0]), 0))
    memo.evaluate(arrays.snapshot(), ONE, BEST_FIT)
    assert decision.evaluation.fits.tolist() == [True, True]


def test_who_brings_many_classes_has_his_own_forgotten() -> None:
    """Whoever has them forgotten has all nodes looked at anew in each call."""
    cluster, memo = cluster_of(STATES), Memo(max_classes=8)
    ordinary = memo.of("ordinary")
    known = [ordinary.evaluate(cluster, GpuRequest(count), BEST_FIT) for count in (1, 2)]
    for count in range(1, 40):
        memo.of("hostile").evaluate(cluster, GpuRequest(count), BEST_FIT)
    again = [ordinary.evaluate(cluster, GpuRequest(count), BEST_FIT) for count in (1, 2)]
    assert [entry.room is before.room for entry, before in zip(again, known, strict=True)] == [True, True]


def test_among_equals_what_was_asked_for_longest_ago_is_forgotten() -> None:
    cluster, memo = cluster_of(STATES), Memo(max_classes=2)
    first, second = (memo.evaluate(cluster, GpuRequest(count), BEST_FIT) for count in (1, 2))
    assert memo.evaluate(cluster, GpuRequest(1), BEST_FIT) is first
    memo.of("another").evaluate(cluster, GpuRequest(3), BEST_FIT)
    assert memo.evaluate(cluster, GpuRequest(1), BEST_FIT) is first
    assert memo.evaluate(cluster, GpuRequest(2), BEST_FIT) is not second
