"""Whose turn it was last, so that no namespace takes all turns."""

from collections import OrderedDict


class LastTurns:
    """When it was each namespace's turn last: of so many, those whose turn it was longest ago are forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[str, float] = OrderedDict()

    def of(self, namespace: str) -> float:
        """When that was, minus infinity for never."""
        return self._last.get(namespace, float("-inf"))

    def take(self, namespace: str, now: float) -> None:
        """It is its turn."""
        self._last[namespace] = now
        self._last.move_to_end(namespace)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
