"""Which devices do for a request, whoever has them now.

A selector is asked once about devices that are alike in all that it reads.
"""

from collections.abc import Sequence
from typing import Final

from extender.core.dra.asks import DeviceAsk, Fault, Selector, Toleration
from extender.core.dra.consumption import consumption_of
from extender.core.dra.devices import Amount, Device, Taint

Match = tuple[tuple[str, Amount], ...] | None | Fault
"""What a request takes of a device's capacities, None where the device does not do; or why that can't be told."""

DRIVER: Final = "driver"
"""What a selector reads that looks at the driver's name."""

_STEPS_A_SELECTOR: Final = 20
"""Asking a selector takes about as long as so many steps of a search, besides its own."""

MAX_STEPS: Final = 100_000
"""Of one search for one pod on one node: about a tenth of a second."""


class SearchLimit(Fault):
    """The search has taken too many steps."""


class Steps:
    """Counts down. Raises SearchLimit when there are none left."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.limit = limit
        self.left = limit

    def take(self, steps: int = 1) -> None:
        """Take some steps."""
        self.left -= steps
        if self.left < 0:
            raise SearchLimit(f"the search has taken {self.limit} steps")


def match_of(device: Device, ask: DeviceAsk) -> Match:
    """Whether a device does, in the order in which kube-scheduler asks: class, selectors, capacity."""
    return Matcher().match(device, ask, Steps())


class Matcher:
    """Remembers what selectors have said. Bounded: it forgets all when it is full."""

    def __init__(self, bound: int = 100_000) -> None:
        self._bound = bound
        self._said: dict[tuple[str, object], bool | Fault] = {}

    def match(self, device: Device, ask: DeviceAsk, steps: Steps) -> Match:
        """Whether a device does. Raises SearchLimit where too many selectors had to be asked."""
        try:
            for selector in ask.selectors:
                said = self._ask(selector, device, steps)
                if isinstance(said, Fault):
                    return said
                if not said:
                    return None
            return consumption_of(device, ask.capacity)
        except Fault as fault:
            if steps.left < 0:
                raise
            return fault

    def meets(self, selector: Selector, device: Device, steps: Steps) -> bool:
        """Whether a device meets one condition; no where that fails. Raises SearchLimit."""
        return self._ask(selector, device, steps) is True

    def _ask(self, selector: Selector, device: Device, steps: Steps) -> bool | Fault:
        key = selector.expression, contents(device, selector.reads)
        said = self._said.get(key)
        if said is None:
            steps.take(_STEPS_A_SELECTOR + selector.cost)
            try:
                said = selector.matches(device)
            except Fault as fault:
                # Without the frames that it came through: they would stay in memory.
                said = fault.with_traceback(None)
            if len(self._said) >= self._bound:
                self._said.clear()
            self._said[key] = said
        return said


def contents(device: Device, reads: frozenset[str] | None) -> object:
    """All of a device that somebody who reads some attributes and capacities can tell from another; None reads all."""
    if reads is None:
        attributes = tuple(sorted((name, type(value), value) for name, value in device.attributes.items()))
        return device.id.driver, device.shareable, attributes, tuple(sorted(device.capacity.items()))
    return device.id.driver, device.shareable, tuple(read(device, name) for name in sorted(reads - {DRIVER}))


def read(device: Device, name: str) -> object:
    """What a selector finds under a name: an attribute, a capacity, or both."""
    domain, _, short = name.partition("/")
    value = device.attributes.get(name)
    capacity = device.capacity.get(name)
    if capacity is None and domain == device.id.driver:
        capacity = device.capacity.get(short)
    return type(value), value, capacity and capacity.value


def tolerates(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Whether all taints that keep claims off a device are put up with."""
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
