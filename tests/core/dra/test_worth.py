"""What the room that is left on a GPU is worth, and where partitions go for it: an A100 of 40 GB with MIG."""

from dataclasses import replace

import pytest

from extender.core.dra.allocator import _LINK, Allocation, Allocations, _allocate
from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked, RequestAsk
from extender.core.dra.devices import Capacity, Device, DeviceId, Inventory, NodeDevices, Taking
from extender.core.dra.packing import GPU, Weights, _most_at_once, _worth_of_parts, room_of, worth_of
from tests.core.dra.cases import selector
from tests.core.dra.machines import DRIVER, a100_node, partition

FREE = (1,) * 8 + (98,)
"""An A100's memory slices and multiprocessors."""


def asking(*asks: DeviceAsk) -> DevicesAsked:
    """One claim, of which each request has no alternatives."""
    return DevicesAsked((ClaimAsk(tuple(RequestAsk(ask.name, (ask,)) for ask in asks)),))


def mig(profile: str, count: int = 1) -> DeviceAsk:
    """Partitions of a profile."""
    return DeviceAsk(profile, (selector(f"{DRIVER}/type", "mig"), selector(f"{DRIVER}/profile", profile)), count)


def given(allocation: Allocation | None, devices: NodeDevices) -> list[str]:
    """The names of the devices given, without the node's."""
    assert allocation is not None
    return [devices.inventory.devices[item.taking.device].id.device for claim in allocation.claims for item in claim]


def test_worth_is_the_square_of_the_share_of_each_kind_that_can_still_be_had() -> None:
    inventory = a100_node("node", 1)
    (room,) = [room_of(inventory.devices, tuple(device.consumes for device in inventory.devices), FREE, GPU, Weights())]
    assert [(kind.name, kind.most) for kind in room.kinds] == [
        ("1000m/40960Mi", 1),
        ("1g.5gb", 7),
        ("1g.10gb", 4),
        ("2g.10gb", 3),
        ("3g.20gb", 2),
        ("4g.20gb", 1),
        ("7g.40gb", 1),
    ]
    assert worth_of(room, 0, FREE) == GPU
    # Slice 6 gone with 14 multiprocessors: 6 of 7 1g.5gb, 3 of 4 1g.10gb, 3 of 3 2g.10gb, 1 of 2 3g.20gb, the
    # 4g.20gb, neither the whole nor the 7g.40gb.
    after_last = (1, 1, 1, 1, 1, 1, 0, 1, 84)
    assert worth_of(room, 1 << 7, after_last) == round(GPU * ((6 / 7 + 3 / 4 + 1 + 1 / 2 + 1) / 7) ** 2)
    # Slice 0 gone: 2g.10gb can be had twice, the 4g.20gb not at all.
    after_first = (0, 1, 1, 1, 1, 1, 1, 1, 84)
    assert worth_of(room, 1 << 1, after_first) == round(GPU * ((6 / 7 + 3 / 4 + 2 / 3 + 1 / 2) / 7) ** 2)
    assert worth_of(room, (1 << 19) - 1, (0,) * 9) == 0


def test_the_weight_of_a_kind_is_that_of_its_room() -> None:
    inventory = a100_node("node", 1)
    consumes = tuple(device.consumes for device in inventory.devices)
    room = room_of(inventory.devices, consumes, FREE, GPU, Weights({"4g.20gb": 3.0}, default=0.0))
    assert worth_of(room, 0, (1, 1, 1, 1, 0, 0, 0, 0, 56)) == GPU
    assert worth_of(room, 0, (0, 1, 1, 1, 1, 1, 1, 1, 84)) == 0


@pytest.mark.parametrize(
    ("profile", "places"),
    [
        ("1g.5gb", ["1g-5gb-6"]),  # any other one spoils a place for 2g.10gb, or that for 4g.20gb
        ("1g.10gb", ["1g-10gb-6"]),
        ("3g.20gb", ["3g-20gb-4"]),  # leaves 4g.20gb
    ],
)
def test_a_partition_goes_where_it_spoils_least_of_a_free_gpu(profile: str, places: list[str]) -> None:
    devices = NodeDevices.of(a100_node("node", 1))
    assert given(_allocate(devices, asking(mig(profile))), devices) == [f"gpu-0-mig-{place}" for place in places]


def test_a_partition_goes_to_the_gpu_that_is_in_use() -> None:
    inventory = a100_node("node", 2)
    devices = NodeDevices.of(inventory, [Taking(partition(inventory, 1, "1g.5gb", 6))])
    allocation = _allocate(devices, asking(mig("1g.5gb")))
    assert allocation is not None
    assert given(allocation, devices) == ["gpu-1-mig-1g-5gb-4"]
    elsewhere = _allocate(NodeDevices.of(a100_node("other", 2)), asking(mig("1g.5gb")))
    assert elsewhere is not None
    assert allocation.loss < elsewhere.loss


def test_who_only_looks_at_a_partition_costs_nothing() -> None:
    devices = NodeDevices.of(a100_node("node", 1))
    allocation = _allocate(devices, asking(replace(mig("1g.5gb"), admin=True)))
    assert allocation is not None
    assert allocation.loss == 0
    assert not allocation.takings


