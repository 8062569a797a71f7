"""From request to decision: ranking, ties, the GPUs given, and extender levels."""

from dataclasses import replace
from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from extender.core.clusters import Cluster
from extender.core.decisions import choice, decide, decide_from_top, decide_on, levels, near_best, ranked
from extender.core.evaluations import Evaluation, Memo, evaluate
from extender.core.fit.reasons import Reason
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import A100, ONE, T4, all_rows, arrays_of, best_of, cluster_of, decided, fit_all, node

BARE = AskedUnit.WHOLE
BEST_FIT = POLICIES["bestfit"]
EXPLAINED = replace(POLICIES["tightest"], terms=lambda cluster, request, row: {"row": row})
STATES = {
    "two": node(*[T4] * 2, held=[0]),
    "eight": node(*[T4] * 8, held=[0, 1, 2, 3]),
    "full": node(T4, held=[0]),
    "cpu": node(),
}


def test_only_candidates_win_and_each_gets_its_reason() -> None:
    cluster = cluster_of(STATES)
    assert [best_of(cluster, ONE, name) for name in ("bestfit", "binpack", "spread")] == ["two", "two", "eight"]
    rows = np.array([cluster.row_of["eight"], cluster.row_of["cpu"]])
    decision = decide(cluster, ONE, BEST_FIT, rows, Memo())
    assert (decision.best, decision.gpus) == (cluster.row_of["eight"], (4,))
    assert decision.evaluation.reason.tolist() == [Reason.FITS, Reason.NO_GPUS]
    assert decision.version == cluster.version
    nowhere = decided(cluster, GpuRequest(9))
    assert (nowhere.best, nowhere.gpus) == (None, ())


@given(st.permutations(list(STATES)), st.sampled_from(sorted(POLICIES)), st.integers(1, 4))
def test_the_order_of_nodes_changes_no_decision(names: list[str], policy: str, count: int) -> None:
    permuted = cluster_of({name: STATES[name] for name in names})
    assert best_of(permuted, GpuRequest(count), policy) == best_of(cluster_of(STATES), GpuRequest(count), policy)


def of_sizes(sizes: list[int]) -> Cluster:
    """Nodes with this many T4 each, whose names are in no order."""
    return cluster_of({f"n{7 * at % len(sizes)}-{at}": node(*[T4] * size) for at, size in enumerate(sizes)})


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4), st.sampled_from(sorted(POLICIES)))
def test_rows_that_fit_are_ranked_by_score_and_name(sizes: list[int], count: int, policy: str) -> None:
    cluster = of_sizes(sizes)
    rows = all_rows(cluster)
    evaluated = evaluate(cluster, GpuRequest(count), POLICIES[policy], rows)
    fitting = [row for row in rows.tolist() if evaluated.fits[row]]
    slow = sorted(fitting, key=lambda row: (-evaluated.score[row], cluster.node_names[row]))
    assert list(ranked(cluster, rows, evaluated)) == slow
    decision = decided(cluster, GpuRequest(count), policy)
    assert decision.best == (slow[0] if slow else None)
    for most in (0, 1, 3):
        assert near_best(cluster, decision, most).tolist() == slow[:most]


def test_a_decision_on_a_node_chosen_earlier_differs_by_its_score_alone() -> None:
    cluster = cluster_of(STATES)
    shares = GpuRequest(1, BARE, milli=400), GpuRequest(1, AskedUnit.SHARED)
    for policy in POLICIES.values():
        for request in (ONE, GpuRequest(2), *shares, GpuRequest(9)):
            for row in all_rows(cluster).tolist():
                among = decide(cluster, request, policy, np.array([row]), Memo())
                alone = decide_on(cluster, request, policy, row, Memo())
                assert alone.evaluation.reason.tolist() == among.evaluation.reason.tolist()
                assert alone.evaluation.available.tolist() == among.evaluation.available.tolist()
                assert alone.evaluation.score.tolist() == [0.0 if among.best == row else -np.inf]
                assert (alone.planned, among.planned, alone.rows.tolist()) == (True, False, [row])
                assert structs.replace(alone, evaluation=among.evaluation, rows=among.rows, planned=False) == among


@given(st.lists(st.integers(0, 4), max_size=12), st.sets(st.integers(0, 11)), st.integers(0, 4))
def test_deciding_from_the_top_finds_the_same_node_within_its_tries(
    sizes: list[int], offered: set[int], max_tries: int
) -> None:
    cluster = of_sizes(sizes)
    candidates = {name for row, name in enumerate(cluster.node_names) if row in offered}
    rows = np.array(sorted(cluster.row_of[name] for name in candidates), dtype=np.intp)
    plain = decide(cluster, ONE, BEST_FIT, rows, Memo())
    from_top = decide_from_top(cluster, ONE, BEST_FIT, candidates.__contains__, Memo(), max_tries)
    order = ranked(cluster, all_rows(cluster), evaluate(cluster, ONE, BEST_FIT, all_rows(cluster)))
    assert (from_top is not None) == (plain.best in list(islice(order, max_tries)))
    if from_top is not None:
        assert (from_top.best, from_top.gpus) == (plain.best, plain.gpus)


