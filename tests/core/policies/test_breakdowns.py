"""Breakdowns of scores: the parts add up to the score, for every policy and cluster."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.evaluations import evaluate, evaluate_with_breakdown
from extender.core.gauges import Gauge
from extender.core.policies.breakdowns import Breakdown, Part, counted, on_rows, percent
from extender.core.policies.kerf import KerfWeights
from extender.core.policies.policy import Expected, Options, Policy
from extender.core.policies.registry import policies_of
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100, ONE, T4, UNKNOWN, NodeState, all_rows, arrays_of, cluster_of, node, pattern
from tests.core.learning import kerf_on, only
from tests.core.observing import observe, observed_cluster
from tests.golden import Golden

REQUESTS = (
    ONE,
    GpuRequest(2, cpu_milli=4000, memory_mib=4096),
    GpuRequest(1, memory_each_mib=20000),
    GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=40000),
    GpuRequest(1, AskedUnit.WHOLE, 2048, milli=300),
    GpuRequest(2, AskedUnit.WHOLE, milli=250),
    GpuRequest(1, memory_each_percent=25),
    GpuRequest(1, AskedUnit.SHARED),
    GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),)),
    GpuRequest(1, include=pattern("t4")),
)
NAMES = sorted(policies_of(Options()))


def drawn_node(random: np.random.Generator) -> NodeState:
    """A node of any kind and usage."""
    product = (T4, A100, UNKNOWN)[random.integers(3)]
    count = int(random.integers(0, 9))
    if not count:
        return node()
    held = [gpu for gpu in range(count) if random.random() < 0.3]
    used = {
        gpu: (int(random.integers(0, 900)), int(random.integers(0, product[1] + 1)))
        for gpu in range(count)
        if gpu not in held and random.random() < 0.3
    }
    unit = (GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU)[random.integers(4)]
    slices = 4 if unit in (GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU) else 1
    return node(
        *[product] * count,
        held=held,
        used=used if slices == 1 else {},
        unit=unit,
        units_per_gpu=slices,
        untracked=int(random.integers(0, 2)),
        broken=[count - 1] if random.random() < 0.1 else [],
        mig={"1g.5gb": int(random.integers(0, 4))} if random.random() < 0.3 else None,
    )


def drawn_cluster(seed: int, *, sampled: bool) -> Cluster:
    """A few such nodes, with samples of some of their gauges."""
    random = np.random.default_rng(seed)
    states = {f"n-{number}": drawn_node(random) for number in range(int(random.integers(1, 9)))}
    arrays = arrays_of(states)
    for row in range(len(states)):
        arrays.set_compute(row, int(random.integers(-1000, 64000)), int(random.integers(0, 500_000)))
    if not sampled:
        return arrays.snapshot()
    gauges = (Gauge.LOAD, Gauge.MEMORY_USED, Gauge.MEMORY_FREE, Gauge.POWER, Gauge.TEMPERATURE, Gauge.BANDWIDTH)
    scale = {Gauge.MEMORY_USED: 20000, Gauge.MEMORY_FREE: 20000, Gauge.POWER: 300, Gauge.TEMPERATURE: 100}
    samples = {
        name: {
            gauge: (random.random(len(state.offer.gpus)) * scale.get(gauge, 1)).tolist()
            for gauge in gauges
            if random.random() < 0.8
        }
        for name, state in states.items()
        if state.offer.gpus and random.random() < 0.8
    }
    return observe(arrays, samples)


def learned(cluster: Cluster) -> Policy:
    """Policy `kerf` with a model and the live term."""
    model = only(0.1, gpus_idle=1.0, node_idle=0.5, fragment=-1.0, cpu_short=0.2)
    return kerf_on(cluster, model, KerfWeights(1.5, 2.0), live=True)


def check(cluster: Cluster, policy: Policy, request: GpuRequest) -> int:
    """Assert that the parts add up to the score, row by row. Returns the number of rows that fit."""
    asked = request if policy.weighs_cpu else replace(request, cpu_milli=0, memory_mib=0)
    rows = all_rows(cluster)
    (found, told), scored = (
        evaluate_with_breakdown(cluster, asked, policy, rows),
        evaluate(cluster, asked, policy, rows),
    )
    assert (found.score.tolist(), found.reason.tolist()) == (scored.score.tolist(), scored.reason.tolist())
    for row in np.flatnonzero(scored.fits).tolist():
        total = 0.0
        for part in told.parts:
            total += float(part.adds[row])
            assert part.words(float(part.amount[row])).isprintable()
        # `live` and `genius` round to nine places, `alnair` to nine of a hundredth.
        assert total == pytest.approx(scored.score[row], abs=6e-8, rel=1e-12), (policy.name, row)
    return int(scored.fits.sum())


@settings(max_examples=settings().max_examples * 3 // 5)
@given(st.integers(0, 2**32), st.sampled_from(NAMES), st.sampled_from(REQUESTS), st.booleans())
def test_the_parts_add_up_to_the_score(seed: int, name: str, request: GpuRequest, sampled: bool) -> None:
    check(drawn_cluster(seed, sampled=sampled), policies_of(Options())[name], request)


@settings(max_examples=settings().max_examples * 3 // 10)
@given(st.integers(0, 2**32), st.sampled_from(REQUESTS), st.booleans())
def test_the_parts_of_the_learned_rank_add_up(seed: int, request: GpuRequest, sampled: bool) -> None:
    cluster = drawn_cluster(seed, sampled=sampled)
    check(cluster, learned(cluster), request)


def test_every_policy_has_rows_to_check_for_every_request() -> None:
    policies = policies_of(Options())
    clusters = [drawn_cluster(seed, sampled=True) for seed in range(12)]
    for request in REQUESTS:
        for name in NAMES:
            assert any(check(cluster, policies[name], request) for cluster in clusters)
        assert any(check(cluster, learned(cluster), request) for cluster in clusters)


def words(cluster: Cluster, policy: Policy, request: GpuRequest = ONE) -> list[str]:
    """The parts of each row in words."""
    _, told = evaluate_with_breakdown(cluster, request, policy, all_rows(cluster))

    def parts(row: int) -> str:
        return ", ".join(f"{part.name}: {part.words(float(part.amount[row]))}" for part in told.parts)

    return [f"{policy.name} {row}: {parts(row)}" for row in range(cluster.num_nodes)]


def test_what_is_said_of_each_part(golden: Golden) -> None:
    policies = policies_of(Options(expected=[Expected(0, 2, 1000, 1)]))  # two GPUs at a time
    whole = cluster_of({"a": node(T4, T4, held=[0]), "b": node(*[A100] * 4, held=[0])})
    pairs = cluster_of({"one": node(T4), "two": node(T4, T4), "three": node(T4, T4, T4)})
    share = cluster_of({"a": node(T4, unit=GpuUnit.PART, used={0: (500, 7680)}), "b": node(T4, unit=GpuUnit.PART)})
    loads = {"a": {Gauge.LOAD: (0.25,)}, "b": {Gauge.LOAD: (0.75,)}}
    sampled = observed_cluster({"a": node(T4), "b": node(T4)}, loads)
    own = Policy("own", lambda cluster, request, rows, fit: fit.free_units.astype(float), "most free")
    assert check(whole, own, ONE) == 2
    assert "policy own" in evaluate_with_breakdown(whole, ONE, own, all_rows(whole))[1].parts[0].meaning
    golden(
        "core/breakdowns.txt",
        [
            *(line for name in ("tightest", "binpack", "spread") for line in words(whole, policies[name])),
            *words(pairs, policies["fgd"]),
            *words(share, policies["tightest"], REQUESTS[4]),
            *words(share, policies["tightest"], REQUESTS[6]),
            *(line for name in ("live", "genius", "alnair") for line in words(sampled, policies[name])),
            *words(sampled, kerf_on(sampled, only(0.5, gpus_idle=1.0), live=True)),
            *words(whole, own),
        ],
    )


def test_counts_and_percents_in_words() -> None:
    assert [counted(number, "GPU") for number in (0, 1, 2)] == ["no GPU", "1 GPU", "2 GPUs"]
    assert [percent(part) for part in (0, 0.001, 0.25, 0.999, 1)] == ["0 %", "1 %", "25 %", "99 %", "100 %"]


def test_parts_of_a_selection_of_rows_are_0_on_the_others() -> None:
    two = np.array([2.0, 3.0])
    (part,) = on_rows(Breakdown(two, (Part("a", "b", two, 10 * two, str),)), np.array([2, 0]), 3)
    assert (part.adds.tolist(), part.amount.tolist()) == ([3.0, 0.0, 2.0], [30.0, 0.0, 20.0])
