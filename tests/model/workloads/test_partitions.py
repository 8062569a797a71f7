"""MIG partitions as they are published: legal, and the same to the service and to the simulator."""

import re
from dataclasses import replace

import msgspec
import pytest

from extender.core.dra.devices import Device, NodeDevices, Taking
from extender.core.dra.packing import _most_at_once
from extender.core.resources.nodes import NodeReading
from extender.dra import objects
from extender.dra.published import read_pools
from model.evaluation.partitions import _cuts
from model.workloads.nvidia import _MEMORY_SLICES, GPUS, inventory, resource_slices

NAMES = sorted(GPUS)
# NVIDIA's MIG user guide, "Number of Instances Available".
INSTANCES = [7, 1, 4, 3, 2, 1, 1]
# 1g, 1g+me, 1g of twice the memory, 2g, 3g, 4g, 7g: how nebuly-ai/nos (pkg/gpu/mig/known_configs.go) cuts an A100.
KNOWN_CUTS = [
    *((0, 0, 0, 0, 0, 0, 1), (1, 0, 0, 1, 0, 1, 0), (3, 0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 2, 0, 0)),
    *((1, 0, 0, 1, 1, 0, 0), (3, 0, 0, 0, 1, 0, 0), (0, 0, 0, 2, 1, 0, 0), (2, 0, 0, 1, 1, 0, 0)),
    *((1, 0, 0, 3, 0, 0, 0), (3, 0, 0, 2, 0, 0, 0), (5, 0, 0, 1, 0, 0, 0), (7, 0, 0, 0, 0, 0, 0)),
]


@pytest.mark.parametrize("kind", NAMES)
def test_the_service_reads_from_the_slices_what_the_simulator_has(kind: str) -> None:
    slices = resource_slices(GPUS[kind], 8, "node")
    read = [msgspec.convert(item, objects.ResourceSlice) for item in slices]
    found, made = read_pools(read, (), NodeReading(), owned_only=False), inventory(GPUS[kind], 8)
    assert not found.faults
    assert found.inventory.counters == made.counters
    assert found.inventory.index_of == made.index_of

    def known(device: Device) -> Device:
        """Without a whole GPU among the devices the service does not know of which GPU they are."""
        return replace(device, mib=0) if GPUS[kind].whole else replace(device, gpu=-1, milli=0, mib=0)

    assert list(map(known, found.inventory.devices)) == list(map(known, made.devices))
    # As the API server accepts them.
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in slices} == {len(slices)}
    for item in slices:
        devices = item["spec"].get("devices", [])
        assert len(devices) <= 64  # ResourceSliceMaxDevicesWithTaintsOrConsumesCounters
        assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", device["name"]) for device in devices)


@pytest.mark.parametrize("kind", NAMES)
def test_as_many_of_a_profile_fit_as_nvidia_says(kind: str) -> None:
    of_gpu = inventory(GPUS[kind], 1)
    consumes = [device.consumes for device in of_gpu.devices]
    for profile, instances in zip(GPUS[kind].profiles, INSTANCES, strict=True):
        places = [
            place
            for place, device in enumerate(of_gpu.devices)
            if device.attributes.get("gpu.nvidia.com/profile") == profile.name
        ]
        assert len(places) == len(profile.starts)
        assert _most_at_once(consumes, places, of_gpu.counters) == instances
        assert all(start + profile.size <= _MEMORY_SLICES for start in profile.starts)
        whole = GPUS[kind].all_of_it.capacity
        assert all(amount <= whole[name] for name, amount in profile.capacity.items())
    cuts = _cuts(kind)
    for known in KNOWN_CUTS:
        assert (cuts >= known).all(axis=1).any(), known


def test_names_are_the_drivers() -> None:
    names = {device.id.device for device in inventory(GPUS["a100-40gb"], 1).devices}
    assert {"gpu-0-mig-1g5gb-19-6", "gpu-0-mig-1g5gb-me-20-0", "gpu-0-mig-3g20gb-9-4"} <= names
    assert "gpu-0" not in names
    assert "gpu-0" in {device.id.device for device in inventory(GPUS["h100-80gb"], 1).devices}


def test_a_partition_takes_its_memory_slices_from_all_others_there() -> None:
    of_gpu = inventory(GPUS["a100-40gb"], 1)
    index_of = {device.id.device: index for index, device in enumerate(of_gpu.devices)}
    left = NodeDevices.of(of_gpu, [Taking(index_of["gpu-0-mig-3g20gb-9-4"])]).left
    fits = {
        name
        for name, index in index_of.items()
        if all(left[counter] >= amount for counter, amount in of_gpu.devices[index].consumes)
    }
    assert "gpu-0-mig-4g20gb-5-0" in fits
    assert not fits & {"gpu-0-mig-1g5gb-19-4", "gpu-0-mig-1g10gb-15-6", "gpu-0-mig-7g40gb-0-0"}
