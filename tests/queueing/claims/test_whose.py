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
