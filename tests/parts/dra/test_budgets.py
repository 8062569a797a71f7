"""What the selectors of one author's claims cost is charged to their namespace, and nobody else waits for it."""

import asyncio
from typing import Any

import msgspec

from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked, RequestAsk, Selector
from extender.core.dra.devices import Device, DeviceId, Inventory, NodeDevices
from extender.core.dra.slots import MAX_STEPS, SearchLimit
from extender.parts.dra.turns import _STEPS, Budgets, Turns
from extender.parts.dra.whose import Whose
from extender.planning.wait_reasons import Code
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.restrictions import Kinds
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_whose import OURS, rig_beside_others


def costly(word: str) -> str:
    """A selector of some 2,900 steps that looks at what differs from device to device."""
    numbers = str(list(range(10)))
    uuid = f"device.attributes['gpu.nvidia.com'].?uuid.orValue('') != '{word}'"
    return f"{numbers}.all(x, {numbers}.all(y, x + y >= 0)) && {uuid}"


def waiting(rig: ClaimRig, name: str, namespace: str, expression: str = "") -> Entry:
    exactly: dict[str, Any] = {"deviceClassName": "gpu"}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    rig.api.add(name, {"name": name, "exactly": exactly})
    rig.tell(name)
    entry = rig.pod(name, name)
    entry.planned = plan_pod(entry.pod, Kinds(), rig.keeper.read(entry.pod))
    metadata = msgspec.structs.replace(entry.pod.metadata, namespace=namespace)
    entry.pod = msgspec.structs.replace(entry.pod, metadata=metadata)
    return entry


def test_of_costly_asks_a_round_takes_one_of_each_namespace_and_the_cheap_ones_of_others() -> None:
    rig = ClaimRig()
    evil = [waiting(rig, f"evil-{number}", "evil", costly(f"{number}")) for number in range(12)]
    good = [waiting(rig, f"good-{number}", "good") for number in range(3)]
    turns = Turns(rig.keeper, lambda: None)
    planned, _ = turns.sort_out([*evil, *good])
    assert sum(entry in evil for entry in planned) == 1
    assert all(entry in planned for entry in good)


def test_a_namespace_that_has_spent_its_part_waits_and_says_so_and_others_go_on() -> None:
    rig = ClaimRig()
    evil, good = waiting(rig, "evil", "evil", costly("x")), waiting(rig, "good", "good")
    assert evil.planned is not None
    assert evil.planned.gpus is not None
    asked = evil.planned.gpus.devices
    now, taken = [1000.0], {asked: 0}
    turns = Turns(rig.keeper, lambda: None)
    turns.budgets = Budgets(lambda: now[0], lambda ask: taken.get(ask, 0))
    assert evil in turns.sort_out([evil, good])[0]
    taken[asked] = _STEPS + 1
    planned, passed = turns.sort_out([evil, good])
    assert planned == [good]
    assert [(entry, why.code) for entry, why in passed] == [(evil, Code.CLAIM_COSTS)]
    assert "ResourceClaims of namespace evil" in str(passed[0][1])
    now[0] += 1.0
    assert evil in turns.sort_out([evil, good])[0]
    taken[asked] = 1_000 * _STEPS
    turns.sort_out([evil, good])
    now[0] += 299.0
    assert evil not in turns.sort_out([evil, good])[0]
    now[0] += 2.0
    assert evil in turns.sort_out([evil, good])[0]


