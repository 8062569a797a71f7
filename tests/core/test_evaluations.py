"""Evaluations and their cache: cached values equal computed ones, and a full cache is fair."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.decisions import decide, decide_from_top, decide_on
from extender.core.evaluations import Memo, evaluate
from extender.core.fit.reasons import Fit, Reason
from extender.core.gauges import Gauge
from extender.core.occupancies import with_observed_usage
from extender.core.policies.policy import Options, Policy
from extender.core.policies.registry import POLICIES, policies_of
from extender.core.resources.nodes import NO_GPUS, GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from tests.core.builders import (
    A100,
    A100_40,
    ONE,
    T4,
    all_rows,
    arrays_of,
    cluster_of,
    decided,
    fit_all,
    node,
    pattern,
    wholly,
)
from tests.core.learning import kerf_on, only
from tests.core.observing import observe, observed_cluster

TIGHTEST, LIVE = POLICIES["tightest"], POLICIES["live"]
REQUESTS = [
    ONE,
    GpuRequest(2, memory_each_mib=20000),
    GpuRequest(1, include=pattern("t4")),
    GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=100_000),
    GpuRequest(2, AskedUnit.SHARED),
    GpuRequest(1, AskedUnit.WHOLE, milli=500, cpu_milli=4000),
    GpuRequest(1, cpu_milli=16000),
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
LOADS = st.lists(st.sampled_from([0.0, 0.3, 0.9]), min_size=4, max_size=4)
CHANGES = st.one_of(
    st.tuples(st.just("set"), NAMES, OFFERS),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("hold"), NAMES, st.sets(st.integers(0, 3)), st.integers(0, 3), st.sampled_from([250, 1000])),
    st.tuples(st.just("observe"), NAMES, LOADS, st.sampled_from([0, 30000])),
    st.tuples(st.just("ask"), st.integers(0, len(REQUESTS) - 1), st.sampled_from(sorted(POLICIES))),
)


def policies_for(cluster: Cluster) -> dict[str, Policy]:
    """New policies, `kerf` with a model and the live term."""
    learned = kerf_on(cluster, only(node_idle=1.0, gpus_partly_used=-0.5, cpu_short=0.5), live=True)
    return policies_of(Options()) | {"kerf": learned}


@given(st.lists(CHANGES, max_size=30), st.integers(1, 4), st.booleans())
def test_cached_values_equal_computed_ones(
    changes: list[tuple],  # type: ignore[type-arg]
    max_classes: int,
    observed: bool,
) -> None:
    """Also where a node reaches the state of another, or its own earlier state, with other samples."""
    arrays = arrays_of({"t4": node(T4), "a100": node(A100)})
    first = observe(arrays, {}) if observed else arrays.snapshot()
    memo, kept = Memo(max_classes), policies_for(first)
    for step, (kind, *values) in enumerate(changes):
        if kind == "ask":
            request, cluster = REQUESTS[values[0]], arrays.snapshot()
            known = memo.evaluate(cluster, request, kept[values[1]])
            policy = policies_for(first)[values[1]]
            seen = with_observed_usage(cluster, policy.rules)
            assert known.room.tolist() == fit_all(seen, request).room.tolist()
            assert known.shares.tolist() == fit_all(seen, request).shares.tolist()
            plain = evaluate(cluster, request, policy, all_rows(cluster))
            assert known.evaluation.reason.tolist() == plain.reason.tolist()
            assert known.evaluation.available.tolist() == plain.available.tolist()
            assert known.evaluation.score.tolist() == plain.score.tolist()
        elif kind == "set":
            arrays.set_compute(arrays.set_node(*values), 9000, 65536)
        elif (row := arrays.row_of.get(values[0])) is not None:
            offer = arrays.offer(row)
            if kind == "remove":
                arrays.remove_node(values[0])
            elif kind == "hold":
                held = {
                    index: (values[3], gpu.memory_mib * values[3] // 1000)
                    for index, gpu in enumerate(offer.gpus)
                    if index in values[1]
                }
                arrays.set_held(row, HeldAmounts(held, offer.withheld_units + values[2]))
            elif observed and offer.gpus:
                loads = values[1][: len(offer.gpus)]
                sample = {Gauge.LOAD: loads, Gauge.MEMORY_USED: [values[2]] * len(loads), Gauge.ENCODER: loads}
                observe(arrays, {values[0]: sample}, now=1000.0 + step)
                assert arrays.observed is not None
                arrays.observed.expect(f"pod-{step}", row, (0,), 0.7, 1000.0 + step)
                arrays.touch(np.array([row]))


def hold_first(arrays: ClusterArrays, row: int) -> None:
    """Book the row's first GPU."""
    arrays.set_held(row, HeldAmounts(wholly(arrays.offer(row), [0]), 0))


