"""Scores of `tightest`, `binpack` and `spread`: the arithmetic, and the order of whole clusters."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.policies.binpack import binpack
from extender.core.policies.policy import Score
from extender.core.policies.registry import POLICIES
from extender.core.policies.spread import _spread
from extender.core.policies.tightest import tightest
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100, ONE, T4, NodeState, cluster_of, node, scores_of

TWO_ONE_USED, EIGHT_FOUR_USED = node(*[T4] * 2, held=[0]), node(*[T4] * 8, held=[0, 1, 2, 3])
# Memory breaks ties: a GPU of m MiB adds m / 2**22, since none has more than 2**21.
NODE_TIE = 1 / (64 * 2**22)
T4_TIE, A100_TIE, NONE_TIE = 15360 / 2**22, 81920 / 2**22, 0.5
PART, BARE = GpuUnit.PART, AskedUnit.WHOLE
OF_20_GB, OF_40_GB = GpuRequest(1, memory_each_mib=20000), GpuRequest(0, BARE, memory_total_mib=40000)
SHARE_400, SHARE_500 = GpuRequest(1, BARE, milli=400), GpuRequest(1, BARE, milli=500)
QUARTER, HALF = GpuRequest(1, memory_each_mib=3840), GpuRequest(1, memory_each_mib=7680)
SLICES = node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=3)
SCORES: dict[Score, list[tuple[GpuRequest, list[NodeState], list[float]]]] = {
    tightest: [
        # The 2-GPU node with 1 used beats the 8-GPU node with 4 used; then the smaller free GPU.
        (ONE, [TWO_ONE_USED, EIGHT_FOUR_USED], [-(1 - 1 + T4_TIE), -(4 - 1 + T4_TIE)]),
        (ONE, [node(A100), node(T4)], [-A100_TIE, -T4_TIE]),
        (ONE, [node(A100, T4, held=[1]), node(A100, T4, held=[0])], [-A100_TIE, -T4_TIE]),
        (ONE, [node(("", 0)), node(T4, held=[0])], [0.0, -(0 - 1 + NONE_TIE)]),
        # A GPU too small for the request is left over and breaks no tie.
        (OF_20_GB, [node(A100, T4), node(A100, A100)], [-(2 - 1 + A100_TIE)] * 2),
        (OF_40_GB, [node(*[T4] * 4), node(*[A100] * 4)], [-(4 - 3 + T4_TIE), -(4 - 1 + A100_TIE)]),
        # A share: least left of the GPU; + 1 for an idle one; free GPUs break ties; 2 without room.
        (SHARE_400, [node(T4, used={0: (500, 0)}), node(T4)], [-(0.5 - 0.4), -(1 - 0.4 + 1 + NODE_TIE)]),
        (SHARE_400, [node(T4, T4, used={0: (600, 0)})], [-(0.4 - 0.4 + NODE_TIE)]),
        (SHARE_400, [node(T4, used={0: (700, 0)})], [-2.0]),
        (SHARE_400, [node(T4, T4, used={0: (700, 0)})], [-(1 - 0.4 + 1 + NODE_TIE)]),
        # By memory; nodes that give a whole GPU come last.
        (QUARTER, [node(T4, used={0: (0, 7680)}, unit=PART), node(T4)], [-(0.5 - 0.25), -(0 + T4_TIE) - 64]),
    ],
    binpack: [
        (ONE, [TWO_ONE_USED, EIGHT_FOUR_USED, node()], [(1 + 1) / 2, (4 + 1) / 8, 1 - (0 - 1) / 1]),
        (GpuRequest(2, AskedUnit.SHARED), [SLICES], [(3 + 2) / 8]),
        (SHARE_500, [node(T4, T4, used={0: (500, 0)}), node(T4, T4)], [(0.5 + 0.5) / 2, 0.5 / 2]),
        # A GPU of unknown index counts as a whole one, up to all there are.
        (SHARE_500, [node(T4, T4, used={0: (300, 0)}, untracked=1)], [(1 + 0.3 + 0.5) / 2]),
        (SHARE_500, [node(T4, T4, held=[0, 1], untracked=1)], [(2 + 0.5) / 2]),
        (GpuRequest(2, BARE, milli=250), [node(*[T4] * 4, used={0: (500, 0)})], [(0.5 + 2 * 0.25) / 4]),
        (QUARTER, [node(T4, T4, used={0: (0, 7680)}, unit=PART), node(T4, unit=PART)], [(0.5 + 0.25) / 2, 0.25]),
        # The mean of what it takes of GPUs with room; whole GPUs where there are no shares.
        (HALF, [node(T4, A100, unit=PART, used={1: (0, 40960)})], [(0.5 + (7680 / 15360 + 7680 / 81920) / 2) / 2]),
        (HALF, [node(T4, T4, unit=PART), node(T4, T4, T4, held=[0])], [0.5 / 2, (1 + 1) / 3]),
    ],
}


def test_worked_examples() -> None:
    for score, rows in SCORES.items():
        for request, states, values in rows:
            cluster = cluster_of({f"n{number}": state for number, state in enumerate(states)})
            assert scores_of(score, cluster, request) == pytest.approx(values, rel=0, abs=1e-12), request


FREE_COUNTS = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), min_size=1, max_size=8)


def partly_used(sizes: list[tuple[int, int]]) -> Mapping[str, NodeState]:
    return {f"n{i}": node(*[T4] * num, held=range(min(used, num - 1))) for i, (num, used) in enumerate(sizes)}


@given(FREE_COUNTS)
def test_each_score_by_its_definition_and_its_own_row(sizes: list[tuple[int, int]]) -> None:
    states = partly_used(sizes)
    cluster = cluster_of(states)
    left_over = [len(state.offer.gpus) - len(state.held) - 1 for state in states.values()]
    assert left_over[int(np.argmax(scores_of(tightest, cluster)))] == min(left_over)
    assert scores_of(_spread, cluster) == [-value for value in scores_of(binpack, cluster)]
    for policy in POLICIES.values():
        if policy.context is None:  # else it depends on the whole cluster, and says so
            alone = [scores_of(policy.score, cluster_of({name: state}))[0] for name, state in states.items()]
            assert scores_of(policy.score, cluster) == alone
