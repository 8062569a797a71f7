"""Allocated devices that their driver no longer publishes: nobody gets what overlaps with them."""

from typing import Any

import pytest

from extender.core.resources.nodes import NodeReading
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.dra.owned import OwnedDevices
from extender.dra.slices import NodeSlices
from tests.dra.builders import DRIVER, claim, consuming, counters, device, resource_slice

COUNTERS = counters(("gpu-0", {"slice": "2"}), ("gpu-1", {"slice": "2"}), name="counters", count=2)
WHOLE = device("gpu-0", **consuming("gpu-0", slice="2"))
HALVES = [device(f"gpu-0-half-{half}", **consuming("gpu-0", slice="1")) for half in range(2)]
OTHER = device("gpu-1", **consuming("gpu-1", slice="2"))


def published(*devices: Any, generation: int) -> list[ResourceSlice]:
    """A pool of two slices: its counters and its devices."""
    both = [COUNTERS, resource_slice(*devices, name="devices", count=2)]
    for item in both:
        item.spec.pool.generation = generation
    return both


def having(*devices: str) -> ResourceClaim:
    results = [{"request": "r", "driver": DRIVER, "pool": "p", "device": item} for item in devices]
    return claim(name="a", status={"allocation": {"devices": {"results": results}}} if devices else None)


class Owned(OwnedDevices):
    """Devices of which objects were published."""

    def __init__(self, *items: Any) -> None:
        super().__init__(NodeSlices(NodeReading(allocates=True)))
        self.put(*items)

    def put(self, *items: Any) -> tuple[Any, ...]:
        """Objects were published; what is left of both GPUs' slices."""
        for item in items:
            self.upsert(item)
        on = self.devices_on("n1")
        return () if on is None else tuple(on.left)


def test_a_withdrawn_device_keeps_its_counters_until_its_claim_is_free() -> None:
    devices = Owned()
    assert devices.put(*published(WHOLE, *HALVES, OTHER, generation=1), having("gpu-0")) == (0, 2)
    assert devices.put(*published(*HALVES, OTHER, generation=2)) == (0, 2)
    assert devices.faults_on("n1") == ()
    assert devices.put(having("gpu-0")) == (0, 2), "its author has changed it"
    assert devices.put(*published(*HALVES, OTHER, generation=3)) == (0, 2)
    assert devices.put(having()) == (2, 2)


def test_a_device_that_was_never_seen_takes_all_of_its_pools_counters() -> None:
    devices = Owned()
    assert devices.put(having("gpu-0"), *published(*HALVES, OTHER, generation=2)) == (0, 0)
    (fault,) = devices.faults_on("n1")
    assert "p: device gpu-0" in fault
    assert devices.put(having()) == (2, 2)
    assert devices.faults_on("n1") == ()


@pytest.mark.parametrize("back", [True, False])
def test_a_device_that_comes_back_takes_what_it_is_published_with(back: bool) -> None:
    devices = Owned(*published(WHOLE, *HALVES, OTHER, generation=1), having("gpu-0-half-0"))
    assert devices.put(*published(WHOLE, OTHER, generation=2)) == (1, 2)
    assert devices.put(*published(*([WHOLE, *HALVES] if back else [WHOLE]), OTHER, generation=3)) == (1, 2)


def test_a_pool_that_comes_back_with_fewer_devices_has_no_more_room() -> None:
    devices = Owned(*published(WHOLE, *HALVES, OTHER, generation=1), having("gpu-0"))
    for uid in ("counters", "devices"):
        devices.remove(ResourceSlice, uid)
    assert devices.devices_on("n1") is None
    assert devices.put(*published(*HALVES, OTHER, generation=1)) == (0, 2)


def test_pools_without_allocated_devices_are_forgotten() -> None:
    devices = Owned(*published(WHOLE, OTHER, generation=1), having("gpu-0"))
    for uid in ("counters", "devices"):
        devices.remove(ResourceSlice, uid)
    devices.put(having(), resource_slice(device("x"), name="other", pool="q"))
    again = devices.put(having("gpu-0"), *published(*HALVES, OTHER, generation=1))
    assert again == (0, 0), "as if it had never been seen"
