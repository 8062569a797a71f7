"""Allocated devices in the breakdown of scores, and by node."""

from extender.core.evaluations import evaluate_with_breakdown
from extender.core.policies.policy import Options
from extender.core.policies.registry import policies_of
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.occupants import DeviceViews
from tests.core.builders import all_rows
from tests.core.policies.test_breakdowns import NAMES, check
from tests.parts.dra.rigs import ClaimRig


def test_scores_for_resource_claims_have_a_part_for_lost_devices() -> None:
    rig = ClaimRig(2)
    rig.publish("m", 4)
    rig.allot("taken")
    rig.add("c")
    asked = rig.keeper.read(rig.pod("c").pod).asked
    assert asked is not None
    request = GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)
    cluster = rig.ledger.snapshot(rig.now)
    for name in NAMES:
        policy = policies_of(Options())[name]
        assert check(cluster, policy, request) == 2
        _, breakdown = evaluate_with_breakdown(cluster, request, policy, all_rows(cluster))
        assert [part.name for part in breakdown.parts[:3]] == ["devicesLost", "alternative", "freeGpus"]


def test_a_held_device_is_being_allocated_until_its_claim_is_written() -> None:
    rig = ClaimRig()
    rig.hold()
    views = DeviceViews(rig.ledger)
    (use,) = views.uses("n")
    assert (use["claim"], use["pods"], use["state"]) == ("default/a", ["default/a"], "being allocated")
    assert views.summary("n")["taken"] == 1  # type: ignore[index]
    assert rig.allocate()
    (use,) = views.uses("n")
    assert (use["claim"], use["state"]) == ("default/a", "allocated")
