"""What is taken back, and what is not: devices of pods that run, whatever is known of them."""

import asyncio

import pytest

from extender.queueing.pods.entries import Stage
from tests.queueing.claims.rigs import ClaimRig


def _allocated(rig: ClaimRig, name: str = "a") -> None:
    """A claim that a pod got its device of, which has left the queue since."""
    rig.allot(name)
    del rig.entries[name]


def _look(rig: ClaimRig, seconds: float) -> None:
    asyncio.run(rig.look())
    rig.now += seconds
    asyncio.run(rig.look())


def test_while_nobody_knows_which_pods_run_nothing_is_taken_back() -> None:
    rig = ClaimRig()
    _allocated(rig)
    rig.mirror.failing = "pods are not synced yet"
    _look(rig, 60.0)
    assert rig.api.claims["a"]["status"]["allocation"]
    rig.mirror.failing = ""
    asyncio.run(rig.look())
    assert rig.api.claims["a"]["status"]["allocation"], "the pods may be told of a moment later"
    _look(rig, 20.0)
    assert "allocation" not in rig.api.claims["a"]["status"]


def test_a_running_pod_of_which_no_watch_has_told_keeps_its_devices() -> None:
    rig = ClaimRig()
    _allocated(rig)
    metadata = {"name": "a", "namespace": "default", "uid": "p-a"}
    rig.api.pods["a"] = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    _look(rig, 60.0)
    assert rig.api.claims["a"]["status"]["allocation"]
    rig.api.pods["a"]["status"]["phase"] = "Succeeded"
    _look(rig, 60.0)
    assert "allocation" not in rig.api.claims["a"]["status"]


def test_a_pod_that_is_between_two_watches_keeps_the_devices_of_a_claim_that_is_gone() -> None:
    rig = ClaimRig(gpus=1)
    _allocated(rig)
    rig.forget("a")
    _look(rig, 1.0)
    assert rig.free() == 0
    _look(rig, 6.0)
    assert rig.free() == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_pod_on_its_way_keeps_the_devices_of_a_claim_that_is_gone_until_another_has_its_name(replaced: bool) -> None:
    rig = ClaimRig(gpus=1)
    _allocated(rig)
    entry = rig.pod("a")
    entry.reserve("n")
    rig.forget("a")
    if replaced:
        rig.api.add("a")["metadata"]["uid"] = "u-other"
        rig.tell("a")
    _look(rig, 60.0)
    assert rig.free() == (1 if replaced else 0)
    entry.put_back(rig.now)
    _look(rig, 60.0)
    assert rig.free() == 1


def test_a_pod_that_is_let_go_while_another_s_devices_are_taken_back_keeps_its_own() -> None:
    rig = ClaimRig(gpus=2)
    for name in "ab":
        _allocated(rig, name)
        rig.pod(name)
    asyncio.run(rig.look())

    def goes_on(name: str, part: str) -> None:
        other = rig.entries["b" if name == "a" else "a"]
        if other.stage is Stage.GATED:
            other.reserve("n")

    rig.now += 3.0
    rig.api.fail = goes_on
    asyncio.run(rig.look())
    assert len([claim for claim in rig.api.claims.values() if "allocation" in claim["status"]]) == 1
