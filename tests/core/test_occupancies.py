"""Booked against used: memory in use that nobody booked is not given away."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.decisions import decide
from extender.core.evaluations import Evaluation, Memo, evaluate
from extender.core.fit.checks import TABLE, sentence
from extender.core.fit.reasons import Reason
from extender.core.gauges import Gauge
from extender.core.occupancies import (
    HARDWARE_XIDS,
    Counting,
    ObservedRules,
    counting_observed,
    faulty,
    unaccounted_mib,
    unmanaged_mib,
)
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, node, wholly
from tests.core.observing import observe, observed_cluster

A100 = ("NVIDIA-A100-SXM4-40GB", 40960)
ONE, TWO = GpuRequest(1), GpuRequest(2)


def used(*mib: float) -> dict[Gauge, Sequence[float]]:
    return {Gauge.MEMORY_USED: mib}


def evaluated(cluster: Cluster, request: GpuRequest, policy: str = "live") -> Evaluation:
    return evaluate(cluster, request, POLICIES[policy], all_rows(cluster))


def one_node(state: NodeState, *mib: float) -> Cluster:
    return observed_cluster({"a": state}, {"a": used(*mib)})


def test_a_gpu_that_somebody_uses_is_not_given() -> None:
    cluster = one_node(node(A100, A100), 20000, 0)
    assert evaluated(cluster, TWO).reason.tolist() == [Reason.OCCUPIED]
    assert evaluated(cluster, TWO, "bestfit").reason.tolist() == [Reason.FITS]  # that policy counts bookings only
    decision = decide(cluster, ONE, POLICIES["live"], all_rows(cluster), Memo())
    assert decision.gpus == (1,)
    assert not TABLE[Reason.OCCUPIED].resolvable  # no eviction of pods gives it back
    assert "unknown processes" in sentence(Reason.OCCUPIED, TWO, 0)


def test_what_is_booked_may_be_used() -> None:
    cluster = one_node(node(A100, A100, held=[0]), 39000, 0)
    assert evaluated(cluster, ONE).reason.tolist() == [Reason.FITS]
    assert unmanaged_mib(cluster, all_rows(cluster), ObservedRules()).tolist() == [[0, 0]]


def test_a_little_is_no_sign_of_a_user() -> None:
    assert evaluated(one_node(node(A100), 1023), ONE).reason.tolist() == [Reason.FITS]
    assert evaluated(one_node(node(A100), 1024), ONE).reason.tolist() == [Reason.OCCUPIED]


def test_stale_or_missing_samples_take_nothing_away() -> None:
    assert evaluated(one_node(node(A100), np.nan), ONE).reason.tolist() == [Reason.FITS]
    cluster = observed_cluster({"a": node(A100)}, {"a": used(20000)}, age_s=91)
    assert evaluated(cluster, ONE).reason.tolist() == [Reason.FITS]


def test_pods_on_gpus_of_unknown_index_are_not_counted_twice() -> None:
    # Two of four are held by pods whose GPUs nobody knows; the samples tell which.
    cluster = one_node(node(*[A100] * 4, untracked=2), 30000, 30000, 0, 0)
    assert evaluated(cluster, TWO).reason.tolist() == [Reason.FITS]
    assert decide(cluster, TWO, POLICIES["live"], all_rows(cluster), Memo()).gpus == (2, 3)
    assert evaluated(cluster, GpuRequest(3)).reason.tolist() == [Reason.BUSY]


def test_time_slices_are_left_alone() -> None:
    cluster = one_node(node(A100, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4), 30000)
    assert evaluated(cluster, ONE).reason.tolist() == [Reason.FITS]


def test_faulty_gpus_are_given_to_nobody() -> None:
    broken = observed_cluster({"a": node(A100, A100)}, {"a": {Gauge.XID: [79, 31]}})
    assert evaluated(broken, TWO).reason.tolist() == [Reason.OCCUPIED]
    assert decide(broken, ONE, POLICIES["live"], all_rows(broken), Memo()).gpus == (1,)  # 31 is an application's fault
    remap = observed_cluster({"a": node(A100)}, {"a": {Gauge.ROW_REMAP_FAILED: [1]}})
    assert evaluated(remap, ONE).reason.tolist() == [Reason.OCCUPIED]


def test_a_gpu_given_back_is_free_before_its_next_sample() -> None:
    state = node(A100)
    arrays = arrays_of({"a": state})
    arrays.set_held(0, Held(wholly(state.offer, [0]), 0))
    observe(arrays, {"a": used(39000)}, now=1000)
    arrays.set_held(0, Held({}, 0))
    assert evaluated(arrays.snapshot(), ONE).reason.tolist() == [Reason.FITS]
    # What a newer sample tells belongs to someone else.
    cluster = observe(arrays, {"a": used(39000)}, now=1030)
    assert evaluated(cluster, ONE).reason.tolist() == [Reason.OCCUPIED]


@pytest.mark.parametrize(
    "rules", [ObservedRules(), ObservedRules(counts_memory=False), ObservedRules(excludes_faulty=False)]
)
def test_rows_that_did_not_change_are_carried_over(rules: ObservedRules) -> None:
    rng = np.random.default_rng(7)
    state = node(A100, A100)
    sliced = node(A100, A100, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4)
    arrays = arrays_of({f"n{i}": sliced if i == 0 else state for i in range(12)})
    observe(arrays, {f"n{i}": used(0, 0) for i in range(12)})
    counting = Counting(rules)
    taken: Counter[str] = Counter()
    for step in range(200):
        row = int(rng.integers(12))
        if rng.random() < 0.5:
            arrays.set_held(row, Held(wholly(state.offer, range(int(rng.integers(3)))), int(rng.integers(2))))
            cluster = arrays.snapshot()
        else:
            xid = rng.choice([0, 79], 2, p=[0.9, 0.1]).tolist()
            memory = rng.choice([0, 1023.5, 1024, 5000, 39000, np.nan], 2).tolist()
            cluster = observe(arrays, {f"n{row}": {Gauge.MEMORY_USED: memory, Gauge.XID: xid}}, 1000 + step)
        seen = counting(cluster)
        fresh = counting_observed(cluster, rules)
        for name in ("gpu_free_mib", "gpu_free_milli", "untracked_units"):
            assert np.array_equal(getattr(seen, name), getattr(fresh, name))
            taken[name] += bool((getattr(seen, name) != getattr(cluster, name)).any())
    assert taken["gpu_free_mib"] > 20  # so that there was something to carry over


HALF = (500, 10000)


@pytest.mark.parametrize(
    ("state", "in_use", "rules", "left"),
    [
        pytest.param(node(A100), 0, ObservedRules(), (40960, 0), id="an idle one"),
        pytest.param(node(A100), 5000.5, ObservedRules(), (35959, 0), id="what is used, rounded up"),
        pytest.param(node(A100), 50000, ObservedRules(), (0, 0), id="more than there is"),
        pytest.param(node(A100, used={0: HALF}), 10000, ObservedRules(), (30960, 0), id="what is booked"),
        pytest.param(node(A100, used={0: HALF}), 12000, ObservedRules(), (28960, 0), id="more than is booked"),
        pytest.param(node(A100, used={0: HALF}), 11023, ObservedRules(), (30960, 0), id="a little more"),
        pytest.param(node(A100), 1, ObservedRules(min_unmanaged_mib=1), (40959, 0), id="a little that counts"),
        pytest.param(node(A100), 5000, ObservedRules(counts_memory=False), (40960, 0), id="nothing counts"),
        pytest.param(node(A100, untracked=2), 5000, ObservedRules(), (35960, 1), id="one of unknown index is found"),
        pytest.param(
            node(A100, untracked=1), 1, ObservedRules(min_unmanaged_mib=1), (40959, 0), id="it is found by the least"
        ),
        pytest.param(
            node(A100, used={0: HALF}, untracked=1), 12000, ObservedRules(), (28960, 1), id="a shared one is not it"
        ),
        pytest.param(
            node(A100, used={0: (1000, 0)}, untracked=1),
            5000,
            ObservedRules(),
            (35960, 1),
            id="nor one without compute",
        ),
    ],
)
def test_what_is_left_of_a_gpu(state: NodeState, in_use: float, rules: ObservedRules, left: tuple[int, int]) -> None:
    """MiB, and units of unknown index."""
    seen = counting_observed(one_node(state, in_use), rules)
    assert (seen.gpu_free_mib[0, 0], seen.untracked_units[0]) == left


def test_nothing_is_left_of_a_faulty_gpu_unless_they_count_as_others() -> None:
    samples = {"a": {Gauge.XID: [79, 31, 0], Gauge.ROW_REMAP_FAILED: [0, 0, 1]}}
    cluster = observed_cluster({"a": node(A100, A100, A100)}, samples)
    seen = counting_observed(cluster, ObservedRules())
    assert (seen.gpu_free_milli.tolist(), seen.gpu_free_mib.tolist()) == ([[0, 1000, 0]], [[0, 40960, 0]])
    seen = counting_observed(cluster, ObservedRules(excludes_faulty=False))
    assert (seen.gpu_free_milli.tolist(), seen.gpu_free_mib.tolist()) == ([[1000] * 3], [[40960] * 3])


def test_which_errors_make_a_gpu_faulty_is_a_choice() -> None:
    nodes = {"a": node(A100, A100), "b": node(A100)}
    cluster = observed_cluster(nodes, {"a": {Gauge.XID: [79, 31]}})
    rows = np.array([1, 0])
    assert faulty(cluster, rows, ObservedRules()).tolist() == [[False, False], [True, False]]
    assert faulty(cluster, rows, ObservedRules(xids=frozenset({31}))).tolist() == [[False, False], [False, True]]
    assert not faulty(arrays_of(nodes).snapshot(), rows, ObservedRules()).any()
    assert frozenset({48, 64, 74, 79, 95, 119, 120, 140}) == HARDWARE_XIDS


@pytest.mark.parametrize(
    ("untracked", "unaccounted"), [(0, [5000, 0, 6000]), (1, [5000, 0, 6000]), (2, [0, 0, 0]), (3, [0, 0, 0])]
)
def test_pods_of_unknown_index_explain_as_many_gpus_in_use(untracked: int, unaccounted: list[int]) -> None:
    cluster = one_node(node(A100, A100, A100, untracked=untracked), 5000, 900, 6000)
    assert unmanaged_mib(cluster, all_rows(cluster), ObservedRules()).tolist() == [[5000, 0, 6000]]
    assert unaccounted_mib(cluster, all_rows(cluster), ObservedRules()).tolist() == [unaccounted]


def test_pods_of_one_node_explain_nothing_on_another() -> None:
    nodes = {"a": node(A100, untracked=1), "b": node(A100, untracked=1), "c": node(A100)}
    cluster = observed_cluster(nodes, {"a": used(5000), "b": used(1), "c": used(6000)})
    rules = ObservedRules(min_unmanaged_mib=1)
    assert unaccounted_mib(cluster, all_rows(cluster), rules).tolist() == [[0], [0], [6000]]
    assert unaccounted_mib(cluster, np.array([2, 0]), rules).tolist() == [[6000], [0]]
    unexplained = one_node(node(A100), 1)
    assert unaccounted_mib(unexplained, all_rows(unexplained), rules).tolist() == [[1]]


def test_of_a_gpu_whose_memory_is_not_known_no_use_counts() -> None:
    cluster = one_node(node(("unheard-of", 0), A100, A100), 5000, 5000, np.nan)
    for least in (1, 1024):
        rules = ObservedRules(min_unmanaged_mib=least)
        assert unmanaged_mib(cluster, all_rows(cluster), rules).tolist() == [[0, 5000, 0]]


def test_where_nobody_tells_nothing_is_in_use_beyond_bookings() -> None:
    cluster = arrays_of({"a": node(A100, A100, used={0: HALF})}).snapshot()
    assert unmanaged_mib(cluster, all_rows(cluster), ObservedRules()).tolist() == [[0, 0]]
    assert counting_observed(cluster, ObservedRules()) is cluster
    assert Counting(ObservedRules())(cluster) is cluster
    observed = one_node(node(A100), 5000)
    assert counting_observed(observed, None) is observed


def test_a_node_that_joins_is_counted_with_the_others() -> None:
    arrays, counting = arrays_of({"a": node(A100)}), Counting(ObservedRules())
    cluster = observe(arrays, {"a": used(5000)})
    assert counting(cluster).gpu_free_mib.tolist() == [[35960]]
    assert counting(cluster) is counting(cluster)
    arrays.set_held(arrays.set_node("b", node(A100, A100).offer), Held({}, 0))
    larger = observe(arrays, {"a": used(5000), "b": used(0, 6000)}, now=1010)
    seen = counting(larger)
    assert seen.gpu_free_mib[:2, :2].tolist() == [[35960, 0], [40960, 34960]]
