"""What the room left on a GPU is worth, and where partitions go for it: an A100 of 40 GB with MIG."""

from collections.abc import Sequence
from dataclasses import replace

from extender.core.dra.allocator import _LINK, Allocation, Allocations, _allocate
from extender.core.dra.asks import DeviceClaims, DeviceSpec
from extender.core.dra.devices import Capacity, NodeDevices, Taking
from extender.core.dra.packing import GPU, Room, Weights, _most_at_once, _worth_of_parts, room_of, worth_of
from tests.core.dra.cases import selector
from tests.core.dra.machines import DRIVER, a100_node, partition
from tests.core.fit.claims import ask, asked, device, gpus, having

FREE = (1,) * 8 + (98,)
"""An A100's memory slices and multiprocessors."""
AFTER_FIRST, AFTER_LAST = (0, 1, 1, 1, 1, 1, 1, 1, 84), (1, 1, 1, 1, 1, 1, 0, 1, 84)
"""The same with slice 0 or 6 taken."""


def mig(profile: str, count: int = 1) -> DeviceSpec:
    """Partitions of a profile."""
    return ask(selector(f"{DRIVER}/type", "mig"), selector(f"{DRIVER}/profile", profile), count=count)


def allocate(devices: NodeDevices, wanted: DeviceClaims) -> Allocation:
    allocation = _allocate(devices, wanted)
    assert allocation is not None
    return allocation


def names(devices: NodeDevices, allocation: Allocation) -> list[str]:
    return [devices.inventory.devices[item.taking.device].id.device for claim in allocation.claims for item in claim]


def given(devices: NodeDevices, request: DeviceSpec) -> list[str]:
    """Names of the devices for a request."""
    return names(devices, allocate(devices, asked(request)))


def room(weights: Weights) -> Room:
    """All of an A100's room."""
    inventory = a100_node("node", 1)
    (found,) = [room_of(inventory.devices, tuple(device.consumes for device in inventory.devices), FREE, GPU, weights)]
    return found


def test_worth_is_the_squared_mean_fraction_of_each_kind_still_possible() -> None:
    of_all = room(Weights())
    assert [(kind.name, kind.most) for kind in of_all.kinds] == [
        *(("1000m/40960Mi", 1), ("1g.5gb", 7), ("1g.10gb", 4), ("2g.10gb", 3)),
        *(("3g.20gb", 2), ("4g.20gb", 1), ("7g.40gb", 1)),
    ]
    for taken, left, parts in (
        (0, FREE, 7),
        (1 << 7, AFTER_LAST, 6 / 7 + 3 / 4 + 1 + 1 / 2 + 1),  # neither the whole nor the 7g.40gb
        (1 << 1, AFTER_FIRST, 6 / 7 + 3 / 4 + 2 / 3 + 1 / 2),  # nor the 4g.20gb
        ((1 << 19) - 1, (0,) * 9, 0),
    ):
        assert worth_of(of_all, taken, left) == round(GPU * (parts / 7) ** 2)
    of_4g = room(Weights({"4g.20gb": 3.0}, default=0.0))
    assert worth_of(of_4g, 0, (1, 1, 1, 1, 0, 0, 0, 0, 56)) == GPU
    assert worth_of(of_4g, 0, AFTER_FIRST) == 0


def test_a_partition_goes_where_it_spoils_least() -> None:
    one = NodeDevices.of(a100_node("node", 1))
    # Any other 1g spoils a place for 2g.10gb or 4g.20gb.
    for profile, place in (("1g.5gb", "1g-5gb-6"), ("1g.10gb", "1g-10gb-6"), ("3g.20gb", "3g-20gb-4")):
        assert given(one, mig(profile)) == [f"gpu-0-mig-{place}"]
    inventory = a100_node("node", 2)
    used = NodeDevices.of(inventory, [Taking(partition(inventory, 1, "1g.5gb", 6))])
    assert given(used, mig("1g.5gb")) == ["gpu-1-mig-1g-5gb-4"]  # on the GPU in use
    elsewhere = NodeDevices.of(a100_node("other", 2))
    small = asked(mig("1g.5gb"))
    assert allocate(used, small).loss < allocate(elsewhere, small).loss
    # Admin access costs nothing.
    look = allocate(one, asked(replace(mig("1g.5gb"), admin=True)))
    assert (look.loss, look.takings) == (0, ())
    # With value for 3g.20gb alone slices 0 and 6 are equal: the first wins.
    allocation = Allocations(Weights({"3g.20gb": 1.0}, default=0.0)).best(one, small)
    assert isinstance(allocation, Allocation)
    assert names(one, allocation) == ["gpu-0-mig-1g-5gb-0"]


