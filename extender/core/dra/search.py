"""Which devices meet a set of demands at the least loss: groups of devices one after the other, states of demand met.

After each group there is a table of what may still be needed: for each rest of the demands (and, under constraints,
the values that are in use) the cheapest way to have come to it. Groups that are alike offer the same ways, so that
many GPUs make few states: 16 partitions of 8 GPUs have 17.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.dra.devices import Device, Inventory
from extender.core.dra.groups import Group
from extender.core.dra.matching import SearchLimit, Steps
from extender.core.dra.packing import Values, Way
from extender.core.dra.slots import Asked, Typed, typed_value

LINK: Final = "resource.kubernetes.io/pcieRoot"
NUMA: Final = ("numaNode", "numa")
_State = tuple[tuple[int, ...], Values]
"""(D,) devices that are still needed, and the values in use under each constraint."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A way for a group, and what was chosen before."""

    group: Group
    way: Way
    before: "Chosen | None"

    def __iter__(self) -> Iterator[tuple[Group, Way]]:
        chosen: Chosen | None = self
        while chosen is not None:
            yield chosen.group, chosen.way
            chosen = chosen.before


Offer = tuple[Group, tuple[Way, ...]]


def cheapest(asked: Asked, offers: Sequence[Offer], steps: Steps) -> tuple[int, Chosen | None] | None:
    """The cost of the cheapest choice of ways that meets all demands, and the choice. None when there is none.

    Of equals that which takes the first devices. Raises SearchLimit.
    """
    needed = tuple(demand.count for demand in asked.demands)
    offers = _useful(offers, sum(needed))
    supply = _supply(offers, len(needed))
    effort = 1 + len(needed) // 4  # of trying one way
    start: _State = needed, tuple(frozenset[Typed]() for _ in asked.values)
    table: dict[_State, tuple[int, Chosen | None]] = {start: (0, None)} if _met(needed, supply[0]) else {}
    for number, (group, ways) in enumerate(offers):
        after = {state: entry for state, entry in table.items() if _met(state[0], supply[number + 1])}
        for state, (cost, chosen) in table.items():
            steps.take(len(ways) * effort)
            for way in ways:
                reached = _reached(asked, state, way)
                if reached is None or not _met(reached[0], supply[number + 1]):
                    continue
                known = after.get(reached)
                if known is None or cost + way.cost < known[0]:
                    after[reached] = cost + way.cost, Chosen(group, way, chosen)
        table = after
    ends = [entry for state, entry in table.items() if not any(state[0])]
    return min(ends, key=lambda entry: entry[0]) if ends else None


def closest(
    asked: Asked, inventory: Inventory, offers: Sequence[Offer], found: tuple[int, Chosen | None], steps: Steps
) -> Chosen | None:
    """Of the choices that cost as little as the one found, one whose devices are together; the one found where none is.

    Together is on one PCIe root, or else one NUMA node: of several that which has least besides.
    """
    cost, chosen = found
    groups = [group for group, _ in chosen or ()]
    if len(groups) < 2:
        return chosen
    for attribute in (LINK, *NUMA):
        links = {id(group): _link(inventory, group, attribute) for group, _ in offers}
        if len({links[id(group)] for group in groups}) == 1:
            return chosen
        of_link: dict[Typed, list[Offer]] = {}
        for group, ways in offers:
            link = links[id(group)]
            if link is not None:
                of_link.setdefault(link, []).append((group, ways))
        for together in sorted(of_link.values(), key=len):
            try:
                better = cheapest(asked, together, steps)
            except SearchLimit:
                return chosen
            if better is not None and better[0] <= cost:
                return better[1]
    return chosen


def _useful(offers: Sequence[Offer], needed: int) -> list[Offer]:
    """The offers without those that can't count: of equal ones at most as many as devices are needed."""
    seen: dict[int, int] = {}
    useful = []
    for group, ways in offers:
        seen[id(ways)] = seen.get(id(ways), 0) + 1
        if ways and seen[id(ways)] <= needed:
            useful.append((group, ways))
    return useful


def _supply(offers: Sequence[Offer], num_demands: int) -> list[tuple[int, ...]]:
    """(offers + 1, D) the most that each demand can get from an offer on."""
    supply = [(0,) * num_demands]
    for _, ways in reversed(offers):
        most = [max(way.given[demand] for way in ways) for demand in range(num_demands)]
        supply.append(tuple(before + more for before, more in zip(supply[-1], most, strict=True)))
    return supply[::-1]


def _met(needed: Sequence[int], supply: Sequence[int]) -> bool:
    return all(need <= most for need, most in zip(needed, supply, strict=True))


def _reached(asked: Asked, state: _State, way: Way) -> _State | None:
    """What is needed after taking a way, None where it gives too much or the constraints are against it."""
    needed, values = state
    left = tuple(need - given for need, given in zip(needed, way.given, strict=True))
    if min(left) < 0:
        return None
    if not values:
        return left, values
    joined = []
    for distinct, before, more in zip(asked.distinct, values, way.values, strict=True):
        if before and more and (distinct == bool(before & more)):
            return None
        joined.append(before | more)
    return left, tuple(joined)


def _link(inventory: Inventory, group: Group, attribute: str) -> Typed | None:
    """What the devices of a group are linked to, None where that is not the same for all."""
    links = {_linked(inventory.devices[index], attribute) for index in group.members}
    return links.pop() if len(links) == 1 else None


def _linked(device: Device, attribute: str) -> Typed | None:
    return typed_value(device, attribute if "/" in attribute else f"{device.id.driver}/{attribute}")
