"""The allocator against kube-scheduler's own search, written as loops, and its bounds for hostile claims."""

from random import Random

import pytest

from extender.core.dra.allocator import Allocation, _allocate, _matches_of, _Memory, _search
from extender.core.dra.asks import (
    ClaimSpec,
    Constraint,
    DeviceClaims,
    DeviceSpec,
    Fault,
    RequestSpec,
    Selector,
    SelectorFault,
)
from extender.core.dra.devices import WHOLE, Capacity, Device, Inventory, NodeDevices, Taking
from extender.core.dra.first_fit import Aborted, Picked, first_fit
from extender.core.dra.packing import shape_of
from extender.core.dra.slots import SearchLimit, Steps, _AllFault
from tests.core.dra.cases import random_case, selector
from tests.core.dra.machines import DRIVER, a100_node
from tests.core.fit.claims import ask, asked, device, having

THEIR_STEPS = 5_000


def theirs_of(devices: NodeDevices, asked: DeviceClaims) -> list[Picked] | Fault | None:
    try:
        return first_fit(devices, asked, THEIR_STEPS)
    except Fault as fault:
        return fault


def ours_of(devices: NodeDevices, asked: DeviceClaims) -> Allocation | Fault | None:
    try:
        return _allocate(devices, asked)
    except Fault as fault:
        return fault


def only(devices: NodeDevices, allocation: Allocation) -> NodeDevices:
    """The node with only the devices of an allocation; counters held by others stay held."""
    kept = sorted({item.taking.device for claim in allocation.claims for item in claim})
    place_of = {index: place for place, index in enumerate(kept)}
    inventory = Inventory(tuple(devices.inventory.devices[index] for index in kept), devices.inventory.counters)
    taken = sum(1 << place_of[index] for index in kept if devices.taken >> index & 1)
    parts = {place_of[index]: parts for index, parts in devices.parts.items() if index in place_of}
    return NodeDevices(inventory, taken, parts, devices.left)


def rank_of(asked: DeviceClaims, picked: list[Picked]) -> list[int]:
    names = {(claim, ask.name) for claim, ask, _ in picked}
    return [
        next(number for number, ask in enumerate(request.alternatives) if (claim_idx, ask.name) in names)
        for claim_idx, claim in enumerate(asked.claims)
        for request in claim.requests
        if len(request.alternatives) > 1
    ]


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (100, 200, 300))])
def test_claims_are_possible_where_kube_schedulers_search_finds_devices(first: int) -> None:
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
    """Kerf refuses where kube-scheduler's order decides."""
    outcomes = [(ours_of(*case), theirs_of(*case)) for case in map(random_case, map(Random, range(1000, 1100)))]
    refused = [(ours, theirs) for ours, theirs in outcomes if isinstance(ours, Fault)]
    assert 0 < len(refused) <= 0.05 * len(outcomes)
    assert all(theirs is not None for _, theirs in refused)


# Single rules


def with_attributes(name: str, **attributes: str | int | bool) -> Device:
    return device(name, attributes={f"d/{key}": value for key, value in attributes.items()})


def claims(*asks: DeviceSpec) -> DeviceClaims:
    """One claim for each request."""
    return DeviceClaims(tuple(claim for one in asks for claim in asked(one).claims))


def given(devices: NodeDevices, wanted: DeviceClaims) -> list[tuple[str, int]] | None:
    """Request and device of each allocation, None where none is possible."""
    allocation = _allocate(devices, wanted)
    if allocation is None:
        return None
    return [(item.request, item.taking.device) for claim in allocation.claims for item in claim]


def test_admin_access_first_blocks_later_requests_and_later_does_not() -> None:
    """kube-scheduler marks a device with admin access as in use for later requests."""
    node, take, look = having(device("only")), ask(name="take"), ask(name="look", admin=True)
    assert given(node, claims(take, look)) == [("take", 0), ("look", 0)]
    assert given(node, claims(look, take)) is None
    assert given(node, asked(take, look)) is None
    assert given(having(device("only"), taken=[Taking(0)]), claims(look, look)) == [("look", 0), ("look", 0)]
    part = device("part", consumes=((0, 1),))
    inventory = Inventory((part, part), (1,))  # admin access needs the counters, too
    assert given(NodeDevices.of(inventory), claims(look)) is not None
    assert given(NodeDevices.of(inventory, [Taking(1)]), claims(look)) is None


def test_an_overdrawn_pool_gives_nothing() -> None:
    first, second = (device(str(index), consumes=((index, 1),)) for index in range(2))
    free = NodeDevices.of(Inventory((first, second), (1, 1)))
    assert given(free, claims(ask())) is not None
    assert given(NodeDevices(free.inventory, left=(-1, 1)), claims(ask())) is None


def test_numbers_and_booleans_do_not_match() -> None:
    """In Python True equals 1."""
    node = having(with_attributes("one", value=1), with_attributes("true", value=True))
    assert given(node, asked(ask(count=2), constraints=(Constraint("d/value"),))) is None
    assert given(node, asked(ask(count=2), constraints=(Constraint("d/value", distinct=True),))) is not None


def test_a_claim_has_at_most_32_devices() -> None:
    node, twenty = having(*(device(str(index)) for index in range(40))), ask(count=20, name="twenty")
    for wanted, possible in (
        (claims(ask(count=32)), True),
        (claims(ask(count=33)), False),
        (asked(twenty, ask(count=13)), False),
        (claims(twenty, twenty), True),
        (claims(ask(count=0)), False),  # all
    ):
        assert (given(node, wanted) is not None) == possible


