"""Which GPUs of a node are chosen: the smallest that satisfy the request."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from extender.core.devices import crossed_groups
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100, A100_40, ONE, T4, NodeState, choose_gpus, cluster_of, node, pattern

BARE = AskedUnit.WHOLE
SLICE = GpuRequest(1, AskedUnit.SHARED)
PART, REPLICA = GpuUnit.PART, GpuUnit.REPLICA


def sliced(slices: Mapping[int, int], *, untracked: int = 0, broken: Iterable[int] = ()) -> NodeState:
    """Three GPUs of four slices each, whose GPUs Kerf chooses."""
    return node(T4, T4, T4, unit=REPLICA, units_per_gpu=4, led=True, slices=slices, untracked=untracked, broken=broken)


CHOICES: list[tuple[NodeState, GpuRequest, tuple[int, ...] | None]] = [
    (node(T4, T4), ONE, (0,)),  # the lowest index among equals
    (node(A100, T4), GpuRequest(2), (0, 1)),
    (node(A100, T4, A100_40), GpuRequest(1, memory_each_mib=20000), (2,)),  # the smallest that is large enough
    (node(A100, T4), GpuRequest(1, include=pattern("a100")), (0,)),
    (node(T4, A100), GpuRequest(1, exclude=pattern("t4")), (1,)),
    (node(T4, A100, uuids=["GPU-a", "GPU-b"]), GpuRequest(1, uuids=frozenset({"GPU-b"})), (1,)),
    (node(A100, A100_40, T4), GpuRequest(2, memory_total_mib=50000), (1, 2)),  # the large A100 stays free
    (node(A100, T4, A100_40), GpuRequest(0, BARE, memory_total_mib=100_000), (0, 2)),
    (node(T4, T4, used={0: (1, 1)}), ONE, (1,)),
    # Time slices: of the GPUs with most left, one each, else picked by the device plugin.
    (node(T4, T4, unit=REPLICA, units_per_gpu=4), replace(SLICE, count=3), ()),
    (sliced({0: 2, 1: 1, 2: 1}, untracked=4), SLICE, (1,)),
    (sliced({0: 3, 2: 4}, untracked=7, broken=[1]), SLICE, (0,)),
    (sliced({0: 1}, untracked=1), replace(SLICE, count=2), (1, 2)),
    (sliced({}), replace(SLICE, count=4), ()),
    (sliced({0: 4, 1: 4}, untracked=10), replace(SLICE, count=2), ()),
    (node(mig={"1g.5gb": 2}), GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),)), ()),
    # Link groups, then NUMA nodes; a single GPU does not break a pair.
    (node(*[T4] * 4, links=[0, 0, 1, 1], held=[0]), GpuRequest(2), (2, 3)),
    (node(*[T4] * 4, links=[0, 0, 1, 1]), GpuRequest(3), (0, 1, 2)),
    (node(*[T4] * 6, links=[0, 0, 1, 1, 2, 2], numas=[0, 0, 1, 1, 1, 1], held=[0]), GpuRequest(3), (2, 3, 4)),
    (node(*[T4] * 4, links=[0, 0, 1, 1], held=[3]), ONE, (2,)),
    (node(A100, A100, T4, T4, links=[0, 0, 1, 1], held=[2]), GpuRequest(2), (0, 1)),  # together before smaller
    (node(T4, T4, T4, links=[-1, 0, 0]), ONE, (0,)),  # unknown links count as a group for one GPU, not for two
    (node(*[T4] * 5, links=[-1, -1, 0, 0, 0]), GpuRequest(2), (2, 3)),
    # Shares: the GPU filled best, by compute or (without) by memory; idle GPUs last.
    (node(T4, T4, T4, used={1: (300, 0), 2: (500, 0)}), GpuRequest(1, BARE, milli=400), (2,)),
    (node(A100, T4), GpuRequest(1, BARE, 1000, milli=500), (1,)),
    (node(T4, T4, T4, used={0: (500, 0)}), GpuRequest(2, BARE, milli=500), (0, 1)),
    (node(T4, T4, unit=PART, used={0: (700, 1000), 1: (100, 9000)}), GpuRequest(1, memory_each_mib=4000), (1,)),
    (node(T4, T4, unit=PART, used={0: (100, 1000), 1: (500, 1000)}), GpuRequest(1, memory_each_mib=4000), (1,)),
    # 50 - 40 GiB left before 38 - 20.
    (node(A100_40, A100, unit=PART, used={0: (0, 2048), 1: (0, 30720)}), GpuRequest(1, memory_each_percent=50), (1,)),
    # One of the idle GPUs may be in use.
    (node(T4, T4, T4, used={0: (500, 0)}, untracked=1), GpuRequest(2, BARE, milli=500), (0, 1)),
    (node(T4, T4, T4, used={0: (500, 0)}, untracked=1), GpuRequest(3, BARE, milli=500), None),
]


def test_the_gpus_chosen() -> None:
    for state, request, gpus in CHOICES:
        assert choose_gpus(cluster_of({"n": state}), 0, request) == gpus, request


def test_spreading_puts_shares_on_the_emptiest_gpus_that_are_surely_free() -> None:
    for used, untracked, count, gpus in (
        ({0: (500, 0), 1: (100, 0)}, 0, 1, (2,)),
        ({0: (500, 0), 1: (100, 0)}, 1, 1, (1,)),  # GPU 2 may be in use
        ({2: (500, 0)}, 1, 2, (0, 2)),
    ):
        cluster = cluster_of({"n": node(T4, T4, T4, used=used, untracked=untracked)})
        assert choose_gpus(cluster, 0, GpuRequest(count, BARE, milli=400), spreads=True) == gpus


def test_gpus_that_span_groups_are_reported() -> None:
    for links, numas, gpus, crosses in (
        ([0, 0, 1, 1], [0, 0, 1, 1], [0, 1], ""),
        ([0, 0, 1, 1], [0, 0, 0, 0], [1, 2], "link"),
        ([0, 0, 1, 1], [0, 0, 1, 1], [1, 2], "numa"),
        ([], [], [0, 3], ""),
    ):
        assert crossed_groups(cluster_of({"n": node(*[T4] * 4, links=links, numas=numas)}), 0, gpus) == crosses


GROUPS = st.lists(st.integers(-1, 2), min_size=8, max_size=8)


@given(GROUPS, st.sets(st.integers(0, 7)), st.integers(2, 4))
def test_one_link_group_is_used_whenever_one_has_enough(links: list[int], held: set[int], count: int) -> None:
    chosen = choose_gpus(cluster_of({"n": node(*[T4] * 8, links=links, held=held)}), 0, GpuRequest(count))
    free_in = [sum(link == group and gpu not in held for gpu, link in enumerate(links)) for group in range(3)]
    if chosen is not None and max(free_in) >= count:
        assert len({links[gpu] for gpu in chosen}) == 1
        assert links[chosen[0]] >= 0


USED = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 1000), st.integers(1, 4000)))


@given(USED, st.integers(1, 999), st.integers(0, 4000))
def test_a_share_leaves_as_little_as_possible(used: dict[int, tuple[int, int]], milli: int, mib: int) -> None:
    """Against every GPU: a partly used one if any has room, and none that would be filled better."""
    left = {
        gpu: (gpu not in used, 1000 - used.get(gpu, (0, 0))[0] - milli, 4000 - used.get(gpu, (0, 0))[1] - mib)
        for gpu in range(4)
    }
    room = {gpu: left_over for gpu, left_over in left.items() if min(left_over[1:]) >= 0}
    cluster = cluster_of({"n": node(*[("Tesla-T4", 4000)] * 4, used=used)})
    chosen = choose_gpus(cluster, 0, GpuRequest(1, BARE, mib, milli=milli))
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
def test_as_few_and_as_small_gpus_as_possible(
    sizes: list[int], held: set[int], count: int, each: int, total: int
) -> None:
    """Against every combination: the requested number or the fewest, the largest of them no larger than necessary."""
    request = GpuRequest(count, BARE, each, total if count else max(total, 1))
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
