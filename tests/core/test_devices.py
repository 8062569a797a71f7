"""Which GPUs of a node are chosen: the smallest that satisfy the request."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.devices import crossed_groups
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, choose_gpus, cluster_of, node, pattern

A100, A100_40, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)


SLICE = GpuRequest(1, AskedUnit.SHARED)


def sliced(slices: Mapping[int, int], *, untracked: int = 0, broken: Iterable[int] = ()) -> NodeState:
    """Three GPUs of four slices each, of which Kerf chooses those that pods get a slice of."""
    unit = GpuUnit.REPLICA
    return node(T4, T4, T4, unit=unit, units_per_gpu=4, led=True, slices=slices, untracked=untracked, broken=broken)


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
        pytest.param(sliced({0: 2, 1: 1, 2: 1}, untracked=4), SLICE, (1,), id="or of the GPU with most slices left"),
        pytest.param(sliced({0: 3, 2: 4}, untracked=7, broken=[1]), SLICE, (0,), id="nor of one that is broken"),
        pytest.param(sliced({0: 1}, untracked=1), replace(SLICE, count=2), (1, 2), id="a slice each"),
        pytest.param(sliced({}), replace(SLICE, count=4), (), id="two of one GPU: which is the plugin's to pick"),
        pytest.param(
            sliced({0: 4, 1: 4}, untracked=10), replace(SLICE, count=2), (), id="two of the last: the plugin's too"
        ),
        pytest.param(
            node(mig={"1g.5gb": 2}), GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),)), (), id="MIG devices as well"
        ),
        pytest.param(node(T4, T4, used={0: (1, 1)}), GpuRequest(1), (1,), id="whole where nobody has a share"),
        pytest.param(
            node(T4, A100, uuids=["GPU-a", "GPU-b"]), GpuRequest(1, uuids=frozenset({"GPU-b"})), (1,), id="of the UUID"
        ),
        pytest.param(node(*[T4] * 4, links=[0, 0, 1, 1], held=[0]), GpuRequest(2), (2, 3), id="one link group"),
        pytest.param(
            node(*[T4] * 4, links=[0, 0, 1, 1]), GpuRequest(3), (0, 1, 2), id="more than a group: the lowest indices"
        ),
        pytest.param(
            node(*[T4] * 6, links=[0, 0, 1, 1, 2, 2], numas=[0, 0, 1, 1, 1, 1], held=[0]),
            GpuRequest(3),
            (2, 3, 4),
            id="no link group has three: one NUMA node has",
        ),
        pytest.param(
            node(*[T4] * 4, links=[0, 0, 1, 1], held=[3]),
            GpuRequest(1),
            (2,),
            id="the pair stays for those who need it",
        ),
        pytest.param(
            node(A100, A100, T4, T4, links=[0, 0, 1, 1], held=[2]), GpuRequest(2), (0, 1), id="together before smaller"
        ),
        pytest.param(
            node(T4, T4, T4, used={1: (300, 0), 2: (500, 0)}),
            GpuRequest(1, AskedUnit.WHOLE, milli=400),
            (2,),
            id="share: the GPU it fills best, 500 - 400 before 700 - 400 and an idle one",
        ),
        pytest.param(
            node(T4, T4, used={0: (600, 0)}),
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            (1,),
            id="share: an idle one where it must be",
        ),
        pytest.param(
            node(A100, T4), GpuRequest(1, AskedUnit.WHOLE, 1000, milli=500), (1,), id="share: the smaller of idle ones"
        ),
        pytest.param(
            node(T4, T4, unit=GpuUnit.PART, used={0: (0, 1000), 1: (0, 9000)}),
            GpuRequest(1, memory_each_mib=4000),
            (1,),
            id="share of memory: 15360 - 9000 - 4000 is less than 15360 - 1000 - 4000",
        ),
        pytest.param(
            node(T4, T4, T4, used={0: (500, 0)}),
            GpuRequest(2, AskedUnit.WHOLE, milli=500),
            (0, 1),
            id="a share of each",
        ),
        pytest.param(
            node(T4, T4, unit=GpuUnit.PART, used={0: (700, 1000), 1: (100, 9000)}),
            GpuRequest(1, memory_each_mib=4000),
            (1,),
            id="share of memory: what is left of the memory counts before the compute",
        ),
        pytest.param(
            node(T4, T4, unit=GpuUnit.PART, used={0: (100, 1000), 1: (500, 1000)}),
            GpuRequest(1, memory_each_mib=4000),
            (1,),
            id="share of memory: and the compute where as much memory is left",
        ),
        pytest.param(
            node(A100_40, A100, unit=GpuUnit.PART, used={0: (0, 2048), 1: (0, 30720)}),
            GpuRequest(1, memory_each_percent=50),
            (1,),
            id="share in percent: 50 - 40 GiB left before 38 - 20",
        ),
        pytest.param(
            node(T4, T4, T4, used={0: (500, 0)}, untracked=1),
            GpuRequest(2, AskedUnit.WHOLE, milli=500),
            (0, 1),
            id="one of the idle ones at most",
        ),
        pytest.param(
            node(T4, T4, T4, used={0: (500, 0)}, untracked=1),
            GpuRequest(3, AskedUnit.WHOLE, milli=500),
            None,
            id="so not two",
        ),
        pytest.param(node(T4, T4, T4, links=[-1, 0, 0]), GpuRequest(1), (0,), id="one of unknown links is as good"),
        pytest.param(node(*[T4] * 5, links=[-1, -1, 0, 0, 0]), GpuRequest(2), (2, 3), id="but not of two together"),
        pytest.param(
            node(T4, T4, A100), GpuRequest(2, memory_total_mib=30720), (0, 1), id="2 * 15360 = 30720: exactly the total"
        ),
    ],
)
def test_choice(state: NodeState, request_: GpuRequest, gpus: tuple[int, ...] | None) -> None:
    assert choose_gpus(cluster_of({"n": state}), 0, request_) == gpus


def test_spread_puts_a_share_on_the_emptiest_gpu() -> None:
    cluster = cluster_of({"n": node(T4, T4, T4, used={0: (500, 0), 1: (100, 0)}, untracked=1)})
    share = GpuRequest(1, AskedUnit.WHOLE, milli=400)
    # GPU 2 may be the one that somebody of unknown index holds.
    assert choose_gpus(cluster, 0, share, spreads=True) == (1,)
    cluster = cluster_of({"n": node(T4, T4, T4, used={0: (500, 0), 1: (100, 0)})})
    assert choose_gpus(cluster, 0, share, spreads=True) == (2,)


def test_spread_takes_no_idle_gpus_that_somebody_of_unknown_index_may_hold() -> None:
    cluster = cluster_of({"n": node(T4, T4, T4, used={2: (500, 0)}, untracked=1)})
    assert choose_gpus(cluster, 0, GpuRequest(2, AskedUnit.WHOLE, milli=400), spreads=True) == (0, 2)


@pytest.mark.parametrize(
    ("links", "numas", "gpus", "crosses"),
    [
        pytest.param([0, 0, 1, 1], [0, 0, 1, 1], [0, 1], "", id="together"),
        pytest.param([0, 0, 1, 1], [0, 0, 0, 0], [1, 2], "link", id="two link groups of one NUMA node"),
        pytest.param([0, 0, 1, 1], [0, 0, 1, 1], [1, 2], "numa", id="two NUMA nodes"),
        pytest.param([], [], [0, 3], "", id="nothing known"),
    ],
)
def test_what_is_crossed_is_told(links: list[int], numas: list[int], gpus: list[int], crosses: str) -> None:
    cluster = cluster_of({"n": node(*[T4] * 4, links=links, numas=numas)})
    assert crossed_groups(cluster, 0, gpus) == crosses


GROUPS = st.lists(st.integers(-1, 2), min_size=8, max_size=8)


@given(GROUPS, st.sets(st.integers(0, 7)), st.integers(2, 4))
def test_one_group_is_taken_whenever_one_can_give_them(links: list[int], held: set[int], count: int) -> None:
    chosen = choose_gpus(cluster_of({"n": node(*[T4] * 8, links=links, held=held)}), 0, GpuRequest(count))
    free_in = [sum(link == group and gpu not in held for gpu, link in enumerate(links)) for group in range(3)]
    if chosen is not None and max(free_in) >= count:
        assert len({links[gpu] for gpu in chosen}) == 1
        assert links[chosen[0]] >= 0


USED = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 1000), st.integers(1, 4000)))


@given(USED, st.integers(1, 999), st.integers(0, 4000))
def test_a_share_leaves_as_little_as_can_be(used: dict[int, tuple[int, int]], milli: int, mib: int) -> None:
    """Against every GPU: a partly used one if any has room, and none that would be filled better."""
    state = node(*[("Tesla-T4", 4000)] * 4, used=used)
    left = {
        gpu: (gpu not in used, 1000 - used.get(gpu, (0, 0))[0] - milli, 4000 - used.get(gpu, (0, 0))[1] - mib)
        for gpu in range(4)
    }
    room = {gpu: left_over for gpu, left_over in left.items() if min(left_over[1:]) >= 0}
    chosen = choose_gpus(cluster_of({"n": state}), 0, GpuRequest(1, AskedUnit.WHOLE, mib, milli=milli))
    if not room:
        assert chosen is None
    else:
        assert chosen is not None
        assert room[chosen[0]] == min(room.values())


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
