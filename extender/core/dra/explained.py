"""Texts about devices: why claims get none on a node, and which devices are free.

An obstacle is the fault of the request that gets least far. Each request is checked alone, in this order: conditions
and capacity, taints, number of matching devices, number of free ones. Only if each could be satisfied alone is the
combination of all at fault.
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
    DeviceClaims,
    DeviceSpec,
    Fault,
    RequestSpec,
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
    """A device's kind for display: the profile of a partition, "GPU", or the driver's `type` attribute."""
    profile = device.attributes.get(f"{device.id.driver}/profile")
    if isinstance(profile, str):
        return printable(profile)
    if device.gpu >= 0:
        return WHOLE if device.milli >= _ALL_MILLI else f"{device.milli} milli of a GPU"
    named = device.attributes.get(f"{device.id.driver}/type")
    return printable(named) if isinstance(named, str) else "device"


def free_of(devices: NodeDevices) -> dict[int, Counter[str]]:
    """Number of devices of each kind that can be allocated at once, largest first, by GPU (-1 for devices of none).

    Tainted devices are left out.
    """
    left, free = list(devices.left), dict[int, Counter[str]]()
    inventory = devices.inventory.devices
    order = sorted(enumerate(inventory), key=lambda item: (-item[1].milli, -item[1].mib, item[0]))
    for index, device in order:
        if not tolerates((), device.taints):
            continue
        if devices.taken >> index & 1:
            if device.shareable and _has_some(device, devices.used(index)):
                free.setdefault(device.gpu, Counter())[f"part of {kind_of(device)}"] += 1
            continue
        if any(left[counter] < amount for counter, amount in device.consumes):
            continue
        for counter, amount in device.consumes:
            left[counter] -= amount
        free.setdefault(device.gpu, Counter())[kind_of(device)] += 1
    return free


def _has_some(device: Device, used: Mapping[str, Amount]) -> bool:
    """Whether something is left of every capacity of a shareable device."""
    return all(used.get(name, 0) < capacity.value for name, capacity in device.capacity.items() if capacity.value)


def free_in_words(kinds: Mapping[str, int]) -> str:
    """Numbers of devices by kind as text: "2 GPUs, 3g.20gb, 2 x 1g.5gb", or "nothing"."""
    return ", ".join(_counted(kind, count) for kind, count in kinds.items()) or "nothing"


def total(counters: Iterable[Counter[str]]) -> Counter[str]:
    """The sum over all GPUs, whole GPUs first, otherwise in order of appearance."""
    summed: Counter[str] = Counter()
    for kinds in counters:
        summed.update(kinds)
    return Counter({kind: summed[kind] for kind in sorted(summed, key=lambda kind: kind != WHOLE)})


def _counted(kind: str, count: int) -> str:
    if kind == WHOLE:
        return WHOLE if count == 1 else f"{count} {WHOLE}s"
    return kind if count == 1 else f"{count} x {kind}"


_MAX_CHARS: Final = 160
_MAX_CONSTRAINTS: Final = 8
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti")

Best = Callable[[NodeDevices, DeviceClaims], Allocation | Fault | None]
"""Like `Allocations.best`."""


class Lack(IntEnum):
    """How far a request gets on a node; later is nearer to success."""

    UNTOLD = 0
    """Unknown: a selector fails, or the search takes too long."""
    CONDITIONS = 1
    """No device meets all conditions."""
    TAINTS = 2
    """All matching devices have untolerated taints."""
    NUMBER = 3
    """Too few devices match."""
    FREE = 4
    """Enough devices match, but too few are free."""
    TOGETHER = 5
    """Each request could be satisfied alone."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What a node lacks for claims. Devices are given by index, so that it applies to all equal nodes."""

    lack: Lack
    request: str
    """The request and its claim as text; "" for all requests."""
    text: str
    """What is lacking; "" for CONDITIONS, where the fields below give it."""
    nearest: int = -1
    """The device that meets most conditions."""
    conditions: tuple[str, ...] = ()
    met: tuple[bool, ...] = ()
    """Conditions that the nearest device meets."""
    met_by_some: tuple[bool, ...] = ()
    """Conditions that some device of the node meets."""
    num_matching: int = 0
    """Number of matching devices."""
    free: int = 0
    missing: int = 0
    """For FREE: number of further devices that would have to be free."""

    @property
    def nearness(self) -> tuple[int, int, int]:
        """Sort key: the larger, the nearer the node is to success."""
        if self.lack is Lack.CONDITIONS:
            return self.lack, sum(self.met), 0
        numbers = (self.num_matching, self.free) if self.lack is Lack.NUMBER else (self.free, self.num_matching)
        return self.lack, *numbers


