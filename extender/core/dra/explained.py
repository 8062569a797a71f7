"""What people are told of devices: why claims get none, and what is still to be had of a node.

What keeps a pod's claims from the devices of a node: the first request that comes off worst, and what it lacks.

Worked out for people, on nodes where the allocator has found nothing. A request is looked at by itself, in the order in
which it can fail: conditions, capacity, taints, how many do, how many of those are free. Only where each could be met
by itself it is a matter of all together.

What can still be had of a node's devices, in words: whole GPUs first, then of each GPU the largest partitions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from extender.core.dra.allocator import Allocation
from extender.core.dra.asks import (
    CapacityFault,
    Constraint,
    DeviceAsk,
    DevicesAsked,
    Fault,
    RequestAsk,
    consumption_of,
    has_room,
)
from extender.core.dra.devices import Amount, Device, NodeDevices
from extender.core.dra.slots import MAX_DEVICES, MAX_STEPS, Match, Matcher, Steps, tolerates
from extender.core.texts import printable

_ALL_MILLI: Final = 1000
WHOLE: Final = "GPU"
"""The kind of a device that is a whole GPU."""


def kind_of(device: Device) -> str:
    """What a device is called among its like: the profile of a partition, GPU, or the type that its driver names."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    if isinstance(profile, str):
        return printable(profile)
    if device.gpu >= 0:
        return WHOLE if device.milli >= _ALL_MILLI else f"{device.milli} milli of a GPU"
    named = device.attributes.get(f"{device.id.driver}/type")
    return printable(named) if isinstance(named, str) else "device"


def free_of(devices: NodeDevices) -> dict[int, Counter[str]]:
    """By GPU, -1 for devices of none: how many devices of each kind can be had at once, the largest first.

    Nobody has them, and nothing that they share counters with is in the way; tainted ones are left out.
    """
    left, found = list(devices.left), dict[int, Counter[str]]()
    inventory = devices.inventory.devices
    order = sorted(enumerate(inventory), key=lambda item: (-item[1].milli, -item[1].mib, item[0]))
    for index, device in order:
        if not tolerates((), device.taints):
            continue
        if devices.taken >> index & 1:
            if device.shareable and _has_some(device, devices.used(index)):
                found.setdefault(device.gpu, Counter())[f"part of {kind_of(device)}"] += 1
            continue
        if any(left[counter] < amount for counter, amount in device.consumes):
            continue
        for counter, amount in device.consumes:
            left[counter] -= amount
        found.setdefault(device.gpu, Counter())[kind_of(device)] += 1
    return found


def _has_some(device: Device, used: Mapping[str, Amount]) -> bool:
    """Whether something is left of every capacity of a device that several claims have parts of."""
    return all(used.get(name, 0) < capacity.value for name, capacity in device.capacity.items() if capacity.value)


def free_in_words(kinds: Mapping[str, int]) -> str:
    """How many of which kinds: "2 GPUs, 3g.20gb, 2 x 1g.5gb"; "nothing"."""
    return ", ".join(_counted(kind, count) for kind, count in kinds.items()) or "nothing"


def total(found: Iterable[Counter[str]]) -> Counter[str]:
    """All GPUs together: whole ones first, then as they come, the largest of each GPU first."""
    summed: Counter[str] = Counter()
    for kinds in found:
        summed.update(kinds)
    return Counter({kind: summed[kind] for kind in sorted(summed, key=lambda kind: kind != WHOLE)})


def _counted(kind: str, count: int) -> str:
    if kind == WHOLE:
        return WHOLE if count == 1 else f"{count} {WHOLE}s"
    return kind if count == 1 else f"{count} x {kind}"


_MAX_CHARS: Final = 160
_MAX_CONSTRAINTS: Final = 8
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti")

Best = Callable[[NodeDevices, DevicesAsked], Allocation | Fault | None]
"""As `Allocations.best`."""


class Lack(IntEnum):
    """How far a request gets on a node: the later, the nearer it is to being met."""

    UNTOLD = 0
    """It can't be told: a selector fails, or the search took too long."""
    CONDITIONS = 1
    """No device meets all its conditions."""
    TAINTS = 2
    """Those that do have taints that it does not tolerate."""
    NUMBER = 3
    """Fewer do than it asks for."""
    FREE = 4
    """Enough do, but are taken."""
    TOGETHER = 5
    """Each request could be met by itself."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What a node lacks. Devices are told by their index, so that it is the same for all nodes alike."""

    lack: Lack
    request: str
    """Which request of which claim, in words; "" for all of them."""
    text: str
    """What is lacking; for CONDITIONS worked out of what follows."""
    nearest: int = -1
    """The device that comes nearest."""
    conditions: tuple[str, ...] = ()
    met: tuple[bool, ...] = ()
    """Which conditions the nearest device meets."""
    met_by_some: tuple[bool, ...] = ()
    """Which of them any device of the node meets."""
    does: int = 0
    free: int = 0
    missing: int = 0
    """For FREE: how many more would have to be free."""

    @property
    def nearness(self) -> tuple[int, int, int]:
        """The larger, the nearer the node is to doing."""
        if self.lack is Lack.CONDITIONS:
            return self.lack, sum(self.met), 0
        numbers = (self.does, self.free) if self.lack is Lack.NUMBER else (self.free, self.does)
        return self.lack, *numbers