class Account:
    """Budgets at a time and of costs that a test tells; the clock of the machine has just begun."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken: dict[DevicesAsked, int] = {}
        self.budgets = Budgets(lambda: self.now, lambda ask: self.taken[ask])

    def charge(self, namespace: str, **steps: int) -> None:
        """So many steps were taken by now for what is asked, by the cost of its selector."""
        asks = {asking(int(cost[1:])): num for cost, num in steps.items()}
        self.taken.update(asks)
        self.budgets.charge((namespace, ask) for ask in asks)

    @property
    def num_kept(self) -> int:
        """Entries, whatever they are kept in."""
        return sum(len(part) for part in vars(self.budgets).values() if isinstance(part, dict))

    def is_spent(self, namespace: str = "evil") -> bool:
        return self.budgets.is_spent(namespace)


def test_a_namespace_may_spend_its_part_and_no_step_more() -> None:
    account = Account()
    account.charge("evil", _1=_STEPS)
    assert not account.is_spent()
    account.charge("evil", _2=1)
    assert (account.is_spent(), account.is_spent("good")) == (True, False)
    account.now = 30.0
    account.charge("evil", _3=_STEPS // 2 - 1)
    assert not account.is_spent(), "half of it was given back"
    account.charge("evil", _4=1)
    assert account.is_spent()


def test_what_was_charged_is_charged_once() -> None:
    account = Account()
    account.charge("evil", _1=_STEPS)
    account.charge("good", _1=_STEPS)
    account.charge("evil", _1=_STEPS + 1, _2=0)
    assert account.is_spent()
    account.now = 0.01
    assert not account.is_spent(), "of the second time one step is new"
    account.charge("good", _1=_STEPS + 1, _3=_STEPS + 1)
    assert account.is_spent("good"), "behind what is known there may be what is not"


def test_of_what_is_given_back_nothing_is_kept() -> None:
    account = Account()
    for number in range(20):
        account.charge(f"team-{number}", _1=number + 1)
    before = account.num_kept
    account.now = 60.0
    assert not any(account.is_spent(f"team-{number}") for number in range(20))
    assert account.num_kept == before - 20


def test_what_is_searched_for_anew_is_charged_anew() -> None:
    account = Account()
    account.charge("evil", _1=_STEPS)
    account.charge("evil", _1=1)
    assert account.is_spent()


def asking(cost: int) -> DevicesAsked:
    """A GPU whose selector costs that on each device, all of which differ in what it reads."""
    selector = Selector(f"costs {cost}", lambda device: True, None, cost=cost)
    return DevicesAsked((ClaimAsk((RequestAsk("gpu", (DeviceAsk("gpu", (selector,)),)),)),))


def device(number: int) -> Device:
    """A GPU that differs from all others."""
    name = f"gpu-{number}"
    return Device(
        DeviceId("gpu.nvidia.com", "n", name), {"gpu.nvidia.com/uuid": name}, {}, (), (), False, number, 1000, 0
    )


def test_what_a_selector_costs_counts_among_the_steps_of_a_search() -> None:
    found = Allocations()
    devices = NodeDevices.of(Inventory(tuple(map(device, range(64))), ()))
    assert isinstance(found.best(devices, asking(100)), Allocation)
    assert 64 * 100 < found.steps_taken(asking(100)) < MAX_STEPS
    assert isinstance(found.best(devices, asking(5_000)), SearchLimit)
    assert found.steps_taken(asking(5_000)) <= MAX_STEPS + 5_020


def test_whose_claims_are_is_found_out_for_namespaces_in_turn() -> None:
    rig = rig_beside_others()
    whose = Whose(rig.owned)
    for number in range(50):
        assert whose.is_kerfs(asking(number), "evil") is None
    assert whose.is_kerfs(asking(99), "good") is None
    number_looked = 0
    while whose.is_kerfs(asking(99), "good") is None:
        _look_at_one(whose)
        number_looked += 1
    assert number_looked == 2
    while whose.looking:
        _look_at_one(whose)
    assert all(whose.is_kerfs(asking(number), "evil") for number in range(50))


def _look_at_one(whose: Whose) -> None:
    """One portion of one ask."""
    whose.look_further(within_s=0.0)


def test_the_event_loop_goes_on_meanwhile() -> None:
    rig = rig_beside_others()
    for number in range(30):
        name = f"c-{number}"
        selectors = [{"cel": {"expression": costly(name)}}]
        rig.api.add(name, {"name": name, "exactly": {"deviceClassName": OURS, "selectors": selectors}})
        rig.tell(name)
        assert rig.keeper.read(rig.pod(name).pod).undecided

    async def scenario() -> int:
        looking = asyncio.create_task(rig.keeper.anything_new())
        ticks = -1
        while not looking.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(scenario()) > 1
