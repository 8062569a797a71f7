"""The fewest new nodes by which pods that have no room would have one.

New nodes come in groups of one shape, as a node pool has them. How many of each are needed is found by the planner
itself: a search over the numbers of nodes, each tried by placing all pods where a live decision would put them.

Axis letter beside those of the plans: S groups of new nodes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from extender.core.clusters import Mask
from extender.planning.plan_state import PlanState
from extender.planning.rounds import place_unit

Unit = Sequence[int]
"""Positions of pods that are placed all or none."""
Counts = tuple[int, ...]
"""(S,) nodes of each group."""
Cost = tuple[int, ...]
"""What is compared first comes first; that of several nodes is the sum."""

_MOST_TRIES: Final = 2_000
"""Numbers of nodes that are tried for a proof."""


@dataclass(frozen=True, slots=True)
class Group:
    """New nodes that are all alike, and empty."""

    rows: tuple[int, ...]
    """Of the view, in the order in which they are used."""
    cost: Cost
    """Of one; as long for every group."""


@dataclass(frozen=True, slots=True)
class Missing:
    """New nodes by which all pods would be placed that new nodes can help at all."""

    counts: Counts
    unplaced: tuple[Unit, ...]
    """Units that not even all nodes of all groups would help."""
    proven: bool
    """Whether all cheaper numbers were tried: else there may be some that do."""


@dataclass(eq=False)
class _Search:
    """Tries numbers of nodes on a state, which it leaves as it was."""

    state: PlanState
    units: Sequence[Unit]
    old: Mask
    """(N,) nodes that there are."""
    groups: Sequence[Group]
    enough: Callable[[], bool]
    """Whether time is up: what is known to do by then is not made less."""
    known: dict[Counts, frozenset[int]] = field(default_factory=dict)

    def placed(self, counts: Counts) -> frozenset[int]:
        """The units, by their place in `units`, that would have room with so many nodes."""
        found = self.known.get(counts)
        if found is None:
            begun = self.state.num_steps
            found = self.known[counts] = self.place(counts)
            self.state.undo(begun)
        return found

    def places(self, counts: Counts, wanted: frozenset[int]) -> bool:
        """Whether all units wanted would have room with so many nodes; the first that has none ends the try."""
        if counts in self.known:
            return wanted <= self.known[counts]
        begun, allowed = self.state.num_steps, self._allowed(counts)
        found = all(place_unit(self.state, self.units[number], allowed) for number in sorted(wanted))
        self.state.undo(begun)
        return found

    def place(self, counts: Counts) -> frozenset[int]:
        """As `placed`, and the units stay placed."""
        allowed = self._allowed(counts)
        placed: list[int] = []
        full: set[object] = set()
        for number, unit in enumerate(self.units):
            first = self.state.pods[unit[0]]
            alike = None if first.gang else self.state.view.alike(first)
            if alike in full:
                continue
            if place_unit(self.state, unit, allowed):
                placed.append(number)
            elif alike is not None:
                full.add(alike)
        return frozenset(placed)

    def _allowed(self, counts: Counts) -> Mask:
        """(N,) the nodes that there are, and so many new ones."""
        allowed = self.old.copy()
        for group, count in zip(self.groups, counts, strict=True):
            allowed[list(group.rows[:count])] = True
        return allowed

    def cost(self, counts: Counts) -> Cost:
        """Of so many nodes."""
        lengths = range(len(self.groups[0].cost)) if self.groups else ()
        return tuple(
            sum(group.cost[at] * count for group, count in zip(self.groups, counts, strict=True)) for at in lengths
        )

    def reduced(self, counts: Counts, order: Iterable[int], wanted: frozenset[int]) -> Counts:
        """As few nodes of each group, in this order, as still place all units wanted."""
        for group in order:
            counts = self.least(counts, group, wanted)
        return counts

    def least(self, counts: Counts, group: int, wanted: frozenset[int]) -> Counts:
        """As few nodes of one group as still place all units wanted; those of `counts` do."""
        most, step = counts[group], 1
        low = -1  # too few
        while step - 1 < most and not wanted <= self.placed(_with(counts, group, step - 1)):
            if self.enough():
                return counts
            low, step = step - 1, 2 * step
        high = min(step - 1, most)
        while high - low > 1 and not self.enough():
            middle = (low + high) // 2
            if wanted <= self.placed(_with(counts, group, middle)):
                high = middle
            else:
                low = middle
        return _with(counts, group, high)


def missing_nodes(
    state: PlanState,
    units: Sequence[Unit],
    old: Mask,
    groups: Sequence[Group],
    enough: Callable[[], bool] = lambda: False,
) -> Missing:
    """The cheapest numbers of new nodes found by which all `units` get a node that new nodes can help.

    `state` has on it whatever has room already; with the nodes found the units are on it in the end. `old` (N,) are the
    nodes that there are; all others are of `groups`. For each group in turn: as many nodes of it as it has, and of the
    others, the dearest first, as few as will do, until each number is least; then nodes are exchanged for cheaper ones;
    then all that is cheaper still is tried, up to a bound. `enough` is asked between tries whether time is up: what is
    found by then is told.
    """
    search = _Search(state, units, old, groups, enough)
    every = tuple(len(group.rows) for group in groups)
    wanted = search.placed(every)
    best = every
    for kept in reversed(_dearest(groups)):
        counts = search.reduced(every, [*(other for other in _dearest(groups) if other != kept), kept], wanted)
        if best == every or search.cost(counts) < search.cost(best):
            best = counts
        if enough():
            break
    best, proven = _proven(search, _exchanged(search, best, wanted), wanted)
    search.place(best)
    return Missing(best, tuple(unit for number, unit in enumerate(units) if number not in wanted), proven)


def _exchanged(search: _Search, counts: Counts, wanted: frozenset[int]) -> Counts:
    """Cheaper numbers by exchanging some nodes of a group for others of another one, until there are none."""
    better = True
    while better:
        better = False
        for group, given_up, other in _exchanges(counts):
            if search.enough():
                return counts
            fewer = _with(counts, group, counts[group] - given_up)
            tried = search.least(_with(fewer, other, len(search.groups[other].rows)), other, wanted)
            if search.cost(tried) < search.cost(counts) and wanted <= search.placed(tried):
                counts, better = search.reduced(tried, _dearest(search.groups), wanted), True
                break
    return counts


def _exchanges(counts: Counts) -> list[tuple[int, int, int]]:
    """A group with nodes to give up, how many of them, and another group to take some of instead."""
    every = range(len(counts))
    return [
        (group, given_up, other)
        for group in every
        for given_up in sorted({1, 2, counts[group]})
        if given_up <= counts[group]
        for other in every
        if other != group
    ]


def _proven(search: _Search, best: Counts, wanted: frozenset[int]) -> tuple[Counts, bool]:
    """The cheapest numbers, by trying all cheaper ones in the order of their cost; and whether none was left out."""
    none = (0,) * len(best)
    open_, seen = [(search.cost(none), none)], {none}
    for _ in range(_MOST_TRIES):
        cost, counts = heappop(open_)
        if cost >= search.cost(best):
            return best, True
        if search.enough():
            break
        if search.places(counts, wanted):
            return counts, True
        for number, group in enumerate(search.groups):
            more = _with(counts, number, counts[number] + 1)
            if more not in seen and more[number] <= len(group.rows):
                seen.add(more)
                heappush(open_, (search.cost(more), more))
    return best, False


def _dearest(groups: Sequence[Group]) -> list[int]:
    return sorted(range(len(groups)), key=lambda group: groups[group].cost, reverse=True)


def _with(counts: Counts, group: int, count: int) -> Counts:
    return (*counts[:group], count, *counts[group + 1 :])


def alone(state: PlanState, position: int, row: int, most: int) -> int:
    """How many pods like one would have room on a node together, up to `most`."""
    begun, count = state.num_steps, 0
    while count < most and state.has_room(position, row):
        state.put(position, row)
        count += 1
    state.undo(begun)
    return count
