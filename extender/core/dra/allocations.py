"""Allocations that are remembered: nodes that are alike in all that a pod's claims can tell are searched once.

Alike are nodes whose devices come in the same order with the same partitions, counters and capacities, equal in what
the selectors read, whose constraints' attributes are equal in the same places, and of which the same is taken. Names
and UUIDs do not count unless a selector reads them.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from extender.core.dra.allocator import Memory, matches_of, search
from extender.core.dra.asks import DevicesAsked, Fault
from extender.core.dra.devices import Device, Inventory, NodeDevices
from extender.core.dra.given import Allocation
from extender.core.dra.groups import Shape, shape_of
from extender.core.dra.matching import DRIVER, MAX_STEPS, Matcher, Steps, contents, read
from extender.core.dra.search import LINK, NUMA
from extender.core.dra.slots import Matches, typed_value
from extender.core.dra.worth import Weights, kind_of

_BOUND: Final = 100_000
_MAX_ASKED: Final = 1_000
_MAX_WAYS: Final = 5_000
"""Of groups of devices: those of one GPU may be a hundred."""
_MAX_SHAPES: Final = 10_000
_MAX_SPENT: Final = 4 * MAX_STEPS
"""Of all long searches for those who ask the same, whatever the number of nodes that are not alike: from then on they
get no long ones any more."""
_FEW_STEPS: Final = 2_000

Outcome = Allocation | None | Fault
_Thing = TypeVar("_Thing")


@dataclass(slots=True)
class _Seen:
    """What is known of an inventory."""

    structure: int
    """Equal where devices, partitions, counters and capacities are equal, place by place."""
    shape: Shape
    columns: dict[str, int] = field(default_factory=dict)
    """Equal where all devices have the same value, by attribute or capacity."""
    asked: dict[int, int] = field(default_factory=dict)
    """Equal where nodes are alike for those who ask something, by the number of what they ask."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What matters of the devices to those who ask something."""

    number: int
    reads: tuple[str, ...]
    reads_all: bool
    compared: tuple[str, ...]
    """Attributes of constraints."""


