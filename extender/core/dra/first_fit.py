"""The allocation that kube-scheduler's allocator finds first: a copy of its search, in its order.

Follows `allocateOne` of `k8s.io/dynamic-resource-allocation/structured/internal/incubating` 1.37.2.
"""

from collections import Counter
from dataclasses import dataclass, field

from extender.core.dra.asks import Constraint, DeviceClaims, DeviceSpec, Fault, has_room
from extender.core.dra.devices import Amount, NodeDevices, Taking, Value
from extender.core.dra.slots import MAX_DEVICES, Match, SearchLimit, match_of, tolerates


class Aborted(Fault):
    """kube-scheduler fails the pod, regardless of other devices."""


Picked = tuple[int, DeviceSpec, Taking]
"""Claim index, request and what it gets."""


def first_fit(devices: NodeDevices, asked: DeviceClaims, max_steps: int = 20_000) -> list[Picked] | None:
    """What kube-scheduler would allocate, None for nothing.

    Raises Aborted where kube-scheduler fails the pod, SelectorFault or CapacityFault where it fails on a device, and
    SearchLimit after `max_steps`.
    """
    search = _Search(devices, asked, max_steps)
    search.check_all()
    try:
        return search.picked if search.request(0, 0) else None
    except _TooManyDevices as error:
        raise Aborted("more devices than a claim may have") from error


class _TooManyDevices(Exception):  # noqa: N818
    pass


@dataclass(slots=True)
class _Constrained:
    """A constraint and the values of the devices that it applies to."""

    constraint: Constraint
    values: list[tuple[type, Value]] = field(default_factory=list)

    def applies(self, ask: DeviceSpec) -> bool:
        names = self.constraint.requests
        return not names or ask.name in names or ask.name.partition("/")[0] in names

    def add(self, value: Value | None) -> bool:
        if value is None:
            return False
        typed = (type(value), value)
        if self.values and (self.constraint.distinct == (typed in self.values)):
            return False
        self.values.append(typed)
        return True


