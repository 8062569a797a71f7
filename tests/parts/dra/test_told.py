"""What is told of devices that are allocated: by scores, and by node."""

import asyncio

import pytest

from extender.core.evaluations import broken_down
from extender.core.policies.policy import Options
from extender.core.policies.registry import policies_of
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.occupants import DeviceViews
from tests.core.builders import all_rows
from tests.core.policies.test_breakdowns import NAMES, check
from tests.parts.dra.rigs import ClaimRig


@pytest.mark.parametrize("name", NAMES)
def test_where_resource_claims_ask_what_devices_lose_is_a_part(name: str) -> None:
    rig = ClaimRig(2)
    rig.publish("m", 4)
    rig.allot("taken")
    rig.api.add("c")
    rig.tell("c")
    asked = rig.keeper.read(rig.pod("c").pod).asked
    assert asked is not None
    request = GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)
    cluster, policy = rig.ledger.snapshot(rig.now), policies_of(Options())[name]
    assert check(cluster, policy, request) == 2
    _, told = broken_down(cluster, request, policy, all_rows(cluster))
    assert [part.name for part in told.parts[:3]] == ["devicesLost", "alternative", "freeGpus"]


def test_what_is_held_is_told_as_being_allocated_and_as_allocated_once_the_claim_says_so() -> None:
    rig = ClaimRig()
    rig.api.add("a")
    rig.tell("a")
    pod = rig.pod("a")
    assert rig.decide(pod.pod)
    views = DeviceViews(rig.ledger)
    (use,) = views.uses("n")
    assert (use["claim"], use["pods"], use["state"]) == ("default/a", ["default/a"], "being allocated")
    assert views.summary("n") is not None
    assert views.summary("n")["taken"] == 1  # type: ignore[index]
    asyncio.run(rig.keeper.allocate(pod.pod))
    (use,) = views.uses("n")
    assert (use["claim"], use["state"]) == ("default/a", "allocated")
