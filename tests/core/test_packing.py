"""Packing: each vectorised rule beside a loop over nodes and GPUs, and the compiled twins bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core import kernels, packing
from extender.core.fragments import Mix, TypicalPod, fgd_score, fragment_milli, mix_of
from extender.core.packing import ANY_MODEL, Asks, Nodes, Rank, Tie
from tests.model.builders import random_asks, random_mix, random_nodes

SEEDS = st.integers(0, 2**32)


def oracle_fits(nodes: Nodes, asks: Asks, c: int, n: int) -> bool:
    if nodes.cpu_free_milli[n] < asks.cpu_milli[c] or nodes.memory_free_mib[n] < asks.memory_mib[c]:
        return False
    if asks.num_gpus[c] == 0:
        return True
    if nodes.model[n] < 0 or not int(asks.models[c]) & (1 << int(nodes.model[n])):
        return False
    free = nodes.gpu_free_milli[n].tolist()
    return sum(1 for left in free if left >= asks.gpu_milli[c]) >= int(asks.num_gpus[c])


def oracle_fragment(cpu_free: int, free: list[int], model: int, mix: Mix) -> float:
    """Expectation over the mix, in exact arithmetic up to the frequencies."""
    total = 0.0
    for k in range(len(mix.frequency)):
        size = int(mix.sizes[mix.size[k]])
        hosts = (
            mix.num_gpus[k] > 0
            and cpu_free >= mix.cpu_milli[k]
            and model >= 0
            and bool(int(mix.models[k]) & (1 << model))
            and sum(left >= size for left in free) >= mix.num_gpus[k]
        )
        total += float(mix.frequency[k]) * sum(left for left in free if not hosts or left < size)
    return total


def oracle_gpus(nodes: Nodes, asks: Asks, c: int, n: int, rank: Rank, mix: Mix) -> list[int]:
    """The GPUs that a class is given on a node where it fits."""
    free, milli = nodes.gpu_free_milli[n].tolist(), int(asks.gpu_milli[c])
    fitting = [g for g, left in enumerate(free) if left >= milli]
    if asks.num_gpus[c] == 0:
        return []
    if milli == 1000:
        return fitting[: int(asks.num_gpus[c])]
    if rank in (Rank.BESTFIT, Rank.BINPACK):
        return [min(fitting, key=lambda g: (free[g], g))]
    if rank is Rank.SPREAD:
        return [max(fitting, key=lambda g: (free[g], -g))]
    if rank is Rank.FGD:
        return [max(fitting, key=lambda g: (oracle_score(nodes, asks, c, n, rank, mix, [g]), -g))]
    return fitting[:1]


def oracle_score(nodes: Nodes, asks: Asks, c: int, n: int, rank: Rank, mix: Mix, gpus: list[int]) -> float:
    free = nodes.gpu_free_milli[n].tolist()
    after = [left - (int(asks.gpu_milli[c]) if g in gpus else 0) for g, left in enumerate(free)]
    cpu_left = int(nodes.cpu_free_milli[n] - asks.cpu_milli[c])
    model = int(nodes.model[n])
    if rank is Rank.FGD:
        # The sums must round as the rule's do, or scores at a step differ: they are compared by themselves below.
        before, then = (
            fragment_milli(np.array([cpu]), np.array([gpu]), np.array([model]), mix)[0]
            for cpu, gpu in ((nodes.cpu_free_milli[n], free), (cpu_left, after))
        )
        return int(100 / (1 + math.exp(-(before - then) / 1000)))
    if rank is Rank.BESTFIT:
        return int((1 - (0.5 * cpu_left / 128000 + 0.5 * sum(after) / 8000)) * 100)
    if rank in (Rank.BINPACK, Rank.SPREAD):
        used = 1 - (sum(after) / (1000 * nodes.num_gpus[n]) if asks.num_gpus[c] else cpu_left / nodes.cpu_milli[n])
        return float(used if rank is Rank.BINPACK else -used)
    if rank is Rank.KUBE:
        return oracle_kube(nodes, asks, c, n)
    return 0.0


def oracle_kube(nodes: Nodes, asks: Asks, c: int, n: int) -> int:
    """least_allocated.go and balanced_allocation.go, line by line."""
    allocatable = [int(nodes.cpu_milli[n]), int(nodes.memory_mib[n])]
    used = [allocatable[0] - int(nodes.cpu_free_milli[n]), allocatable[1] - int(nodes.memory_free_mib[n])]
    asked = [int(asks.cpu_milli[c]), int(asks.memory_mib[c])]
    least = 0
    for i, default in enumerate((100, 200)):
        requested = used[i] + (asked[i] or default)
        least += 0 if requested > allocatable[i] else (allocatable[i] - requested) * 100 // allocatable[i]

    def balance(requested: list[int]) -> int:
        fractions = [min(requested[i] / allocatable[i], 1) for i in range(2)]
        return int((1 - abs((fractions[0] - fractions[1]) / 2)) * 100)

    if asked == [0, 0]:
        return least // 2
    with_pod = balance([used[i] + asked[i] for i in range(2)])
    return least // 2 + 50 + (50 + with_pod - balance(used)) // 2


@given(SEEDS, st.sampled_from(Rank))
def test_rules_equal_a_loop_over_nodes(seed: int, rank: Rank) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 6), random_asks(rng, 3), random_mix(rng, 5)
    for c in range(3):
        score, gpu = packing.evaluate(nodes, asks, c, np.arange(6), rank, mix)
        for n in range(6):
            if not oracle_fits(nodes, asks, c, n):
                assert (score[n], gpu[n]) == (-np.inf, -1)
                continue
            gpus = oracle_gpus(nodes, asks, c, n, rank, mix)
            assert score[n] == oracle_score(nodes, asks, c, n, rank, mix, gpus)
            copy = packing.copy_of(nodes)
            assert packing.take(copy, asks, c, n, int(gpu[n])) == sum(1 << g for g in gpus)
            taken = nodes.gpu_free_milli[n] - copy.gpu_free_milli[n]
            assert taken.tolist() == [int(asks.gpu_milli[c]) if g in gpus else 0 for g in range(4)]


@given(SEEDS)
def test_fragment_equals_a_loop_over_classes_and_gpus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, mix = random_nodes(rng, 8), random_mix(rng, 6)
    found = fragment_milli(nodes.cpu_free_milli, nodes.gpu_free_milli.astype(np.int64), nodes.model, mix)
    for n in range(8):
        right = oracle_fragment(
            int(nodes.cpu_free_milli[n]), nodes.gpu_free_milli[n].tolist(), int(nodes.model[n]), mix
        )
        assert found[n] == pytest.approx(right, rel=1e-12)


@given(SEEDS, st.sampled_from(Rank))
def test_compiled_rules_give_the_same_bits(seed: int, rank: Rank) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 12), random_asks(rng, 4), random_mix(rng, 7)
    memo = kernels.memo_of(4, nodes, mix)
    fragments = fragment_milli(nodes.cpu_free_milli, nodes.gpu_free_milli.astype(np.int64), nodes.model, mix)
    assert memo.fragment.tobytes() == fragments.tobytes()
    for c in range(4):
        kernels.refresh(nodes, asks, c, int(rank), mix, memo)
        score, gpu = packing.evaluate(nodes, asks, c, np.arange(12), rank, mix)
        assert memo.score[c].tobytes() == score.tobytes()
        assert memo.gpu[c].tolist() == gpu.tolist()


@given(SEEDS, st.sampled_from(Rank), st.sampled_from(Tie))
def test_a_memo_is_as_good_as_computing_anew(seed: int, rank: Rank, tie: Tie) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 9), random_asks(rng, 5), random_mix(rng, 5)
    slow = packing.copy_of(nodes)
    memo = kernels.memo_of(5, nodes, mix)
    last = slow_last = 0 if tie is Tie.SAMPLED else -1
    held: list[tuple[int, int, int]] = []
    for draw in rng.random(60):
        if held and rng.random() < 0.3:
            c, node, gpus = held.pop(int(rng.integers(len(held))))
            kernels.give_back(nodes, asks, c, node, gpus, mix, memo)
            packing.give_back(slow, asks, c, node, gpus)
        c = int(rng.integers(5))
        node, last = kernels.decide(nodes, asks, c, int(rank), int(tie), mix, memo, draw, last)
        score, gpu = packing.evaluate(slow, asks, c, np.arange(9), rank, mix)
        assert (node, last) == packing.pick(score, tie, draw, slow_last)
        slow_last = last
        if node >= 0:
            gpus = kernels.take(nodes, asks, c, node, mix, memo)
            assert gpus == packing.take(slow, asks, c, node, int(gpu[node]))
            held.append((c, node, gpus))
        assert nodes.gpu_free_milli.tolist() == slow.gpu_free_milli.tolist()
        assert nodes.cpu_free_milli.tolist() == slow.cpu_free_milli.tolist()
        assert nodes.memory_free_mib.tolist() == slow.memory_free_mib.tolist()


@given(SEEDS, st.integers(1, 300), st.floats(0, 1, exclude_max=True))
def test_ties_equal_a_loop_over_nodes(seed: int, num_nodes: int, draw: float) -> None:
    rng = np.random.default_rng(seed)
    score = rng.choice([-np.inf, 0.0, 1.0, 2.0], num_nodes)
    last = int(rng.integers(num_nodes))
    best = [n for n in range(num_nodes) if score[n] == score.max() > -np.inf]
    assert packing.pick(score, Tie.FIRST, draw, last) == (best[0] if best else -1, last)
    assert packing.pick(score, Tie.RANDOM, draw, last) == (best[int(draw * len(best))] if best else -1, last)
    following = ([n for n in best if n > last] or best or [-1])[0]
    assert packing.pick(score, Tie.NEXT, draw, last) == (following, following if best else last)

    sample: list[int] = []
    looked_at = 0
    while looked_at < num_nodes and len(sample) < packing.sample_size(num_nodes):
        node = (last + looked_at) % num_nodes
        looked_at += 1
        if score[node] > -np.inf:
            sample.append(node)
    top = sorted(n for n in sample if score[n] == max(score[sample]))
    expected = (top[int(draw * len(top))], (last + looked_at) % num_nodes) if sample else (-1, last)
    assert packing.pick(score, Tie.SAMPLED, draw, last) == expected
    for tie in Tie:
        assert kernels.pick(score, int(tie), draw, last) == packing.pick(score, tie, draw, last)


@pytest.mark.parametrize(
    ("num_nodes", "wanted"),
    [(50, 50), (99, 99), (100, 100), (1000, 420), (5000, 500), (6000, 300)],
    ids=["all", "all below 100", "at least 100", "42 % of 1000", "10 % of 5000", "5 % at least"],
)
def test_sample_size_is_that_of_kube_scheduler(num_nodes: int, wanted: int) -> None:
    # 50 - nodes / 125 percent, at least 5 percent and at least 100 nodes: numFeasibleNodesToFind.
    assert packing.sample_size(num_nodes) == wanted


def test_fragment_and_score_of_a_node_worked_by_hand() -> None:
    # Half of the pods ask for 500 milli and 1 core, a quarter for 2 whole GPUs and 8 cores, a quarter for no GPU.
    mix = mix_of(
        [
            TypicalPod(1000, 1, 500, ANY_MODEL, 20),
            TypicalPod(8000, 2, 1000, ANY_MODEL, 10),
            TypicalPod(4000, 0, 0, ANY_MODEL, 10),
        ],
        40,
    )
    # 16 cores and GPUs with 1000, 1000, 300 left: 0.5 x 300 + 0.25 x 300 + 0.25 x 2300.
    before = fragment_milli(np.array([16000]), np.array([[1000, 1000, 300]]), np.array([0]), mix)
    assert before.tolist() == [0.5 * 300 + 0.25 * 300 + 0.25 * 2300]
    # A share of 500 on the first: the 2-GPU class no longer fits, so all 1800 are lost to it.
    after = fragment_milli(np.array([15000]), np.array([[500, 1000, 300]]), np.array([0]), mix)
    assert after.tolist() == [0.5 * 300 + 0.25 * 1800 + 0.25 * 1800]
    # 800 - 1050 = -250 milli: 100 x sigmoid(-0.25) = 43.78.
    assert fgd_score(before, after).tolist() == [43]


@given(st.floats(-8, 8))
def test_score_is_the_sigmoid_in_percent_rounded_down(gain_milli: float) -> None:
    right = int(1 / (1 + math.exp(-(gain_milli / 1000))) * 100)
    assert fgd_score(np.array([gain_milli]), np.zeros(1)).tolist() == [right]
    assert kernels.fgd(gain_milli, 0.0) == right
