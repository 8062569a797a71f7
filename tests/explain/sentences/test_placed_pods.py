"""Why a placed pod is on its node and not on the runner-up, in one sentence, and what scores are made of."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from extender.core.decisions import Decision, decide, decide_on
from extender.core.evaluations import Memo
from extender.core.gauges import Gauge
from extender.core.policies.policy import Expected, Options, Policy
from extender.core.policies.registry import POLICIES, policies_of
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.valuenet.features import FEATURES
from extender.explain.sentences.features import FEATURE_WORDS
from extender.explain.sentences.placed import scores_of, why_there
from tests.api.bodies import node as node_of
from tests.api.bodies import pod
from tests.api.services import Kerf, running
from tests.core.builders import NodeState, all_rows, cluster_of, node
from tests.core.learning import kerf_on, only
from tests.core.observing import observed_cluster

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
ONE = GpuRequest(1)
STATES = {"a": node(T4, T4, held=[0]), "b": node(*[A100] * 4, held=[0])}


def sentence(states: Mapping[str, NodeState], policy: Policy, request: GpuRequest = ONE) -> str:
    cluster = cluster_of(states)
    return of_decision(cluster, decide(cluster, request, policy, all_rows(cluster), Memo()))


def of_decision(cluster: Any, decision: Decision) -> str:
    scores = scores_of(cluster, decision, decision.rows, decision.evaluation)
    return why_there(scores, len(decision.rows), planned=decision.planned)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("tightest", "On a: no GPU left over; on b, the next: 2 GPUs left over."),
        (
            "binpack",
            "On a: 50 % of its GPUs not free and 50 % of its GPUs for the pod; "
            "on b, the next: 25 % of its GPUs not free and 25 % of its GPUs for the pod.",
        ),
        (
            "spread",
            "On b: 25 % of its GPUs not free and 25 % of its GPUs for the pod; "
            "on a, the next: 50 % of its GPUs not free and 50 % of its GPUs for the pod.",
        ),
        (
            "alnair",
            "On b: a size of 267 by GPU memory and model; on a, the next: a size of 25 by GPU memory and model.",
        ),
    ],
)
def test_what_speaks_for_the_winner_in_words(policy: str, told: str) -> None:
    assert sentence(STATES, POLICIES[policy]) == told


def test_fragments() -> None:
    by_pairs = policies_of(Options(expected=[Expected(0, 2, 1000, 1)]))["fgd"]  # two GPUs at a time are expected
    states = {"one": node(T4), "two": node(T4, T4)}
    assert sentence(states, by_pairs) == (
        "On one: 1.00 GPUs less that expected pods can't use; on two, the next: "
        "1.00 GPUs more that expected pods can't use."
    )


def test_what_speaks_against_it_is_told_where_it_matters() -> None:
    states = {"a": node(T4, used={0: (0, 7680)}), "b": node(T4)}
    loads = {"a": {Gauge.LOAD: (0.1,)}, "b": {Gauge.LOAD: (0.9,)}}
    cluster = observed_cluster(states, loads)
    live = POLICIES["live"]
    request = GpuRequest(1, AskedUnit.WHOLE, memory_each_mib=4096, milli=100)
    assert of_decision(cluster, decide(cluster, request, live, all_rows(cluster), Memo())) == (
        "On a: 90 % compute headroom; on b, the next: 10 % compute headroom; "
        "this outweighs 50 % memory headroom against 100 % memory headroom."
    )


def test_the_learned_rank_is_told_by_what_is_seen_of_the_nodes() -> None:
    states = {"a": node(T4, T4, held=[0]), "b": node(T4, T4)}
    cluster = cluster_of(states)
    model = kerf_on(cluster, only(0.1, gpus_idle=0.5, node_idle=1.0))
    assert of_decision(cluster, decide(cluster, ONE, model, all_rows(cluster), Memo())) == (
        "a has 1 GPU free and would keep none; b is empty and stays whole. (Score -5 against -15.)"
    )


def test_ties_single_candidates_and_plans() -> None:
    twins = {"a": node(T4), "b": node(T4)}
    assert sentence(twins, POLICIES["tightest"]) == "a and b rank equal; the first by name was taken."
    evened = {"a": node(*[T4] * 4, held=[0, 1]), "b": node(T4, T4)}  # parts differ, and their sum does not
    assert sentence(evened, POLICIES["binpack"], GpuRequest(2)) == "a and b rank equal; the first by name was taken."
    full = node(T4, held=[0])
    assert sentence({"a": node(T4), "b": full}, POLICIES["tightest"]) == "On a, the only one of 2 candidates with room."
    assert sentence({"a": node(T4)}, POLICIES["tightest"]) == "On a, its only candidate."
    assert sentence({"a": full}, POLICIES["tightest"]) == ""
    cluster = cluster_of(twins)
    planned = decide_on(cluster, ONE, POLICIES["tightest"], 1, Memo())
    assert of_decision(cluster, planned) == "On b, planned by Kerf's queue together with other waiting pods."
    assert scores_of(cluster, planned, planned.rows, planned.evaluation).of_rows() == [None]


def test_every_feature_has_its_words() -> None:
    assert set(FEATURE_WORDS) == set(FEATURES)


def explained(kerf: Kerf, name: str, query: str = "") -> Any:
    answer = kerf.get(f"/explain/pod/default/{name}{query}")
    assert answer.status == 200, answer.content
    return answer.json()


OBJECTS = [node_of("cpu"), node_of("a", 2, "t4"), node_of("b", 4), pod("held", 1, node_name="b")]


def test_each_candidate_has_the_parts_of_its_score_and_they_add_up() -> None:
    with running(OBJECTS) as kerf:
        kerf.filter(pod("asks", 1), ["cpu", "a", "b", "unknown"])
        told = explained(kerf, "asks")
    assert told["sentence"] == "On a: 1 GPU left over; on b, the next: 2 GPUs left over."
    assert (told["remedies"], told["ahead"], told["verdict"]) == ([], None, "placed")
    assert set(told["scoreTerms"]) == {"leftOver", "smallestGpu"}
    nodes = {entry["node"]: entry for entry in told["nodes"]}
    assert nodes["cpu"]["scoreTerms"] is None and "scoreTerms" not in nodes["unknown"]
    for name in "ab":
        assert sum(nodes[name]["scoreTerms"].values()) == pytest.approx(nodes[name]["score"], abs=1e-11)
    assert nodes["b"]["scoreTerms"] == {"leftOver": -2.0, "smallestGpu": round(-81920 / 2**22, 12)}


@pytest.fixture(scope="module")
def decided() -> Iterator[Kerf]:
    """A pod has its node, and something has changed since."""
    with running(OBJECTS) as kerf:
        asks = pod("asks", 2)
        asks["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "58"  # of 64: hardly anything fits beside it
        kerf.filter(asks, ["cpu", "b", "a"])
        kerf.create(pod("later", 4, node_name="b"))  # what has changed since is not looked at
        yield kerf


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_another_policy_is_compared_on_the_same_candidates_as_it_would_decide(decided: Kerf, policy: str) -> None:
    told = explained(decided, "asks", f"?policy={policy}")
    (_, placement), *_ = decided.service.placer.decided.after(0)
    served: Policy = decided.service.placer.policies_apart()[policy]
    rows, cluster = placement.decision.rows, placement.cluster
    asked = GpuRequest(2, cpu_milli=58000 * served.weighs_cpu, memory_mib=16384 * served.weighs_memory)
    decision = decide(cluster, asked, served, rows, Memo())
    other = told["byPolicy"]
    assert (told["policy"], other["policy"]) == ("tightest", served.name)
    assert decision.best is not None
    assert other["node"] == cluster.node_names[decision.best]
    assert [entry["score"] for entry in other["nodes"]] == decision.evaluation.score[decision.evaluation.fits].tolist()
    for entry in other["nodes"]:
        assert entry["scoreTerms"].keys() == other["scoreTerms"].keys()
        assert sum(entry["scoreTerms"].values()) == pytest.approx(entry["score"], abs=6e-8)
    assert other["sentence"].startswith((f"On {other['node']}", f"{other['node']} and "))
    ranks = {entry["node"]: entry["rank"] for entry in other["nodes"]}
    assert (ranks[other["node"]], sorted(ranks.values())) == (1, list(range(1, len(ranks) + 1)))


def test_a_policy_that_there_is_not_is_refused() -> None:
    with running(OBJECTS) as kerf:
        kerf.filter(pod("asks", 1), ["a"])
        refused = kerf.get("/explain/pod/default/asks?policy=nosuch")
        too_long = kerf.get(f"/explain/pod/default/asks?policy={'x' * 64}")
        plain = explained(kerf, "asks")
    assert refused.status == 400
    assert refused.json()["detail"].startswith('kerf.dev/policy: "nosuch" is not a policy; use one of ')
    assert too_long.status == 422
    assert "byPolicy" not in plain


def test_a_bound_pod_that_is_asked_about_again_stays() -> None:
    with running(OBJECTS) as kerf:
        asks = kerf.create(pod("asks", 1))
        kerf.filter(asks, ["a"])
        assert kerf.bind(asks, "a") == ""
        kerf.filter(asks, ["b"])
        told = explained(kerf, "asks")
        kerf.filter(asks, ["cpu"])
        nowhere = explained(kerf, "asks")
    assert told["sentence"] == (
        "It stays on a, where it is bound; asked again, Kerf would choose another node: On b, its only candidate."
    )
    assert nowhere["sentence"] == "It stays on a, where it is bound; asked again, Kerf would find no node"
