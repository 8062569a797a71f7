"""Whether a decision takes the last room of a larger request, against nodes built with the decision booked."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest
from extender.core.selective_skip import is_larger, leaves_room, wastes_gpu
from tests.core.builders import A100_40, ONE, NodeState, cluster_of, decided, fit_all, node


def test_larger_means_more_compute() -> None:
    for one, other, larger in (
        (GpuRequest(2), ONE, True),
        (ONE, ONE, False),
        (ONE, GpuRequest(1, milli=500), True),
        (GpuRequest(1, milli=600), GpuRequest(1, milli=500), True),
        (GpuRequest(0, memory_total_mib=1000), GpuRequest(1, milli=500), True),
        (GpuRequest(2), GpuRequest(0, mig=(("1g.5gb", 1),)), False),
    ):
        assert is_larger(one, other) == larger


@given(
    size=st.integers(1, 8),
    data=st.data(),
    milli=st.sampled_from([0, 300, 500]),
    wanted=st.integers(1, 8),
    untracked=st.integers(0, 2),
)
def test_room_left_equals_that_of_a_node_with_the_decision_booked(
    size: int, data: st.DataObject, milli: int, wanted: int, untracked: int
) -> None:
    held = data.draw(st.sets(st.integers(0, size - 1)))
    count = 1 if milli else data.draw(st.integers(1, size))
    request = GpuRequest(count, milli=milli, memory_each_mib=8192 if milli else 0)
    state = node(*[A100_40] * size, held=held, untracked=untracked, unit=GpuUnit.PART if milli else GpuUnit.WHOLE)
    cluster = cluster_of({"cpus": node(), "n": state})
    decision = decided(cluster, request)
    if decision.best is None:
        return
    after = cluster_of({"cpus": node(), "n": _with(state, decision.gpus, milli, count)})
    before = cluster.gpu_free_milli.copy()
    assert leaves_room(cluster, decision, GpuRequest(wanted)) == fit_all(after, GpuRequest(wanted)).fits[1]
    assert (cluster.gpu_free_milli == before).all()  # nothing is booked


def _with(state: NodeState, gpus: tuple[int, ...], milli: int, units: int) -> NodeState:
    if not gpus:
        return replace(state, untracked=state.untracked + units)
    if milli:
        return replace(state, used={**state.used, **dict.fromkeys(gpus, (milli, 8192))})
    return replace(state, held=state.held | set(gpus))


def test_shares_cost_more_where_the_rest_is_worth_little_and_whole_gpus_never_do() -> None:
    left = np.arange(1001)
    plain, spoiled = left / 1000, np.where(left >= 500, left / 1000, 0.0)  # less than half is of no use
    num_gpus, milli = np.array([1, 1, 1, 2, 0]), np.array([810, 500, 1000, 1000, 0])
    assert wastes_gpu(np.stack([spoiled, np.zeros(1001)]), num_gpus, milli).tolist() == [True, *[False] * 4]
    assert not wastes_gpu(plain[None], num_gpus, milli).any()
    assert not wastes_gpu(np.zeros((1, 1001)), num_gpus, milli).any()
    whole_only = np.where(left == 1000, 3.0, 0.0)  # worthless once a thousandth is taken
    num_gpus, milli = np.array([1, 1, 1, 2, 2, 0, 1]), np.array([1, 999, 1000, 1000, 810, 0, 0])
    assert wastes_gpu(whole_only[None], num_gpus, milli).tolist() == [True, True, *[False] * 5]


def test_the_cost_of_a_share_is_compared_with_its_part_of_the_price() -> None:
    left = np.arange(1001) / 1000
    ones, every = np.ones(1001, np.int64), np.arange(1001)
    for price in (0.2, 1.0, 3.0):
        assert not wastes_gpu(price * left[None], ones, every).any()
        # Quadratic: the first tenth costs 1 - 0.81 = 0.19 of the price.
        assert wastes_gpu(price * left[None] ** 2, ones, every).tolist() == [False, *[True] * 999, False]
