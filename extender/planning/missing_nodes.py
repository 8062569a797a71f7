"""Finds the fewest new nodes on which pods without room would fit.

New nodes come in groups of one shape, like node pools. The search varies the number of nodes per group, and checks
each combination by placing all pods as a live decision would.

Axis letter beside those of `plans`: S groups of new nodes.
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
"""Compared lexicographically; costs of nodes add up by element."""

_MAX_TRIES: Final = 2_000
"""Most combinations tried to prove that no cheaper one works."""


@dataclass(frozen=True, slots=True)
class Group:
    """Identical, empty new nodes."""

    rows: tuple[int, ...]
    """Rows of the view, in the order in which they are used."""
    cost: Cost
    """Cost of one node; equally long for every group."""


@dataclass(frozen=True, slots=True)
class Missing:
    """New nodes with which all pods would be placed that new nodes can help."""

    counts: Counts
    unplaced: tuple[Unit, ...]
    """Units that would not fit even with all nodes of all groups."""
    proven: bool
    """Whether all cheaper combinations were tried; otherwise a cheaper one may work."""


@dataclass(eq=False)
class _Search:
    """Tries numbers of nodes on a plan state; only `place` leaves units on it."""

    state: PlanState
    units: Sequence[Unit]
    old: Mask
    """(N,) existing nodes."""
    groups: Sequence[Group]
    expired: Callable[[], bool]
    """Whether time is up: the search then keeps its best result so far."""
    known: dict[Counts, frozenset[int]] = field(default_factory=dict)

    def placed(self, counts: Counts) -> frozenset[int]:
        """Indices of the units that would have room with these numbers of nodes."""
        placed = self.known.get(counts)
        if placed is None:
            begun = self.state.num_steps
            placed = self.known[counts] = self.place(counts)
            self.state.undo(begun)
        return placed

    def places(self, counts: Counts, wanted: frozenset[int]) -> bool:
        """Whether all wanted units would have room with these numbers of nodes; stops at the first that has none."""
        if counts in self.known:
            return wanted <= self.known[counts]
        begun, allowed = self.state.num_steps, self._allowed(counts)
        fit = all(place_unit(self.state, self.units[number], allowed) for number in sorted(wanted))
        self.state.undo(begun)
        return fit

    def place(self, counts: Counts) -> frozenset[int]:
        """Like `placed`, but leaves the units on the state."""
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
        """(N,) the existing nodes and these numbers of new ones."""
        allowed = self.old.copy()
        for group, count in zip(self.groups, counts, strict=True):
            allowed[list(group.rows[:count])] = True
        return allowed

    def cost(self, counts: Counts) -> Cost:
        """The cost of these numbers of nodes."""
        lengths = range(len(self.groups[0].cost)) if self.groups else ()
        return tuple(
            sum(group.cost[at] * count for group, count in zip(self.groups, counts, strict=True)) for at in lengths
        )

    def reduced(self, counts: Counts, order: Iterable[int], wanted: frozenset[int]) -> Counts:
        """Reduce each group, in this order, to the fewest nodes with which all wanted units fit."""
        for group in order:
            counts = self.least(counts, group, wanted)
        return counts

    def least(self, counts: Counts, group: int, wanted: frozenset[int]) -> Counts:
        """Reduce one group to the fewest nodes with which all wanted units fit; with `counts` they do."""
        most, step = counts[group], 1
        low = -1  # too few
        while step - 1 < most and not wanted <= self.placed(_with(counts, group, step - 1)):
            if self.expired():
                return counts
            low, step = step - 1, 2 * step
        high = min(step - 1, most)
        while high - low > 1 and not self.expired():
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
    expired: Callable[[], bool] = lambda: False,
) -> Missing:
    """The cheapest numbers of new nodes found with which all `units` fit that new nodes can help.

    `state` holds the pods that fit already, and the units too on return. `old` (N,) marks the existing nodes; all
    others belong to `groups`. The search starts from all nodes and reduces the groups, once for each group to keep
    longest, the most expensive others first. It then exchanges nodes for cheaper ones, and last tries all cheaper
    combinations up to a bound. Between tries it checks `expired`, and then returns the best result so far.
    """
    search = _Search(state, units, old, groups, expired)
    every = tuple(len(group.rows) for group in groups)
    wanted = search.placed(every)
    best = every
    for kept in reversed(_by_cost(groups)):
        counts = search.reduced(every, [*(other for other in _by_cost(groups) if other != kept), kept], wanted)
        if best == every or search.cost(counts) < search.cost(best):
            best = counts
        if expired():
            break
    best, proven = _proven(search, _exchanged(search, best, wanted), wanted)
    search.place(best)
    return Missing(best, tuple(unit for number, unit in enumerate(units) if number not in wanted), proven)


def _exchanged(search: _Search, counts: Counts, wanted: frozenset[int]) -> Counts:
    """Replace nodes of one group by cheaper ones of another, until nothing gets cheaper."""
    better = True
    while better:
        better = False
        for group, given_up, other in _exchanges(counts):
            if search.expired():
                return counts
            fewer = _with(counts, group, counts[group] - given_up)
            tried = search.least(_with(fewer, other, len(search.groups[other].rows)), other, wanted)
            if search.cost(tried) < search.cost(counts) and wanted <= search.placed(tried):
                counts, better = search.reduced(tried, _by_cost(search.groups), wanted), True
                break
    return counts


def _exchanges(counts: Counts) -> list[tuple[int, int, int]]:
    """Triples: group to give up nodes of, how many, and the group that replaces them."""
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
    """The cheapest numbers, by trying all cheaper ones in order of cost; and whether all of them were tried."""
    none = (0,) * len(best)
    open_, seen = [(search.cost(none), none)], {none}
    for _ in range(_MAX_TRIES):
        cost, counts = heappop(open_)
        if cost >= search.cost(best):
            return best, True
        if search.expired():
            break
        if search.places(counts, wanted):
            return counts, True
        for number, group in enumerate(search.groups):
            more = _with(counts, number, counts[number] + 1)
            if more not in seen and more[number] <= len(group.rows):
                seen.add(more)
                heappush(open_, (search.cost(more), more))
    return best, False


def _by_cost(groups: Sequence[Group]) -> list[int]:
    """Group numbers, the most expensive first."""
    return sorted(range(len(groups)), key=lambda group: groups[group].cost, reverse=True)


def _with(counts: Counts, group: int, count: int) -> Counts:
    return (*counts[:group], count, *counts[group + 1 :])


def max_copies(state: PlanState, position: int, row: int, most: int) -> int:
    """How many copies of a pod fit on a node together, up to `most`."""
    begun, count = state.num_steps, 0
    while count < most and state.has_room(position, row):
        state.put(position, row)
        count += 1
    state.undo(begun)
    return count
