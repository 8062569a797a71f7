"""What is said of a pod's node and of the runner-up is what the ledger's arrays say, before the pod and with it."""

import re
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.bookings import book, bookable, booking
from extender.core.clusters import Cluster
from extender.core.decisions import Decision, decide, decide_on
from extender.core.evaluations import Memo
from extender.core.gauges import Gauge
from extender.core.policies.kerf import KerfWeights
from extender.core.policies.policy import Options, Policy
from extender.core.policies.registry import policies_of
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.placed import scores_of, why_there
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node
from tests.core.learning import kerf_on, only
from tests.core.observing import observed_cluster

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
KEEPS_WHOLE = {"gpus_idle": 0.5, "node_idle": 1.0}
HALF = GpuRequest(1, AskedUnit.WHOLE, milli=500)


def placed(cluster: Cluster, policy: Policy, request: GpuRequest) -> tuple[Decision, str]:
    decision = decide(cluster, request, policy, all_rows(cluster), Memo())
    scores = scores_of(cluster, decision, decision.rows, decision.evaluation)
    return decision, why_there(scores, cluster.num_nodes, planned=False)


def learned(cluster: Cluster) -> Policy:
    return kerf_on(cluster, only(0.1, **KEEPS_WHOLE))


def sentence(states: Mapping[str, NodeState], request: GpuRequest) -> str:
    cluster = cluster_of(states)
    return placed(cluster, learned(cluster), request)[1]


def test_gpus_kept_free_and_nodes_kept_whole() -> None:
    half, free = node(*[A100] * 8, held=range(4)), node(*[A100] * 8)
    two = GpuRequest(2)
    assert sentence({"a100-0": half, "a100-1": free}, two) == (
        "a100-0 has 4 GPUs free and would keep 2; a100-1 is empty and stays whole. (Score -10 against -20.)"
    )
    fuller = node(*[A100] * 8, held=range(6))
    assert sentence({"a100-0": node(*[A100] * 4, held=[0]), "a100-1": fuller}, GpuRequest(1)).startswith(
        "a100-0 and a100-1 rank equal; the first by name was taken."
    )
    assert sentence({"t4-0": node(*[T4] * 4, broken=[3]), "a100-0": free}, two) == (
        "t4-0 (t4) has 3 GPUs free and would keep 1; a100-0 (a100-sxm4-80gb) is empty and stays whole. "
        "(Score -10 against -20.)"
    )


def test_where_both_are_empty_what_each_would_keep() -> None:
    cluster = cluster_of({"a100-0": node(*[A100] * 8), "t4-0": node(*[T4] * 4)})
    by_root = kerf_on(cluster, only(0.01, gpu_sqrt=1.0))  # of many GPUs one is missed less
    assert placed(cluster, by_root, GpuRequest(1))[1] == (
        "a100-0 (a100-sxm4-80gb) is empty and would keep 7 of its 8 GPUs; "
        "t4-0 (t4) is empty and would keep 3 of its 4 GPUs. (Score -19 against -27.)"
    )


def test_parts_of_gpus() -> None:
    shared = node(A100, A100, unit=GpuUnit.PART, used={1: (300, 8192)})
    whole = node(A100, A100, unit=GpuUnit.PART)
    assert sentence({"a": shared, "b": whole}, HALF) == (
        "a has 70 % of GPU 1 free and would keep 20 %; b would share an idle GPU and keep 1 idle. "
        "(Score 0 against -15.)"
    )
    by_memory = GpuRequest(1, AskedUnit.PART, memory_each_mib=20480)
    assert sentence({"a": shared, "b": whole}, by_memory) == (
        "a has 72 GiB of GPU 1 free and would keep 52 GiB; b would share an idle GPU and keep 1 idle. "
        "(Score 0 against -15.)"
    )
    assert "would give parts of 2 GPUs, 1 of them idle until then" in sentence(
        {"a": shared, "b": node(*[A100] * 4, unit=GpuUnit.PART)}, GpuRequest(2, AskedUnit.WHOLE, milli=250)
    )


