"""What the room that is left on a GPU is worth: by the partitions that could still be taken of it.

The worth of a group of devices that share counters, such as all partitions of one GPU, is

    V(state) = scale x (sum over kinds of w(kind) x n(kind, state) / n(kind, free)  /  sum over kinds of w(kind))^2

with n(kind, state) the most devices of a kind that can be had at once, so that a free GPU is worth `scale`, and one of
which nothing more can be had is worth nothing. The square makes the first part that is taken of a GPU dearer than the
next: those that are begun are filled. Without it small partitions were spread over free GPUs, and requests that come
and go needed more GPUs than by first fit (docs/research/simulator.md). It is a potential: what an allocation costs is
what V falls by. A device
that shares no counters is a group of its own, worth its scale until it is taken; one that several claims may have parts
of is worth by how many halves, quarters and eighths of it are left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.devices import WHOLE, Amount, Device
from extender.core.dra.matching import Steps

GPU: Final = 1_000_000_000
"""A whole GPU, the largest of its node: worth is counted in billionths of one, so that sums are exact."""

_PARTS: Final = (1, 2, 4, 8)
_MAX_STEPS: Final = 500
_STEPS_A_STEP: Final = 4
"""How many of its steps are as much work as one of the search for an allocation."""

Left = tuple[Amount, ...]
Consumes = tuple[tuple[int, Amount], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much the room for a kind of partition is worth; those of a mix of requests are learned."""

    by_kind: Mapping[str, float] = field(default_factory=dict)
    """By the name of a kind (`kind_of`)."""
    default: float = 1.0
    """Of all others."""

    def of(self, kind: str) -> float:
        """The weight of a kind."""
        return self.by_kind.get(kind, self.default)


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of a group that ask for room alike."""

    name: str
    weight: float
    members: tuple[int, ...]
    """Their places in the group."""
    most: int
    """How many of them can be had at once while none is taken."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is worth something in a group of devices that share counters."""

    consumes: tuple[Consumes, ...]
    """Of each device: (place of the counter in the group, how much)."""
    kinds: tuple[Kind, ...]
    scale: int
    """Its worth while it is free, in billionths of a GPU."""


def kind_of(device: Device) -> str:
    """The name of a device's kind: the profile of a MIG partition, else its share of compute and memory."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    return profile if isinstance(profile, str) else f"{device.milli}m/{device.mib}Mi"


def room_of(
    devices: Sequence[Device], consumes: tuple[Consumes, ...], free: Left, scale: int, weights: Weights
) -> Room:
    """The room of a group of devices, whose counters have so much while none is taken."""
    alike: dict[tuple[str, tuple[Amount, ...]], list[int]] = {}
    for place, device in enumerate(devices):
        amounts = tuple(sorted(amount for _, amount in consumes[place]))
        alike.setdefault((kind_of(device), amounts), []).append(place)
    kinds = []
    for (name, _), places in alike.items():
        weight = weights.of(name)
        most = most_at_once(consumes, places, free)
        if most and weight > 0:
            kinds.append(Kind(name, weight, tuple(places), most))
    return Room(consumes, tuple(kinds), scale)


def worth_of(room: Room, taken: int, left: Left, steps: Steps | None = None) -> int:
    """V of a group of which the devices in a bit mask are taken, in billionths of a GPU. Raises SearchLimit."""
    total = sum(kind.weight for kind in room.kinds)
    if not total or not room.scale:
        return 0
    share = 0.0
    for kind in room.kinds:
        places = [place for place in kind.members if not taken >> place & 1]
        share += kind.weight * min(most_at_once(room.consumes, places, left, steps), kind.most) / kind.most
    return round(room.scale * (share / total) ** 2)


def worth_of_parts(scale: int, used: Mapping[str, Amount], device: Device) -> int:
    """V of a device that several claims may have parts of, in billionths of a GPU."""
    if WHOLE[0][0] in used:
        return 0
    left = min((1 - used.get(name, 0) / item.value for name, item in device.capacity.items() if item.value), default=0)
    return round(scale * sum(int(left * part) / part for part in _PARTS) / len(_PARTS)) if left > 0 else 0


def most_at_once(consumes: Sequence[Consumes], places: Sequence[int], left: Left, budget: Steps | None = None) -> int:
    """The most of some devices that what is left of the counters is enough for, by a search that tries all sets.

    After 500 steps it is more than that, at most all of them. Raises SearchLimit where the budget is used up.
    """
    room = list(left)
    fitting = [place for place in places if all(room[counter] >= amount for counter, amount in consumes[place])]
    best, steps = 0, 0

    def search(index: int, num_taken: int) -> None:
        nonlocal best, steps
        best = max(best, num_taken)
        steps += 1
        if num_taken + len(fitting) - index <= best or steps > _MAX_STEPS:
            return
        takes = consumes[fitting[index]]
        if all(room[counter] >= amount for counter, amount in takes):
            for counter, amount in takes:
                room[counter] -= amount
            search(index + 1, num_taken + 1)
            for counter, amount in takes:
                room[counter] += amount
        search(index + 1, num_taken)

    search(0, 0)
    if budget is not None:
        budget.take(1 + steps // _STEPS_A_STEP)
    return best if steps <= _MAX_STEPS else len(fitting)
