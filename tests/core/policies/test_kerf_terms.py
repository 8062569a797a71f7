"""What the learned rank reports of a score, and that independent calls don't disturb its cache."""

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
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import ONE, T4, all_rows, arrays_of, choose_gpus, cluster_of, fit_all, node, scores_of, wholly
from tests.core.learning import kerf_on, only, plain_outlook
from tests.core.observing import observed_cluster

HALF = GpuRequest(1, AskedUnit.WHOLE, milli=500)
THREE = node(T4, T4, T4)
SHARED = node(T4, T4, T4, used={0: (100, 0), 2: (500, 0)})
IDLE = only(1 / 7, gpus_idle=-1 / 3, node_idle=-2 / 3, gpu_sqrt=1.0)
"""Of three idle GPUs one taken adds 1/3 + 2/3 + sqrt(2) - sqrt(3) = 0.682163, or 4.775 quanta."""
HAIR = 15 * 2.0**-20
"""What 15 GiB cost among equals."""


def terms(cluster: Cluster, policy: Policy, request: GpuRequest = ONE, row: int = 0) -> dict[str, object]:
    assert policy.terms is not None
    return dict(policy.terms(cluster, request, row))


def scores(cluster: Cluster, policy: Policy, request: GpuRequest = ONE) -> list[float]:
    values: list[float] = evaluate(cluster, request, policy, all_rows(cluster)).score.tolist()
    return values


def loaded(*loads: float) -> Cluster:
    return observed_cluster({"a": THREE}, {"a": {Gauge.LOAD: loads}})


def test_the_terms_of_a_score_list_the_largest_contributions_first() -> None:
    cluster = loaded(1 / 3, 1 / 3, 1 / 3)
    policy = kerf_on(cluster, IDLE, KerfWeights(0.5, 0.25), live=True)
    assert terms(cluster, policy) == {
        "served": "model",
        "gainGPUs": 0.682163,
        "quantumGPUs": 0.142857,
        "quanta": 4,
        "headroom": 0.6667,  # (4 * (1 - 1/3) + 2 + 4 * 0.5 of unknown gauges) / 10
        "weights": {"value": 0.5, "live": 0.25},
        "features": [
            {"feature": "node_idle", "before": 1.0, "after": 0.0, "movedGPUs": 0.666667},
            {"feature": "gpus_idle", "before": 3.0, "after": 2.0, "movedGPUs": 0.333333},
            {"feature": "gpu_sqrt", "before": 1.732051, "after": 1.414214, "movedGPUs": -0.317837},
        ],
    }
    # 4 quanta and 7 tenths by their weights.
    assert scores(cluster, policy) == [0.5 * 4 + 0.25 * 0.7 - HAIR]


def test_headroom_is_reported_where_it_counts() -> None:
    cluster, unsampled = loaded(0.0, 0.0, 0.0), cluster_of({"a": THREE})
    for sampled, weights, live, headroom in (
        (cluster, None, True, 0.8),
        (cluster, KerfWeights(1.0, 0.0), True, None),
        (cluster, None, False, None),
        (unsampled, None, True, None),
    ):
        assert terms(sampled, kerf_on(sampled, IDLE, weights, live=live))["headroom"] == headroom


def test_the_terms_of_a_share_are_those_of_its_gpu() -> None:
    cluster = cluster_of({"b": node(T4), "a": node(T4, T4, used={1: (500, 7680)})})
    policy = kerf_on(cluster, only(1.0, gpus_partly_used=-1.0))
    assert terms(cluster, policy, HALF, 1)["features"] == [
        {"feature": "gpus_partly_used", "before": 1.0, "after": 0.0, "movedGPUs": 1.0}
    ]
    assert terms(cluster, policy, HALF, 0)["gainGPUs"] == -1.0


def test_the_reason_is_reported_where_no_model_ranks() -> None:
    mig = GpuRequest(0, mig=(("1g.5gb", 1),))
    cluster = cluster_of({"a": node(T4, mig={"1g.5gb": 2})})
    model = kerf_on(cluster, IDLE)
    for policy, request, reason in (
        (model, mig, "the model does not cover MIG devices"),
        (serving(LearnedScore()), ONE, "no model is loaded"),
        (serving(LearnedScore(why_not="it was refused").apart()), ONE, "it was refused"),
    ):
        assert terms(cluster, policy, request) == {"served": "tightest", "reason": reason}
        assert scores(cluster, policy, request) == scores(cluster, POLICIES["tightest"], request)
    assert terms(cluster, model)["served"] == "model"


def test_nodes_without_the_cpu_come_between_those_that_fit_and_those_that_do_not() -> None:
    arrays = arrays_of({"full": node(T4, T4, T4, held=[0, 1, 2]), "poor": THREE, "free": THREE})
    for row, cpu in enumerate((9000, 999, 1000)):
        arrays.set_compute(row, cpu, 1000)
    cluster, request = arrays.snapshot(), GpuRequest(1, cpu_milli=1000)
    score = LearnedScore(prospect(IDLE, plain_outlook(cluster)))
    for rows, right in ((np.array([2, 0, 1]), [4 - HAIR, -np.inf, -1e9]), (np.array([0]), [-np.inf])):
        assert score(cluster, request, rows, fit(cluster, request, rows)).tolist() == right