def test_where_gpus_look_the_same_cpu_and_memory() -> None:
    arrays = arrays_of({"a": node(T4, T4), "b": node(T4, T4)})
    arrays.set_compute(0, 20000, 40960)
    arrays.set_compute(1, 12500, 20480)
    cluster = arrays.snapshot()
    model = kerf_on(cluster, only(0.001, cpu_log=1.0))
    one = GpuRequest(1, cpu_milli=4000, memory_mib=10240)
    assert placed(cluster, model, one)[1].startswith(
        "a is empty and would keep 1 of its 2 GPUs; b looks the same by its GPUs, "
        "but a would keep 16 CPUs and 30 GiB free beside them, b 8.5 CPUs and 10 GiB. (Score "
    )


def test_headroom_beside_what_is_seen_and_against_it() -> None:
    states = {"a": node(T4, T4, held=[0]), "b": node(T4, T4)}
    for loads, told in (
        ({"a": 0.1, "b": 0.9}, "; also, 80 % headroom by load against 40 % headroom by load. (Score "),
        ({"a": 0.9, "b": 0.1}, "; this outweighs 40 % headroom by load against 80 % headroom by load. (Score "),
    ):
        cluster = observed_cluster(states, {name: {Gauge.LOAD: (load, load)} for name, load in loads.items()})
        policy = kerf_on(cluster, only(0.5, **KEEPS_WHOLE), KerfWeights(1.0, 2.0), live=True)
        found = placed(cluster, policy, GpuRequest(1))[1]
        assert found.startswith("a has 1 GPU free and would keep none; b is empty and stays whole; ")
        assert told in found
    cluster = observed_cluster(states, {"a": {Gauge.LOAD: (0.9, 0.9)}, "b": {Gauge.LOAD: (0.1, 0.1)}})
    policy = kerf_on(cluster, only(0.5, **KEEPS_WHOLE), KerfWeights(1.0, 20.0), live=True)
    assert placed(cluster, policy, GpuRequest(1))[1].startswith(
        "On b: 80 % headroom by load; on a, the next: 40 % headroom by load; "
        "this outweighs the learned rank, which puts a first. (Score "
    )


_WHOLE = re.compile(
    r"(?:has (?P<free>\d+|no) ?(?:GPUs?)? ?free and would keep (?P<keeps>\d+|none)"
    r"|is empty and would keep (?P<left>\d+|none) of its (?P<all>\d+) GPUs?|(?P<whole>is empty and stays whole))"
)

_BOTH = re.compile(r"(n-\d)(?: \([^)]*\))? (.*); (n-\d)(?: \([^)]*\))? (.*)\. \(Score \S+ against \S+\.\)")


def number(text: str) -> int:
    return 0 if text in ("no", "none") else int(text)


def idle_on(cluster: Cluster, row: int) -> int:
    """Whole GPUs that are free on a node, counted one by one."""
    free = 0
    for slot in range(cluster.gpu_model.shape[1]):
        installed, healthy = cluster.gpu_model[row, slot] >= 0, cluster.gpu_healthy[row, slot]
        nobody = cluster.gpu_free_milli[row, slot] == 1000 and (
            cluster.gpu_free_mib[row, slot] == cluster.gpu_memory_mib[row, slot]
        )
        free += bool(installed and healthy and nobody)
    return max(free - int(cluster.untracked_units[row]), 0)


def with_pod(cluster: Cluster, decision: Decision) -> Cluster:
    """The cluster once the pod is bound."""
    assert decision.best is not None
    after = bookable(cluster)
    book(after, decision.best, booking(after, decision.best, decision.request, decision.gpus))
    return after


