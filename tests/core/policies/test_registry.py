"""The policies by name, as a deployment wants them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.evaluations import evaluate
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules
from extender.core.policies import registry
from extender.core.policies.binpack import binpack
from extender.core.policies.kerf import LearnedScore, live_term, serving
from extender.core.policies.live import LiveScore
from extender.core.policies.policy import Expected, Options, Policy
from extender.core.policies.spread import _spread
from extender.core.policies.tightest import tightest
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.core.valuenet.potentials import prospect
from tests.core.builders import all_rows, node
from tests.core.learning import only, plain_outlook
from tests.core.observing import observed_cluster

A100 = ("NVIDIA-A100-SXM4-40GB", 40960)
ONE = GpuRequest(1)


@pytest.fixture
def policies() -> Mapping[str, Policy]:
    """As nobody configured them."""
    return registry.policies_of(Options())


def test_what_a_policy_prefers_is_told(policies: Mapping[str, Policy]) -> None:
    tightest_first = "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
    assert {name: (policy.name, policy.description) for name, policy in policies.items()} == {
        "tightest": ("tightest", tightest_first),
        "auto": ("tightest", tightest_first),
        "bestfit": ("bestfit", tightest_first),
        "binpack": ("binpack", "fullest node first, by fraction of its GPUs"),
        "spread": ("spread", "emptiest node first, by fraction of its GPUs"),
        "live": ("live", "most headroom, by observed load"),
        "genius": ("genius", "Genius' static and dynamic score"),
        "alnair": ("alnair", "Alnair's utilisation score: large and full nodes first"),
        "fgd": ("fgd", "least new fragmentation for the expected pods (decisions.typical_pods)"),
        "kerf": (
            "kerf",
            "most learned value left behind, and most headroom by observed load; `tightest` without a model",
        ),
    }
    assert registry.names(policies) == "tightest, binpack, spread, live, genius, alnair, fgd, kerf, auto"
    scores = {name: policies[name].score for name in ("tightest", "binpack", "spread", "bestfit", "auto")}
    assert scores == {
        **{"tightest": tightest, "bestfit": tightest, "auto": tightest},
        **{"binpack": binpack, "spread": _spread},
    }


def test_what_policies_weigh_and_depend_on(policies: Mapping[str, Policy]) -> None:
    named = [policy for name, policy in policies.items() if name not in ("auto", "bestfit")]
    observing = {"live", "genius", "alnair"}
    assert {policy.name for policy in named if policy.spreads} == {"spread"}
    assert {policy.name for policy in named if policy.context} == observing | {"kerf"}
    assert {policy.name for policy in named if policy.rules} == observing
    assert {policy.name for policy in named if policy.share} == {"fgd", "kerf"}
    assert {policy.name for policy in named if policy.terms} == {"kerf"}
    assert {policy.name for policy in named if policy.without_gpus} == {"tightest", "binpack", "fgd", "kerf"}
    asked = PodRequest(ONE, cpu_milli=4000, memory_mib=512)
    seen = {policy.name: policy.asked(asked) for policy in named}
    assert seen == dict.fromkeys(seen, ONE) | {
        "fgd": GpuRequest(1, cpu_milli=4000),
        "kerf": GpuRequest(1, cpu_milli=4000, memory_mib=512),
    }
    by_memory = replace(policies["kerf"], weighs_cpu=False)
    assert by_memory.asked(asked) == GpuRequest(1, memory_mib=512)
    assert {policy.asked(PodRequest(cpu_milli=4000)) for policy in named} == {None}


def test_the_policy_of_another_thread_is_like_the_first_and_apart_from_it(policies: Mapping[str, Policy]) -> None:
    assert {name for name, policy in policies.items() if policy.apart} == {"live", "genius", "alnair", "fgd", "kerf"}
    for policy in policies.values():
        if policy.apart is not None:
            other = policy.apart()
            assert (other.name, other.description, other.rules) == (policy.name, policy.description, policy.rules)
            assert other.score is not policy.score


OPTIONS = Options(
    rules=ObservedRules(min_unmanaged_mib=7, xids=frozenset({31})),
    expected=(Expected(1000, 1, 1000, 1, ("Tesla-T4",)),),
)


def observed() -> Cluster:
    """Node a draws 100 W, with an error of an application on one GPU; b draws 300 W."""
    samples = {
        "a": {Gauge.POWER: [100, 100], Gauge.XID: [0, 31]},
        "b": {Gauge.POWER: [300, 300]},
        "c": {Gauge.POWER: [200, 200]},
    }
    cluster = observed_cluster({name: node(A100, A100) for name in "abc"}, samples)
    return replace(cluster, cpu_free_milli=np.full(3, 9000))


@pytest.mark.parametrize("name", ["live", "genius", "alnair"])
def test_observed_use_counts_by_the_rules_of_the_deployment(name: str) -> None:
    policy = registry.policies_of(OPTIONS)[name]
    assert policy.rules == OPTIONS.rules
    assert policy.apart is not None
    assert policy.apart().rules == OPTIONS.rules


@pytest.mark.parametrize("apart", [False, True])
def test_rules_and_the_expected_pods_are_those_of_the_deployment(apart: bool) -> None:
    cluster = observed()

    def scores(name: str) -> list[float]:
        policy = registry.policies_of(OPTIONS)[name]
        if apart:
            assert policy.apart is not None
            policy = policy.apart()
        found: list[float] = evaluate(cluster, ONE, policy, all_rows(cluster)).score.tolist()
        return found

    # Power is told, of 400 W. The faulty GPU of node a gives nothing: 0.625 of its own one, half of that around it.
    assert scores("live") == pytest.approx([(0.625 + 0.3125) / 2, 0.575, 0.6])
    assert scores("fgd") == [int(100 / (1 + np.exp(-1)))] * 3  # nobody who is expected wants these


def test_the_live_term_is_that_of_the_pods_own_gpus() -> None:
    cluster = observed()
    rows = all_rows(cluster)
    by_power = dict.fromkeys(("load", "memory", "temperature", "bandwidth", "tensor"), 0.0) | {"own_gpus": 1.0}
    score = LiveScore(by_power, frozenset({31}))
    seen = evaluate(cluster, ONE, Policy("live", score, ""), rows).score
    assert seen.tolist() == pytest.approx([0.375, 0.25, 0.5])  # the mean of 0.75 and nothing on a
    plain = evaluate(cluster, ONE, Policy("live", live_term(), ""), rows).score
    assert plain.tolist() == pytest.approx([(4 * 0.5 + 2 + 2 * 0.5 + 0.5 + power) / 10 for power in (0.75, 0.25, 0.5)])


def test_what_is_told_of_the_learned_rank_counts_what_is_observed_by_its_rules() -> None:
    cluster = observed()
    served = prospect(only(1.0, gpus_idle=-1.0, gpu_sqrt=1.0), plain_outlook(cluster))
    for rules, idle in ((None, 2.0), (ObservedRules(xids=frozenset({31})), 1.0)):
        policy = serving(LearnedScore(served, serial=1), rules)
        assert policy.apart is not None
        for asked in (policy, policy.apart()):
            assert asked.rules == rules
            assert asked.terms is not None
            features = asked.terms(cluster, ONE, 0)["features"]
            assert {part["feature"]: part["before"] for part in features}["gpus_idle"] == idle