class Allocations:
    """The best allocations that were found. Bounded: it forgets all when it is full. Not thread-safe."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights()
        self._memory = Memory(self._weights)
        self._seen: WeakKeyDictionary[Inventory, _Seen] = WeakKeyDictionary()
        self._shapes: dict[int, Shape] = {}
        self._asked: dict[DevicesAsked, _Asked] = {}
        self._num_asked = 0
        self._spent: dict[int, int] = {}  # steps of long searches, by the number of what was asked
        self._taken: dict[DevicesAsked, int] = {}
        self._matches: dict[int, Matches] = {}
        self._outcomes: dict[object, Outcome] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Allocations, (self._weights,)

    def best(self, devices: NodeDevices, asked: DevicesAsked) -> Outcome:
        """The best allocation that is possible, None when none is, a Fault where that can't be told.

        As `allocator.search` has it, by the worth of rooms that this was made with.
        """
        known, seen, alike, key = self._keys(devices, asked)
        try:
            return self._outcomes[key]
        except KeyError:
            outcome = self._search(devices, asked, known, seen, alike)
        return _put(self._outcomes, key, outcome)

    def key(self, devices: NodeDevices, asked: DevicesAsked) -> Hashable:
        """Equal for nodes that are alike, with the same taken, for those who ask this."""
        return self._keys(devices, asked)[3]

    def steps_taken(self, asked: DevicesAsked) -> int:
        """Steps of all searches for those who ask this, since it became known."""
        return self._taken.get(asked, 0)

    @property
    def num_inventories(self) -> int:
        """How many inventories it knows: those that others still have."""
        return len(self._seen)

    @property
    def matcher(self) -> Matcher:
        """What selectors have said."""
        return self._memory.matcher

    def _keys(self, devices: NodeDevices, asked: DevicesAsked) -> tuple[_Asked, _Seen, int, Hashable]:
        seen = self._seen.get(devices.inventory) or self._see(devices.inventory)
        known = self._asked.get(asked) or self._know(asked)
        alike = seen.asked.get(known.number)
        if alike is None:
            alike = self._alike(devices.inventory, seen, known)
        parts = tuple(sorted(devices.parts.items())) if devices.parts else ()
        return known, seen, alike, (alike, devices.taken, devices.left, parts)

    def _search(self, devices: NodeDevices, asked: DevicesAsked, known: _Asked, seen: _Seen, alike: int) -> Outcome:
        memory = self._memory
        for table, bound in ((memory.ways, _MAX_WAYS), (memory.worths, _BOUND), (memory.rooms, _MAX_SHAPES)):
            if len(table) > bound:
                table.clear()
        spent = self._spent.get(known.number, 0)
        steps = Steps(MAX_STEPS if spent < _MAX_SPENT else _FEW_STEPS)
        try:
            matches = self._matches.get(alike)
            if matches is None:
                matches = _put(self._matches, alike, matches_of(devices, asked, memory.matcher, steps), _MAX_ASKED)
            return search(devices, asked, seen.shape, matches, memory, steps)
        except Fault as fault:
            return fault.with_traceback(None)  # the frames that it came through would stay in memory
        finally:
            took = steps.limit - steps.left
            _put(self._taken, asked, self._taken.get(asked, 0) + took, _MAX_ASKED)
            if took > _FEW_STEPS:
                _put(self._spent, known.number, spent + took)

    def _see(self, inventory: Inventory) -> _Seen:
        structure = self._memory.keys.of(_structure(inventory))
        shape = self._shapes.get(structure)
        if shape is None:
            shape = shape_of(inventory, self._weights, self._memory.keys, self._memory.rooms)
            _put(self._shapes, structure, shape, _MAX_SHAPES)
        seen = self._seen[inventory] = _Seen(structure, shape)
        return seen

    def _know(self, asked: DevicesAsked) -> _Asked:
        asks = [ask for claim in asked.claims for request in claim.requests for ask in request.alternatives]
        reads = {selector.reads for ask in asks for selector in ask.selectors}
        names = frozenset[str]().union(*(names for names in reads if names is not None)) - {DRIVER}
        compared = {constraint.attribute for claim in asked.claims for constraint in claim.constraints}
        known = _Asked(self._num_asked, tuple(sorted(names)), None in reads, tuple(sorted(compared)))
        self._num_asked += 1
        return _put(self._asked, asked, known, _MAX_ASKED)

    def _alike(self, inventory: Inventory, seen: _Seen, known: _Asked) -> int:
        devices = (*inventory.devices, *inventory.unavailable)
        columns = []
        for name in known.reads:
            column = seen.columns.get(name)
            if column is None:
                column = self._memory.keys.of(tuple(read(device, name) for device in devices))
                seen.columns[name] = column
            columns.append(column)
        if known.reads_all:
            columns.append(self._memory.keys.of(tuple(contents(device, None) for device in devices)))
        patterns = [_pattern(inventory.devices, (name,)) for name in known.compared]
        alike = self._memory.keys.of((known.number, seen.structure, *columns, *patterns))
        if len(seen.asked) >= _MAX_ASKED:
            seen.asked.clear()
        seen.asked[known.number] = alike
        return alike


def _structure(inventory: Inventory) -> object:
    """All that a search looks at besides what selectors read and constraints compare."""
    pools: dict[tuple[str, str], int] = {}
    return (
        tuple(
            (
                kind_of(device),
                device.milli,
                device.mib,
                device.shareable,
                device.consumes,
                device.taints,
                pools.setdefault((device.id.driver, device.id.pool), len(pools)),
                device.id.driver,
                tuple(sorted(device.capacity.items())),
            )
            for device in inventory.devices
        ),
        inventory.counters,
        tuple((device.id.driver, tuple(sorted(device.capacity.items()))) for device in inventory.unavailable),
        inventory.complete,
        _pattern(inventory.devices, (LINK,)),
        *(
            _pattern(inventory.devices, (f"{driver}/{name}",))
            for name in NUMA
            for driver in sorted({d for d, _ in pools})
        ),
    )


def _pattern(devices: Sequence[Device], names: Iterable[str]) -> tuple[int, ...]:
    """Which devices have the same value of an attribute, whatever it is; -1 for those that have none."""
    seen: dict[object, int] = {}
    pattern = []
    for name in names:
        for device in devices:
            value = typed_value(device, name)
            pattern.append(-1 if value is None else seen.setdefault(value, len(seen)))
    return tuple(pattern)


def _put(table: dict[Any, _Thing], key: object, thing: _Thing, bound: int = _BOUND) -> _Thing:
    if len(table) >= bound:
        table.clear()
    table[key] = thing
    return thing
