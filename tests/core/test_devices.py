"""Which GPUs of a node are chosen: the smallest that satisfy the request."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.devices import choose_gpus
from extender.core.nodes import GpuUnit
from extender.core.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, cluster_of, node, pattern

A100, A100_40, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)


@pytest.mark.parametrize(
    ("state", "request_", "gpus"),
    [
        pytest.param(node(T4, T4), GpuRequest(1), (0,), id="lowest index among equals"),
        pytest.param(node(T4, T4, T4, held=[0]), GpuRequest(2), (1, 2), id="held ones are passed over"),
        pytest.param(node(A100, T4), GpuRequest(1), (1,), id="the smallest"),
        pytest.param(
            node(A100, T4, A100_40), GpuRequest(1, memory_each_mib=20000), (2,), id="the smallest that is large enough"
        ),
        pytest.param(node(A100, T4), GpuRequest(1, include=pattern("a100")), (0,), id="of the model"),
        pytest.param(node(T4, A100), GpuRequest(1, exclude=pattern("t4")), (1,), id="not of the model"),
        pytest.param(
            node(A100, A100_40, T4),
            GpuRequest(2, memory_total_mib=50000),
            (1, 2),
            id="50000 <= 15360 + 40960: the A100 stays free",
        ),
        pytest.param(
            node(A100, T4, A100_40),
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=40000),
            (2,),
            id="without a number: one GPU of 40960 and not two",
        ),
        pytest.param(
            node(A100, T4, A100_40),
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=100_000),
            (0, 2),
            id="fewest: 81920 < 100000; 15360 + 40960 < 100000 <= 40960 + 81920",
        ),
        pytest.param(node(A100, T4), GpuRequest(2), (0, 1), id="indices in order"),
        pytest.param(node(T4, T4, held=[1]), GpuRequest(2), None, id="too few free"),
        pytest.param(node(T4, held=[0]), GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=1), None, id="none free"),
        pytest.param(node(T4, T4), GpuRequest(2, memory_total_mib=30721), None, id="2 * 15360 = 30720 < 30721"),
        pytest.param(node(T4), GpuRequest(1, memory_each_mib=2**40), None, id="absurd memory"),
        pytest.param(
            node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(3, AskedUnit.SHARED),
            (),
            id="slices are the device plugin's to pick",
        ),
    ],
)
def test_choice(state: NodeState, request_: GpuRequest, gpus: tuple[int, ...] | None) -> None:
    assert choose_gpus(cluster_of({"n": state}), 0, request_) == gpus


@given(
    st.lists(st.integers(0, 9).map(lambda size: size * 1000), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.integers(0, 4),
    st.sampled_from([0, 1000, 3000]),
    st.integers(0, 20).map(lambda size: size * 1000),
)
def test_the_choice_wastes_least_of_the_largest_gpu(
    sizes: list[int], held: set[int], count: int, each: int, total: int
) -> None:
    """Against every combination: as few GPUs as do (or the number asked), and no larger than they must be."""
    request = GpuRequest(count, AskedUnit.WHOLE, each, total if count else max(total, 1))
    state = node(*[("Tesla-T4", size) for size in sizes], held=[index for index in held if index < len(sizes)])
    usable = [index for index, size in enumerate(sizes) if index not in held and size >= each]
    satisfying = [
        chosen
        for number in ([count] if count else range(1, len(usable) + 1))
        for chosen in combinations(usable, number)
        if sum(sizes[index] for index in chosen) >= request.memory_total_mib
    ]
    chosen = choose_gpus(cluster_of({"n": state}), 0, request)
    if not satisfying:
        assert chosen is None
        return
    assert chosen in satisfying
    fewest = [other for other in satisfying if len(other) == min(map(len, satisfying))]
    assert len(chosen) == len(fewest[0])
    assert max(sizes[index] for index in chosen) == min(max(sizes[index] for index in other) for other in fewest)
