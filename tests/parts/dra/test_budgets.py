"""What the selectors of one author's claims cost is charged to their namespace, and nobody else waits for it."""

import asyncio

from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import DeviceClaims, Selector
from extender.core.dra.devices import Device, DeviceId, Inventory, NodeDevices
from extender.core.dra.slots import MAX_STEPS, SearchLimit
from extender.parts.dra.allocator_choice import AllocatorChoice
from extender.parts.dra.selection import _STEPS, Budgets, PodSelector
from extender.planning.wait_reasons import Code
from extender.queueing.pods.entries import Entry
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_allocator_choice import OURS, asking_by, rig_beside_others


def costly(word: str) -> str:
    """A selector of some 2,900 steps that looks at what differs from device to device."""
    numbers = str(list(range(10)))
    uuid = f"device.attributes['gpu.nvidia.com'].?uuid.orValue('') != '{word}'"
    return f"{numbers}.all(x, {numbers}.all(y, x + y >= 0)) && {uuid}"


def waiting(rig: ClaimRig, name: str, namespace: str, expression: str = "") -> Entry:
    rig.add(name, **({"selectors": [{"cel": {"expression": expression}}]} if expression else {"count": 1}))
    return rig.planned(name, namespace=namespace)


def test_a_round_takes_one_costly_request_of_a_namespace_and_the_cheap_ones_of_others() -> None:
    rig = ClaimRig()
    evil = [waiting(rig, f"evil-{number}", "evil", costly(f"{number}")) for number in range(12)]
    good = [waiting(rig, f"good-{number}", "good") for number in range(3)]
    turns = PodSelector(rig.keeper, lambda: None)
    planned, _ = turns.select([*evil, *good])
    assert sum(entry in evil for entry in planned) == 1
    assert all(entry in planned for entry in good)


def test_a_namespace_that_has_spent_its_budget_waits_and_others_go_on() -> None:
    rig = ClaimRig()
    evil, good = waiting(rig, "evil", "evil", costly("x")), waiting(rig, "good", "good")
    assert evil.planned is not None
    assert evil.planned.gpus is not None
    asked = evil.planned.gpus.devices
    now, taken = [1000.0], {asked: 0}
    turns = PodSelector(rig.keeper, lambda: None)
    turns.budgets = Budgets(lambda: now[0], lambda ask: taken.get(ask, 0))
    assert evil in turns.select([evil, good])[0]
    taken[asked] = _STEPS + 1
    planned, passed = turns.select([evil, good])
    assert planned == [good]
    assert [(entry, why.code) for entry, why in passed] == [(evil, Code.CLAIM_COSTS)]
    now[0] += 1.0
    assert evil in turns.select([evil, good])[0]
    taken[asked] = 1_000 * _STEPS
    turns.select([evil, good])
    now[0] += 299.0
    assert evil not in turns.select([evil, good])[0]
    now[0] += 2.0
    assert evil in turns.select([evil, good])[0]


class Account:
    """Budgets at a time and of costs that a test sets; the machine has just started."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken: dict[DeviceClaims, int] = {}
        self.budgets = Budgets(lambda: self.now, lambda ask: self.taken[ask])

    def charge(self, namespace: str, **steps: int) -> None:
        """Charge the steps taken so far for requests, by the cost of their selector."""
        asks = {asking(int(cost[1:])): num for cost, num in steps.items()}
        self.taken.update(asks)
        self.budgets.charge((namespace, ask) for ask in asks)

    @property
    def num_kept(self) -> int:
        """Entries in all of its tables."""
        return sum(len(part) for part in vars(self.budgets).values() if isinstance(part, dict))

    def is_spent(self, namespace: str = "evil") -> bool:
        return self.budgets.is_spent(namespace)


def test_a_namespace_may_spend_its_budget_and_no_step_more() -> None:
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


def test_steps_are_charged_once() -> None:
    account = Account()
    account.charge("evil", _1=_STEPS)
    account.charge("good", _1=_STEPS)
    account.charge("evil", _1=_STEPS + 1, _2=0)
    assert account.is_spent()
    account.now = 0.01
    assert not account.is_spent(), "of the second time one step is new"
    account.charge("good", _1=_STEPS + 1, _3=_STEPS + 1)
    assert account.is_spent("good"), "behind what is known there may be what is not"


def test_refilled_budgets_take_no_memory() -> None:
    account = Account()
    for number in range(20):
        account.charge(f"team-{number}", _1=number + 1)
    before = account.num_kept
    account.now = 60.0
    assert not any(account.is_spent(f"team-{number}") for number in range(20))
    assert account.num_kept == before - 20


def test_a_repeated_search_is_charged_again() -> None:
    account = Account()
    account.charge("evil", _1=_STEPS)
    account.charge("evil", _1=1)
    assert account.is_spent()


def asking(cost: int) -> DeviceClaims:
    """A GPU whose selector costs that on each device, all of which differ in what it reads."""
    return asking_by(Selector(f"costs {cost}", lambda device: True, None, cost=cost))


def device(number: int) -> Device:
    """A GPU that differs from all others."""
    uuid = {"gpu.nvidia.com/uuid": f"{number}"}
    return Device(DeviceId("gpu.nvidia.com", "n", f"gpu-{number}"), uuid, {}, gpu=number, milli=1000)


def test_the_cost_of_selectors_counts_among_the_steps_of_a_search() -> None:
    found = Allocations()
    devices = NodeDevices.of(Inventory(tuple(map(device, range(64))), ()))
    assert isinstance(found.best(devices, asking(100)), Allocation)
    assert 64 * 100 < found.steps_taken(asking(100)) < MAX_STEPS
    assert isinstance(found.best(devices, asking(5_000)), SearchLimit)
    assert found.steps_taken(asking(5_000)) <= MAX_STEPS + 5_020


def test_namespaces_take_turns_in_finding_out_the_allocator() -> None:
    rig = rig_beside_others()
    whose = AllocatorChoice(rig.owned)
    for number in range(50):
        assert whose.is_kerfs(asking(number), "evil") is None
    assert whose.is_kerfs(asking(99), "good") is None
    number_looked = 0
    while whose.is_kerfs(asking(99), "good") is None:
        whose.look_further(within_s=0.0)
        number_looked += 1
    assert number_looked == 2
    while whose.looking:
        whose.look_further(within_s=0.0)
    assert all(whose.is_kerfs(asking(number), "evil") for number in range(50))


def test_the_event_loop_goes_on_meanwhile() -> None:
    rig = rig_beside_others()
    for number in range(30):
        name = f"c-{number}"
        rig.add(name, deviceClassName=OURS, selectors=[{"cel": {"expression": costly(name)}}])
        assert rig.keeper.read(rig.pod(name).pod).undecided

    async def scenario() -> int:
        looking = asyncio.create_task(rig.keeper.claims_outdated())
        ticks = -1
        while not looking.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(scenario()) > 1
