"""What the learned rank tells of a score, and that whoever asks aside of it disturbs nothing."""

import dataclasses

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.evaluations import evaluate
from extender.core.fit.fits import fit
from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights, LearnedScore, live_term, serving
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.valuenet.potentials import prospect
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, choose_gpus, cluster_of, node, wholly
from tests.core.learning import kerf_on, only, plain_outlook
from tests.core.observing import observed_cluster

T4 = ("Tesla-T4", 15360)
ONE, HALF = GpuRequest(1), GpuRequest(1, AskedUnit.WHOLE, milli=500)
IDLE = only(1 / 7, gpus_idle=-1 / 3, node_idle=-2 / 3, gpu_sqrt=1.0)
"""Of three idle GPUs one taken adds 1/3 + 2/3 + sqrt(2) - sqrt(3) = 0.682163, or 4.775 quanta."""


def told(cluster: Cluster, policy: Policy, request: GpuRequest = ONE, row: int = 0) -> dict[str, object]:
    assert policy.terms is not None
    return dict(policy.terms(cluster, request, row))


def scores(cluster: Cluster, policy: Policy, request: GpuRequest = ONE) -> list[float]:
    values: list[float] = evaluate(cluster, request, policy, all_rows(cluster)).score.tolist()
    return values


def loaded(*loads: float) -> Cluster:
    return observed_cluster({"a": node(T4, T4, T4)}, {"a": {Gauge.LOAD: loads}})


def test_all_of_a_score_is_told_with_what_moved_the_value_most_first() -> None:
    cluster = loaded(1 / 3, 1 / 3, 1 / 3)
    policy = kerf_on(cluster, IDLE, KerfWeights(0.5, 0.25), live=True)
    assert told(cluster, policy) == {
        "served": "model",
        "gainGPUs": 0.682163,
        "quantumGPUs": 0.142857,
        "quanta": 4,
        "headroom": 0.6667,  # (4 * (1 - 1/3) + 2 + 4 * 0.5 of what nobody tells) / 10
        "weights": {"value": 0.5, "live": 0.25},
        "features": [
            {"feature": "node_idle", "before": 1.0, "after": 0.0, "movedGPUs": 0.666667},
            {"feature": "gpus_idle", "before": 3.0, "after": 2.0, "movedGPUs": 0.333333},
            {"feature": "gpu_sqrt", "before": 1.732051, "after": 1.414214, "movedGPUs": -0.317837},
        ],
    }
    # 4 quanta and 7 tenths by their weights, less a hair for each of 15 GiB.
    assert scores(cluster, policy) == [0.5 * 4 + 0.25 * 0.7 - 15 * 2.0**-20]


def test_nodes_that_do_not_fit_stand_apart_from_those_without_the_cpu_and_those_that_do() -> None:
    free = node(T4, T4, T4)
    arrays = arrays_of({"full": node(T4, T4, T4, held=[0, 1, 2]), "poor": free, "free": free})
    for row, cpu in enumerate((9000, 999, 1000)):
        arrays.set_compute(row, cpu, 1000)
    cluster = arrays.snapshot()
    request, rows = GpuRequest(1, cpu_milli=1000), np.array([2, 0, 1])
    score = LearnedScore(prospect(IDLE, plain_outlook(cluster)))
    found = score(cluster, request, rows, fit(cluster, request, rows))
    assert found.tolist() == [4 - 15 * 2.0**-20, -np.inf, -1e9]
    nowhere = score(cluster, request, rows[1:2], fit(cluster, request, rows[1:2]))
    assert nowhere.tolist() == [-np.inf]


def test_headroom_is_told_where_it_counts() -> None:
    cluster = loaded(0.0, 0.0, 0.0)
    unsampled = cluster_of({"a": node(T4, T4, T4)})
    assert told(cluster, kerf_on(cluster, IDLE, live=True))["headroom"] == 0.8
    assert told(cluster, kerf_on(cluster, IDLE, KerfWeights(1.0, 0.0), live=True))["headroom"] is None
    assert told(cluster, kerf_on(cluster, IDLE))["headroom"] is None
    assert told(unsampled, kerf_on(unsampled, IDLE, live=True))["headroom"] is None


def test_of_a_share_the_gpu_that_it_would_get_is_told_of() -> None:
    cluster = cluster_of({"b": node(T4), "a": node(T4, T4, used={1: (500, 7680)})})
    policy = kerf_on(cluster, only(1.0, gpus_partly_used=-1.0))
    assert told(cluster, policy, HALF, 1)["features"] == [
        {"feature": "gpus_partly_used", "before": 1.0, "after": 0.0, "movedGPUs": 1.0}
    ]
    assert told(cluster, policy, HALF, 0)["gainGPUs"] == -1.0


def test_why_no_model_ranks_is_told() -> None:
    mig = GpuRequest(0, mig=(("1g.5gb", 1),))
    cluster = cluster_of({"a": node(T4, mig={"1g.5gb": 2})})
    assert told(cluster, kerf_on(cluster, IDLE), mig) == {
        "served": "tightest",
        "reason": "the model does not cover MIG devices",
    }
    assert scores(cluster, kerf_on(cluster, IDLE), mig) == scores(cluster, POLICIES["tightest"], mig)
    assert told(cluster, serving(LearnedScore())) == {"served": "tightest", "reason": "no model is loaded"}
    apart = LearnedScore(why_not="it was refused").apart()
    assert told(cluster, serving(apart)) == {"served": "tightest", "reason": "it was refused"}
    assert told(cluster, kerf_on(cluster, IDLE))["served"] == "model"


