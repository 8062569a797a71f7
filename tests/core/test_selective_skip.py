"""Whether a decision takes the last place of a larger request, against nodes built with what was decided held."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.fit.fits import fit
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest
from extender.core.selective_skip import is_larger, leaves_room, takes_more
from tests.core.builders import NodeState, all_rows, cluster_of, node

A100 = ("NVIDIA-A100-SXM4-40GB", 40_960)


@pytest.mark.parametrize(
    ("one", "other", "larger"),
    [
        (GpuRequest(2), GpuRequest(1), True),
        (GpuRequest(1), GpuRequest(1), False),
        (GpuRequest(1), GpuRequest(1, milli=500), True),
        (GpuRequest(1, milli=600), GpuRequest(1, milli=500), True),
        (GpuRequest(0, memory_total_mib=1000), GpuRequest(1, milli=500), True),
        (GpuRequest(2), GpuRequest(0, mig=(("1g.5gb", 1),)), False),
    ],
)
def test_larger_is_more_compute(one: GpuRequest, other: GpuRequest, larger: bool) -> None:
    assert is_larger(one, other) == larger


@given(
    size=st.integers(1, 8),
    data=st.data(),
    milli=st.sampled_from([0, 300, 500]),
    wanted=st.integers(1, 8),
    untracked=st.integers(0, 2),
)
def test_room_that_is_left_is_that_of_a_node_with_it_held(
    size: int, data: st.DataObject, milli: int, wanted: int, untracked: int
) -> None:
    held = data.draw(st.sets(st.integers(0, size - 1)))
    count = 1 if milli else data.draw(st.integers(1, size))
    request = GpuRequest(count, milli=milli, memory_each_mib=8192 if milli else 0)
    state = node(*[A100] * size, held=held, untracked=untracked, unit=GpuUnit.PART if milli else GpuUnit.WHOLE)
    other = node(A100)
    cluster = cluster_of({"other": other, "n": state})
    row = cluster.row_of["n"]
    decision = decide(cluster, request, POLICIES["bestfit"], np.array([row]), Memo())
    if decision.best is None:
        return
    after = _with(state, decision.gpus, milli, count)
    larger = GpuRequest(wanted)
    expected = cluster_of({"other": other, "n": after})
    fits = fit(expected, larger, all_rows(expected)).fits[expected.row_of["n"]]
    before = cluster.gpu_free_milli.copy()
    assert leaves_room(cluster, decision, larger) == fits
    assert (cluster.gpu_free_milli == before).all()  # a question, not a booking


def _with(state: NodeState, gpus: tuple[int, ...], milli: int, units: int) -> NodeState:
    if not gpus:
        return replace(state, untracked=state.untracked + units)
    if milli:
        return replace(state, used={**state.used, **dict.fromkeys(gpus, (milli, 8192))})
    return replace(state, held=state.held | set(gpus))


def test_shares_take_more_where_what_they_leave_is_worth_nothing() -> None:
    left = np.arange(1001)
    plain, spoiled = left / 1000, np.where(left >= 500, left / 1000, 0.0)  # less than a half is of no use to anybody
    num_gpus, milli = np.array([1, 1, 1, 2, 0]), np.array([810, 500, 1000, 1000, 0])
    assert takes_more(np.stack([spoiled, np.zeros(1001)]), num_gpus, milli).tolist() == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert not takes_more(plain[None], num_gpus, milli).any()
    assert not takes_more(np.zeros((1, 1001)), num_gpus, milli).any()


def test_shares_that_leave_nothing_of_use_take_more_and_whole_gpus_never_do() -> None:
    """Of a GPU that is worth three by whole alone, and nothing once a thousandth is taken."""
    whole_only = np.where(np.arange(1001) == 1000, 3.0, 0.0)
    num_gpus, milli = np.array([1, 1, 1, 2, 2, 0, 1]), np.array([1, 999, 1000, 1000, 810, 0, 0])
    assert takes_more(whole_only[None], num_gpus, milli).tolist() == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("price", [0.2, 1.0, 3.0])
def test_what_a_share_takes_is_judged_by_the_part_of_the_price(price: float) -> None:
    left = np.arange(1001) / 1000
    ones, every = np.ones(1001, np.int64), np.arange(1001)
    assert not takes_more(price * left[None], ones, every).any()
    # Quadratic: the first tenth costs 1 - 0.81 = 0.19 of the price.
    assert takes_more(price * left[None] ** 2, ones, every).tolist() == [False, *[True] * 999, False]
