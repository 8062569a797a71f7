"""Cached allocations equal searched ones, and equal nodes are searched once."""

import pickle
from dataclasses import replace
from random import Random

from extender.core.dra.allocator import Allocation, Allocations, _allocate
from extender.core.dra.asks import Constraint, DeviceClaims, Fault, Selector, SelectorFault
from extender.core.dra.devices import Device, Inventory, NodeDevices, Taking
from extender.core.dra.packing import Weights
from tests.core.dra.cases import random_case
from tests.core.dra.machines import DRIVER, a100_node
from tests.core.fit.claims import ask, asked, device, having


class Counted:
    """A selector that counts its evaluations."""

    def __init__(self, reads: str) -> None:
        self.num_evaluated = 0
        self.selector = Selector(f"has({reads})", self._matches, frozenset({reads}))
        self._reads = reads

    def _matches(self, device: Device) -> bool:
        self.num_evaluated += 1
        return self._reads in device.attributes


def nodes(count: int) -> list[NodeDevices]:
    """Nodes that differ by name and UUIDs."""
    return [NodeDevices.of(a100_node(f"node-{number}", 2)) for number in range(count)]


def outcome_of(devices: NodeDevices, wanted: DeviceClaims) -> Allocation | str | None:
    try:
        return _allocate(devices, wanted)
    except Fault as fault:
        return type(fault).__name__


def test_cached_outcomes_equal_searched_ones() -> None:
    """All claims on all nodes, many of them alike, with one cache."""
    cache = Allocations()
    cases = [random_case(Random(seed)) for seed in range(40)]
    for devices, _ in cases:
        for _, wanted in cases[::4]:
            searched = outcome_of(devices, wanted)
            for again in (devices, replace(devices)):
                found = cache.best(again, wanted)
                assert (type(found).__name__ if isinstance(found, Fault) else found) == searched


def test_selectors_are_evaluated_once_for_equal_devices() -> None:
    for reads, num_nodes, num_outcomes, num_evaluated in (
        ("profile", 20, 1, 7),  # six profiles, and none
        ("uuid", 3, 3, 3 * 2 + 1),  # whole GPUs by their UUID, and all partitions, which have none
    ):
        cache, counted = Allocations(), Counted(f"{DRIVER}/{reads}")
        found = [cache.best(node, asked(ask(counted.selector))) for node in nodes(num_nodes)]
        assert len(set(map(id, found))) == num_outcomes
        assert counted.num_evaluated == num_evaluated


def test_taken_devices_and_counters_count() -> None:
    kind = f"{DRIVER}/type"
    cache, (free,) = Allocations(), nodes(1)
    whole = asked(ask(Selector("whole", lambda device: device.attributes[kind] == "gpu", frozenset({kind})), count=2))
    assert isinstance(cache.best(free, asked(ask(Counted(kind).selector))), Allocation)
    assert isinstance(cache.best(free, whole), Allocation)
    assert cache.best(free.taking([Taking(1)]), whole) is None
    changed = replace(free.inventory.devices[0], consumes=((0, 2),))
    dearer = Inventory((changed, *free.inventory.devices[1:]), free.inventory.counters)
    assert cache.best(NodeDevices.of(dearer), whole) is None
    without_counters = NodeDevices.of(a100_node("node", 2, mig=False))
    assert isinstance(cache.best(without_counters, whole), Allocation)
    assert cache.best(without_counters.taking([Taking(1)]), whole) is None


def test_attributes_of_constraints_count() -> None:
    """Nodes that differ only in an attribute that no selector reads."""
    together, cache = asked(ask(count=2), constraints=(Constraint("d/socket"),)), Allocations()
    for sockets, names in (((0, 1, 1), {1, 2}), ((0, 0, 1), {0, 1}), ((5, 6, 6), {1, 2}), ((0, 1, 2), None)):
        devices = (device(str(index), attributes={"d/socket": socket}) for index, socket in enumerate(sockets))
        found = cache.best(having(*devices), together)
        assert not isinstance(found, Fault)
        assert (found and {taking.device for taking in found.takings}) == names


def test_a_fault_is_an_outcome() -> None:
    def fails(device: Device) -> bool:
        if device.attributes[f"{DRIVER}/type"] == "gpu":
            raise SelectorFault("no such key")
        return True

    found = Allocations().best(nodes(1)[0], asked(ask(Selector("fails", fails, frozenset({f"{DRIVER}/type"})))))
    assert isinstance(found, SelectorFault)
    assert found.__traceback__ is None


def test_a_cache_pickles_as_empty_and_forgets_inventories_that_are_gone() -> None:
    cache, wanted = Allocations(Weights({"1g.5gb": 2.0})), asked(ask(Counted(f"{DRIVER}/profile").selector))
    for number in range(5):
        cache.best(NodeDevices.of(a100_node(f"node-{number}", 1)), wanted)
    assert cache.num_inventories == 0
    assert len(pickle.dumps(cache)) < 500
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert isinstance(copy.best(nodes(1)[0], wanted), Allocation)