def obstacle_of(devices: NodeDevices, asked: DevicesAsked, matcher: Matcher, best: Best) -> Obstacle:
    """What keeps claims from a node on which nothing is possible for them now."""
    steps = Steps(MAX_STEPS)
    try:
        found = [
            _of_request(devices, _named(asked, number, request), request, matcher, steps)
            for number, claim in enumerate(asked.claims)
            for request in claim.requests
        ]
        worst = min(found, key=lambda obstacle: obstacle.lack, default=_TOGETHER)
        if worst.lack < Lack.TOGETHER:
            return worst
        if any(amount < 0 for amount in devices.left):
            return Obstacle(
                Lack.FREE, "", "more is allocated of a pool than its driver publishes: nobody gets any of it"
            )
        return replace(_TOGETHER, text=_together(devices, asked, best), free=sum(obstacle.free for obstacle in found))
    except Fault as fault:
        return Obstacle(Lack.UNTOLD, "", shown(str(fault)))


_TOGETHER: Final = Obstacle(Lack.TOGETHER, "", "")


def _named(asked: DevicesAsked, number: int, request: RequestAsk) -> str:
    name = f"request {shown(request.name)}"
    return name if len(asked.claims) == 1 else f"claim {number + 1} of {len(asked.claims)}, {name}"


def _of_request(devices: NodeDevices, name: str, request: RequestAsk, matcher: Matcher, steps: Steps) -> Obstacle:
    """What a request lacks; of alternatives that which comes nearest."""
    found = []
    for ask in request.alternatives:
        obstacle = _of_ask(devices, ask, matcher, steps)
        alternative = f", alternative {shown(ask.name.partition('/')[2])}" if len(request.alternatives) > 1 else ""
        found.append(replace(obstacle, request=name + alternative))
    return max(found, key=lambda obstacle: obstacle.nearness)


def _of_ask(devices: NodeDevices, ask: DeviceAsk, matcher: Matcher, steps: Steps) -> Obstacle:
    inventory = devices.inventory
    matches = [matcher.match(device, ask, steps) for device in inventory.devices]
    fault = next((match for match in matches if isinstance(match, Fault)), None)
    does = [index for index, match in enumerate(matches) if isinstance(match, tuple)]
    if not does:
        if fault is not None:
            return Obstacle(Lack.UNTOLD, "", shown(str(fault)))
        return _no_device(inventory.devices, ask, matcher, steps)
    tolerated = [index for index in does if tolerates(ask.tolerations, inventory.devices[index].taints)]
    if not tolerated:
        taints = inventory.devices[does[0]].taints
        kept = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints if taint.effect != "None")
        text = f"{_devices(len(does), 'has', 'have')} taints that it does not tolerate: {shown(kept)}"
        return Obstacle(Lack.TAINTS, "", text, does[0], does=len(does))
    free = sum(_is_open(devices, index, ask, matches[index]) for index in tolerated)
    if not ask.count:
        return _of_all(devices, ask, len(does), free, len(does) - len(tolerated), matcher, steps)
    numbers = f"needs {_devices(ask.count)} of one node"
    if ask.count > min(len(tolerated), MAX_DEVICES):
        return Obstacle(Lack.NUMBER, "", f"{numbers}, {len(tolerated)} would do", does=len(tolerated), free=free)
    lack = Lack.FREE if free < ask.count else Lack.TOGETHER
    text = f"{numbers}; {len(tolerated)} would do, {free} free"
    return Obstacle(lack, "", text, does=len(tolerated), free=free, missing=max(ask.count - free, 0))


def _of_all(
    devices: NodeDevices, ask: DeviceAsk, does: int, free: int, tainted: int, matcher: Matcher, steps: Steps
) -> Obstacle:
    """A request for all devices."""
    inventory = devices.inventory
    beyond = sum(matcher.match(device, ask, steps) is not None for device in inventory.unavailable)
    texts = (
        (not inventory.complete, Lack.NUMBER, "asks for all devices, and a pool of the node can't be read now"),
        (beyond, Lack.NUMBER, f"asks for all devices, and Kerf does not allocate {beyond} of those that would do"),
        (does > MAX_DEVICES, Lack.NUMBER, f"asks for all {does} devices, a claim has at most {MAX_DEVICES}"),
        (
            tainted,
            Lack.TAINTS,
            f"asks for all {does} devices, {tainted} of which have taints that it does not tolerate",
        ),
    )
    for lacking, lack, text in texts:
        if lacking:
            return Obstacle(lack, "", text, does=does, free=free)
    lack = Lack.FREE if free < does else Lack.TOGETHER
    text = f"needs all {does} devices that would do; {free} free"
    return Obstacle(lack, "", text, does=does, free=free, missing=does - free)


