"""Whose turn it is, so that no namespace takes all turns."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")


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


def in_turn(items: Iterable[T], namespace_of: Callable[[T], str]) -> list[T]:
    """The first item of each namespace, then the second of each, and so on: whoever has thousands is no hindrance."""
    queues: dict[str, list[T]] = {}
    for item in items:
        queues.setdefault(namespace_of(item), []).append(item)
    if len(queues) < 2:
        return list(chain(*queues.values()))
    nothing = object()
    turns = chain.from_iterable(zip_longest(*queues.values(), fillvalue=nothing))
    return [item for item in turns if item is not nothing]  # type: ignore[misc]