def obstacle_of(devices: NodeDevices, asked: DeviceClaims, matcher: Matcher, best: Best) -> Obstacle:
    """Why claims get no allocation on a node."""
    steps = Steps(MAX_STEPS)
    try:
        obstacles = [
            _of_request(devices, _named(asked, number, request), request, matcher, steps)
            for number, claim in enumerate(asked.claims)
            for request in claim.requests
        ]
        worst = min(obstacles, key=lambda obstacle: obstacle.lack, default=_TOGETHER)
        if worst.lack < Lack.TOGETHER:
            return worst
        if any(amount < 0 for amount in devices.left):
            return Obstacle(
                Lack.FREE, "", "more of a pool is allocated than its driver publishes, so nothing of it is available"
            )
        num_free = sum(obstacle.free for obstacle in obstacles)
        return replace(_TOGETHER, text=_together(devices, asked, best), free=num_free)
    except Fault as fault:
        return Obstacle(Lack.UNTOLD, "", shown(str(fault)))


_TOGETHER: Final = Obstacle(Lack.TOGETHER, "", "")


def _named(asked: DeviceClaims, number: int, request: RequestSpec) -> str:
    name = f"request {shown(request.name)}"
    return name if len(asked.claims) == 1 else f"claim {number + 1} of {len(asked.claims)}, {name}"


def _of_request(devices: NodeDevices, name: str, request: RequestSpec, matcher: Matcher, steps: Steps) -> Obstacle:
    """What a request lacks, by its nearest alternative."""
    obstacles = []
    for ask in request.alternatives:
        obstacle = _of_ask(devices, ask, matcher, steps)
        alternative = f", alternative {shown(ask.name.partition('/')[2])}" if len(request.alternatives) > 1 else ""
        obstacles.append(replace(obstacle, request=name + alternative))
    return max(obstacles, key=lambda obstacle: obstacle.nearness)


def _of_ask(devices: NodeDevices, ask: DeviceSpec, matcher: Matcher, steps: Steps) -> Obstacle:
    inventory = devices.inventory
    matches = [matcher.match(device, ask, steps) for device in inventory.devices]
    fault = next((match for match in matches if isinstance(match, Fault)), None)
    matching = [index for index, match in enumerate(matches) if isinstance(match, tuple)]
    if not matching:
        if fault is not None:
            return Obstacle(Lack.UNTOLD, "", shown(str(fault)))
        return _no_device(inventory.devices, ask, matcher, steps)
    tolerated = [index for index in matching if tolerates(ask.tolerations, inventory.devices[index].taints)]
    if not tolerated:
        taints = inventory.devices[matching[0]].taints
        kept = ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints if taint.effect != "None")
        text = f"{_devices(len(matching), 'has', 'have')} taints that it does not tolerate: {shown(kept)}"
        return Obstacle(Lack.TAINTS, "", text, matching[0], num_matching=len(matching))
    free = sum(_is_open(devices, index, ask, matches[index]) for index in tolerated)
    if not ask.count:
        return _of_all(devices, ask, len(matching), free, len(matching) - len(tolerated), matcher, steps)
    numbers, num_matching = f"needs {_devices(ask.count)} of one node", len(tolerated)
    if ask.count > min(num_matching, MAX_DEVICES):
        return Obstacle(Lack.NUMBER, "", f"{numbers}, {num_matching} matching", num_matching=num_matching, free=free)
    lack = Lack.FREE if free < ask.count else Lack.TOGETHER
    text = f"{numbers}; {num_matching} matching, {free} free"
    return Obstacle(lack, "", text, num_matching=num_matching, free=free, missing=max(ask.count - free, 0))