def _is_open(devices: NodeDevices, index: int, ask: DeviceAsk, match: Match) -> bool:
    """Whether nobody has a device, or what it is cut from, that would do."""
    device, taken = devices.inventory.devices[index], bool(devices.taken >> index & 1)
    if taken and not device.shareable:
        return ask.admin
    if device.shareable and not has_room(device, devices.used(index), match if isinstance(match, tuple) else ()):
        return False
    if device.shareable and taken:
        return True
    return all(devices.left[counter] >= amount for counter, amount in device.consumes)


# Conditions


def _no_device(devices: Sequence[Device], ask: DeviceAsk, matcher: Matcher, steps: Steps) -> Obstacle:
    """Which conditions the device meets that meets most of them, and which are met by some device."""
    selectors = [part for selector in ask.selectors for part in (selector.parts() or (selector,))]
    names = (*(shown(selector.expression) for selector in selectors), *(_capacity(*item) for item in ask.capacity))
    nearest, met, by_some = -1, [False] * len(names), [False] * len(names)
    for index, device in enumerate(devices):
        found = [matcher.meets(selector, device, steps) for selector in selectors]
        found += [_has(device, *item) for item in ask.capacity]
        by_some = [one or other for one, other in zip(by_some, found, strict=True)]
        if sum(found) > sum(met) or nearest < 0:
            nearest, met = index, found
    return Obstacle(Lack.CONDITIONS, "", "", nearest, names, tuple(met), tuple(by_some))


def _has(device: Device, name: str, amount: Amount) -> bool:
    try:
        return consumption_of(device, ((name, amount),)) is not None
    except CapacityFault:
        return False


def _capacity(name: str, amount: Amount) -> str:
    number, suffix = amount, ""
    for larger in _BINARY:
        if not number or number % 1024:
            break
        number, suffix = number // 1024, larger
    return f"{shown(name)} of {number}{suffix}"


def in_words(found: Iterable[tuple[str, Obstacle, NodeDevices]], more: int = 0) -> str:
    """The obstacle of the node that comes nearest, of some by name, with what no device of any of them meets.

    A node without a name is the only one. `more`: how many further nodes were not looked at. The same for the same
    nodes in any order; "" for none.
    """
    looked = sorted(found, key=lambda one: one[0])
    if not looked:
        return ""
    node, nearest, devices = max(looked, key=lambda one: one[1].nearness)  # the first of several
    where = f"{nearest.request}: " if nearest.request else ""
    beyond = f" (of {len(looked)} nodes looked at)" if more else ""
    if nearest.lack is not Lack.CONDITIONS:
        return f"{where}{nearest.text}{f' (node {node})' if node else ''}{beyond}"
    some = [
        any(flags) for flags in zip(*(one.met_by_some for _, one, _ in looked if _alike(one, nearest)), strict=True)
    ]
    lacking = [name for name, by_some in zip(nearest.conditions, some, strict=True) if not by_some]
    missed = [name for name, met in zip(nearest.conditions, nearest.met, strict=True) if not met]
    what = f"no device meets {lacking[0]}" if lacking else "no device meets all conditions at once"
    if nearest.nearest < 0:
        return f"{where}{what}{beyond}"
    device = printable(devices.inventory.devices[nearest.nearest].id.device)
    num_met, num = sum(nearest.met), len(nearest.conditions)
    which = f"meets {num_met} of {num} conditions" if num > 1 else "does not"
    fails = "" if lacking or not missed else f", all but {missed[0]}" if len(missed) == 1 else f", not {missed[0]}"
    of = f" of node {node}" if node else ""
    return f"{where}{what}; nearest: {device}{of}, which {which}{fails}{beyond}"


def _alike(one: Obstacle, other: Obstacle) -> bool:
    return one.request == other.request and one.conditions == other.conditions


# All together


def _together(devices: NodeDevices, asked: DevicesAsked, best: Best) -> str:
    """What is in the way where each request could be met by itself: a constraint, or that there are too few for all."""
    constraints = [
        (number, constraint) for number, claim in enumerate(asked.claims) for constraint in claim.constraints
    ]
    for number, constraint in constraints[:_MAX_CONSTRAINTS]:
        if isinstance(best(devices, _without(asked, number, constraint)), Allocation):
            free = " free" if isinstance(best(NodeDevices.of(devices.inventory), asked), Allocation) else ""
            what = "differ all" if constraint.distinct else "are alike"
            return f"no{free} devices that would do {what} in {shown(constraint.attribute)}, as a constraint wants"
    under = " under their constraints" if constraints else ""
    return (
        f"the devices that are free can't all be had at once{under}: {_devices(asked.num_devices)} of one node needed"
    )


def _without(asked: DevicesAsked, number: int, constraint: Constraint) -> DevicesAsked:
    claims = list(asked.claims)
    others = tuple(other for other in claims[number].constraints if other is not constraint)
    claims[number] = replace(claims[number], constraints=others)
    return DevicesAsked(tuple(claims))


# Words


def _devices(count: int, one: str = "", more: str = "") -> str:
    return f"{count} device{'' if count == 1 else 's'}" + (f" {one if count == 1 else more}" if one else "")


def shown(text: str) -> str:
    """What an author wrote, on one line, printable, and not too long."""
    text = " ".join(printable(text).split())
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."
