"""Whose claims are decided on in a round: everybody's in turn."""

from dataclasses import replace

import msgspec

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.parts.dra.turns import _COST_EACH, Turns
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import NOT_REACHED
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.restrictions import Kinds
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_budgets import asking


def _waiting(rig: ClaimRig, name: str, claim: str) -> Entry:
    entry = rig.pod(name, claim)
    entry.planned = plan_pod(entry.pod, Kinds(), rig.keeper.read(entry.pod))
    return entry


def test_pods_that_name_one_claim_are_planned_in_turn() -> None:
    rig = ClaimRig()
    rig.api.add("shared")
    rig.tell("shared")
    waiting = [_waiting(rig, name, "shared") for name in ("a", "b", "c")]
    turns = Turns(rig.keeper, lambda: None)
    for name in ("a", "b", "c", "a", "b", "c", "a"):
        planned, passed = turns.sort_out(waiting)
        assert [entry.uid for entry in planned] == [f"p-{name}"]
        assert {entry.uid for entry, _ in passed} == {f"p-{other}" for other in "abc" if other != name}
        assert all("ResourceClaim shared" in str(why) for _, why in passed)


def test_namespaces_that_ask_new_things_all_the_time_hold_no_other_up() -> None:
    rig = ClaimRig()
    waiting = []
    for number in range(9):
        for of in range(20 if number < 8 else 1):
            name = f"c{number}-{of}"
            rig.api.add(name, {"name": name, "exactly": {"deviceClassName": "gpu"}})
            rig.tell(name)
            entry = _waiting(rig, name, name)
            metadata = msgspec.structs.replace(entry.pod.metadata, namespace=f"team-{number}")
            entry.pod = msgspec.structs.replace(entry.pod, metadata=metadata)
            waiting.append(entry)
    turns = Turns(rig.keeper, lambda: None)
    assert waiting[-1] not in turns.sort_out(waiting)[0]
    assert waiting[-1] in turns.sort_out(waiting)[0]


def _asking(rig: ClaimRig, name: str, namespace: str, cost: int = 0) -> Entry:
    """A pod whose claim costs so much on each device."""
    entry = rig.pod(name)
    entry.planned = PlanPod(name, gpus=GpuRequest(1, AskedUnit.CLAIM, devices=asking(cost)), claims=(f"u-{name}",))
    metadata = msgspec.structs.replace(entry.pod.metadata, namespace=namespace)
    entry.pod = msgspec.structs.replace(entry.pod, metadata=metadata)
    return entry


def test_pods_without_claims_are_planned_beside_the_others_in_their_order() -> None:
    rig = ClaimRig()
    waiting = [_asking(rig, "a", "team-a"), rig.pod("plain"), _asking(rig, "b", "team-b"), rig.pod("unread")]
    waiting[1].planned = PlanPod("plain", gpus=GpuRequest(1))
    turns = Turns(rig.keeper, lambda: None)
    for _ in range(3):
        assert turns.sort_out(waiting) == (waiting, [])


def test_while_devices_are_not_known_pods_with_claims_wait_and_are_told_why() -> None:
    rig = ClaimRig()
    claiming, plain = _asking(rig, "a", "default"), rig.pod("plain")
    next(iter(rig.keeper.reflectors.values())).num_lists = 0
    planned, ((passed, why),) = Turns(rig.keeper, lambda: None).sort_out([claiming, plain])
    assert (planned, passed) == ([plain], claiming)
    assert "are not synced yet" in str(why)


def test_pods_of_a_gang_that_have_claims_of_their_own_are_planned() -> None:
    rig = ClaimRig()
    for name in ("a", "b"):
        rig.api.add(name)
        rig.tell(name)
    waiting = [_waiting(rig, name, name) for name in ("a", "b")]
    for entry in waiting:
        assert entry.planned is not None
        entry.planned = replace(entry.planned, gang="default/train")
    assert Turns(rig.keeper, lambda: None).sort_out(waiting) == (waiting, [])


def test_a_round_takes_on_what_costs_so_much_in_all() -> None:
    rig, asked_again = ClaimRig(), list[bool]()
    waiting = [_asking(rig, f"p{number}", f"team-{number}", _COST_EACH - number) for number in range(4)]
    waiting += [_asking(rig, "fits", "fits", 6), _asking(rig, "late", "late", 1)]
    turns = Turns(rig.keeper, lambda: asked_again.append(True))
    planned, passed = turns.sort_out(waiting)
    assert planned == waiting[:-1]
    assert [(entry.uid, why) for entry, why in passed] == [("p-late", NOT_REACHED)]
    assert asked_again == [True], "another round is due"
    assert turns.sort_out(waiting) == (waiting, [])
    assert asked_again == [True]


def test_who_waits_for_somebody_elses_claim_asks_for_no_round() -> None:
    rig, asked_again = ClaimRig(), list[bool]()
    rig.api.add("shared")
    rig.tell("shared")
    waiting = [_waiting(rig, name, "shared") for name in ("a", "b")]
    turns = Turns(rig.keeper, lambda: asked_again.append(True))
    assert len(turns.sort_out(waiting)[1]) == 1
    assert asked_again == []