def _of_all(
    devices: NodeDevices, ask: DeviceSpec, matching: int, free: int, tainted: int, matcher: Matcher, steps: Steps
) -> Obstacle:
    """What a request for all devices lacks."""
    inventory = devices.inventory
    beyond = sum(matcher.match(device, ask, steps) is not None for device in inventory.unavailable)
    texts = (
        (not inventory.complete, Lack.NUMBER, "asks for all devices, and a pool of the node can't be read now"),
        (beyond, Lack.NUMBER, f"asks for all devices, but Kerf does not allocate {beyond} of the matching ones"),
        (matching > MAX_DEVICES, Lack.NUMBER, f"asks for all {matching} devices, a claim has at most {MAX_DEVICES}"),
        (
            tainted,
            Lack.TAINTS,
            f"asks for all {matching} devices, {tainted} of which have taints that it does not tolerate",
        ),
    )
    for lacking, lack, text in texts:
        if lacking:
            return Obstacle(lack, "", text, num_matching=matching, free=free)
    lack = Lack.FREE if free < matching else Lack.TOGETHER
    text = f"needs all {matching} matching devices; {free} free"
    return Obstacle(lack, "", text, num_matching=matching, free=free, missing=matching - free)


def _is_open(devices: NodeDevices, index: int, ask: DeviceSpec, match: Match) -> bool:
    """Whether a matching device and its counters are free."""
    device, taken = devices.inventory.devices[index], bool(devices.taken >> index & 1)
    if taken and not device.shareable:
        return ask.admin
    if device.shareable and not has_room(device, devices.used(index), match if isinstance(match, tuple) else ()):
        return False
    if device.shareable and taken:
        return True
    return all(devices.left[counter] >= amount for counter, amount in device.consumes)


# Conditions


def _no_device(devices: Sequence[Device], ask: DeviceSpec, matcher: Matcher, steps: Steps) -> Obstacle:
    """The obstacle CONDITIONS: those that the nearest device meets, and those that some device meets."""
    selectors = [part for selector in ask.selectors for part in (selector.parts() or (selector,))]
    names = (*(shown(selector.expression) for selector in selectors), *(_capacity(*item) for item in ask.capacity))
    nearest, met, by_some = -1, [False] * len(names), [False] * len(names)
    for index, device in enumerate(devices):
        flags = [matcher.meets(selector, device, steps) for selector in selectors]
        flags += [_has(device, *item) for item in ask.capacity]
        by_some = [one or other for one, other in zip(by_some, flags, strict=True)]
        if sum(flags) > sum(met) or nearest < 0:
            nearest, met = index, flags
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


def in_words(obstacles: Iterable[tuple[str, Obstacle, NodeDevices]], more: int = 0) -> str:
    """A sentence with the obstacle of the nearest node, and a condition that no device of these nodes meets.

    `obstacles` are (node name, obstacle, devices); "" as name for a single node. `more` is the number of nodes not
    examined. The result does not depend on the order of nodes; "" for none.
    """
    examined = sorted(obstacles, key=lambda item: item[0])
    if not examined:
        return ""
    node, nearest, devices = max(examined, key=lambda item: item[1].nearness)  # ties break by name
    where = f"{nearest.request}: " if nearest.request else ""
    beyond = f" (of {len(examined)} nodes examined)" if more else ""
    if nearest.lack is not Lack.CONDITIONS:
        return f"{where}{nearest.text}{f' (node {node})' if node else ''}{beyond}"
    some = [
        any(flags) for flags in zip(*(one.met_by_some for _, one, _ in examined if _alike(one, nearest)), strict=True)
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


# Combination of all requests


def _together(devices: NodeDevices, asked: DeviceClaims, best: Best) -> str:
    """Why requests that could each be satisfied alone can't be satisfied together."""
    constraints = [
        (number, constraint) for number, claim in enumerate(asked.claims) for constraint in claim.constraints
    ]
    for number, constraint in constraints[:_MAX_CONSTRAINTS]:
        if isinstance(best(devices, _without(asked, number, constraint)), Allocation):
            free = " free" if isinstance(best(NodeDevices.of(devices.inventory), asked), Allocation) else ""
            what = "all differ" if constraint.distinct else "agree"
            return f"no{free} matching devices {what} in {shown(constraint.attribute)}, as a constraint requires"
    under = " under their constraints" if constraints else ""
    return f"the free devices can't all be allocated at once{under}: {_devices(asked.num_devices)} of one node needed"


def _without(asked: DeviceClaims, number: int, constraint: Constraint) -> DeviceClaims:
    claims = list(asked.claims)
    others = tuple(other for other in claims[number].constraints if other is not constraint)
    claims[number] = replace(claims[number], constraints=others)
    return DeviceClaims(tuple(claims))


# Words


def _devices(count: int, one: str = "", more: str = "") -> str:
    return f"{count} device{'' if count == 1 else 's'}" + (f" {one if count == 1 else more}" if one else "")


def shown(text: str) -> str:
    """Untrusted text on one line, printable and shortened."""
    text = " ".join(printable(text).split())
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."