def test_without_a_model_nothing_is_gained_and_shares_go_by_best_fit() -> None:
    cluster = cluster_of({"a": SHARED, "b": node(T4)})
    rows = np.array([1, 0, 1])
    gain, gpu = LearnedScore().gains(cluster, HALF, rows, fit(cluster, HALF, rows))
    assert (gain.tolist(), gpu.tolist()) == ([0.0] * 3, [-1] * 3)
    assert LearnedScore().share(cluster, HALF, 0, fit_all(cluster, HALF).room[0]) == 2
    assert choose_gpus(cluster, 0, HALF) == (2,)
    assert LearnedScore().share(cluster, HALF, 0, np.array([True, True, False])) == 0


def test_with_a_model_a_share_goes_where_most_value_is_left_while_values_are_finite() -> None:
    arrays = arrays_of({"a": SHARED, "b": node(T4)})
    arrays.set_capacity(1, 10**9, 1)
    arrays.set_compute(1, 10**9, 10**9)
    cluster = arrays.snapshot()
    score = LearnedScore(prospect(only(1.0, gpus_idle=-1.0, cpu_square=1e308), plain_outlook(cluster)))
    request, room = dataclasses.replace(HALF, cpu_milli=1000), np.array([True, True, True])
    assert score.share(cluster, request, 0, room) == 1  # breaking up an idle GPU is worth most
    assert score.share(cluster, request, 0, np.array([True, False, True])) == 0
    scores(cluster, serving(score), request)
    assert score.fault == "the model gives values that are not finite"
    assert score.share(cluster, request, 0, room) == 2


@pytest.mark.parametrize("call", ["gains", "terms", "share"])
def test_calls_for_another_cluster_leave_the_cache_alone(call: str) -> None:
    """The same version with other GPUs in use: what-if, or another thread's snapshots."""
    arrays = arrays_of(dict.fromkeys("abc", THREE))
    cluster = arrays.snapshot()
    potential = only(0.01, gpu_square=1.0)
    score = LearnedScore(prospect(potential, plain_outlook(cluster)), serial=1)
    assert len(set(np.ceil(scores(cluster, serving(score))))) == 1
    first = np.arange(3) == 0
    what_if = dataclasses.replace(
        cluster,
        version=cluster.version + 1,
        row_version=np.full_like(cluster.row_version, cluster.version + 1),
        gpu_free_milli=np.where(first, cluster.gpu_free_milli, 0).astype(np.int32),
        gpu_free_mib=np.where(first, cluster.gpu_free_mib, 0).astype(np.int32),
    )
    if call == "gains":
        gain, _ = score.gains(what_if, ONE, all_rows(what_if), fit_all(what_if))
        assert gain == pytest.approx([-1 / 3] * 3)  # of one idle GPU of three
    elif call == "terms":
        assert terms(what_if, serving(score))["gainGPUs"] == pytest.approx(-1 / 3, abs=1e-6)
    else:
        assert score.share(what_if, HALF, 0, fit_all(what_if, HALF).room[0]) == 0
    arrays.set_held(1, HeldAmounts(wholly(THREE.offer, [0]), 0))
    fresh = LearnedScore(prospect(potential, plain_outlook(cluster)), serial=1)
    assert scores(arrays.snapshot(), serving(score)) == scores(arrays.snapshot(), serving(fresh))


def test_an_independent_copy_has_the_same_model_and_weights_without_the_live_term() -> None:
    cluster = loaded(0.5, 0.5, 0.5)
    served = prospect(IDLE, plain_outlook(cluster))
    score = LearnedScore(served, KerfWeights(3.0, 2.0), live_term(), serial=7)
    # Headroom is (4 * 0.5 + 2 + 2) / 10.
    assert scores_of(score, cluster) == pytest.approx([3.0 * 4 + 2.0 * 0.6 - HAIR], abs=1e-12)
    assert scores_of(score.apart(), cluster) == pytest.approx([3.0 * 4 - HAIR], abs=1e-12)
    context = score.apart().context(cluster)
    assert context == LearnedScore(served, serial=7).context(cluster) != LearnedScore(served, serial=8).context(cluster)


def test_the_context_changes_with_the_samples_and_the_model() -> None:
    cluster = loaded(0.5, 0.5, 0.5)
    score = LearnedScore(prospect(IDLE, plain_outlook(cluster)), live=live_term(), serial=1)
    assert score.context(cluster) == score.context(cluster) != score.context(loaded(0.6, 0.5, 0.5))
    assert LearnedScore(why_not="a").context(cluster) != LearnedScore(why_not="b").context(cluster)
