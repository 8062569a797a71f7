"""Why a placed pod is on its node and not on the runner-up, in one sentence, and what scores are made of."""

from collections.abc import Iterator, Mapping

import pytest

from extender.core.clusters import Cluster
from extender.core.decisions import Decision, decide, decide_on
from extender.core.evaluations import Memo
from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import Potential
from extender.explain.sentences.features import FEATURE_WORDS
from extender.explain.sentences.placed import scores_of, why_there
from tests.api.bodies import node as node_of
from tests.api.bodies import pod
from tests.api.services import Kerf, running
from tests.core.builders import A100, ONE, T4, NodeState, all_rows, arrays_of, cluster_of, node
from tests.core.learning import kerf_on, only
from tests.core.observing import observed_cluster
from tests.explain.sentences.test_pending_pods import explained
from tests.golden import Golden

TWO, HALF = GpuRequest(2), GpuRequest(1, AskedUnit.WHOLE, milli=500)
FREE, EIGHT, TWINS = node(T4, T4), node(*[A100] * 8), {"a": node(T4), "b": node(T4)}


def of_decision(cluster: Cluster, decision: Decision) -> str:
    scores = scores_of(cluster, decision, decision.rows, decision.evaluation)
    return why_there(scores, len(decision.rows), planned=decision.planned)


def sentence(states: Cluster | Mapping[str, NodeState], policy: Policy | str, request: GpuRequest = ONE) -> str:
    cluster = states if isinstance(states, Cluster) else cluster_of(states)
    by = POLICIES[policy] if isinstance(policy, str) else policy
    return of_decision(cluster, decide(cluster, request, by, all_rows(cluster), Memo()))


def learned(states: Mapping[str, NodeState], request: GpuRequest = ONE, potential: Potential | None = None) -> str:
    """By a learned rank, which keeps GPUs idle and nodes whole unless told otherwise."""
    cluster = cluster_of(states)
    return sentence(cluster, kerf_on(cluster, potential or only(0.1, gpus_idle=0.5, node_idle=1.0)), request)


def of_policies() -> Iterator[str]:
    states = {"a": node(T4, T4, held=[0]), "b": node(*[A100] * 4, held=[0])}
    for name in ("tightest", "binpack", "alnair"):
        yield f"{name}: {sentence(states, name)}"
    loads = {"a": {Gauge.LOAD: (0.1,)}, "b": {Gauge.LOAD: (0.9,)}}
    cluster = observed_cluster({"a": node(T4, used={0: (0, 7680)}), "b": node(T4)}, loads)
    request = GpuRequest(1, AskedUnit.WHOLE, memory_each_mib=4096, milli=100)
    yield f"a part against it: {sentence(cluster, 'live', request)}"
    yield f"a tie: {sentence(TWINS, 'tightest')}"
    evened = {"a": node(*[T4] * 4, held=[0, 1]), "b": FREE}
    yield f"parts that differ, with equal sums: {sentence(evened, 'binpack', TWO)}"
    yield f"one with room: {sentence({'a': node(T4), 'b': node(T4, held=[0])}, 'tightest')}"
    yield f"one candidate: {sentence({'a': node(T4)}, 'tightest')}"
    yield f"none with room: {sentence({'a': node(T4, held=[0])}, 'tightest')}"


