"""Booked against observed usage: unbooked memory in use is not given away."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.evaluations import evaluate
from extender.core.fit.checks import TABLE
from extender.core.fit.reasons import Reason
from extender.core.gauges import Gauge
from extender.core.occupancies import (
    HARDWARE_XIDS,
    ObservedRules,
    ObservedUsageCache,
    faulty,
    unaccounted_mib,
    unmanaged_mib,
    with_observed_usage,
)
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import A100_40, ONE, UNKNOWN, NodeState, all_rows, arrays_of, decided, node, wholly
from tests.core.observing import observe, observed_cluster

GPU, TWO_GPUS = node(A100_40), node(A100_40, A100_40)
RULES, EVERY_MIB = ObservedRules(), ObservedRules(min_unmanaged_mib=1)
NO_MEMORY, NO_FAULTS = ObservedRules(counts_memory=False), ObservedRules(excludes_faulty=False)


def used(*mib: float) -> dict[Gauge, Sequence[float]]:
    return {Gauge.MEMORY_USED: mib}


def one_node(state: NodeState, *mib: float, age_s: float = 0.0) -> Cluster:
    return observed_cluster({"a": state}, {"a": used(*mib)}, age_s)


def reason(cluster: Cluster, count: int = 1, policy: str = "live") -> Reason:
    """The reason for the only node."""
    return Reason(evaluate(cluster, GpuRequest(count), POLICIES[policy], all_rows(cluster)).reason[0])


def test_a_gpu_in_use_by_unknown_processes_is_not_given() -> None:
    cluster = one_node(TWO_GPUS, 20000, 0)
    assert reason(cluster, 2) == Reason.OCCUPIED
    assert reason(cluster, 2, "bestfit") == Reason.FITS  # counts bookings only
    assert decided(cluster, ONE, "live").gpus == (1,)
    assert not TABLE[Reason.OCCUPIED].resolvable  # no eviction of pods helps


def test_the_reason_by_what_is_observed() -> None:
    for cluster, expected in (
        (one_node(node(A100_40, A100_40, held=[0]), 39000, 0), Reason.FITS),  # booked
        (one_node(GPU, 1023), Reason.FITS),
        (one_node(GPU, 1024), Reason.OCCUPIED),
        (one_node(GPU, np.nan), Reason.FITS),
        (one_node(GPU, 20000, age_s=91), Reason.FITS),
        (one_node(node(A100_40, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4), 30000), Reason.FITS),
        (observed_cluster({"a": GPU}, {"a": {Gauge.ROW_REMAP_FAILED: [1]}}), Reason.OCCUPIED),
    ):
        assert reason(cluster) == expected


def test_pods_on_gpus_of_unknown_index_are_not_counted_twice() -> None:
    # Two of four are held by pods on unknown GPUs; the samples tell which.
    cluster = one_node(node(*[A100_40] * 4, untracked=2), 30000, 30000, 0, 0)
    assert [reason(cluster, count) for count in (2, 3)] == [Reason.FITS, Reason.BUSY]
    assert decided(cluster, GpuRequest(2), "live").gpus == (2, 3)


def test_a_released_gpu_is_free_before_its_next_sample() -> None:
    arrays = arrays_of({"a": GPU})
    arrays.set_held(0, HeldAmounts(wholly(GPU.offer, [0]), 0))
    observe(arrays, {"a": used(39000)}, now=1000)
    arrays.set_held(0, HeldAmounts({}, 0))
    assert reason(arrays.snapshot()) == Reason.FITS
    # A newer sample belongs to another process.
    assert reason(observe(arrays, {"a": used(39000)}, now=1030)) == Reason.OCCUPIED


@pytest.mark.parametrize("rules", [RULES, NO_MEMORY, NO_FAULTS])
def test_counting_recomputes_changed_rows_alone_and_equals_the_whole(rules: ObservedRules) -> None:
    rng = np.random.default_rng(7)
    sliced = node(A100_40, A100_40, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4)
    arrays = arrays_of({f"n{i}": sliced if i == 0 else TWO_GPUS for i in range(12)})
    observe(arrays, {f"n{i}": used(0, 0) for i in range(12)})
    counting = ObservedUsageCache(rules)
    taken: Counter[str] = Counter()
    for step in range(200):
        row = int(rng.integers(12))
        if rng.random() < 0.5:
            arrays.set_held(row, HeldAmounts(wholly(TWO_GPUS.offer, range(int(rng.integers(3)))), int(rng.integers(2))))
            cluster = arrays.snapshot()
        else:
            xid = rng.choice([0, 79], 2, p=[0.9, 0.1]).tolist()
            memory = rng.choice([0, 1023.5, 1024, 5000, 39000, np.nan], 2).tolist()
            cluster = observe(arrays, {f"n{row}": {Gauge.MEMORY_USED: memory, Gauge.XID: xid}}, 1000 + step)
        seen, fresh = counting(cluster), with_observed_usage(cluster, rules)
        for name in ("gpu_free_mib", "gpu_free_milli", "untracked_units"):
            assert np.array_equal(getattr(seen, name), getattr(fresh, name))
            taken[name] += bool((getattr(seen, name) != getattr(cluster, name)).any())
    assert taken["gpu_free_mib"] > 20  # so that there was something to carry over


def test_memory_and_untracked_units_left_of_a_gpu() -> None:
    half = (500, 10000)
    for state, in_use, rules, left in (
        (GPU, 0, RULES, (40960, 0)),
        (GPU, 5000.5, RULES, (35959, 0)),  # rounded up
        (GPU, 50000, RULES, (0, 0)),
        (node(A100_40, used={0: half}), 10000, RULES, (30960, 0)),
        (node(A100_40, used={0: half}), 11023, RULES, (30960, 0)),
        (node(A100_40, used={0: half}), 12000, RULES, (28960, 0)),
        (GPU, 1, EVERY_MIB, (40959, 0)),
        (GPU, 5000, NO_MEMORY, (40960, 0)),
        (node(A100_40, untracked=2), 5000, RULES, (35960, 1)),
        (node(A100_40, untracked=1), 1, EVERY_MIB, (40959, 0)),
        (node(A100_40, used={0: half}, untracked=1), 12000, RULES, (28960, 1)),  # a shared one isn't of unknown index
        (node(A100_40, used={0: (1000, 0)}, untracked=1), 5000, RULES, (35960, 1)),
    ):
        seen = with_observed_usage(one_node(state, in_use), rules)
        assert (seen.gpu_free_mib[0, 0], seen.untracked_units[0]) == left


def test_faulty_gpus_by_the_rules() -> None:
    samples = {"a": {Gauge.XID: [79, 31, 0], Gauge.ROW_REMAP_FAILED: [0, 0, 1]}}
    nodes = {"a": node(A100_40, A100_40, A100_40), "b": GPU}
    cluster, rows = observed_cluster(nodes, samples), np.array([1, 0])
    assert faulty(cluster, rows, RULES).tolist() == [[False] * 3, [True, False, True]]  # 31 is an application's fault
    application = ObservedRules(xids=frozenset({31}))
    assert faulty(cluster, rows, application).tolist() == [[False] * 3, [False, True, True]]
    assert not faulty(arrays_of(nodes).snapshot(), rows, RULES).any()
    assert frozenset({48, 64, 74, 79, 95, 119, 120, 140}) == HARDWARE_XIDS
    for rules, milli, mib in ((RULES, [0, 1000, 0], [0, 40960, 0]), (NO_FAULTS, [1000] * 3, [40960] * 3)):
        seen = with_observed_usage(cluster, rules)
        assert (seen.gpu_free_milli[0].tolist(), seen.gpu_free_mib[0].tolist()) == (milli, mib)
    assert decided(cluster, ONE, "live").gpus == (0,)  # of node b
    assert decided(observed_cluster({"a": nodes["a"]}, samples), ONE, "live").gpus == (1,)


def test_pods_of_unknown_index_explain_as_many_gpus_in_use_on_their_own_node() -> None:
    for untracked, unaccounted in ((0, [5000, 0, 6000]), (1, [5000, 0, 6000]), (2, [0, 0, 0]), (3, [0, 0, 0])):
        cluster = one_node(node(A100_40, A100_40, A100_40, untracked=untracked), 5000, 900, 6000)
        assert unmanaged_mib(cluster, all_rows(cluster), RULES).tolist() == [[5000, 0, 6000]]
        assert unaccounted_mib(cluster, all_rows(cluster), RULES).tolist() == [unaccounted]
    nodes = {"a": node(A100_40, untracked=1), "b": node(A100_40, untracked=1), "c": GPU, "d": GPU}
    cluster = observed_cluster(nodes, {"a": used(5000), "b": used(1), "c": used(6000), "d": used(1)})
    assert unaccounted_mib(cluster, all_rows(cluster), EVERY_MIB).tolist() == [[0], [0], [6000], [1]]
    assert unaccounted_mib(cluster, np.array([2, 0]), EVERY_MIB).tolist() == [[6000], [0]]


def test_usage_counts_only_where_memory_and_samples_are_known() -> None:
    cluster = one_node(node(UNKNOWN, A100_40, A100_40), 5000, 5000, np.nan)
    for rules in (EVERY_MIB, RULES):
        assert unmanaged_mib(cluster, all_rows(cluster), rules).tolist() == [[0, 5000, 0]]
    unsampled = arrays_of({"a": node(A100_40, A100_40, used={0: (500, 10000)})}).snapshot()
    assert unmanaged_mib(unsampled, all_rows(unsampled), RULES).tolist() == [[0, 0]]
    assert with_observed_usage(unsampled, RULES) is ObservedUsageCache(RULES)(unsampled) is unsampled
    assert with_observed_usage(cluster, None) is cluster


def test_counting_grows_with_the_cluster() -> None:
    arrays, counting = arrays_of({"a": GPU}), ObservedUsageCache(RULES)
    cluster = observe(arrays, {"a": used(5000)})
    assert counting(cluster).gpu_free_mib.tolist() == [[35960]]
    assert counting(cluster) is counting(cluster)
    arrays.set_held(arrays.set_node("b", TWO_GPUS.offer), HeldAmounts({}, 0))
    seen = counting(observe(arrays, {"a": used(5000), "b": used(0, 6000)}, now=1010))
    assert seen.gpu_free_mib[:2, :2].tolist() == [[35960, 0], [40960, 34960]]
