"""Fragments and FGD's score, against the published formulas written as loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core import fragmentation
from extender.core.fragmentation import (
    THRESHOLDS,
    TypicalPod,
    fgd_score,
    fragment_milli,
    mix_of,
    tables_of,
    unusable_milli,
)
from tests.model.builders import random_mix, random_nodes

PODS = st.lists(
    st.builds(
        lambda cpu, asked, models, count: TypicalPod(cpu, asked[0], asked[1], models, count),
        cpu=st.sampled_from([0, 1000, 1001, 4000]),
        asked=st.sampled_from([(0, 0), (1, 1), (1, 300), (1, 500), (1, 1000), (2, 500), (2, 1000)]),
        models=st.sampled_from([-1, 1, 2, 3]),
        count=st.integers(1, 9),
    ),
    min_size=1,
    max_size=5,
)
NODES = st.lists(
    st.tuples(
        st.sampled_from([0, 999, 1000, 4000]),
        st.lists(st.sampled_from([0, 1, 299, 300, 500, 1000]), min_size=3, max_size=3),
        st.integers(-1, 2),
    ),
    min_size=1,
    max_size=6,
)


def unusable(cpu: int, free: list[int], model: int, pod: TypicalPod) -> int:
    """Idle milli on GPUs that a pod can't use: all of them on a node that can't host it."""
    suits = [milli for milli in free if milli >= pod.gpu_milli]
    allowed = model >= 0 and pod.models >> model & 1
    if pod.num_gpus and allowed and cpu >= pod.cpu_milli and len(suits) >= pod.num_gpus:
        return sum(free) - sum(suits)
    return sum(free)


@given(PODS, NODES)
def test_fragments_are_the_expected_milli_that_the_next_pod_cannot_use(
    pods: list[TypicalPod], nodes: list[tuple[int, list[int], int]]
) -> None:
    num_pods = sum(pod.num_pods for pod in pods)
    cpu, free, model = (np.array(column) for column in zip(*nodes, strict=True))
    right = [sum(unusable(*node, pod) * pod.num_pods for pod in pods) / num_pods for node in nodes]
    assert fragment_milli(cpu, free, model, mix_of(pods, num_pods)) == pytest.approx(right)
    assert fragment_milli(cpu, free, model, mix_of([], 1)).tolist() == [0.0] * len(nodes)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_tables_give_the_sums(seed: int, num_classes: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, mix = random_nodes(rng, 12), random_mix(rng, num_classes)
    cpu = nodes.cpu_free_milli.copy()
    cpu[:6] = rng.choice(mix.cpu_milli, 6) + rng.integers(-1, 2, 6)  # on the edges of the demands
    cpu, free = np.maximum(cpu, 0), nodes.gpu_free_milli.astype(np.int64)
    found = unusable_milli(cpu, free, nodes.model, tables_of(mix, 3, free.shape[1]))
    assert found == pytest.approx(fragment_milli(cpu, free, nodes.model, mix), abs=1e-6)


def test_tables_count_shares_of_several_gpus() -> None:
    mix = mix_of([TypicalPod(1000, 2, 300, -1, 3), TypicalPod(2000, 1, 1000, -1, 1)], 4)
    free = np.array([[500, 400, 0], [1000, 200, 0], [300, 300, 300]])
    cpu, model = np.array([5000, 1500, 999]), np.zeros(3, np.int64)
    # Two shares find 900 useful, a whole GPU nothing; one GPU is large enough and not two; no CPU.
    right = [900 - 0.75 * 900, 1200.0, 900.0]
    assert unusable_milli(cpu, free, model, tables_of(mix, 1, 3)) == pytest.approx(right)


def test_sums_are_taken_in_the_published_order_to_the_last_bit() -> None:
    """One sum for each kind of fragment, then all of them; of equal sums the rounding decides."""
    rng = np.random.default_rng(3)
    num_pods = 997
    pods = [
        TypicalPod(int(cpu), int(milli > 0) * int(count), int(milli), int(models), int(pods))
        for cpu, milli, count, models, pods in zip(
            rng.choice([1000, 3000, 7000], 30), rng.choice([0, 130, 370, 1000], 30), rng.integers(1, 3, 30),
            rng.choice([-1, 1, 2], 30), rng.integers(1, 100, 30), strict=True,
        )
    ]  # fmt: skip
    cpu, model = rng.choice([500, 2000, 5000, 9000], 300), rng.integers(-1, 2, 300)
    free = rng.integers(0, 1001, (300, 4))
    every = sum(pod.num_pods for pod in pods) / num_pods
    right = []
    for node in zip(cpu.tolist(), free.tolist(), model.tolist(), strict=True):
        sums = dict.fromkeys(("both", "gpu", "cpu", "no gpu asked", "no gpu asked, no cpu", "model"), 0.0)
        for pod in pods:
            frequency = (pod.num_pods / num_pods) / every
            lacks_cpu = node[0] < pod.cpu_milli
            lacks_gpu = sum(milli >= pod.gpu_milli for milli in node[1]) < pod.num_gpus
            if pod.num_gpus == 0:
                kind = "no gpu asked, no cpu" if lacks_cpu else "no gpu asked"
            elif node[2] < 0 or not pod.models >> node[2] & 1:
                kind = "model"
            else:
                kind = ("both" if lacks_gpu else "cpu") if lacks_cpu else "gpu"
            sums[kind] += frequency * unusable(*node, pod)
        total = 0.0
        for part in sums.values():
            total += part
        right.append(total)
    assert fragment_milli(cpu, free, model, mix_of(pods, num_pods)).tolist() == right


def test_a_mix_has_its_sizes_in_order_and_frequencies_that_sum_to_1() -> None:
    mix = mix_of(
        [TypicalPod(4000, 1, 1000, -1, 3), TypicalPod(1000, 1, 250, 1, 1), TypicalPod(2000, 2, 1000, -1, 4)], 9
    )
    assert mix.frequency.tolist() == pytest.approx([3 / 8, 1 / 8, 4 / 8])
    assert (mix.sizes.tolist(), mix.size.tolist()) == ([250, 1000], [1, 0, 1])
    assert mix.num_sizes_within[[0, 249, 250, 999, 1000]].tolist() == [0, 0, 1, 1, 2]
    assert len(mix.num_sizes_within) == 1001


def percent(gain: float) -> int:
    """The published score."""
    return int(1 / (1 + math.exp(-gain)) * 100)


def test_the_score_is_the_published_one_to_the_last_bit() -> None:
    before = np.concatenate([np.arange(-7000, 7001, 10), *(THRESHOLDS * 1000 + nudge for nudge in (-1e-9, 0, 1e-9))])
    right = [percent(gain) for gain in (before / 1000).tolist()]
    assert fgd_score(before, np.zeros(len(before))).tolist() == right
    assert fgd_score(np.full(2, 9000.0), 9000 - before[:2]).tolist() == right[:2]
    assert fgd_score(np.zeros(1), np.zeros(1)).tolist() == [50.0]
    # A gain that just reaches a score, where dividing by 1000 leads to it.
    milli = np.concatenate([np.nextafter(THRESHOLDS * 1000, towards) for towards in (-np.inf, np.inf)])
    milli = np.concatenate([milli, THRESHOLDS * 1000])
    exact = milli[np.isin(milli / 1000, THRESHOLDS)]
    assert len(exact) > 50
    assert fgd_score(exact, np.zeros(len(exact))).tolist() == [percent(gain) for gain in (exact / 1000).tolist()]


def test_thresholds_are_the_least_gains_that_reach_a_score() -> None:
    found = [fragmentation._threshold(of) for of in range(1, 100)]  # noqa: SLF001 - worked out at import
    assert found == THRESHOLDS.tolist()
    assert [percent(threshold) for threshold in found] == list(range(1, 100))
    assert [percent(math.nextafter(threshold, -math.inf)) for threshold in found] == list(range(99))
