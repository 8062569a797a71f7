"""The interface of the part that counts GPU-hours."""

from collections.abc import Callable
from typing import Protocol

from extender.core.clusters import Floats
from extender.explain.rates import Occupants
from extender.explain.stranded import Stranding


class CountsGpuHours(Protocol):
    """Knows how long holders have been idle, and how much is stranded."""

    @property
    def occupants(self) -> Occupants:
        """Which holders have which GPUs now."""

    @property
    def stranding(self) -> Stranding | None:
        """Computes stranded capacity; None on standbys."""

    @property
    def idle_after_s(self) -> float:
        """Seconds after which a pod is reported as idle."""

    def idle_s(self, now: float, num_holders: int) -> Floats:
        """(U,) seconds for which each holder has been idle; NaN for busy ones."""


def stranding_in(counts: Callable[[], CountsGpuHours | None]) -> Callable[[], Stranding | None]:
    """A function that returns the current Stranding, or None if GPU-hours are not counted."""
    return lambda: None if (counter := counts()) is None else counter.stranding
