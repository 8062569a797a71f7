"""Devices that a claim has and that their driver publishes no more: what overlaps with them is given to nobody."""

from typing import Any

import msgspec
import pytest

from extender.core.resources.nodes import NodeReading
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.dra.owned import OwnedDevices
from extender.dra.slices import NodeSlices
from tests.dra.builders import DRIVER, consuming, counters, device, resource_slice

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


def claim(name: str, *devices: str) -> ResourceClaim:
    results = [{"request": "r", "driver": DRIVER, "pool": "p", "device": item} for item in devices]
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }
    return msgspec.convert(manifest, ResourceClaim)


def owned(*items: Any) -> OwnedDevices:
    found = OwnedDevices(NodeSlices(NodeReading(allocates=True)))
    for item in items:
        found.upsert(item)
    return found


def left(devices: OwnedDevices) -> tuple[Any, ...]:
    """What is left of both GPUs' slices."""
    on = devices.devices_on("n1")
    assert on is not None
    return on.left


def test_what_it_takes_of_counters_stays_taken_until_its_claim_is_free() -> None:
    devices = owned(*published(WHOLE, *HALVES, OTHER, generation=1), claim("a", "gpu-0"))
    assert left(devices) == (0, 2)
    for item in published(*HALVES, OTHER, generation=2):
        devices.upsert(item)
    assert left(devices) == (0, 2)
    assert devices.faults_on("n1") == ()
    devices.upsert(claim("a", "gpu-0"))  # its author has changed it
    assert left(devices) == (0, 2)
    for item in published(*HALVES, OTHER, generation=3):
        devices.upsert(item)
    assert left(devices) == (0, 2)
    devices.upsert(claim("a"))
    assert left(devices) == (2, 2)


def test_of_one_that_was_never_seen_all_of_its_pools_counters_are_taken() -> None:
    devices = owned(claim("a", "gpu-0"), *published(*HALVES, OTHER, generation=2))
    assert left(devices) == (0, 0)
    (fault,) = devices.faults_on("n1")
    assert "p: device gpu-0 is allocated but no longer published" in fault
    devices.upsert(claim("a"))
    assert left(devices) == (2, 2)
    assert devices.faults_on("n1") == ()


@pytest.mark.parametrize("back", [True, False])
def test_one_that_comes_back_takes_what_it_is_published_with(back: bool) -> None:
    devices = owned(*published(WHOLE, *HALVES, OTHER, generation=1), claim("a", "gpu-0-half-0"))
    for item in published(WHOLE, OTHER, generation=2):
        devices.upsert(item)
    assert left(devices) == (1, 2)
    for item in published(*([WHOLE, *HALVES] if back else [WHOLE]), OTHER, generation=3):
        devices.upsert(item)
    assert left(devices) == (1, 2)


def test_a_pool_that_goes_away_and_comes_back_with_fewer_devices_has_no_more_room() -> None:
    devices = owned(*published(WHOLE, *HALVES, OTHER, generation=1), claim("a", "gpu-0"))
    for uid in ("counters", "devices"):
        devices.remove(ResourceSlice, uid)
    assert devices.devices_on("n1") is None
    for item in published(*HALVES, OTHER, generation=1):
        devices.upsert(item)
    assert left(devices) == (0, 2)


def test_nothing_is_remembered_of_pools_of_which_nobody_has_a_device() -> None:
    devices = owned(*published(WHOLE, OTHER, generation=1), claim("a", "gpu-0"))
    for uid in ("counters", "devices"):
        devices.remove(ResourceSlice, uid)
    devices.upsert(claim("a"))
    devices.upsert(resource_slice(device("x"), name="other", pool="q"))
    for item in (claim("a", "gpu-0"), *published(*HALVES, OTHER, generation=1)):
        devices.upsert(item)
    assert left(devices) == (0, 0)  # as if it had never been seen
