"""What is said of a pod's node and of the runner-up is what the ledger's arrays say, before the pod and with it."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.bookings import book, booking, writable_copy
from extender.core.clusters import Cluster
from extender.core.decisions import Decision, decide, decide_on
from extender.core.evaluations import Memo
from extender.core.policies.policy import Options, Policy
from extender.core.policies.registry import policies_of
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.placed import scores_of, why_there
from tests.core.builders import A100, T4, NodeState, all_rows, cluster_of, node
from tests.core.learning import kerf_on, only


def placed(cluster: Cluster, policy: Policy, request: GpuRequest) -> tuple[Decision, str]:
    """The decision among all nodes, and its sentence."""
    decision = decide(cluster, request, policy, all_rows(cluster), Memo())
    scores = scores_of(cluster, decision, decision.rows, decision.evaluation)
    return decision, why_there(scores, cluster.num_nodes, planned=False)


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
        whole = cluster.gpu_free_mib[row, slot] == cluster.gpu_memory_mib[row, slot]
        unused = whole and cluster.gpu_free_milli[row, slot] == 1000
        free += bool(cluster.gpu_model[row, slot] >= 0 and cluster.gpu_healthy[row, slot] and unused)
    return max(free - int(cluster.untracked_units[row]), 0)


def with_pod(cluster: Cluster, decision: Decision) -> Cluster:
    """The cluster once the pod is bound."""
    assert decision.best is not None
    after = writable_copy(cluster)
    book(after, decision.best, booking(after, decision.best, decision.request, decision.gpus))
    return after


def on(cluster: Cluster, decision: Decision, policy: Policy, row: int) -> Decision:
    """The decision for that node."""
    return decision if row == decision.best else decide_on(cluster, decision.request, policy, row, Memo())


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
        after = with_pod(cluster, on(cluster, decision, policy, row))
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
        left, free = idle_on(with_pod(cluster, on(cluster, decision, policy, row)), row), idle_on(cluster, row)
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
        chosen = on(cluster, decision, policy, row)
        assert chosen.gpus == (int(gpu),)
        free = int(cluster.gpu_free_milli[row, int(gpu)])
        assert abs(10 * int(before) - free) <= 10 and abs(10 * int(left) - (free - milli)) <= 10
    for name, kept in re.findall(r"(n-\d) would share an idle GPU and keep (\d+|none) idle", told):
        row = cluster.row_of[name]
        chosen = on(cluster, decision, policy, row)
        assert number(kept) == idle_on(with_pod(cluster, chosen), row) == idle_on(cluster, row) - 1


def test_no_sentence_tells_of_parts_that_say_nothing() -> None:
    for policy in policies_of(Options()).values():
        for seed in range(5):
            told = placed(cluster_of(drawn_nodes(seed)), policy, GpuRequest(1))[1]
            assert not re.search("worth|rounded|the same for all", told)
