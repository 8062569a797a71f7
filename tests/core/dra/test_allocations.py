"""Allocations that are remembered: the same as those that are searched, and searched once for nodes alike."""

import pickle
from dataclasses import replace
from random import Random

from extender.core.dra.allocator import Allocation, Allocations, _allocate
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
from extender.core.dra.devices import Device, DeviceId, Inventory, NodeDevices, Taking
from extender.core.dra.packing import Weights
from tests.core.dra.cases import random_case
from tests.core.dra.machines import DRIVER, a100_node


class Counted:
    """A selector that counts how often it is asked."""

    def __init__(self, reads: str) -> None:
        self.num_asked = 0
        self.selector = Selector(f"has({reads})", self._matches, frozenset({reads}))
        self._reads = reads

    def _matches(self, device: Device) -> bool:
        self.num_asked += 1
        return self._reads in device.attributes


def asking(selector: Selector, count: int = 1) -> DevicesAsked:
    return DevicesAsked((ClaimAsk((RequestAsk("r", (DeviceAsk("r", (selector,), count),)),)),))


def nodes(count: int) -> list[NodeDevices]:
    """Nodes that differ by their names and UUIDs."""
    return [NodeDevices.of(a100_node(f"node-{number}", 2)) for number in range(count)]


def outcome_of(devices: NodeDevices, asked: DevicesAsked) -> Allocation | str | None:
    try:
        return _allocate(devices, asked)
    except Fault as fault:
        return type(fault).__name__


def test_what_is_remembered_is_what_a_search_finds() -> None:
    """Everybody's claims on everybody's nodes, many of them alike, with one memory for all."""
    memory = Allocations()
    cases = [random_case(Random(seed)) for seed in range(40)]
    wishes = [asked for _, asked in cases]
    for devices, _ in cases:
        for asked in wishes[::4]:
            searched = outcome_of(devices, asked)
            for again in (devices, replace(devices)):
                found = memory.best(again, asked)
                assert (type(found).__name__ if isinstance(found, Fault) else found) == searched


def test_selectors_are_asked_once_about_devices_that_are_alike() -> None:
    memory, profile = Allocations(), Counted(f"{DRIVER}/profile")
    found = [memory.best(node, asking(profile.selector)) for node in nodes(20)]
    assert len(set(map(id, found))) == 1
    assert profile.num_asked == 7  # six profiles, and none


def test_a_selector_that_reads_the_uuid_is_asked_on_each_node() -> None:
    memory, uuid = Allocations(), Counted(f"{DRIVER}/uuid")
    found = [memory.best(node, asking(uuid.selector)) for node in nodes(3)]
    assert len(set(map(id, found))) == 3
    assert uuid.num_asked == 3 * 2 + 1  # whole GPUs by their UUID, and all partitions, which have none


def test_what_is_taken_and_what_is_alike_count() -> None:
    kind = f"{DRIVER}/type"
    memory, anything = Allocations(), Counted(kind)
    free = nodes(1)[0]
    whole = asking(Selector("whole", lambda device: device.attributes[kind] == "gpu", frozenset({kind})), 2)
    assert isinstance(memory.best(free, asking(anything.selector)), Allocation)
    assert isinstance(memory.best(free, whole), Allocation)
    assert memory.best(free.taking([Taking(1)]), whole) is None
    changed = replace(free.inventory.devices[0], consumes=((0, 2),))
    dearer = Inventory((changed, *free.inventory.devices[1:]), free.inventory.counters)
    assert memory.best(NodeDevices.of(dearer), whole) is None


def test_devices_without_counters_that_are_taken_count() -> None:
    memory, kind = Allocations(), Counted(f"{DRIVER}/type")
    free = NodeDevices.of(a100_node("node", 2, mig=False))
    assert isinstance(memory.best(free, asking(kind.selector, 2)), Allocation)
    assert memory.best(free.taking([Taking(1)]), asking(kind.selector, 2)) is None


def test_which_devices_are_alike_to_a_constraint_counts() -> None:
    """Two nodes whose GPUs differ only in where they are on one NUMA node, by an attribute that no selector reads."""
    ask = RequestAsk("r", (DeviceAsk("r", (), 2),))
    together = DevicesAsked((ClaimAsk((ask,), (Constraint("d/socket"),)),))
    memory = Allocations()
    for sockets, names in (((0, 1, 1), {1, 2}), ((0, 0, 1), {0, 1}), ((5, 6, 6), {1, 2}), ((0, 1, 2), None)):
        devices = tuple(
            Device(DeviceId("d", "pool", str(index)), {"d/socket": socket}) for index, socket in enumerate(sockets)
        )
        found = memory.best(NodeDevices.of(Inventory(devices)), together)
        assert not isinstance(found, Fault)
        assert (found and {taking.device for taking in found.takings}) == names


def test_a_fault_is_an_outcome() -> None:
    def fails(device: Device) -> bool:
        if device.attributes[f"{DRIVER}/type"] == "gpu":
            raise SelectorFault("no such key")
        return True

    found = Allocations().best(nodes(1)[0], asking(Selector("fails", fails, frozenset({f"{DRIVER}/type"}))))
    assert isinstance(found, SelectorFault)
    assert found.__traceback__ is None


def test_a_memory_pickles_as_empty() -> None:
    memory, profile = Allocations(Weights({"1g.5gb": 2.0})), Counted(f"{DRIVER}/profile")
    memory.best(nodes(1)[0], asking(profile.selector))
    copy = pickle.loads(pickle.dumps(memory))  # noqa: S301
    assert len(pickle.dumps(memory)) < 500
    assert isinstance(copy.best(nodes(1)[0], asking(profile.selector)), Allocation)


def test_inventories_that_are_gone_are_forgotten() -> None:
    memory, profile = Allocations(), Counted(f"{DRIVER}/profile")
    for number in range(5):
        memory.best(NodeDevices.of(a100_node(f"node-{number}", 1)), asking(profile.selector))
    assert memory.num_inventories == 0
