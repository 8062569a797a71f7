"""The compiled engine places bit for bit as the service's own rules, policy by policy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import Nodes, PodClasses, fragment_milli
from extender.core.policies.registry import POLICIES
from model.engine import kernels, node_scores
from model.engine.engines import Compiled, Rules
from model.engine.kernels import _refresh
from model.engine.ranks import Rank, Tie, sample_size
from model.simulations.baselines import BASELINES
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_asks, random_mix, random_nodes, twin_scores

SEEDS = st.integers(0, 2**32)
TWINS = {name: policy for name, policy in BASELINES.items() if policy.rank is not None}
NAMES = ("model-0", "model-1", "model-2")


def same(one: Nodes, other: Nodes) -> bool:
    return [column.tolist() for column in one] == [column.tolist() for column in other]


def oracle_kube(nodes: Nodes, asks: PodClasses, c: int, n: int) -> int:
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


@given(SEEDS)
def test_published_scores_equal_a_loop_over_nodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, asks, mix = random_nodes(rng, 6), random_asks(rng, 3), random_mix(rng, 5)
    for c in range(3):
        kube, _ = twin_scores(nodes, asks, c, Rank.KUBE, mix)
        best, _ = twin_scores(nodes, asks, c, Rank.BESTFIT, mix)
        for n in np.flatnonzero(kube > -np.inf).tolist():
            cpu_left = int(nodes.cpu_free_milli[n] - asks.cpu_milli[c])
            gpu_left = int(nodes.gpu_free_milli[n].sum() - asks.gpu_milli[c] * asks.num_gpus[c])
            assert kube[n] == oracle_kube(nodes, asks, c, n)
            assert best[n] == int((1 - (0.5 * cpu_left / 128000 + 0.5 * gpu_left / 8000)) * 100)


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


def test_sample_size_is_that_of_kube_scheduler() -> None:
    # 50 - nodes / 125 percent, at least 5 percent and at least 100 nodes: numFeasibleNodesToFind.
    wanted = {50: 50, 99: 99, 100: 100, 1000: 420, 5000: 500, 6000: 300}
    assert {num_nodes: sample_size(num_nodes) for num_nodes in wanted} == wanted