class Counted:
    """A policy that records the rows it scores; its context is set by the test."""

    def __init__(self, *, by_state: bool = False) -> None:
        self.scored: list[list[int]] = []
        self.context = 0
        self.next_context: int | None = None
        self.policy = Policy("counted", self.score, "", context=lambda _: self.context, by_state=by_state)

    def score(self, cluster: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> Floats:
        self.scored.append(rows.tolist())
        if self.next_context is not None:
            self.context, self.next_context = self.next_context, None
        return np.full(len(rows), float(self.context))


def test_which_rows_are_scored_again() -> None:
    arrays, memo, counted = arrays_of({"a": node(T4), "b": node(T4), "c": node(T4)}), Memo(), Counted()

    def ask() -> tuple[list[float], list[list[int]]]:
        scores = memo.evaluate(arrays.snapshot(), ONE, counted.policy).evaluation.score.tolist()
        scored, counted.scored = counted.scored, []
        return scores, scored

    assert ask() == ([0, 0, 0], [[0, 1, 2]])
    assert ask() == ([0, 0, 0], [])
    hold_first(arrays, 1)
    assert ask() == ([0, -np.inf, 0], [[1]])
    assert ask() == ([0, -np.inf, 0], [])
    counted.context = 7
    assert ask() == ([7, -np.inf, 7], [[0, 1, 2]])
    assert ask() == ([7, -np.inf, 7], [])
    arrays.set_held(1, HeldAmounts({}, 0))
    counted.next_context = 8  # the context changes while the row is scored
    assert ask() == ([8, 8, 8], [[1], [0, 1, 2]])
    assert ask() == ([8, 8, 8], [])
    arrays.set_held(arrays.set_node("d", node(T4, T4).offer), HeldAmounts({}, 0))
    assert ask() == ([8] * 4, [[0, 1, 2, 3]])


def test_equal_states_share_a_score_where_the_policy_depends_on_the_state_alone() -> None:
    for by_state, scored in ((True, [[0, 1], [0]]), (False, [[0, 1], [0], [1]])):
        arrays, memo, counted = arrays_of({"a": node(T4, T4), "b": node(T4, T4)}), Memo(), Counted(by_state=by_state)
        for row in (0, 1):
            memo.evaluate(arrays.snapshot(), ONE, counted.policy)
            hold_first(arrays, row)
        memo.evaluate(arrays.snapshot(), ONE, counted.policy)
        assert counted.scored == scored


def test_nodes_in_equal_states_keep_their_own_scores_and_uuids() -> None:
    def by_name(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        return np.array([float(ord(cluster.node_names[row])) for row in rows.tolist()])

    arrays, memo = arrays_of({name: node(A100, A100, uuids=[f"{name}0", f"{name}1"]) for name in "ab"}), Memo()
    policy, of_uuid = Policy("by name", by_name, ""), GpuRequest(1, uuids=frozenset({"a1"}))
    for row in (0, 1):
        for request in (ONE, of_uuid):
            memo.evaluate(arrays.snapshot(), request, policy)
        hold_first(arrays, row)
    assert memo.evaluate(arrays.snapshot(), ONE, policy).evaluation.score.tolist() == [97.0, 98.0]
    assert memo.evaluate(arrays.snapshot(), of_uuid, policy).evaluation.fits.tolist() == [True, False]


def test_a_decision_is_a_copy() -> None:
    arrays, memo = arrays_of({"a": node(T4), "b": node(T4)}), Memo()
    cluster = arrays.snapshot()
    decision = decide(cluster, ONE, TIGHTEST, all_rows(cluster), memo)
    from_top = decide_from_top(cluster, ONE, TIGHTEST, lambda _: True, memo, 1)
    hold_first(arrays, 0)
    memo.evaluate(arrays.snapshot(), ONE, TIGHTEST)
    for taken in (decision, from_top):
        assert taken is not None
        assert taken.evaluation.fits.tolist() == [True, True]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=40), st.integers(1, 4))