class _Search:
    def __init__(self, devices: NodeDevices, asked: DeviceClaims, max_steps: int) -> None:
        self.devices = devices
        self.asked = asked
        self.steps_left = max_steps
        self.picked: list[Picked] = []
        self.left = list(devices.left)
        self.allocating: Counter[tuple[int, int]] = Counter()  # by device and claim
        self.shares: dict[int, list[tuple[tuple[str, Amount], ...]]] = {}
        self.constrained = [[_Constrained(item) for item in claim.constraints] for claim in asked.claims]
        self.matches: dict[tuple[int, int], Match] = {}
        self.wanted_of: dict[int, list[int]] = {}
        pools = [device.id[:2] for device in devices.inventory.devices]
        overdrawn = {
            pool
            for pool, device in zip(pools, devices.inventory.devices, strict=True)
            if any(devices.left[counter] < 0 for counter, _ in device.consumes)
        }
        self.blocked = [
            bool(device.consumes) and pool in overdrawn
            for pool, device in zip(pools, devices.inventory.devices, strict=True)
        ]

    def match(self, ask: DeviceSpec, index: int) -> bool:
        key = id(ask), index
        if key not in self.matches:
            self.matches[key] = match_of(self.devices.inventory.devices[index], ask)
        match = self.matches[key]
        if isinstance(match, Exception):
            raise match
        return match is not None

    def check_all(self) -> None:
        """Count the requested devices beforehand, as kube-scheduler does. Raises Aborted."""
        for claim in self.asked.claims:
            least = 0
            for request in claim.requests:
                counts = []
                for ask in request.alternatives:
                    if not ask.count:
                        if not self.devices.inventory.complete:
                            raise Aborted("a pool is being updated")
                        indices = range(len(self.devices.inventory.devices))
                        self.wanted_of[id(ask)] = [index for index in indices if self.match(ask, index)]
                    counts.append(ask.count or len(self.wanted_of[id(ask)]))
                least += min(counts)
            if least > MAX_DEVICES:
                raise Aborted("more devices than a claim may have")

    def request(self, claim_idx: int, request_idx: int) -> bool:
        """Allocate a request and all after it."""
        if claim_idx == len(self.asked.claims):
            return True
        claim = self.asked.claims[claim_idx]
        if request_idx == len(claim.requests):
            try:
                return self.request(claim_idx + 1, 0)
            except _TooManyDevices:
                return False
        if len(claim.requests[request_idx].alternatives) == 1:
            return self.device(claim_idx, request_idx, claim.requests[request_idx].alternatives[0], 0, 0)
        all_too_many = True
        for ask in claim.requests[request_idx].alternatives:
            try:
                if self.device(claim_idx, request_idx, ask, 0, 0):
                    return True
                all_too_many = False
            except _TooManyDevices:
                continue
        if all_too_many:
            raise _TooManyDevices
        return False

    def device(self, claim_idx: int, request_idx: int, ask: DeviceSpec, position: int, start: int) -> bool:
        """Allocate the next device of a request and everything after it."""
        wanted = self.wanted_of.get(id(ask))
        count = ask.count if wanted is None else len(wanted)
        self.steps_left -= 1
        if self.steps_left < 0:
            raise SearchLimit
        if not count:
            return False
        if position == count:
            return self.request(claim_idx, request_idx + 1)
        if count - position > MAX_DEVICES - sum(claim == claim_idx for claim, _, _ in self.picked):
            raise _TooManyDevices
        candidates = range(start, len(self.devices.inventory.devices)) if wanted is None else wanted[position:][:1]
        for index in candidates:
            if wanted is None and (self._in_use(claim_idx, ask, index) or not self._fits(ask, index)):
                continue
            if not self._add(claim_idx, ask, index, wanted is not None):
                continue
            try:
                done = self.device(claim_idx, request_idx, ask, position + 1, index + 1)
            except BaseException:
                self._undo(claim_idx, ask, index)
                raise
            if done:
                return True
            self._undo(claim_idx, ask, index)
        return False

    def _in_use(self, claim_idx: int, ask: DeviceSpec, index: int) -> bool:
        if ask.admin:
            return self.allocating[index, claim_idx] > 0
        exclusive = not self.devices.inventory.devices[index].shareable or self.devices.is_whole(index)
        taken = exclusive and bool(self.devices.taken >> index & 1)
        return taken or any(self.allocating[index, claim] for claim in range(len(self.asked.claims)))

    def _fits(self, ask: DeviceSpec, index: int) -> bool:
        return self.match(ask, index) and self._has_room(ask, index)

    def _amounts(self, ask: DeviceSpec, index: int) -> tuple[tuple[str, Amount], ...]:
        match = self.matches[id(ask), index]
        return () if match is None or isinstance(match, Exception) else match

    def _has_room(self, ask: DeviceSpec, index: int) -> bool:
        amounts = self._amounts(ask, index)
        used = Counter(self.devices.used(index))
        for share in self.shares.get(index, ()):
            used.update(dict(share))
        return has_room(self.devices.inventory.devices[index], used, amounts)

    def _add(self, claim_idx: int, ask: DeviceSpec, index: int, must: bool) -> bool:
        """Allocate a device if counters, taints, constraints and capacities allow it."""
        device = self.devices.inventory.devices[index]
        if self._in_use(claim_idx, ask, index) or not self._draw(index):
            return False
        constrained = [item for item in self.constrained[claim_idx] if item.applies(ask)]
        added = 0
        if tolerates(ask.tolerations, device.taints):
            for item in constrained:
                if not item.add(device.attributes.get(item.constraint.attribute)):
                    break
                added += 1
            if added < len(constrained) and must:
                raise Aborted("a constraint keeps a request for all devices from one of them")
            if added == len(constrained) and self._has_room(ask, index):
                amounts = self._amounts(ask, index)
                if device.shareable:
                    self.shares.setdefault(index, []).append(amounts)
                else:
                    self.allocating[index, claim_idx] += 1
                self.picked.append((claim_idx, ask, Taking(index, amounts if device.shareable else ())))
                return True
        for item in constrained[:added]:
            item.values.pop()
        self._return(index)
        return False

    def _charged(self, index: int) -> bool:
        """Whether a device's counters are already consumed: parts of a shareable one consume them once."""
        if not self.devices.inventory.devices[index].shareable:
            return False
        return bool(self.devices.taken >> index & 1) or bool(self.shares.get(index))

    def _draw(self, index: int) -> bool:
        if self._charged(index):
            return True
        consumes = self.devices.inventory.devices[index].consumes
        if self.blocked[index] or any(self.left[counter] < amount for counter, amount in consumes):
            return False
        for counter, amount in consumes:
            self.left[counter] -= amount
        return True

    def _return(self, index: int) -> None:
        if not self._charged(index):
            for counter, amount in self.devices.inventory.devices[index].consumes:
                self.left[counter] += amount

    def _undo(self, claim_idx: int, ask: DeviceSpec, index: int) -> None:
        device = self.devices.inventory.devices[index]
        self.picked.pop()
        if device.shareable:
            self.shares[index].pop()
        else:
            self.allocating[index, claim_idx] -= 1
        for item in self.constrained[claim_idx]:
            if item.applies(ask):
                item.values.pop()
        self._return(index)
