"""What is still to be had of a node: whole GPUs, and of the others the largest partitions."""

from dataclasses import replace

from extender.core.dra.devices import Capacity, Device, DeviceId, Inventory, NodeDevices, Taint, Taking
from extender.core.dra.explained import free_in_words, free_of, total
from tests.core.dra.machines import DRIVER, a100_node

INVENTORY = a100_node("a", 2)


def taking(*names: str) -> NodeDevices:
    return NodeDevices.of(INVENTORY, [Taking(INVENTORY.index_of[DeviceId(DRIVER, "a", name)]) for name in names])


def words(devices: NodeDevices) -> str:
    return free_in_words(total(free_of(devices).values()))


def test_a_free_gpu_is_one_gpu_and_not_its_partitions_too() -> None:
    assert words(NodeDevices.of(INVENTORY)) == "2 GPUs"
    assert words(taking("gpu-0")) == "GPU"
    assert words(taking("gpu-0", "gpu-1")) == "nothing"


def test_the_largest_partitions_that_are_left_of_a_gpu_come_first() -> None:
    # 1g.5gb in slice 0 of 8: 98 - 14 = 84 multiprocessors are left, for 3g (42) in 4 to 7, 2g (28) in 2 and 3, and
    # with the last 14 one 1g in slice 1.
    assert free_of(taking("gpu-1", "gpu-0-mig-1g-5gb-0")) == {0: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}}
    assert words(taking("gpu-1", "gpu-0-mig-1g-5gb-0")) == "3g.20gb, 2g.10gb, 1g.5gb"


def test_equal_partitions_of_several_gpus_are_counted() -> None:
    assert words(taking("gpu-0-mig-4g-20gb-0", "gpu-1-mig-4g-20gb-0")) == "2 x 3g.20gb"


def test_what_is_tainted_is_not_to_be_had() -> None:
    broken = replace(a100_node("a", 2, mig=False).devices[0], taints=(Taint("broken", "", "NoExecute"),))
    assert words(NodeDevices.of(Inventory((broken,)))) == "nothing"


def test_devices_of_no_gpu_go_by_the_type_that_their_driver_names() -> None:
    nics = tuple(
        Device(DeviceId("net", "p", f"nic-{number}"), {"net/type": "nic"} if number else {}, {"speed": Capacity(1)})
        for number in range(3)
    )
    assert words(NodeDevices.of(Inventory(nics), [Taking(2)])) == "device, nic"


def test_what_is_left_of_a_device_that_claims_share_is_a_part_of_it() -> None:
    shared = Device(DeviceId("d", "p", "x"), {}, {"memory": Capacity(8)}, shareable=True, gpu=0, milli=1000)
    inventory = Inventory((shared,))
    assert words(NodeDevices.of(inventory, [Taking(0, (("memory", 5),))])) == "part of GPU"
    assert words(NodeDevices.of(inventory, [Taking(0, (("memory", 8),))])) == "nothing"
