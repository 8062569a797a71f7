"""The allocator beside kube-scheduler's own search, written out as loops, and what it makes of hostile claims."""

from random import Random

import pytest

from extender.core.dra.allocator import Allocation, _allocate, _matches_of, _Memory, _search
from extender.core.dra.asks import (
    ClaimAsk,
    Constraint,
    DeviceAsk,
    DevicesAsked,
    Fault,
    RequestAsk,
    Selector,
    SelectorFault,
)
from extender.core.dra.devices import WHOLE, Capacity, Device, DeviceId, Inventory, NodeDevices, Taking
from extender.core.dra.first_fit import Aborted, Picked, first_fit
from extender.core.dra.packing import shape_of
from extender.core.dra.slots import SearchLimit, Steps, _AllFault
from tests.core.dra.cases import random_case, selector
from tests.core.dra.machines import DRIVER, a100_node

THEIR_STEPS = 5_000


def theirs_of(devices: NodeDevices, asked: DevicesAsked) -> list[Picked] | Fault | None:
    try:
        return first_fit(devices, asked, THEIR_STEPS)
    except Fault as fault:
        return fault


def ours_of(devices: NodeDevices, asked: DevicesAsked) -> Allocation | Fault | None:
    try:
        return _allocate(devices, asked)
    except Fault as fault:
        return fault


def only(devices: NodeDevices, allocation: Allocation) -> NodeDevices:
    """The node with none but the devices that an allocation gives; what others hold of counters stays held."""
    kept = sorted({item.taking.device for claim in allocation.claims for item in claim})
    place_of = {index: place for place, index in enumerate(kept)}
    inventory = Inventory(tuple(devices.inventory.devices[index] for index in kept), devices.inventory.counters)
    taken = sum(1 << place_of[index] for index in kept if devices.taken >> index & 1)
    parts = {place_of[index]: parts for index, parts in devices.parts.items() if index in place_of}
    return NodeDevices(inventory, taken, parts, devices.left)


def rank_of(asked: DevicesAsked, picked: list[Picked]) -> list[int]:
    names = {(claim, ask.name) for claim, ask, _ in picked}
    return [
        next(number for number, ask in enumerate(request.alternatives) if (claim_idx, ask.name) in names)
        for claim_idx, claim in enumerate(asked.claims)
        for request in claim.requests
        if len(request.alternatives) > 1
    ]


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (100, 200, 300))])
def test_possible_is_what_kube_schedulers_search_finds(first: int) -> None:
    num_possible = 0
    for seed in range(first, first + 100):
        devices, asked = random_case(Random(seed))
        ours, theirs = ours_of(devices, asked), theirs_of(devices, asked)
        if isinstance(theirs, SearchLimit) or isinstance(ours, Fault):
            continue
        assert isinstance(ours, Allocation) == isinstance(theirs, list), seed
        if isinstance(ours, Allocation):
            assert isinstance(theirs_of(only(devices, ours), asked), list), seed
            num_possible += 1
        if isinstance(ours, Allocation) and isinstance(theirs, list):
            assert list(ours.rank) <= rank_of(asked, theirs), seed
    assert num_possible > 10


def test_few_cases_are_refused_and_only_where_something_is_possible() -> None:
    """Kerf refuses where kube-scheduler's order decides; where nothing is possible, it says so."""
    outcomes = [(ours_of(*case), theirs_of(*case)) for case in map(random_case, map(Random, range(1000, 1100)))]
    refused = [(ours, theirs) for ours, theirs in outcomes if isinstance(ours, Fault)]
    assert 0 < len(refused) <= 0.05 * len(outcomes)
    assert all(theirs is not None for _, theirs in refused)


# Single rules


def devices_of(*devices: Device, taken: tuple[int, ...] = ()) -> NodeDevices:
    return NodeDevices.of(Inventory(devices), [Taking(index) for index in taken])


def device(name: str, **attributes: str | int | bool) -> Device:
    return Device(DeviceId("d", "pool", name), {f"d/{key}": value for key, value in attributes.items()})


def ask(name: str, *selectors: Selector, count: int = 1, admin: bool = False) -> RequestAsk:
    return RequestAsk(name, (DeviceAsk(name, selectors, count, admin),))


def claims(*requests: RequestAsk) -> DevicesAsked:
    """One claim for each request."""
    return DevicesAsked(tuple(ClaimAsk((request,)) for request in requests))


def given(allocation: Allocation | None) -> list[tuple[str, int]] | None:
    if allocation is None:
        return None
    return [(item.request, item.taking.device) for claim in allocation.claims for item in claim]