def test_a_full_cache_drops_the_oldest_class_of_the_asker_with_most(
    asks: list[tuple[str, int]], max_classes: int
) -> None:
    """An asker that brings many classes does not displace those of others."""
    cluster, memo = cluster_of({"a": node(T4)}), Memo(max_classes)
    owner_of: dict[int, str] = {}  # by count, least recently used first
    for asker, count in asks:
        owner = owner_of.pop(count, asker)
        memo.of(asker).evaluate(cluster, GpuRequest(count), TIGHTEST)
        owner_of[count] = owner
        kept = [request.count for request, _ in memo._entries]  # noqa: SLF001
        if len(owner_of) > max_classes:
            num_of = Counter(owner_of.values())
            (gone,) = owner_of.keys() - set(kept)
            assert num_of[owner_of[gone]] == max(num_of.values())
            assert gone == next(one for one, its in owner_of.items() if its == owner_of[gone])
            del owner_of[gone]
        assert kept == list(owner_of)
        assert +memo._num_of == Counter(owner_of.values())  # noqa: SLF001


def test_policies_are_cached_apart_and_observations_subtracted_once_a_snapshot() -> None:
    arrays, memo = arrays_of({"a": node(A100_40)}), Memo()
    cluster = observe(arrays, {"a": {Gauge.MEMORY_USED: (20000,)}})
    first = memo.evaluate(cluster, ONE, TIGHTEST)
    assert memo.evaluate(cluster, ONE, replace(TIGHTEST, name="another")) is not first
    assert memo.evaluate(cluster, ONE, TIGHTEST) is first
    seen = memo.with_observed_usage(cluster, LIVE)
    assert seen.gpu_free_mib.tolist() == [[20960]]
    assert memo.with_observed_usage(cluster, LIVE) is memo.of("another").with_observed_usage(cluster, LIVE) is seen
    assert memo.with_observed_usage(cluster, TIGHTEST) is cluster


def test_nodes_that_would_fit_by_bookings_alone_are_occupied() -> None:
    states = {"small": node(T4), "full": node(A100, held=[0]), "used": node(A100, A100), "free": node(A100)}
    cluster = observed_cluster(states, {name: {Gauge.MEMORY_USED: (20000, 20000)} for name in ("used", "small")})
    large = GpuRequest(1, memory_each_mib=70000)
    reasons = [Reason.TOO_SMALL, Reason.BUSY, Reason.OCCUPIED, Reason.FITS]
    assert evaluate(cluster, large, LIVE, np.arange(4)).reason.tolist() == reasons
    assert evaluate(cluster, large, LIVE, np.array([2, 0])).reason.tolist() == [Reason.OCCUPIED, Reason.TOO_SMALL]
    assert decided(cluster, large, LIVE).evaluation.reason.tolist() == reasons
    for row, reason in enumerate(reasons):
        alone = decide_on(cluster, large, LIVE, row, Memo())
        assert alone.evaluation.reason.tolist() == [reason]
        assert alone.best == (row if reason is Reason.FITS else None)
    assert decide_on(cluster, large, TIGHTEST, 2, Memo()).gpus == (0,)