def test_shares_of_a_device_take_its_counters_once_and_none_of_a_whole_one() -> None:
    shared = device("shared", capacity={"memory": Capacity(4, 1)}, consumes=((0, 1),), shareable=True)
    node = NodeDevices.of(Inventory((shared,), (1,)))
    allocation = _allocate(node, claims(*[ask()] * 4))
    assert allocation is not None
    assert [taking.capacity for taking in allocation.takings] == [(("memory", 1),)] * 4
    assert given(node, claims(*[ask()] * 5)) is None
    assert given(node, claims(ask(count=2))) is None  # a request gets a device once
    # A driver may have made a device shareable since it was allocated whole.
    whole = having(device("shared", shareable=True), taken=[Taking(0, WHOLE)])
    assert given(whole, claims(ask())) is None
    assert given(whole, claims(ask(admin=True))) is not None
    assert given(whole.giving_back([Taking(0, WHOLE)]), claims(ask())) is not None


def test_a_selector_that_fails_on_a_candidate_is_a_fault() -> None:
    fails, bad = selector("d/missing", "x"), device("bad")
    good = with_attributes("good", missing="x")
    with pytest.raises(SelectorFault):
        _allocate(having(good, bad), claims(ask(fails)))
    assert given(having(good, bad, taken=[Taking(1)]), claims(ask(fails))) == [("gpu", 0)]
    # Nothing is possible whatever the selector says.
    assert given(having(good, bad), claims(ask(selector("d/missing", "y")))) is None
    assert given(having(good, bad), claims(ask(count=3), ask(fails))) is None


def test_a_constraint_that_may_exclude_a_device_from_all_is_a_fault() -> None:
    node = having(
        with_attributes("a", root=0, kind="nic"),
        with_attributes("b", root=1, kind="nic"),
        with_attributes("c", root=1, kind="gpu"),
    )
    nic, every = ask(selector("d/kind", "nic"), name="nic"), ask(selector("d/kind", "gpu"), name="gpus", count=0)
    same_root = (Constraint("d/root"),)
    with pytest.raises(_AllFault):
        _allocate(node, asked(nic, every, constraints=same_root))
    assert given(node, asked(every, nic, constraints=same_root)) == [("gpus", 2), ("nic", 1)]


def test_all_devices_are_given_only_where_all_are_known_and_kerfs() -> None:
    mine, other, every = device("mine"), device("other"), claims(ask(count=0))
    assert given(NodeDevices.of(Inventory((mine,))), every) is not None
    assert given(NodeDevices.of(Inventory((mine,), unavailable=(other,))), every) is None
    incomplete = NodeDevices.of(Inventory((mine,), complete=False))
    assert given(incomplete, every) is None
    with pytest.raises(Aborted):
        first_fit(incomplete, every)


# Effort


def steps_of(devices: NodeDevices, wanted: DeviceClaims) -> int:
    """Steps of a search."""
    memory, steps = _Memory(), Steps()
    shape = shape_of(devices.inventory, memory.weights, memory.keys, memory.rooms)
    _search(devices, wanted, shape, _matches_of(devices, wanted, memory.matcher, steps), memory, steps)
    return steps.limit - steps.left


def test_ordinary_claims_take_few_steps() -> None:
    """8 A100s with all partitions: 19 devices each. The order of magnitude matters."""
    node = NodeDevices.of(a100_node("node", 8))
    mig, whole = (selector(f"{DRIVER}/type", kind) for kind in ("mig", "gpu"))
    small, *others = (ask(mig, selector(f"{DRIVER}/profile", size)) for size in ("1g.5gb", "2g.10gb", "3g.20gb"))
    for wanted, most in (
        (claims(ask(whole)), 500),
        (claims(ask(*small.selectors, count=16)), 4_000),
        (claims(*[small] * 16), 4_000),
        (claims(small, *others), 10_000),
    ):
        assert steps_of(node, wanted) < most


def one_of(numbers: frozenset[int]) -> Selector:
    return Selector(str(sorted(numbers)), lambda device: device.attributes["d/number"] in numbers)


def test_hostile_claims_and_drivers_are_given_up() -> None:
    rng = Random(1)
    numbered = having(*(with_attributes(str(number), number=number) for number in range(40)))
    # Different halves of the devices: all splits would have to be tried.
    halves = claims(*(ask(one_of(frozenset(rng.sample(range(40), 20))), count=2) for _ in range(20)))
    # Devices of different sizes, cut from one counter.
    cut = tuple(device(str(size), consumes=((0, size),)) for size in range(100, 160))
    sizes = NodeDevices.of(Inventory(cut, (1200,)))
    # A search so deep that Python would give up.
    many = having(*(device(str(index)) for index in range(400)))
    either = RequestSpec("r", (DeviceSpec("r/a"), DeviceSpec("r/b", count=2)))
    for node, wanted in (
        (numbered, halves),
        (sizes, claims(ask(count=10))),
        (many, claims(*[ask(count=32)] * 10)),
        (many, DeviceClaims((ClaimSpec((either,) * 32),) * 10)),
    ):
        with pytest.raises(SearchLimit):
            _allocate(node, wanted)
    assert given(many, claims(*[ask(count=32)] * 8)) is not None


def test_impossible_alternatives_do_not_multiply() -> None:
    """Eight requests of eight alternatives, only the last of them possible."""
    node = having(*(with_attributes(str(index), kind="good") for index in range(8)))
    kinds = [*map(str, range(7)), "good"]
    request = RequestSpec("r", tuple(DeviceSpec("", (selector("d/kind", kind),)) for kind in kinds))
    allocation = _allocate(node, DeviceClaims((ClaimSpec((request,) * 8),)))
    assert allocation is not None
    assert allocation.rank == (7,) * 8