def test_who_looks_first_keeps_others_off_and_who_looks_later_does_not() -> None:
    """kube-scheduler marks a device that an administrator looks at as in use for those who come after."""
    node = devices_of(device("only"))
    take, look = ask("take"), ask("look", admin=True)
    assert given(_allocate(node, claims(take, look))) == [("take", 0), ("look", 0)]
    assert _allocate(node, claims(look, take)) is None
    assert _allocate(node, DevicesAsked((ClaimAsk((take, look)),))) is None
    assert given(_allocate(devices_of(device("only"), taken=(0,)), claims(look, look))) == [("look", 0), ("look", 0)]


def test_who_looks_needs_the_counters_too() -> None:
    part = Device(DeviceId("d", "pool", "part"), consumes=((0, 1),))
    inventory = Inventory((part, part), (1,))
    assert _allocate(NodeDevices.of(inventory), claims(ask("look", admin=True))) is not None
    assert _allocate(NodeDevices.of(inventory, [Taking(1)]), claims(ask("look", admin=True))) is None


def test_nobody_gets_devices_of_a_pool_of_which_more_is_taken_than_there_is() -> None:
    first, second = (Device(DeviceId("d", "pool", str(index)), consumes=((index, 1),)) for index in range(2))
    free = NodeDevices.of(Inventory((first, second), (1, 1)))
    overdrawn = NodeDevices(free.inventory, left=(-1, 1))
    assert _allocate(free, claims(ask("any"))) is not None
    assert _allocate(overdrawn, claims(ask("any"))) is None


def test_numbers_and_truths_do_not_match() -> None:
    """In Python True equals 1."""
    node = devices_of(device("one", value=1), device("true", value=True))
    alike = ClaimAsk((ask("both", count=2),), (Constraint("d/value"),))
    differ = ClaimAsk((ask("both", count=2),), (Constraint("d/value", distinct=True),))
    assert _allocate(node, DevicesAsked((alike,))) is None
    assert _allocate(node, DevicesAsked((differ,))) is not None


def test_a_claim_has_at_most_32_devices() -> None:
    node = devices_of(*(device(str(index)) for index in range(40)))
    assert _allocate(node, claims(ask("many", count=32))) is not None
    assert _allocate(node, claims(ask("many", count=33))) is None
    assert _allocate(node, DevicesAsked((ClaimAsk((ask("many", count=20), ask("more", count=13))),))) is None
    assert _allocate(node, claims(ask("many", count=20), ask("more", count=20))) is not None
    assert _allocate(node, claims(ask("all", count=0))) is None


def test_parts_of_a_device_take_its_counters_once() -> None:
    shared = Device(DeviceId("d", "pool", "shared"), {}, {"memory": Capacity(4, 1)}, ((0, 1),), shareable=True)
    node = NodeDevices.of(Inventory((shared,), (1,)))
    allocation = _allocate(node, claims(*(ask(f"part-{number}") for number in range(4))))
    assert allocation is not None
    assert [taking.capacity for taking in allocation.takings] == [(("memory", 1),)] * 4
    assert _allocate(node, claims(*(ask(f"part-{number}") for number in range(5)))) is None
    assert _allocate(node, claims(ask("twice", count=2))) is None  # a request gets a device once


def test_nobody_gets_a_part_of_a_device_that_was_given_as_a_whole() -> None:
    """A driver may have made it shareable since."""
    shared = Device(DeviceId("d", "pool", "shared"), shareable=True)
    node = NodeDevices.of(Inventory((shared,)), [Taking(0, WHOLE)])
    assert _allocate(node, claims(ask("part"))) is None
    assert _allocate(node, claims(ask("look", admin=True))) is not None
    assert _allocate(node.giving_back([Taking(0, WHOLE)]), claims(ask("part"))) is not None


def test_a_selector_that_fails_on_a_device_that_might_be_asked_about_is_a_fault() -> None:
    fails = selector("d/missing", "x")
    node = devices_of(device("good", missing="x"), device("bad"))
    with pytest.raises(SelectorFault):
        _allocate(node, claims(ask("any", fails)))
    assert given(_allocate(devices_of(*node.inventory.devices, taken=(1,)), claims(ask("any", fails)))) == [("any", 0)]
    # Nothing is possible whatever the selector says: nobody gets as far, or nobody gets anything.
    assert _allocate(node, claims(ask("none", selector("d/missing", "y")))) is None
    assert _allocate(node, claims(ask("three", count=3), ask("any", fails))) is None


def test_a_constraint_that_may_keep_all_from_one_device_is_a_fault() -> None:
    node = devices_of(device("a", root=0, kind="nic"), device("b", root=1, kind="nic"), device("c", root=1, kind="gpu"))
    nic, gpus = ask("nic", selector("d/kind", "nic")), ask("gpus", selector("d/kind", "gpu"), count=0)
    with pytest.raises(_AllFault):
        _allocate(node, DevicesAsked((ClaimAsk((nic, gpus), (Constraint("d/root"),)),)))
    assert given(_allocate(node, DevicesAsked((ClaimAsk((gpus, nic), (Constraint("d/root"),)),)))) == [
        ("gpus", 2),
        ("nic", 1),
    ]