def test_deciding_from_the_top_reports_all_that_a_decision_reports() -> None:
    cluster = cluster_of(
        {
            "a": node(*[T4] * 8, numas=[0, 0, 0, 0, 1, 1, 1, 1]),
            "b": node(A100, used={0: (300, 1000)}),
            "full": node(T4, held=[0]),
        }
    )
    for request in (GpuRequest(5), GpuRequest(2), GpuRequest(1, BARE, 2048, milli=500)):
        plain = decided(cluster, request, EXPLAINED)
        found = decide_from_top(cluster, request, EXPLAINED, lambda _: True, Memo(), 1)
        assert found is not None
        assert structs.replace(found, rows=plain.rows, evaluation=plain.evaluation) == plain
        assert found.rows.tolist() == [0, 1, 2]
        assert found.evaluation.reason.tolist() == plain.evaluation.reason.tolist()
        assert found.evaluation.score.tolist() == plain.evaluation.score.tolist()


def test_what_the_winner_gives() -> None:
    sliced = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)
    for state, request, units, milli, mib, crosses in (
        (node(T4, T4), GpuRequest(2), 2, 1000, 0, ""),
        (node(T4, T4), GpuRequest(0, BARE, memory_total_mib=20000), 2, 1000, 0, ""),
        (node(A100, T4, unit=GpuUnit.PART), GpuRequest(2, memory_each_percent=10), 2, 0, 8192, ""),
        (node(T4, T4, numas=[0, 1]), GpuRequest(2), 2, 1000, 0, "numa"),
        (node(T4, T4, links=[0, 1]), GpuRequest(2), 2, 1000, 0, "link"),
        (node(T4, T4, numas=[0, 1]), ONE, 1, 1000, 0, ""),
        (sliced, GpuRequest(3, AskedUnit.SHARED), 3, 1000, 0, ""),
    ):
        decision = decided(cluster_of({"n": state}), request, EXPLAINED)
        assert (decision.best, decision.policy, decision.terms) == (0, "tightest", EXPLAINED.terms)
        assert (decision.units, decision.milli, decision.mib, decision.crosses) == (units, milli, mib, crosses)


def test_the_policy_chooses_the_gpu_of_a_single_share_on_known_gpus() -> None:
    def last(cluster: Cluster, request: GpuRequest, row: int, room: object) -> int:
        return int(cluster.gpu_model.shape[1]) - 1

    share, policy = GpuRequest(1, BARE, milli=500), replace(EXPLAINED, share=last)
    for state, request, gpus in (
        (node(T4, T4, T4), share, (2,)),
        (node(T4, T4, T4), ONE, (0,)),
        (node(T4, T4, T4), replace(share, count=2), (0, 1)),
        (node(T4, T4, T4, used={1: (500, 0)}, untracked=1), share, (1,)),
    ):
        cluster = cluster_of({"n": state})
        checked = fit_all(cluster, request)
        assert choice(cluster, 0, request, policy, checked.room[0], shares=bool(checked.shares[0])) == gpus
        assert decided(cluster, request, policy).gpus == gpus


def test_a_share_goes_on_the_gpu_filled_best_unless_the_policy_spreads() -> None:
    cluster = cluster_of({"n": node(T4, T4, used={1: (500, 1000)})})
    share = GpuRequest(1, BARE, 1000, milli=500)
    for name, gpus in (("tightest", (1,)), ("binpack", (1,)), ("spread", (0,))):
        assert decided(cluster, share, name).gpus == gpus
        decision = decide_on(cluster, share, POLICIES[name], 0, Memo())
        assert (decision.best, decision.gpus, decision.milli, decision.mib_each) == (0, gpus, 500, (1000,))


def test_gpus_are_chosen_by_the_room_there_is_now() -> None:
    arrays, memo = arrays_of({"a": node(T4, T4, held=[0, 1]), "b": node(T4, held=[0])}), Memo()
    share = GpuRequest(1, memory_each_mib=1024)

    def again() -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
        decision = decide(arrays.snapshot(), share, EXPLAINED, np.array([0, 1]), memo)
        return decision.best, decision.gpus, decision.mib_each

    assert again() == (None, (), ())
    part = node(T4, T4, used={1: (0, 1000)}, unit=GpuUnit.PART)
    arrays.set_held(arrays.set_node("a", part.offer), HeldAmounts(part.used, 0))
    assert again() == (0, (1,), (1024,))


def evaluation(values: list[float | None]) -> Evaluation:
    reason = [Reason.BUSY if value is None else Reason.FITS for value in values]
    score = [-np.inf if value is None else value for value in values]
    return Evaluation(np.array(reason, np.uint8), np.zeros(len(values), np.int64), np.array(score, np.float64))


def test_levels_are_dense_ranks_down_to_0() -> None:
    assert levels(evaluation([-1.0, 100.0, None, -1.0])).tolist() == [9, 10, 0, 9]


@given(st.lists(st.none() | st.integers(-20, 20).map(float), max_size=40))
def test_levels_keep_the_order_and_the_range(values: list[float | None]) -> None:
    ranked = levels(evaluation(values)).tolist()
    fitting = [(value, level) for value, level in zip(values, ranked, strict=True) if value is not None]
    for value, level in fitting:
        better = {other for other, _ in fitting if other > value}
        assert level == max(10 - len(better), 0)
    assert all(level == 0 for value, level in zip(values, ranked, strict=True) if value is None)
