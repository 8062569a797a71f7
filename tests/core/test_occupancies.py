"""Booked against used: memory in use that nobody booked is not given away."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.decisions import Evaluation, Memo, decide, evaluate
from extender.core.fit.reasons import RESOLVABLE, Reason, sentence
from extender.core.observations import Gauge
from extender.core.occupancies import Counting, ObservedRules, counting_observed, unmanaged_mib
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
    assert Reason.OCCUPIED not in RESOLVABLE  # no eviction of pods gives it back
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