def test_without_a_model_nothing_is_gained() -> None:
    cluster = cluster_of({"a": node(T4), "b": node(T4)})
    rows = np.array([1, 0, 1])
    gain, gpu = LearnedScore().gains(cluster, HALF, rows, fit(cluster, HALF, rows))
    assert (gain.tolist(), gpu.tolist()) == ([0.0] * 3, [-1] * 3)


def test_a_share_without_a_model_goes_where_best_fit_puts_it() -> None:
    cluster = cluster_of({"a": node(T4, T4, T4, used={0: (100, 0), 2: (500, 0)})})
    room = fit(cluster, HALF, all_rows(cluster)).room[0]
    assert LearnedScore().share(cluster, HALF, 0, room) == 2
    assert choose_gpus(cluster, 0, HALF) == (2,)
    assert LearnedScore().share(cluster, HALF, 0, np.array([True, True, False])) == 0


def test_a_share_with_a_model_goes_where_most_value_is_left() -> None:
    cluster = cluster_of({"a": node(T4, T4, T4, used={0: (100, 0), 2: (500, 0)})})
    score = LearnedScore(prospect(only(1.0, gpus_idle=-1.0), plain_outlook(cluster)))
    assert score.share(cluster, HALF, 0, np.array([True, True, True])) == 1  # to break up an idle one is worth most
    assert score.share(cluster, HALF, 0, np.array([True, False, True])) == 0


def test_a_share_goes_where_best_fit_puts_it_once_values_were_not_finite() -> None:
    shared = node(T4, T4, T4, used={0: (100, 0), 2: (500, 0)})
    arrays = arrays_of({"a": shared, "b": node(T4)})
    arrays.set_capacity(1, 10**9, 1)
    arrays.set_compute(1, 10**9, 10**9)
    cluster = arrays.snapshot()
    score = LearnedScore(prospect(only(1.0, gpus_idle=-1.0, cpu_square=1e308), plain_outlook(cluster)))
    request = dataclasses.replace(HALF, cpu_milli=1000)
    room = np.array([True, True, True])
    assert score.share(cluster, request, 0, room) == 1
    scores(cluster, serving(score), request)
    assert score.fault == "the model gives values that are not finite"
    assert score.share(cluster, request, 0, room) == 2


NODES: dict[str, NodeState] = {name: node(T4, T4, T4) for name in "abc"}


@pytest.mark.parametrize("way", ["gains", "told", "share"])
def test_a_question_about_what_is_not_leaves_no_trace(way: str) -> None:
    """The same version with other GPUs in use: what if, or another thread's line of snapshots."""
    arrays = arrays_of(NODES)
    cluster = arrays.snapshot()
    potential = only(0.01, gpu_square=1.0)
    score = LearnedScore(prospect(potential, plain_outlook(cluster)), serial=1)
    assert len(set(np.ceil(scores(cluster, serving(score))))) == 1
    what_if = dataclasses.replace(
        cluster,
        version=cluster.version + 1,
        row_version=np.full_like(cluster.row_version, cluster.version + 1),
        gpu_free_milli=np.where(np.arange(3) == 0, cluster.gpu_free_milli, 0).astype(np.int32),
        gpu_free_mib=np.where(np.arange(3) == 0, cluster.gpu_free_mib, 0).astype(np.int32),
    )
    rows = all_rows(what_if)
    if way == "gains":
        gain, _ = score.gains(what_if, ONE, rows, fit(what_if, ONE, rows))
        assert gain == pytest.approx([-1 / 3] * 3)  # of one idle GPU of three
    elif way == "told":
        assert told(what_if, serving(score))["gainGPUs"] == pytest.approx(-1 / 3, abs=1e-6)
    else:
        assert score.share(what_if, HALF, 0, fit(what_if, HALF, rows).room[0]) == 0
    arrays.set_held(1, Held(wholly(NODES["b"].offer, [0]), 0))
    later = arrays.snapshot()
    fresh = LearnedScore(prospect(potential, plain_outlook(cluster)), serial=1)
    assert scores(later, serving(score)) == scores(later, serving(fresh))


def test_the_score_apart_has_the_same_model_and_weights_without_the_live_term() -> None:
    cluster = loaded(0.5, 0.5, 0.5)
    served = prospect(IDLE, plain_outlook(cluster))
    score = LearnedScore(served, KerfWeights(3.0, 2.0), live_term(), serial=7)
    apart = score.apart()
    hair = 15 * 2.0**-20
    # Headroom is (4 * 0.5 + 2 + 2) / 10.
    assert scores(cluster, serving(score)) == pytest.approx([3.0 * 4 + 2.0 * 0.6 - hair], abs=1e-12)
    assert scores(cluster, serving(apart)) == pytest.approx([3.0 * 4 - hair], abs=1e-12)
    assert apart.context(cluster) == LearnedScore(served, serial=7).context(cluster)
    assert apart.context(cluster) != LearnedScore(served, serial=8).context(cluster)


def test_the_context_changes_with_the_samples_and_with_what_is_served() -> None:
    cluster = loaded(0.5, 0.5, 0.5)
    served = prospect(IDLE, plain_outlook(cluster))
    score = LearnedScore(served, live=live_term(), serial=1)
    first = score.context(cluster)
    assert score.context(cluster) == first
    assert score.context(loaded(0.6, 0.5, 0.5)) != first
    assert LearnedScore(why_not="a").context(cluster) != LearnedScore(why_not="b").context(cluster)
