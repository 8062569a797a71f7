"""Scores: what each prefers, with the arithmetic, and the order they put whole clusters in."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.fits import fit
from extender.core.policies import registry
from extender.core.policies.binpack import binpack
from extender.core.policies.policy import Score
from extender.core.policies.registry import POLICIES
from extender.core.policies.spread import _spread
from extender.core.policies.tightest import tightest
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, all_rows, cluster_of, node

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
ONE = GpuRequest(1)


def scores(score: Score, states: Mapping[str, NodeState], request: GpuRequest = ONE) -> list[float]:
    cluster = cluster_of(states)
    rows = all_rows(cluster)
    values: list[float] = score(cluster, request, rows, fit(cluster, request, rows)).tolist()
    return values


TWO_ONE_USED, EIGHT_FOUR_USED = node(*[T4] * 2, held=[0]), node(*[T4] * 8, held=[0, 1, 2, 3])
# Memory breaks ties: a GPU of m MiB adds m / 2**22, since none has more than 2**21.
NODE_TIE = 1 / (64 * 2**22)
T4_TIE, A100_TIE, NONE_TIE = 15360 / 2**22, 81920 / 2**22, 0.5


@pytest.mark.parametrize(
    ("score", "states", "request_", "values"),
    [
        pytest.param(
            tightest,
            {"a": TWO_ONE_USED, "b": EIGHT_FOUR_USED},
            ONE,
            [-(1 - 1 + T4_TIE), -(4 - 1 + T4_TIE)],
            id="best fit (T4): the 2-GPU node with 1 used beats the 8-GPU node with 4 used",
        ),
        pytest.param(
            tightest,
            {"a": node(A100), "b": node(T4)},
            ONE,
            [-A100_TIE, -T4_TIE],
            id="best fit: the smaller GPU among equals",
        ),
        pytest.param(
            tightest,
            {"a": node(A100, T4, held=[1]), "b": node(A100, T4, held=[0])},
            ONE,
            [-A100_TIE, -T4_TIE],
            id="best fit: of what is free",
        ),
        pytest.param(
            tightest,
            {"a": node(A100, T4), "b": node(A100, A100)},
            GpuRequest(1, memory_each_mib=20000),
            [-(2 - 1 + A100_TIE), -(2 - 1 + A100_TIE)],
            id="best fit: a GPU too small for the request counts as left over and breaks no tie",
        ),
        pytest.param(
            tightest, {"a": node(("", 0))}, ONE, [0.0], id="best fit: unknown memory is taken as the smallest"
        ),
        pytest.param(
            tightest, {"a": node(T4, held=[0])}, ONE, [-(0 - 1 + NONE_TIE)], id="best fit: nothing free, still finite"
        ),
        pytest.param(
            tightest,
            {"a": node(*[T4] * 4), "b": node(*[A100] * 4)},
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=40000),
            [-(4 - 3 + T4_TIE), -(4 - 1 + A100_TIE)],
            id="best fit: 40000 MiB take 3 T4 of 15360 or 1 A100 of 81920",
        ),
        pytest.param(
            binpack,
            {"a": TWO_ONE_USED, "b": EIGHT_FOUR_USED},
            ONE,
            [(1 + 1) / 2, (4 + 1) / 8],
            id="binpack: fraction in use afterwards",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=3)},
            GpuRequest(2, AskedUnit.SHARED),
            [(3 + 2) / 8],
            id="binpack: in slices",
        ),
        pytest.param(
            tightest,
            {"a": node(T4, used={0: (500, 0)}), "b": node(T4, T4, used={0: (600, 0)}), "c": node(T4)},
            GpuRequest(1, AskedUnit.WHOLE, milli=400),
            [-(0.5 - 0.4), -(0.4 - 0.4 + 1 * NODE_TIE), -(1 - 0.4 + 1 + 1 * NODE_TIE)],
            id="best fit of a share: the GPU with least left; an idle one, + 1, last; free GPUs break ties",
        ),
        pytest.param(
            tightest,
            {"a": node(T4, used={0: (0, 7680)}, unit=GpuUnit.PART), "b": node(T4)},
            GpuRequest(1, memory_each_mib=3840),
            [-(0.5 - 0.25), -(0 + T4_TIE) - 64],
            id="best fit by memory: 7680 / 15360 free, 3840 / 15360 asked; whole GPUs after all shares",
        ),
        pytest.param(
            tightest,
            {"a": node(T4, used={0: (700, 0)}), "b": node(T4, T4, used={0: (700, 0)})},
            GpuRequest(1, AskedUnit.WHOLE, milli=400),
            [-2.0, -(1 - 0.4 + 1 + 1 * NODE_TIE)],
            id="best fit of a share: a GPU without room counts as more than one that would be left whole",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, T4, used={0: (300, 0)}, untracked=1), "b": node(T4, T4, held=[0, 1], untracked=1)},
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            [(1 + 0.3 + 0.5) / 2, (2 + 0.5) / 2],
            id="binpack of a share: a GPU of unknown index is taken as a whole one, no more than there are",
        ),
        pytest.param(
            binpack,
            {"a": node(*[T4] * 4, used={0: (500, 0)})},
            GpuRequest(2, AskedUnit.WHOLE, milli=250),
            [(0.5 + 2 * 0.25) / 4],
            id="binpack of shares of several GPUs: each counts",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, unit=GpuUnit.PART)},
            GpuRequest(1, memory_each_mib=3840),
            [0.25],
            id="binpack by memory: of the only GPU",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, A100, unit=GpuUnit.PART, used={1: (0, 40960)}), "b": node(T4, T4, T4, held=[0])},
            GpuRequest(1, memory_each_mib=7680),
            [(0.5 + (7680 / 15360 + 7680 / 81920) / 2) / 2, (1 + 1) / 3],
            id="binpack by memory: the mean of what it takes of GPUs with room; whole GPUs where there are no shares",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, T4, used={0: (500, 0)}), "b": node(T4, T4)},
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            [(0.5 + 0.5) / 2, 0.5 / 2],
            id="binpack of a share: compute in use afterwards",
        ),
        pytest.param(
            binpack,
            {"a": node(T4, T4, used={0: (0, 7680)}, unit=GpuUnit.PART)},
            GpuRequest(1, memory_each_mib=3840),
            [(0.5 + 0.25) / 2],
            id="binpack by memory: memory in use afterwards",
        ),
        pytest.param(binpack, {"a": node()}, ONE, [1 - (0 - 1) / 1], id="binpack: no GPUs, still finite"),
        pytest.param(
            _spread,
            {"a": TWO_ONE_USED, "b": EIGHT_FOUR_USED},
            ONE,
            [-(1 + 1) / 2, -(4 + 1) / 8],
            id="spread: the emptier node, by fraction",
        ),
    ],
)
def test_score(score: Score, states: Mapping[str, NodeState], request_: GpuRequest, values: list[float]) -> None:
    assert scores(score, states, request_) == pytest.approx(values, rel=0, abs=1e-12)


FREE_COUNTS = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), min_size=1, max_size=8)


def partly_used(sizes: list[tuple[int, int]]) -> dict[str, NodeState]:
    return {f"n{i}": node(*[T4] * num, held=range(min(used, num - 1))) for i, (num, used) in enumerate(sizes)}


@given(FREE_COUNTS)
def test_best_fit_prefers_fewest_gpus_left_over(sizes: list[tuple[int, int]]) -> None:
    states = partly_used(sizes)
    left_over = [len(state.offer.gpus) - len(state.held) - 1 for state in states.values()]
    assert left_over[int(np.argmax(scores(tightest, states)))] == min(left_over)


@given(FREE_COUNTS)
def test_spread_is_binpack_turned_round(sizes: list[tuple[int, int]]) -> None:
    states = partly_used(sizes)
    assert scores(_spread, states) == [-value for value in scores(binpack, states)]


@given(FREE_COUNTS)
def test_a_score_sees_only_its_own_row(sizes: list[tuple[int, int]]) -> None:
    states = partly_used(sizes)
    for policy in POLICIES.values():
        if policy.context is not None:
            continue  # depends on the whole cluster, and says so
        together = scores(policy.score, states)
        alone = [scores(policy.score, {name: state})[0] for name, state in states.items()]
        assert together == alone


def test_policies_are_known_by_name() -> None:
    assert {name: POLICIES[name].score for name in ("tightest", "binpack", "spread")} == {
        "tightest": tightest,
        "binpack": binpack,
        "spread": _spread,
    }


def test_an_old_name_goes_on_working_and_says_the_new_one() -> None:
    old = POLICIES["bestfit"]
    assert (old.name, old.score, old.renamed) == ("bestfit", tightest, "tightest")
    assert (
        registry.renamed(old)
        == "policy bestfit is now called tightest; the old name will be removed in the next version"
    )
    assert "bestfit" not in registry.names(POLICIES) and registry.renamed(POLICIES["tightest"]) == ""
