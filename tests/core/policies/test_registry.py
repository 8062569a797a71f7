"""The policies by name, created with a deployment's options."""

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
from tests.core.builders import A100_40, ONE, all_rows, node
from tests.core.learning import only, plain_outlook
from tests.core.observing import observed_cluster
from tests.golden import Golden

OBSERVING = {"live", "genius", "alnair"}


@pytest.fixture
def policies() -> Mapping[str, Policy]:
    """With default options."""
    return registry.policies_of(Options())


def test_names_and_descriptions(policies: Mapping[str, Policy], golden: Golden) -> None:
    lines = [f"{name}: {policy.name}, {policy.description}" for name, policy in policies.items()]
    golden("core/policies.txt", [*lines, registry.names(policies), registry.renamed(policies["bestfit"])])
    for score, names in ((tightest, ("tightest", "bestfit", "auto")), (binpack, ("binpack",)), (_spread, ("spread",))):
        assert all(policies[name].score is score for name in names)
    assert policies["bestfit"].renamed == "tightest"
    assert registry.renamed(policies["tightest"]) == ""


def test_what_policies_weigh_and_depend_on(policies: Mapping[str, Policy]) -> None:
    named = [policy for name, policy in policies.items() if name not in ("auto", "bestfit")]
    assert {policy.name for policy in named if policy.spreads} == {"spread"}
    assert {policy.name for policy in named if policy.context} == OBSERVING | {"kerf"}
    assert {policy.name for policy in named if policy.rules} == OBSERVING
    assert {policy.name for policy in named if policy.share} == {"fgd", "kerf"}
    assert {policy.name for policy in named if policy.terms} == {"kerf"}
    assert {policy.name for policy in named if policy.without_gpus} == {"tightest", "binpack", "fgd", "kerf"}
    asked = PodRequest(ONE, cpu_milli=4000, memory_mib=512)
    seen = {policy.name: policy.weighed_request(asked) for policy in named}
    assert seen == dict.fromkeys(seen, ONE) | {
        "fgd": GpuRequest(1, cpu_milli=4000),
        "kerf": GpuRequest(1, cpu_milli=4000, memory_mib=512),
    }
    assert replace(policies["kerf"], weighs_cpu=False).weighed_request(asked) == GpuRequest(1, memory_mib=512)
    assert {policy.weighed_request(PodRequest(cpu_milli=4000)) for policy in named} == {None}


def test_an_independent_copy_equals_the_policy(policies: Mapping[str, Policy]) -> None:
    assert {name for name, policy in policies.items() if policy.apart} == OBSERVING | {"fgd", "kerf"}
    for policy in policies.values():
        if policy.apart is not None:
            other = policy.apart()
            assert (other.name, other.description, other.rules) == (policy.name, policy.description, policy.rules)
            assert other.score is not policy.score


def observed() -> Cluster:
    """Node a draws 100 W, with an application error on one GPU; b draws 300 W, c 200 W."""
    samples = {
        "a": {Gauge.POWER: [100, 100], Gauge.XID: [0, 31]},
        "b": {Gauge.POWER: [300, 300]},
        "c": {Gauge.POWER: [200, 200]},
    }
    cluster = observed_cluster({name: node(A100_40, A100_40) for name in "abc"}, samples)
    return replace(cluster, cpu_free_milli=np.full(3, 9000))


def scores(policy: Policy) -> list[float]:
    cluster = observed()
    found: list[float] = evaluate(cluster, ONE, policy, all_rows(cluster)).score.tolist()
    return found


def test_rules_and_expected_pods_are_those_of_the_deployment() -> None:
    rules = ObservedRules(min_unmanaged_mib=7, xids=frozenset({31}))
    expected = (Expected(1000, 1, 1000, 1, ("Tesla-T4",)),)
    policies = registry.policies_of(Options(rules=rules, expected=expected))
    # Power is known, of 400 W. The faulty GPU of node a counts as 0: 0.625 of the pod's own, half of that around it.
    right = {"live": [(0.625 + 0.3125) / 2, 0.575, 0.6], "fgd": [int(100 / (1 + np.exp(-1)))] * 3}  # no one wants these
    for name in (*OBSERVING, "fgd"):
        apart = policies[name].apart
        assert apart is not None
        for policy in (policies[name], apart()):
            assert policy.rules == (rules if name in OBSERVING else None)
            if name in right:
                assert scores(policy) == pytest.approx(right[name])


def test_the_live_term_counts_the_pods_own_gpus() -> None:
    by_power = dict.fromkeys(("load", "memory", "temperature", "bandwidth", "tensor"), 0.0) | {"own_gpus": 1.0}
    found = scores(Policy("live", LiveScore(by_power, frozenset({31})), ""))
    assert found == pytest.approx([0.375, 0.25, 0.5])  # the mean of 0.75 and nothing on a
    plain = [(4 * 0.5 + 2 + 2 * 0.5 + 0.5 + power) / 10 for power in (0.75, 0.25, 0.5)]
    assert scores(Policy("live", live_term(), "")) == pytest.approx(plain)


def test_the_learned_terms_count_observations_by_their_rules() -> None:
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
