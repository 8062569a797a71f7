"""Whose claims are decided on in a round: everybody's in turn."""

import msgspec

from extender.queueing.claims.turns import Turns
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.restrictions import Kinds
from tests.queueing.claims.rigs import ClaimRig


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
    firsts = [turns.sort_out(waiting)[0] for _ in range(4)]
    assert [[entry.uid for entry in planned] for planned in firsts] == [["p-a"], ["p-b"], ["p-c"], ["p-a"]]


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
