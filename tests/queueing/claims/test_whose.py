"""Whose a claim is to allocate: Kerf's as long as devices that it owns could meet it, seen now or a while ago."""

from collections.abc import Callable

import msgspec
import pytest

from extender.plugins.dra.objects import ResourceSlice
from tests.queueing.claims.rigs import ClaimRig


@pytest.fixture
def rig() -> ClaimRig:
    """A node with two devices that Kerf owns, and one with devices of its own that kube-scheduler gives away."""
    rig = ClaimRig(gpus=2)
    publish_other(rig)
    rig.api.add("c")
    rig.tell("c")
    rig.pod("c")
    assert is_kerfs(rig)
    return rig


def publish_other(rig: ClaimRig, node: str = "other", driver: str = "other.example.com") -> None:
    """A node whose pool is not owned."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 9, "resourceSliceCount": 1},
        "devices": [{"name": "device"}],
    }
    manifest = {"metadata": {"name": node, "uid": f"s-{node}"}, "spec": spec}
    rig.ledger.upsert_device(msgspec.convert(manifest, ResourceSlice))


def is_kerfs(rig: ClaimRig) -> bool:
    """Whether the claim is Kerf's, after as many rounds as that takes to find out."""
    while True:
        rig.keeper.anything_new()
        found = rig.keeper.read(rig.entries["c"].pod)
        if not found.undecided:
            assert bool(found.unallocated) is not bool(found.left)
            return bool(found.unallocated)


def removed(rig: ClaimRig) -> None:
    rig.ledger.remove_device(ResourceSlice, "s-n")


def incomplete(rig: ClaimRig) -> None:
    """The first of two slices of a new generation."""
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 2, "resourceSliceCount": 2},
        "devices": [{"name": "gpu-0", "taints": [{"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}]}],
    }
    rig.ledger.upsert_device(msgspec.convert({"metadata": {"name": "n", "uid": "s-n"}, "spec": spec}, ResourceSlice))


@pytest.mark.parametrize("vanish", [removed, incomplete])
def test_while_the_slices_of_an_owned_pool_are_away_claims_wait_for_them(
    rig: ClaimRig, vanish: Callable[[ClaimRig], None]
) -> None:
    vanish(rig)
    assert is_kerfs(rig)
    rig.now += 599.0
    assert is_kerfs(rig)
    rig.publish("n", 2, generation=3)
    assert is_kerfs(rig)
    vanish(rig)
    rig.now += 599.0  # counted from when they went
    assert is_kerfs(rig)


def test_devices_that_do_not_come_back_are_waited_for_no_longer(rig: ClaimRig) -> None:
    removed(rig)
    assert is_kerfs(rig)
    rig.keeper.anything_new()
    rig.now += 600.0
    assert rig.keeper.anything_new()  # so that all who wait are read again
    assert not is_kerfs(rig)


def test_a_pool_that_was_given_back_is_waited_for_no_more(rig: ClaimRig) -> None:
    publish_other(rig, "n", "gpu.nvidia.com")
    assert not is_kerfs(rig)


def test_as_long_as_it_is_being_found_out_the_next_round_is_due(rig: ClaimRig) -> None:
    rig.publish("m", 1)
    rig.api.add("d", {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 9}})
    rig.tell("d")
    rig.keeper.anything_new()
    rig.dirty.clear()
    assert rig.keeper.read(rig.pod("d").pod).undecided
    assert rig.dirty


def test_slices_of_others_that_change_all_the_time_hold_nothing_up(rig: ClaimRig) -> None:
    rig.api.add("d", {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 9}})
    rig.tell("d")
    pod = rig.pod("d").pod
    for number in range(3):
        publish_other(rig, f"other-{number}")
        rig.keeper.anything_new()
        assert rig.keeper.read(rig.entries["c"].pod).unallocated
        found = rig.keeper.read(pod)
    assert found.left


def test_devices_that_come_are_looked_at_for_what_was_not_kerfs_before(rig: ClaimRig) -> None:
    rig.api.add("d", {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 3}})
    rig.tell("d")
    pod = rig.pod("d").pod
    rig.keeper.read(pod)
    rig.keeper.anything_new()
    assert rig.keeper.read(pod).left
    rig.publish("m", 3)
    rig.keeper.read(pod)
    rig.keeper.anything_new()
    assert rig.keeper.read(pod).unallocated
    rig.publish("m", 1)
    rig.keeper.read(pod)
    rig.keeper.anything_new()
    assert rig.keeper.read(pod).left
