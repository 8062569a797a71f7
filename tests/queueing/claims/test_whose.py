"""Whose it is to allocate what a claim asks, while drivers come and go."""

import asyncio

import msgspec
import pytest

from extender.dra.objects import DeviceClass, ResourceSlice
from tests.queueing.claims.rigs import ClaimRig

OURS, THEIRS = "gpu.nvidia.com", "other.example.com"


def rig_beside_others() -> ClaimRig:
    """A node with devices of Kerf's, and one with devices of another driver."""
    rig = ClaimRig(gpus=1)
    for driver in (OURS, THEIRS):
        selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
        manifest = {"metadata": {"name": driver, "uid": f"class-{driver}"}, "spec": {"selectors": selectors}}
        rig.ledger.upsert_device(msgspec.convert(manifest, DeviceClass))
    spec = {
        "driver": THEIRS,
        "nodeName": "m",
        "pool": {"name": "m", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "other"}],
    }
    rig.ledger.upsert_device(msgspec.convert({"metadata": {"name": "m", "uid": "s-m"}, "spec": spec}, ResourceSlice))
    return rig


def left(rig: ClaimRig, device_class: str, count: int = 1) -> bool:
    """Whether a claim is left to kube-scheduler, once that is found out."""
    rig.api.add("c", {"name": "r", "exactly": {"deviceClassName": device_class, "count": count}})
    rig.tell("c")
    pod = rig.pod("c").pod
    assert rig.keeper.read(pod).undecided
    asyncio.run(rig.keeper.anything_new())
    found = rig.keeper.read(pod)
    assert not found.undecided
    return bool(found.left)


def test_each_allocates_what_is_his() -> None:
    assert not left(rig_beside_others(), OURS)
    assert left(rig_beside_others(), THEIRS)


@pytest.mark.parametrize(("device_class", "theirs"), [(OURS, False), (THEIRS, True)])
def test_a_driver_that_is_away_for_a_while_hands_no_claims_over_to_kube_scheduler(
    device_class: str, theirs: bool
) -> None:
    rig = rig_beside_others()
    rig.publish("k", 1)
    rig.ledger.remove_device(ResourceSlice, "s-n")
    rig.ledger.remove_device(ResourceSlice, "s-k")
    assert left(rig, device_class) == theirs


def test_who_asks_for_more_than_there_is_waits_for_it() -> None:
    assert not left(rig_beside_others(), OURS, count=2)


def test_what_others_have_too_few_of_is_theirs_all_the_same() -> None:
    assert left(rig_beside_others(), THEIRS, count=2)


def test_slices_that_come_all_the_time_hold_nobody_up_and_an_old_answer_counts_meanwhile() -> None:
    rig = rig_beside_others()
    rig.api.add("a", {"name": "r", "exactly": {"deviceClassName": OURS}})
    rig.tell("a")
    pod = rig.pod("a").pod
    assert rig.keeper.read(pod).undecided == "a"
    rig.publish("n", 1, generation=2)
    asyncio.run(rig.keeper.anything_new())
    assert rig.keeper.read(pod).unallocated
    for generation in range(3, 6):
        rig.publish("n", 1, generation=generation)
        assert rig.keeper.read(pod).unallocated
