"""How long a pod is expected to run: learned from finished pods of the same owner, never from the pod's own future."""

from collections import OrderedDict, deque
from statistics import median
from typing import Final

_KEPT: Final = 16
_MAX_OWNERS: Final = 10_000


class Durations:
    """The last run times by owner: a pod's own key first (its Job or template), then its namespace.

    The median of the last 16: a crash or a hang among them moves it little. The clock is the caller's.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def finished(self, owners: tuple[str, ...], seconds: float) -> None:
        """A pod of these owners, narrowest first, has run so long."""
        if not 0 <= seconds < float("inf"):
            return
        for owner in owners:
            known = self._known.setdefault(owner, deque(maxlen=_KEPT))
            self._known.move_to_end(owner)
            known.append(seconds)
            if len(self._known) > _MAX_OWNERS:
                self._known.popitem(last=False)

    def expected_s(self, owners: tuple[str, ...]) -> float:
        """The estimate by the narrowest owner of whom something is known; inf when nothing is."""
        for owner in owners:
            known = self._known.get(owner)
            if known:
                return median(known)
        return float("inf")

    @property
    def num_owners(self) -> int:
        """Owners of whom something is known."""
        return len(self._known)