def of_learned_ranks() -> Iterator[str]:
    half = node(*[A100] * 8, held=range(4))
    yield f"whole nodes: {learned({'a100-0': half, 'a100-1': EIGHT}, TWO)}"
    nearly = {"a100-0": node(*[A100] * 4, held=[0]), "a100-1": node(*[A100] * 8, held=range(6))}
    yield f"equals: {learned(nearly)}"
    yield f"models: {learned({'t4-0': node(*[T4] * 4, broken=[3]), 'a100-0': EIGHT}, TWO)}"
    by_root = only(0.01, gpu_sqrt=1.0)  # of many GPUs one is missed less
    yield f"both empty: {learned({'a100-0': EIGHT, 't4-0': node(*[T4] * 4)}, ONE, by_root)}"
    shared = node(A100, A100, unit=GpuUnit.PART, used={1: (300, 8192)})
    shares = {"a": shared, "b": node(A100, A100, unit=GpuUnit.PART)}
    yield f"compute of a GPU: {learned(shares, HALF)}"
    yield f"memory of a GPU: {learned(shares, GpuRequest(1, AskedUnit.PART, memory_each_mib=20480))}"
    several = {"a": shared, "b": node(*[A100] * 4, unit=GpuUnit.PART)}
    yield f"parts of several GPUs: {learned(several, GpuRequest(2, AskedUnit.WHOLE, milli=250))}"
    arrays = arrays_of({"a": FREE, "b": FREE})
    arrays.set_compute(0, 20000, 40960)
    arrays.set_compute(1, 12500, 20480)
    cluster = arrays.snapshot()
    request = GpuRequest(1, cpu_milli=4000, memory_mib=10240)
    yield f"CPU and memory: {sentence(cluster, kerf_on(cluster, only(0.001, cpu_log=1.0)), request)}"
    states = {"a": node(T4, T4, held=[0]), "b": FREE}
    for a, b, weight in ((0.1, 0.9, 2.0), (0.9, 0.1, 2.0), (0.9, 0.1, 20.0)):
        cluster = observed_cluster(states, {"a": {Gauge.LOAD: (a, a)}, "b": {Gauge.LOAD: (b, b)}})
        potential = only(0.5, gpus_idle=0.5, node_idle=1.0)
        policy = kerf_on(cluster, potential, KerfWeights(1.0, weight), live=True)
        yield f"loads of {a} and {b}, weight {weight}: {sentence(cluster, policy)}"


def test_what_speaks_for_the_winner(golden: Golden) -> None:
    golden("explain/placed.txt", [*of_policies(), *of_learned_ranks()])


def test_a_planned_pod_has_no_scores() -> None:
    cluster = cluster_of(TWINS)
    planned = decide_on(cluster, ONE, POLICIES["tightest"], 1, Memo())
    assert of_decision(cluster, planned) == "On b, planned by Kerf's queue together with other waiting pods."
    assert scores_of(cluster, planned, planned.rows, planned.evaluation).of_rows() == [None]


def test_every_feature_has_its_words() -> None:
    assert set(FEATURE_WORDS) == set(FEATURES)


NAMES = tuple(POLICIES)
OBJECTS = [node_of("cpu"), node_of("a", 2, "t4"), node_of("b", 4), pod("held", 1, node_name="b")]


def test_each_candidate_has_the_parts_of_its_score_and_they_add_up() -> None:
    with running(OBJECTS) as kerf:
        kerf.filter(pod("asks", 1), ["cpu", "a", "b", "unknown"])
        told = explained(kerf, "asks")
        assert kerf.get("/explain/pod/default/asks?policy=nosuch").status == 400
        assert kerf.get(f"/explain/pod/default/asks?policy={'x' * 64}").status == 422
    assert told["sentence"] == "On a: 1 GPU left over; on b, the next: 2 GPUs left over."
    assert (told["remedies"], told["ahead"], told["verdict"], "byPolicy" in told) == ([], None, "placed", False)
    assert set(told["scoreTerms"]) == {"leftOver", "smallestGpu"}
    nodes = {entry["node"]: entry for entry in told["nodes"]}
    assert nodes["cpu"]["scoreTerms"] is None and "scoreTerms" not in nodes["unknown"]
    for name in "ab":
        assert sum(nodes[name]["scoreTerms"].values()) == pytest.approx(nodes[name]["score"], abs=1e-11)
    assert nodes["b"]["scoreTerms"] == {"leftOver": -2.0, "smallestGpu": round(-81920 / 2**22, 12)}


def test_another_policy_is_compared_on_the_same_candidates_as_it_would_decide() -> None:
    with running(OBJECTS) as kerf:
        asks = pod("asks", 2)
        asks["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "58"  # of 64: hardly anything fits beside it
        kerf.filter(asks, ["cpu", "b", "a"])
        kerf.create(pod("later", 4, node_name="b"))  # what has changed since is not looked at
        for policy in NAMES:
            check_compared(kerf, policy)


def check_compared(kerf: Kerf, policy: str) -> None:
    """What is told of another policy is what it would have decided."""
    told = explained(kerf, "asks", query=f"?policy={policy}")
    (_, placement), *_ = kerf.service.placer.decided.after(0)
    served: Policy = kerf.service.placer.policies_apart()[policy]
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
