"""What each holder has of a node's GPUs: nothing is lost, nothing is had twice."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.mig import read_cutting
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer, read_node
from extender.explain.rates import Entry, _mig_milli, _shares_of
from extender.plugins.holdings import Holding, Part, whole_gpus

GIB_16 = 16384


def offer(
    num: int = 2, *, unit: GpuUnit = GpuUnit.PART, per_gpu: int = 1, broken: int = 0, **more: object
) -> NodeOffer:
    """So many GPUs of 16 GiB, the last of them broken."""
    gpus = tuple(Gpu(UNKNOWN_MODEL, GIB_16, healthy=index < num - broken) for index in range(num))
    units = (num - broken) * per_gpu
    return NodeOffer(gpus, unit, per_gpu, more.pop("units", units), **more)  # type: ignore[arg-type]


def milli_of(node: NodeOffer, *holdings: Holding) -> list[int]:
    """What each of some holders has, all its GPUs together."""
    entries = _shares_of(node, list(enumerate(holdings))).entries
    return [sum(entry.milli for entry in entries if entry.holder == number) for number in range(len(holdings))]


def part(milli: int, mib: int = 0, gpu: int = 0) -> Holding:
    return Holding(1, (Part(gpu, milli, mib),))


def test_what_a_holder_has() -> None:
    whole, third = offer(unit=GpuUnit.WHOLE), offer(unit=GpuUnit.REPLICA, per_gpu=3)
    for node, held, expected in (
        (whole, [whole_gpus(1, [1])], [1000]),
        (whole, [whole_gpus(2)], [2000]),  # of unknown indices
        (offer(), [part(250, GIB_16 // 2)], [500]),  # the larger of compute and memory
        # By compute 900, by memory 1000: what is taken. 800 and 875 of 1675 are 477 and 523 of that.
        (offer(), [part(800, GIB_16 // 8), part(100, GIB_16 * 7 // 8)], [477, 523]),
        (third, [Holding(1)], [333]),
        (third, [Holding(3)], [1000]),
        (offer(unit=GpuUnit.REPLICA, per_gpu=4), [part(1000), part(1000)], [250, 250]),
        (whole, [whole_gpus(1, [0]), whole_gpus(1, [0])], [500, 500]),  # overbooked
        (whole, [whole_gpus(9)], [2000]),
        (whole, [whole_gpus(1, [7])], [1000]),  # an index that does not exist
        (NodeOffer(mig=(("3g.20gb", 2),)), [Holding(0, mig=(("3g.20gb", 1),))], [428]),
    ):
        assert milli_of(node, *held) == expected


def test_what_there_is() -> None:
    withheld = offer(2, unit=GpuUnit.WHOLE, units=1)
    cases: list[tuple[NodeOffer, list[Holding], int, int]] = [
        (offer(4, broken=1), [], 4000, 1000),
        (offer(2, broken=1), [part(1000, gpu=1)], 2000, 0),  # it has the unhealthy one
        (withheld, [], 2000, 1000),
        (withheld, [whole_gpus(2)], 2000, 0),
        (offer(2, broken=1, unit=GpuUnit.WHOLE), [whole_gpus(1)], 2000, 1000),  # healthy ones first
        (offer(2, set_aside=3), [part(400)], 2000, 1600),
        (NodeOffer(mig=(("1g.5gb", 7),)), [], 994, 0),  # seven sevenths, each rounded down
        (offer(2, unit=GpuUnit.WHOLE, units=1, mig=(("1g.6gb", 4),)), [], 2000, 0),  # cut GPUs count as devices
        (NodeOffer(), [whole_gpus(1)], 0, 0),
    ]
    for node, held, capacity, unhealthy in cases:
        found = _shares_of(node, list(enumerate(held)))
        assert (found.capacity_milli, found.sick_milli) == (capacity, unhealthy)


def test_a_mig_device_has_its_compute_slices_of_a_gpu_that_is_cut_as_its_model_is() -> None:
    for profile, milli in (("1g.5gb", 142), ("7g.80gb", 1000), ("1g.6gb", 250), ("1g.6gb.me", 250), ("nonsense", 142)):
        assert _mig_milli(profile) == milli
    node, held = NodeOffer(mig=(("1g.24gb", 4),)), [(0, Holding(0, mig=(("1g.24gb", 1),)))]
    assert _shares_of(node, held, "rtx-pro-6000-blackwell-server-edition") == ([Entry(0, -1, 250)], 1000, 0)
    assert _shares_of(node, held, "gh200").capacity_milli == 4 * 142


H100_IN_28 = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "0"}
"""As GPU Feature Discovery labels it: lm/mig-strategy.go counts GPUs that are cut as well."""


def test_shared_mig_devices_are_no_more_than_their_gpu() -> None:
    shared, count = "1g.10gb.shared", "nvidia.com/mig-1g.10gb"
    for mig, labels in (
        (shared, {f"{count}.replicas": "4"}),
        ("1g.10gb", {f"{count}.replicas": "4"}),  # not renamed
        (shared, {f"{count}.count": "7"}),  # by the devices there are
        (shared, {}),  # by the GPUs there are: 28 devices of 142 are 3976, and each has 142 * 1000 / 3976
        (shared, {f"{count}.replicas": "many"}),
    ):
        cutting = read_cutting(H100_IN_28 | labels, ((mig, 28),))
        held = [(number, Holding(0, mig=((mig, 1),))) for number in range(28)]
        found = _shares_of(NodeOffer(mig=((mig, 28),)), held, "h100-80gb-hbm3", cutting)
        # 1000 / (7 * 4) = 35.7 each, rounded down: 28 are 980.
        assert (found.capacity_milli, found.booked_milli) == (980, 980)
        few = _shares_of(NodeOffer(mig=((mig, 28),)), held[:7], "h100-80gb-hbm3", cutting)
        assert [entry.milli for entry in few.entries] == [35] * 7


def test_mig_devices_beside_whole_gpus_are_no_more_than_those_that_are_cut() -> None:
    """Eight GPUs, one of them cut in seven that four pods share each; without a label for these."""
    node = offer(8, unit=GpuUnit.WHOLE, units=7, mig=(("1g.10gb.shared", 28),))
    found = _shares_of(node, [(0, Holding(0, mig=(("1g.10gb.shared", 14),)))], "h100", read_cutting({}, node.mig))
    assert (found.capacity_milli, found.booked_milli) == (7980, 490)


def test_mig_devices_under_the_name_of_gpus_are_parts_of_one() -> None:
    """MIG's single strategy: `nvidia.com/gpu: 7` of one H100, or 28 where four pods share each."""
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.count": "7"}
    for suffix, replicas in (("", 1), ("-SHARED", 4)):
        labels["nvidia.com/gpu.product"] = f"NVIDIA-H100-80GB-HBM3-MIG-1g.10gb{suffix}"
        labels["nvidia.com/gpu.replicas"] = str(replicas)
        node = read_node({"nvidia.com/gpu": 7 * replicas}, labels)
        cutting = read_cutting(labels, node.mig)
        found = _shares_of(node, [(0, Holding(7 * replicas))], "h100-80gb-hbm3", cutting)
        assert (found.capacity_milli, found.booked_milli, found.sick_milli) == (994, 994, 0)
        assert _shares_of(node, [(0, Holding(1))], "h100-80gb-hbm3", cutting).booked_milli == 142 // replicas


