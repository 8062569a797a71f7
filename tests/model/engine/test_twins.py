"""The compiled twins: bit for bit what the service's own rules give, policy by policy, and what a loop gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import ANY_MODEL, Asks, Mix, Nodes, TypicalPod, fgd_score, fragment_milli, mix_of
from extender.core.policies.registry import POLICIES
from model.engine import kernels, node_scores, node_values
from model.engine.engines import Compiled, Rules
from model.engine.kernels import _refresh
from model.engine.ranks import Rank, Tie, sample_size
from model.simulations.baselines import BASELINES
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_asks, random_mix, random_nodes

SEEDS = st.integers(0, 2**32)
TWINS = {name: policy for name, policy in BASELINES.items() if policy.rank is not None}
NAMES = ("model-0", "model-1", "model-2")


def same(one: Nodes, other: Nodes) -> bool:
    return [column.tolist() for column in one] == [column.tolist() for column in other]


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
    if rank in (Rank.BESTFIT, Rank.BINPACK, Rank.TIGHTEST, Rank.LISTED):
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
        share = 0 < int(asks.gpu_milli[c]) < 1000
        # Of whole GPUs those count that are idle, for a share all the compute that is left.
        left = sum(free) / 1000 - int(asks.gpu_milli[c]) / 1000 if share else after.count(1000)
        used = 1 - left / max(int(nodes.num_gpus[n]), 1)
        return float(used if rank is Rank.BINPACK else -used)
    if rank is Rank.TIGHTEST:
        idle = free.count(1000)
        if 0 < int(asks.gpu_milli[c]) < 1000:
            left = free[gpus[0]] / 1000 - int(asks.gpu_milli[c]) / 1000 + (free[gpus[0]] == 1000)
            return -float(left + idle / (64 * 2 * 2.0**21))
        return -float(idle - int(asks.num_gpus[c]) + (0.0 if asks.num_gpus[c] else 0.5))
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
def test_twins_equal_a_loop_over_nodes(seed: int, rank: Rank) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 6), random_asks(rng, 3), random_mix(rng, 5)
    memo = kernels.memo_of(3, nodes, mix)
    for c in range(3):
        _refresh(nodes, asks, c, int(rank), mix, None, memo)
        assert kernels.fitting(nodes, asks, c).tolist() == [oracle_fits(nodes, asks, c, n) for n in range(6)]
        for n in range(6):
            score, gpu = memo.score[c, n], int(memo.gpu[c, n])
            if not oracle_fits(nodes, asks, c, n):
                assert (score, gpu) == (-np.inf, -1)
                continue
            gpus = oracle_gpus(nodes, asks, c, n, rank, mix)
            assert score == oracle_score(nodes, asks, c, n, rank, mix, gpus)
            copy = nodes.copy()
            bits = node_scores.book(copy, asks, c, n, gpu)
            assert bits == sum(1 << g for g in gpus)
            taken = nodes.gpu_free_milli[n] - copy.gpu_free_milli[n]
            assert taken.tolist() == [int(asks.gpu_milli[c]) if g in gpus else 0 for g in range(4)]
            node_scores.release(copy, asks, c, n, bits)
            assert same(copy, nodes)
            node_scores.book(copy, asks, c, n, gpu)
            again = nodes.copy()
            node_scores.retake(again, asks, c, n, bits)
            assert same(copy, again)


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


@given(SEEDS, st.sampled_from(sorted(TWINS)))
def test_every_policy_has_the_scores_and_gpus_of_the_service(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 12), random_asks(rng, 4), random_mix(rng, 7)
    policy = TWINS[name]
    assert policy.rank is not None
    memo = kernels.memo_of(4, nodes, mix)
    fragments = fragment_milli(nodes.cpu_free_milli, nodes.gpu_free_milli.astype(np.int64), nodes.model, mix)
    assert memo.fragment.tobytes() == fragments.tobytes()
    rules = Rules(nodes, asks, mix, policy.policy, policy.tie, NAMES)
    for c in range(4):
        _refresh(nodes, asks, c, int(policy.rank), mix, None, memo)
        score = rules.scores(c)
        if policy.rank is Rank.LISTED:  # its score never changes: the nodes are in its order
            score = np.where(score > -np.inf, 0.0, score)
        assert memo.score[c].tobytes() == score.tobytes()
        for n in np.flatnonzero(score > -np.inf).tolist():
            gpus = rules.gpus(c, n)
            assert node_scores.book(nodes.copy(), asks, c, n, memo.gpu[c, n]) == sum(1 << gpu for gpu in gpus)


@given(SEEDS, st.integers(0, 3))
def test_the_learned_rank_has_the_scores_and_gpus_of_the_service(seed: int, num_hidden: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, outlook = random_nodes(rng, 12), random_asks(rng, 4), random_outlook(rng)
    potential = random_potential(rng, num_hidden)
    rules = Rules(nodes, asks, outlook.mix, POLICIES["kerf"], Tie.FIRST, NAMES)
    rules.follow(outlook, potential)
    learned, memo = node_scores.learned_on(nodes, outlook, potential), kernels.memo_of(4, nodes, outlook.mix)
    for c in range(4):
        _refresh(nodes, asks, c, int(Rank.NONE), outlook.mix, learned, memo)
        score = rules.scores(c)
        if asks.num_gpus[c] == 0:
            score = np.ceil(score)  # less by a hair, which is of the smallest GPU with room: there is none
        assert memo.score[c].tolist() == score.tolist()
        for n in np.flatnonzero(score > -np.inf).tolist():
            gpus = rules.gpus(c, n)
            assert node_scores.book(nodes.copy(), asks, c, n, memo.gpu[c, n]) == sum(1 << gpu for gpu in gpus)


@given(SEEDS, st.sampled_from(sorted(TWINS)), st.sampled_from(Tie))
def test_what_is_remembered_is_as_good_as_deciding_anew(seed: int, name: str, tie: Tie) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 9), random_asks(rng, 5), random_mix(rng, 5)
    policy = TWINS[name].policy
    rank = TWINS[name].rank
    if rank in (None, Rank.LISTED):
        rank, policy = Rank.TIGHTEST, POLICIES["tightest"]
    compiled, slow = Compiled(nodes.copy(), asks, mix, rank, tie), Rules(nodes.copy(), asks, mix, policy, tie, NAMES)
    held: list[tuple[int, int, int]] = []
    for draw in rng.random(40):
        if held and rng.random() < 0.3:
            given_back = held.pop(int(rng.integers(len(held))))
            compiled.give_back(*given_back)
            slow.give_back(*given_back)
        c = int(rng.integers(5))
        node = compiled.decide(c, draw)
        assert node == slow.decide(c, draw)
        if node >= 0:
            gpus = compiled.take(c, node)
            assert gpus == slow.take(c, node)
            held.append((c, node, gpus))
        assert same(compiled.nodes, slow.nodes)


@given(SEEDS, st.integers(1, 300), st.floats(0, 1, exclude_max=True))
def test_ties_equal_a_loop_over_nodes(seed: int, num_nodes: int, draw: float) -> None:
    rng = np.random.default_rng(seed)
    score = rng.choice([-np.inf, 0.0, 1.0, 2.0], num_nodes)
    last = int(rng.integers(num_nodes))
    best = [n for n in range(num_nodes) if score[n] == score.max() > -np.inf]
    assert kernels.pick(score, int(Tie.FIRST), draw, last) == (best[0] if best else -1, last)
    assert kernels.pick(score, int(Tie.RANDOM), draw, last) == (best[int(draw * len(best))] if best else -1, last)
    following = ([n for n in best if n > last] or best or [-1])[0]
    assert kernels.pick(score, int(Tie.NEXT), draw, last) == (following, following if best else last)

    sample: list[int] = []
    looked_at = 0
    while looked_at < num_nodes and len(sample) < sample_size(num_nodes):
        node = (last + looked_at) % num_nodes
        looked_at += 1
        if score[node] > -np.inf:
            sample.append(node)
    top = sorted(n for n in sample if score[n] == max(score[sample]))
    expected = (top[int(draw * len(top))], (last + looked_at) % num_nodes) if sample else (-1, last)
    assert kernels.pick(score, int(Tie.SAMPLED), draw, last) == expected


@pytest.mark.parametrize(
    ("num_nodes", "wanted"),
    [(50, 50), (99, 99), (100, 100), (1000, 420), (5000, 500), (6000, 300)],
    ids=["all", "all below 100", "at least 100", "42 % of 1000", "10 % of 5000", "5 % at least"],
)
def test_sample_size_is_that_of_kube_scheduler(num_nodes: int, wanted: int) -> None:
    # 50 - nodes / 125 percent, at least 5 percent and at least 100 nodes: numFeasibleNodesToFind.
    assert sample_size(num_nodes) == wanted


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
    assert node_values.fgd_score(gain_milli, 0.0) == right
