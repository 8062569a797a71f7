"""What the claims of each namespace may cost: whoever asks what takes long to find waits, and nobody else."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.fit.device_fits import steps_taken

_STEPS: Final = 3_000_000
"""Of searches for the claims of a namespace, of about a microsecond, before it has to wait."""
_A_SECOND: Final = _STEPS / 60
"""That are given back."""
_MAX_WAIT_S: Final = 300.0
"""However much has been spent."""
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class Budgets:
    """Counts the steps of searches against the namespaces that asked for them."""

    clock: Callable[[], float] = time.monotonic
    steps_of: Callable[[DevicesAsked], int] = steps_taken
    _charged: dict[DevicesAsked, int] = field(default_factory=dict, init=False)
    """Steps that were charged to somebody, by what is asked."""
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """By namespace: steps that are not given back yet, at which time."""

    def charge(self, asked: Iterable[tuple[str, DevicesAsked]]) -> None:
        """Charge what was spent since the last time: to the first namespace that asks it."""
        if len(self._charged) > _MAX_KNOWN:
            self._charged.clear()
        for namespace, ask in asked:
            taken = self.steps_of(ask)
            before = self._charged.get(ask, 0)
            if taken == before:
                continue
            self._charged[ask] = taken
            most = _STEPS + _MAX_WAIT_S * _A_SECOND
            left = self._left(namespace) + (taken - before if taken > before else taken)
            self._spent[namespace] = min(left, most), self.clock()

    def is_spent(self, namespace: str) -> bool:
        """Whether a namespace has to wait."""
        return self._left(namespace) > _STEPS

    def _left(self, namespace: str) -> float:
        """Steps that are not given back yet."""
        steps, at = self._spent.get(namespace, (0.0, 0.0))
        left = max(steps - (self.clock() - at) * _A_SECOND, 0.0)
        if not left:
            self._spent.pop(namespace, None)
        return left