def test_all_devices_are_given_only_where_all_are_known_and_are_kerfs() -> None:
    mine, other = device("mine", kind="gpu"), device("other", kind="gpu")
    everything = claims(ask("all", selector("d/kind", "gpu"), count=0))
    assert _allocate(NodeDevices.of(Inventory((mine,))), everything) is not None
    assert _allocate(NodeDevices.of(Inventory((mine,), complete=False)), everything) is None
    assert _allocate(NodeDevices.of(Inventory((mine,), unavailable=(other,))), everything) is None
    with pytest.raises(Aborted):
        first_fit(NodeDevices.of(Inventory((mine,), complete=False)), everything)


# Effort


def steps_of(devices: NodeDevices, asked: DevicesAsked) -> int:
    """How many steps a search takes."""
    memory, steps = _Memory(), Steps()
    shape = shape_of(devices.inventory, memory.weights, memory.keys, memory.rooms)
    _search(devices, asked, shape, _matches_of(devices, asked, memory.matcher, steps), memory, steps)
    return steps.limit - steps.left


def test_ordinary_claims_take_few_steps() -> None:
    """8 A100s with all partitions: 19 devices each. What is measured is the order of magnitude."""
    node = NodeDevices.of(a100_node("node", 8))
    small = selector(f"{DRIVER}/profile", "1g.5gb")
    mig = selector(f"{DRIVER}/type", "mig")
    whole = selector(f"{DRIVER}/type", "gpu")
    assert steps_of(node, claims(ask("one", whole))) < 500
    assert steps_of(node, claims(ask("many", mig, small, count=16))) < 4_000
    assert steps_of(node, claims(*(ask(f"part-{number}", mig, small) for number in range(16)))) < 4_000
    mixed = [ask(str(size), mig, selector(f"{DRIVER}/profile", size)) for size in ("1g.5gb", "2g.10gb", "3g.20gb")]
    assert steps_of(node, claims(*mixed)) < 10_000


def test_a_hostile_claim_is_given_up() -> None:
    """20 requests that each want other halves of 40 devices, no two the same: all splits would have to be tried."""
    rng = Random(1)
    node = devices_of(*(device(str(index), index=index) for index in range(40)))
    wishes = [frozenset(rng.sample(range(40), 20)) for _ in range(20)]

    def one_of(wish: frozenset[int]) -> Selector:
        return Selector(str(sorted(wish)), lambda device: device.attributes["d/index"] in wish)

    asked = claims(*(ask(f"wish-{number}", one_of(wish), count=2) for number, wish in enumerate(wishes)))
    with pytest.raises(SearchLimit):
        _allocate(node, asked)


def test_a_hostile_driver_is_given_up() -> None:
    """60 devices of sizes that are all different, cut from one counter, of which ten are wanted."""
    parts = [Device(DeviceId("d", "pool", str(size)), consumes=((0, size),)) for size in range(100, 160)]
    node = NodeDevices.of(Inventory(tuple(parts), (1200,)))
    with pytest.raises(SearchLimit):
        _allocate(node, claims(ask("ten", count=10)))


def test_claims_of_very_many_devices_or_requests_are_given_up() -> None:
    """A pod may name any number of claims: no search is so deep that Python gives up instead."""
    node = devices_of(*(device(str(index)) for index in range(400)))
    with pytest.raises(SearchLimit):
        _allocate(node, claims(*(ask(f"claim-{number}", count=32) for number in range(10))))
    either = RequestAsk("r", (DeviceAsk("r/a"), DeviceAsk("r/b", count=2)))
    with pytest.raises(SearchLimit):
        _allocate(node, DevicesAsked((ClaimAsk((either,) * 32),) * 10))
    assert _allocate(node, claims(*(ask(f"claim-{number}", count=32) for number in range(8)))) is not None


def test_alternatives_do_not_multiply_where_the_first_can_not_be_had() -> None:
    """Eight requests of eight alternatives, of which only the last can be had."""
    node = devices_of(*(device(str(index), kind="good") for index in range(8)))
    bad = [DeviceAsk("", (selector("d/kind", str(number)),)) for number in range(7)]
    request = RequestAsk("r", (*bad, DeviceAsk("", (selector("d/kind", "good"),))))
    allocation = _allocate(node, DevicesAsked((ClaimAsk((request,) * 8),)))
    assert allocation is not None
    assert allocation.rank == (7,) * 8