def test_entries_name_their_gpus() -> None:
    found = _shares_of(offer(3, unit=GpuUnit.WHOLE), [(7, Holding(2, (Part(2),)))])
    assert found.entries == [Entry(7, 2, 1000), Entry(7, -1, 1000)]


PARTS = st.builds(Part, st.integers(-1, 4), st.sampled_from([0, 1, 333, 1000]), st.integers(0, 2 * GIB_16))
ANY = st.one_of(
    st.builds(Holding, st.just(1), st.tuples(PARTS)),
    st.builds(whole_gpus, st.integers(0, 6), st.lists(st.integers(0, 4), max_size=1)),
    st.just(Holding(0, mig=(("1g.5gb", 3),))),
)


@st.composite
def offers(draw: st.DrawFn) -> NodeOffer:
    unit = draw(st.sampled_from([GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.REPLICA]))
    num, per_gpu = draw(st.integers(0, 4)), draw(st.integers(1, 7)) if unit is GpuUnit.REPLICA else 1
    broken = min(draw(st.integers(0, 2)), num)
    units = max((num - broken) * per_gpu - draw(st.integers(0, 3)), 0)
    mig = (("1g.5gb", 2),) if draw(st.booleans()) else ()
    aside = draw(st.integers(0, 1))
    return offer(num, broken=broken, unit=unit, per_gpu=per_gpu, units=units, set_aside=aside, mig=mig)


@given(offers(), st.lists(ANY, max_size=6))
def test_whatever_is_held_all_adds_up_to_the_capacity(node: NodeOffer, held: list[Holding]) -> None:
    found = _shares_of(node, list(enumerate(held)))
    assert all(entry.milli >= 0 for entry in found.entries)
    assert found.sick_milli >= 0
    assert 0 <= found.booked_milli + found.sick_milli <= found.capacity_milli
    on_gpu: dict[int, int] = {}
    for entry in found.entries:
        if entry.gpu >= 0:
            on_gpu[entry.gpu] = on_gpu.get(entry.gpu, 0) + entry.milli
    assert all(milli <= 1000 for milli in on_gpu.values())


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, GIB_16)), min_size=1, max_size=5))
def test_shares_of_one_gpu_are_those_of_a_slow_account(shares: list[tuple[int, int]]) -> None:
    """By exact fractions: each within one thousandth, and what is taken of the GPU to the last one."""
    found = milli_of(offer(1), *(part(milli, mib) for milli, mib in shares))
    if any(milli >= 1000 for milli, _ in shares):
        return  # whole GPUs have nobody beside them, another case
    memory = [Fraction(mib * 1000 // GIB_16) for _, mib in shares]
    weights = [max(Fraction(milli), part_of) for (milli, _), part_of in zip(shares, memory, strict=True)]
    compute = Fraction(sum(milli for milli, _ in shares))
    taken = min(max(compute, Fraction(sum(memory))), Fraction(1000))
    assert sum(found) == (taken if sum(weights) else 0)
    whole = Fraction(sum(weights))
    for milli, weight in zip(found, weights, strict=True):
        exact = taken * weight / whole if whole else Fraction(0)
        assert -1 < milli - exact < 1
