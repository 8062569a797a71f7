"""In which order jobs that wait are looked at: priority, then age; or, where wanted, least expected work first.

The service's queue and the simulator order by these very functions.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Final

_PATIENCE: Final = 10.0
"""In the order `kerf`, how many times its expected GPU time a job gives way to jobs that come after it."""
HELD_MOST_S: Final = 365 * 86400.0
"""By default a job is overtaken only by those that came at most so long after it."""


class Order(StrEnum):
    """How equals in priority are ordered."""

    FIFO = "fifo"
    KERF = "kerf"
    """By age, held back in proportion to the expected GPU time: nobody is overtaken for ever."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits: a pod, or a gang."""

    key: str
    priority: int
    since: float
    """Unix time of its creation: restarts don't change the order."""
    held_s: float = 0.0
    """How far it is held back, by `hold_s`; 0 in the order `fifo`."""
    owner: str = ""
    """Namespace, for fair share."""
    share: float = 0.0
    """GPUs asked, a gang's all together, over the weight of its namespace."""

    @property
    def due(self) -> float:
        """Unix time by which its turn is told: among equals the smaller goes first."""
        return self.since + self.held_s


def hold_s(expected_s: float, gpus: float, most_s: float) -> float:
    """How much later than a job another one may come that asks for next to nothing, and still go first.

    Jobs then go by `since + hold_s`. With a large PATIENCE that is least expected GPU time first, which lowers the
    mean time to completion (Smith's rule, each job weighing the same); and since it is bounded, a job is overtaken
    only by those that came at most `most_s` after it.
    """
    return min(_PATIENCE * expected_s * gpus, most_s)


def _effective_priority(waiting: Waiting, now: float, ageing_s: float) -> float:
    """Priority and one more for each `ageing_s` that a job's turn is overdue, so that nobody waits for ever.

    0 for no ageing.
    """
    overdue = max(0.0, now - waiting.due)
    return waiting.priority + (overdue // ageing_s if ageing_s > 0 else 0.0)


def ordered(
    waiting: Sequence[Waiting],
    now: float,
    *,
    ageing_s: float = 0.0,
    shares: dict[str, float] | None = None,
) -> list[Waiting]:
    """Highest effective priority first; among equals the namespace with the smallest share, then whose turn is due.

    `shares` gives each namespace's GPUs in use over its weight; each pod taken counts for its namespace at once, so
    that a burst of one does not go before the first of another. None for no fair share.
    """

    def rank(item: Waiting) -> tuple[float, float, str]:
        return (-_effective_priority(item, now, ageing_s), item.due, item.key)

    in_order = sorted(waiting, key=rank)
    if shares is None:
        return in_order
    result: list[Waiting] = []
    used = dict(shares)
    for _, equals in groupby(in_order, key=lambda item: _effective_priority(item, now, ageing_s)):
        queues: dict[str, deque[Waiting]] = {}
        for item in equals:
            queues.setdefault(item.owner, deque()).append(item)
        turns = [(used.get(owner, 0.0), queue[0].due, owner) for owner, queue in queues.items()]
        heapify(turns)
        while turns:
            share, _, owner = turns[0]
            first = queues[owner].popleft()
            result.append(first)
            used[owner] = share + max(first.share, 1e-3)
            if queues[owner]:
                heapreplace(turns, (used[owner], queues[owner][0].due, owner))
            else:
                heappop(turns)
    return result
