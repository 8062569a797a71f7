"""The requests of a pod on one node: which devices do for each, and which of them are free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.dra.asks import DeviceAsk, DevicesAsked, Fault
from extender.core.dra.consumption import has_room
from extender.core.dra.demands import Amounts, Slot, applies, typed_value
from extender.core.dra.devices import NodeDevices
from extender.core.dra.matching import Match, tolerates

MAX_DEVICES: Final = 32
"""How many devices a claim may have (`AllocationResultsMaxSize`)."""

Matches = Mapping[DeviceAsk, Sequence[Match]]
"""Of each request: what it makes of each device, those behind that are not Kerf's to give."""


class AllFault(Fault):
    """A constraint may keep a request for all devices from one of them: kube-scheduler gives the pod up there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request and what its alternatives find on the node, None for one that is impossible by itself."""

    claim: int
    asks: tuple[DeviceAsk, ...]
    slots: tuple[Slot | None, ...]


def requests_of(devices: NodeDevices, asked: DevicesAsked, matches: Matches, blocked: int) -> list[Request]:
    """All requests of a pod, in kube-scheduler's order."""
    return [
        Request(
            claim_idx,
            request.alternatives,
            tuple(_slot(devices, claim_idx, ask, matches[ask], blocked) for ask in request.alternatives),
        )
        for claim_idx, claim in enumerate(asked.claims)
        for request in claim.requests
    ]


def _slot(devices: NodeDevices, claim: int, ask: DeviceAsk, matches: Sequence[Match], blocked: int) -> Slot | None:
    found = devices.inventory.devices
    does: dict[int, Amounts] = {
        index: match if found[index].shareable else ()
        for index, match in enumerate(matches[: len(found)])
        if match is not None and not isinstance(match, Fault)
    }
    free = {index: amounts for index, amounts in does.items() if _is_open(devices, index, ask, amounts, blocked)}
    if ask.count:
        return Slot(claim, ask, does, free, ask.count) if ask.count <= len(free) else None
    beyond = any(match is not None for match in matches[len(found) :])
    if beyond or not devices.inventory.complete or not does or len(free) < len(does):
        return None
    return Slot(claim, ask, does, free, len(does))


def _is_open(devices: NodeDevices, index: int, ask: DeviceAsk, amounts: Amounts, blocked: int) -> bool:
    device, taken = devices.inventory.devices[index], bool(devices.taken >> index & 1)
    if taken and not ask.admin and (not device.shareable or devices.is_whole(index)):
        return False
    if not tolerates(ask.tolerations, device.taints):
        return False
    if device.shareable and not has_room(device, devices.used(index), amounts):
        return False
    if not device.consumes or (device.shareable and taken):
        return True
    return not blocked >> index & 1 and all(devices.left[counter] >= amount for counter, amount in device.consumes)


# What kube-scheduler may give the pod up for


def faults_of(devices: NodeDevices, asked: DevicesAsked, requests: Sequence[Request], matches: Matches) -> Fault | None:
    """What kube-scheduler may give the pod up for though something is possible, None when no order of it gets there.

    It does so for a selector that fails, and for an amount that it can't count, on a device that it asks about: for a
    request for all devices that is every one, for others each one that is not taken. And where a constraint keeps a
    request for all devices from one of them.
    """
    for request in requests:
        for ask in request.asks:
            faults = [match for match in matches[ask] if isinstance(match, Fault)]
            if faults and not ask.count:
                return faults[0]
    for position, request in enumerate(requests):
        for ask in request.asks:
            fault = _reached_fault(devices, ask, matches[ask])
            if fault is None and not ask.count:
                fault = _all_fault(devices, asked, requests[: position + 1], ask, matches)
            if fault is not None:
                return fault
    return None


def _reached_fault(devices: NodeDevices, ask: DeviceAsk, matches: Sequence[Match]) -> Fault | None:
    for index, device in enumerate(devices.inventory.devices):
        match = matches[index]
        if isinstance(match, Fault) and (ask.admin or device.shareable or not devices.taken >> index & 1):
            return match
    return None


def _all_fault(
    devices: NodeDevices, asked: DevicesAsked, until: Sequence[Request], ask: DeviceAsk, matches: Matches
) -> Fault | None:
    """Whether a constraint may keep a request for all from one of its devices, after what others before it have."""
    claim = until[-1].claim
    found = devices.inventory.devices
    wanted = [index for index in range(len(found)) if isinstance(matches[ask][index], tuple)]
    for constraint in asked.claims[claim].constraints:
        if not applies(constraint, ask):
            continue
        values = [typed_value(found[index], constraint.attribute) for index in wanted]
        num_values = len(set(values))
        clash = None in values or (num_values < len(values) if constraint.distinct else num_values > 1)
        others = {
            typed_value(found[index], constraint.attribute)
            for request in until[:-1]
            if request.claim == claim
            for other in request.asks
            if applies(constraint, other)
            for index in range(len(found))
            if isinstance(matches[other][index], tuple)
        } - {None}
        if clash or (others & set(values) if constraint.distinct else others - set(values)):
            return AllFault(f"{constraint.attribute} may keep {ask.name} from one of its devices")
    return None