def drawn_nodes(seed: int) -> dict[str, NodeState]:
    random = np.random.default_rng(seed)
    states = {}
    for at in range(int(random.integers(2, 7))):
        count, product = int(random.integers(1, 9)), (T4, A100)[random.integers(2)]
        held = [gpu for gpu in range(count) if random.random() < 0.4]
        broken = [count - 1] if random.random() < 0.1 and count - 1 not in held else []
        states[f"n-{at}"] = node(*[product] * count, held=held, broken=broken, untracked=int(random.random() < 0.1))
    return states


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(["node_idle", "gpu_sqrt", "gpu_square", "gpus_idle"]))
def test_numbers_are_the_ledgers(seed: int, asked: int, feature: str) -> None:
    cluster, request = cluster_of(drawn_nodes(seed)), GpuRequest(asked)
    policy = kerf_on(cluster, only(0.01, **{feature: 1.0}))
    decision, told = placed(cluster, policy, request)
    found = _BOTH.fullmatch(told)
    if found is None or "looks the same" in told or "a suitable GPU" in told:
        assert not told or re.match(r"On n-\d|n-\d and n-\d rank equal", told) or "looks the same" in told
        return
    one, here, other, there = found.groups()
    assert decision.best == cluster.row_of[one]
    assert here != there or one != other
    for name, words in ((one, here), (other, there)):
        row = cluster.row_of[name]
        match = _WHOLE.fullmatch(words)
        assert match is not None, told
        chosen = decision if name == one else decide_on(cluster, request, policy, row, Memo())
        after = with_pod(cluster, chosen)
        installed = int((cluster.gpu_model[row] >= 0).sum())
        if match["whole"]:  # the pod is not there, and nobody else
            assert idle_on(with_pod(cluster, decision), row) == idle_on(cluster, row) == installed
        elif match["all"]:
            assert (number(match["left"]), number(match["all"])) == (idle_on(after, row), installed)
            assert idle_on(cluster, row) == installed
        else:
            assert (number(match["free"]), number(match["keeps"])) == (idle_on(cluster, row), idle_on(after, row))


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(["tightest", "binpack", "spread"]))
def test_so_are_those_of_policies_that_count_gpus(seed: int, asked: int, name: str) -> None:
    cluster, request = cluster_of(drawn_nodes(seed)), GpuRequest(asked)
    policy = policies_of(Options())[name]
    decision, told = placed(cluster, policy, request)
    found = re.match(r"On (n-\d): (.*); on (n-\d), the next: (.*?)[.;]", told)
    if found is None:
        assert not told or "rank equal" in told or "only" in told
        return
    one, here, other, there = found.groups()
    for node_name, words in ((one, here), (other, there)):
        row = cluster.row_of[node_name]
        chosen = decision if node_name == one else decide_on(cluster, request, policy, row, Memo())
        left, free = idle_on(with_pod(cluster, chosen), row), idle_on(cluster, row)
        installed = int((cluster.gpu_model[row] >= 0).sum())
        if match := re.search(r"(\d+|no) GPUs? left over", words):
            assert number(match[1]) == left
        if match := re.search(r"(\d+) % of its GPUs not free", words):
            assert abs(int(match[1]) - 100 * (installed - free) / installed) <= 1
        if match := re.search(r"(\d+) % of its GPUs for the pod", words):
            assert abs(int(match[1]) - 100 * asked / installed) <= 1


@given(st.integers(0, 2**32), st.sampled_from([100, 250, 500, 810]))
def test_so_are_those_of_shares(seed: int, milli: int) -> None:
    random = np.random.default_rng(seed)
    states = {}
    for at in range(int(random.integers(2, 6))):
        count = int(random.integers(1, 5))
        used = {gpu: (int(random.integers(1, 900)), 1024) for gpu in range(count) if random.random() < 0.6}
        states[f"n-{at}"] = node(*[A100] * count, unit=GpuUnit.PART, used=used)
    cluster, request = cluster_of(states), GpuRequest(1, AskedUnit.WHOLE, milli=milli)
    policy = kerf_on(cluster, only(0.001, gpu_square=1.0))
    decision, told = placed(cluster, policy, request)
    for name, before, gpu, left in re.findall(r"(n-\d) has (\d+) % of GPU (\d) free and would keep (\d+) %", told):
        row = cluster.row_of[name]
        chosen = decision if row == decision.best else decide_on(cluster, request, policy, row, Memo())
        assert chosen.gpus == (int(gpu),)
        free = int(cluster.gpu_free_milli[row, int(gpu)])
        assert abs(10 * int(before) - free) <= 10 and abs(10 * int(left) - (free - milli)) <= 10
    for name, kept in re.findall(r"(n-\d) would share an idle GPU and keep (\d+|none) idle", told):
        row = cluster.row_of[name]
        chosen = decision if row == decision.best else decide_on(cluster, request, policy, row, Memo())
        assert number(kept) == idle_on(with_pod(cluster, chosen), row) == idle_on(cluster, row) - 1


@pytest.mark.parametrize("name", sorted(policies_of(Options())))
def test_no_sentence_gives_a_score_the_unit_of_gpus(name: str) -> None:
    policy = policies_of(Options())[name]
    for seed in range(20):
        told = placed(cluster_of(drawn_nodes(seed)), policy, GpuRequest(1))[1]
        assert "worth" not in told and "rounded" not in told and "the same for all" not in told