def test_sixteen_partitions_fill_whole_gpus() -> None:
    """Seven fit on an A100."""
    found = given(NodeDevices.of(a100_node("node", 8)), mig("1g.5gb", 16))
    per_gpu = [sum(name.startswith(f"gpu-{gpu}-") for name in found) for gpu in range(8)]
    assert sorted(per_gpu, reverse=True) == [7, 7, 2, 0, 0, 0, 0, 0]


def test_whole_gpus_share_a_pcie_root_and_leave_whole_roots() -> None:
    def of_roots(roots: str, order: Sequence[int], *taken: int) -> NodeDevices:
        every = [
            device(f"gpu-{index}", attributes={_LINK: root}, gpu=index, milli=1000, mib=8)
            for index, root in enumerate(roots)
        ]
        return having(*(every[index] for index in order), taken=[Taking(index) for index in taken])

    pair = ask(count=2)
    for devices, request, right in (
        (gpus(8, 0), pair, ["gpu-2", "gpu-3"]),  # rather than 1 and 2
        (gpus(6, 0, 2), pair, ["gpu-4", "gpu-5"]),
        (gpus(6, 0, 2), ask(), ["gpu-1"]),
        (of_roots("aaabb", range(5), 0), pair, ["gpu-1", "gpu-2"]),  # the first of equals
        (of_roots("aaabb", (0, 3, 1, 4, 2)), pair, ["gpu-3", "gpu-4"]),  # the root with fewest GPUs
    ):
        assert given(devices, request) == right


def test_the_smaller_gpu_and_the_shared_device_are_given() -> None:
    sizes = (80_000, 40_000)
    devices = having(*(device(f"gpu-{index}", gpu=index, milli=1000, mib=mib) for index, mib in enumerate(sizes)))
    smaller = allocate(devices, asked(ask()))
    assert (names(devices, smaller), smaller.loss) == (["gpu-1"], 0)
    assert allocate(devices.taking(smaller.takings), asked(ask())).loss == 0.5  # half of the GPU would do
    shareable = (
        device(
            f"gpu-{index}",
            capacity={"memory": Capacity(8, 2, valid_range=(1, None, None))},
            shareable=True,
            gpu=index,
            milli=1000,
            mib=8,
        )
        for index in range(2)
    )
    shared = having(*shareable, taken=[Taking(1, (("memory", 4),))])
    assert given(shared, ask(capacity=(("memory", 2),))) == ["gpu-1"]


def test_a_shared_device_is_worth_its_halves_quarters_and_eighths() -> None:
    shared = device("gpu", capacity={"memory": Capacity(8)}, shareable=True)
    for used, worth in (
        (0, GPU),
        (2, GPU * (0 + 2 + 3 + 3) / 16),  # of 8: no whole, 1 half, 3 quarters, 6 eighths
        (4, GPU * (0 + 1 / 2 + 1 / 2 + 1 / 2) / 4),
        (8, 0),
    ):
        assert _worth_of_parts(GPU, {"memory": used}, shared) == worth


def test_the_most_at_once_is_found_where_taking_the_first_is_wrong() -> None:
    """The first takes both counters, the others one each."""
    assert _most_at_once((((0, 1), (1, 1)), ((0, 1),), ((1, 1),)), (0, 1, 2), (1, 1)) == 2
