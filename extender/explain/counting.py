"""What counts GPU-hours, as those see it who tell of pods: a part does."""

from collections.abc import Callable
from typing import Protocol

from extender.core.clusters import Floats
from extender.explain.rates import Occupants
from extender.explain.stranded import Stranding


class CountsGpuHours(Protocol):
    """Knows for how long holders have been idle, and what is stranded."""

    @property
    def occupants(self) -> Occupants:
        """Who has what now."""

    @property
    def stranding(self) -> Stranding | None:
        """What tells how much is stranded; None while others lead."""

    @property
    def idle_after_s(self) -> float:
        """For how long a pod has to be idle to be told of as such."""

    def idle_s(self, now: float, num_holders: int) -> Floats:
        """(U,) for how long each of so many holders has been idle; NaN for those that are not."""


def stranding_in(counts: Callable[[], CountsGpuHours | None]) -> Callable[[], Stranding | None]:
    """What tells how much is stranded, where GPU-hours are counted; `counts` is what counts them, if anything does."""
    return lambda: None if (found := counts()) is None else found.stranding
