"""The pods with claims that a round plans: namespaces and pods take turns."""

from dataclasses import replace

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.parts.dra.selection import _COST_EACH, PodSelector
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import NOT_REACHED, Code
from extender.queueing.pods.entries import Entry
from tests.parts.dra.rigs import ClaimRig, in_namespace
from tests.parts.dra.test_budgets import asking


def turns_of(rig: ClaimRig) -> PodSelector:
    return PodSelector(rig.keeper, lambda: rig.dirty.append(True))


def test_pods_that_name_one_claim_are_planned_in_turn() -> None:
    rig = ClaimRig()
    rig.add("shared")
    waiting = [rig.planned(name, "shared") for name in "abc"]
    turns = turns_of(rig)
    for name in "abcabca":
        planned, passed = turns.select(waiting)
        assert [entry.uid for entry in planned] == [f"p-{name}"]
        assert {entry.uid for entry, _ in passed} == {f"p-{other}" for other in "abc" if other != name}
        assert {why.code for _, why in passed} == {Code.CLAIM_SHARED}
    assert rig.dirty == [], "no round is due for a claim of another pod"


def test_pods_of_a_gang_are_planned_unless_they_share_a_claim() -> None:
    rig = ClaimRig()
    rig.add("a", "b")

    def gang(*claims: str) -> list[Entry]:
        waiting = [rig.planned(name, claim) for name, claim in zip("ab", claims, strict=True)]
        for entry in waiting:
            assert entry.planned is not None
            entry.planned = replace(entry.planned, gang="default/train")
        return waiting

    waiting = gang("a", "b")
    assert turns_of(rig).select(waiting) == (waiting, [])
    planned, passed = turns_of(rig).select(gang("a", "a"))
    assert not planned
    assert [why.code for _, why in passed] == [Code.CLAIM_IN_GANG] * 2


def test_namespaces_with_ever_new_requests_delay_no_other() -> None:
    rig = ClaimRig()
    waiting = []
    for number in range(9):
        for of in range(20 if number < 8 else 1):
            rig.add(f"c{number}-{of}", count=1)
            waiting.append(rig.planned(f"c{number}-{of}", namespace=f"team-{number}"))
    turns = turns_of(rig)
    assert waiting[-1] not in turns.select(waiting)[0]
    assert waiting[-1] in turns.select(waiting)[0]


def _asking(rig: ClaimRig, name: str, namespace: str, cost: int = 0) -> Entry:
    """A pod whose claim has that cost on each device."""
    entry = rig.pod(name)
    entry.planned = PlanPod(name, gpus=GpuRequest(1, AskedUnit.CLAIM, devices=asking(cost)), claims=(f"u-{name}",))
    return in_namespace(entry, namespace)


def test_pods_without_claims_are_planned_beside_the_others_in_their_order() -> None:
    rig = ClaimRig()
    waiting = [_asking(rig, "a", "team-a"), rig.pod("plain"), _asking(rig, "b", "team-b"), rig.pod("unread")]
    waiting[1].planned = PlanPod("plain", gpus=GpuRequest(1))
    turns = turns_of(rig)
    for _ in range(3):
        assert turns.select(waiting) == (waiting, [])
    rig.keeper.reflectors["slices"].num_lists = 0
    planned, passed = turns.select(waiting)
    assert planned == [waiting[1], waiting[3]]
    assert [why.code for _, why in passed] == [Code.CLAIMS_UNKNOWN] * 2


def test_the_cost_of_new_requests_in_a_round_is_bounded() -> None:
    rig = ClaimRig()
    waiting = [_asking(rig, f"p{number}", f"team-{number}", _COST_EACH - number) for number in range(4)]
    waiting += [_asking(rig, "fits", "fits", 6), _asking(rig, "late", "late", 1)]
    turns = turns_of(rig)
    planned, passed = turns.select(waiting)
    assert planned == waiting[:-1]
    assert [(entry.uid, why) for entry, why in passed] == [("p-late", NOT_REACHED)]
    assert rig.dirty == [True], "another round is due"
    assert turns.select(waiting) == (waiting, [])
    assert rig.dirty == [True]
