"""Whose turn it is to be asked about: few in a round, those of the queue first, and no namespace takes all turns."""

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import Final

from extender.explain.defrag_policy.waits import Wait
from extender.kube.turns import LastTurns

_MOST_ASKED: Final = 4
"""Pods and gangs asked about in a round; each question is a search of seconds."""
_MOST_OF_NAMESPACE: Final = 2
_MOST_KEPT: Final = 4_000


class AskingTurns:
    """When which namespace had its last turn, bounded."""

    def __init__(self) -> None:
        self._last = LastTurns(_MOST_KEPT)

    def next(self, waits: Iterable[Wait], known: Set[str], now: float) -> Iterator[Wait]:
        """Those of a round, one after the other: for whom a place can be kept, then who is only told; each by priority.

        Of equal priority a namespace comes first that was not asked about for longest: no crowd takes all turns.
        `known` are UIDs of pods about which an answer has told already, and may grow meanwhile.
        """
        asked, of_namespace = 0, Counter[str]()
        for wait in sorted(waits, key=self._order):
            if asked >= _MOST_ASKED:
                return
            if of_namespace[wait.namespace] >= _MOST_OF_NAMESPACE or not known.isdisjoint(wait.uids):
                continue
            asked, of_namespace[wait.namespace] = asked + 1, of_namespace[wait.namespace] + 1
            self._last.take(wait.namespace, now)
            yield wait

    def _order(self, wait: Wait) -> tuple[bool, int, float]:
        return not wait.queued, -wait.priority, self._last.of(wait.namespace)