def test_sixteen_partitions_fill_whole_gpus() -> None:
    """Seven have room on an A100: two GPUs are filled, and two partitions are on a third one."""
    devices = NodeDevices.of(a100_node("node", 8))
    names = given(_allocate(devices, asking(mig("1g.5gb", 16))), devices)
    per_gpu = [sum(name.startswith(f"gpu-{gpu}-") for name in names) for gpu in range(8)]
    assert sorted(per_gpu, reverse=True) == [7, 7, 2, 0, 0, 0, 0, 0]


def test_whole_gpus_are_together_on_a_pcie_root() -> None:
    """GPU 0 of the first root is taken: the first two of the others on one root are better than GPUs 1 and 2."""
    inventory = a100_node("node", 8, mig=False)
    devices = NodeDevices.of(inventory, [Taking(0)])
    whole = DeviceAsk("gpus", (selector(f"{DRIVER}/type", "gpu"),), 2)
    assert given(_allocate(devices, asking(whole)), devices) == ["gpu-2", "gpu-3"]


def test_two_gpus_leave_the_roots_that_are_whole() -> None:
    """One each of roots 0 and 1 is taken, root 2 is free: a pair goes there; a single one to a broken root."""
    inventory = a100_node("node", 6, mig=False)
    devices = NodeDevices.of(inventory, [Taking(0), Taking(2)])
    pair = DeviceAsk("gpus", (), 2)
    assert given(_allocate(devices, asking(pair)), devices) == ["gpu-4", "gpu-5"]
    assert given(_allocate(devices, asking(DeviceAsk("gpu"))), devices) == ["gpu-1"]


def test_of_two_roots_that_is_taken_that_has_least_besides() -> None:
    roots = ("a", "a", "a", "b", "b")
    gpus = [
        Device(DeviceId(DRIVER, "node", f"gpu-{index}"), {_LINK: root}, gpu=index, milli=1000, mib=8)
        for index, root in enumerate(roots)
    ]
    devices = NodeDevices.of(Inventory(tuple(gpus)), [Taking(0)])
    assert given(_allocate(devices, asking(DeviceAsk("gpus", (), 2))), devices) == ["gpu-1", "gpu-2"]  # the first
    devices = NodeDevices.of(Inventory(tuple(gpus[index] for index in (0, 3, 1, 4, 2))))
    assert given(_allocate(devices, asking(DeviceAsk("gpus", (), 2))), devices) == ["gpu-3", "gpu-4"]


def test_the_smaller_gpu_is_given_where_both_do() -> None:
    sizes = (80_000, 40_000)
    devices = NodeDevices.of(
        Inventory(
            tuple(
                Device(DeviceId(DRIVER, "node", f"gpu-{index}"), gpu=index, milli=1000, mib=mib)
                for index, mib in enumerate(sizes)
            )
        )
    )
    allocation = _allocate(devices, asking(DeviceAsk("gpu")))
    assert given(allocation, devices) == ["gpu-1"]
    assert allocation is not None
    assert allocation.loss == 0
    larger = _allocate(devices.taking(allocation.takings), asking(DeviceAsk("gpu")))
    assert larger is not None
    assert larger.loss == 0.5  # a whole one is given who could do with half of it


def test_shares_go_to_the_device_that_is_shared_already() -> None:
    shared = [
        Device(
            DeviceId(DRIVER, "node", f"gpu-{index}"),
            capacity={"memory": Capacity(8, 2, valid_range=(1, None, None))},
            shareable=True,
            gpu=index,
            milli=1000,
            mib=8,
        )
        for index in range(2)
    ]
    devices = NodeDevices.of(Inventory(tuple(shared)), [Taking(1, (("memory", 4),))])
    share = DeviceAsk("share", capacity=(("memory", 2),))
    assert given(_allocate(devices, asking(share)), devices) == ["gpu-1"]


@pytest.mark.parametrize(
    ("used", "worth"),
    [
        (0, GPU),
        (2, GPU * (0 + 2 + 3 + 3) / 16),  # of 8: no whole, 1 half, 3 quarters, 6 eighths
        (4, GPU * (0 + 1 / 2 + 1 / 2 + 1 / 2) / 4),
        (8, 0),
    ],
)
def test_a_shared_device_is_worth_its_halves_quarters_and_eighths(used: int, worth: float) -> None:
    device = Device(DeviceId(DRIVER, "node", "gpu"), capacity={"memory": Capacity(8)}, shareable=True)
    assert _worth_of_parts(GPU, {"memory": used}, device) == worth


def test_the_most_at_once_is_found_where_taking_the_first_is_wrong() -> None:
    """The first takes both counters, of which the others take one each."""
    assert _most_at_once((((0, 1), (1, 1)), ((0, 1),), ((1, 1),)), (0, 1, 2), (1, 1)) == 2


def test_weights_are_those_of_the_allocations_that_were_made_with_them() -> None:
    """Who only values 3g.20gb puts 1g.5gb into slices 0 to 3, which leaves one: so does slice 6, but 0 is first."""
    devices = NodeDevices.of(a100_node("node", 1))
    allocation = Allocations(Weights({"3g.20gb": 1.0}, default=0.0)).best(devices, asking(mig("1g.5gb")))
    assert isinstance(allocation, Allocation)
    assert given(allocation, devices) == ["gpu-0-mig-1g-5gb-0"]
