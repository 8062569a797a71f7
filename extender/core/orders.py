"""Queue order of waiting jobs: by priority, then by age or least expected work.

The service's queue and the simulator share these functions.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Final

_PATIENCE: Final = 10.0
"""Order `kerf`: a job yields to jobs that arrive within this many times its expected GPU time."""
HELD_MOST_S: Final = 365 * 86400.0
"""Default bound: later jobs overtake a job only if they arrive within this many seconds."""


class Order(StrEnum):
    """Order among jobs of equal priority."""

    FIFO = "fifo"
    KERF = "kerf"
    """By age plus a bounded delay proportional to the expected GPU time, so that no job starves."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A waiting job: a pod or a gang."""

    key: str
    priority: int
    since: float
    """Unix time of its creation, so that restarts don't change the order."""
    held_s: float = 0.0
    """Delay from `hold_s`; 0 in the order `fifo`."""
    owner: str = ""
    """Namespace, for fair share."""
    share: float = 0.0
    """GPUs requested by the whole job, over the weight of its namespace."""

    @property
    def due(self) -> float:
        """Unix time that orders jobs of equal priority, smallest first."""
        return self.since + self.held_s


def hold_s(expected_s: float, gpus: float, most_s: float) -> float:
    """Seconds by which a job is delayed in the order `kerf`: jobs go by `since + hold_s`.

    A large `_PATIENCE` approaches least expected GPU time first, which minimises the mean time to completion (Smith's
    rule with equal weights). `most_s` bounds it: only jobs that arrive within `most_s` overtake.
    """
    return min(_PATIENCE * expected_s * gpus, most_s)


def _effective_priority(waiting: WaitingJob, now: float, ageing_s: float) -> float:
    """Priority plus one for each `ageing_s` past the job's `due` time, so that no job starves; 0 for no ageing."""
    overdue = max(0.0, now - waiting.due)
    return waiting.priority + (overdue // ageing_s if ageing_s > 0 else 0.0)


def ordered(
    waiting: Sequence[WaitingJob],
    now: float,
    *,
    ageing_s: float = 0.0,
    shares: dict[str, float] | None = None,
) -> list[WaitingJob]:
    """The queue order: highest effective priority, then the namespace with the smallest share, then the smallest `due`.

    `shares` maps each namespace to its GPUs in use over its weight, None for no fair share. Each job taken raises its
    namespace's share at once, so that a burst of one namespace does not precede the first job of another.
    """

    def rank(item: WaitingJob) -> tuple[float, float, str]:
        return (-_effective_priority(item, now, ageing_s), item.due, item.key)

    in_order = sorted(waiting, key=rank)
    if shares is None:
        return in_order
    result: list[WaitingJob] = []
    used = dict(shares)
    for _, equals in groupby(in_order, key=lambda item: _effective_priority(item, now, ageing_s)):
        queues: dict[str, deque[WaitingJob]] = {}
        for item in equals:
            queues.setdefault(item.owner, deque()).append(item)
        heads = [(used.get(owner, 0.0), queue[0].due, owner) for owner, queue in queues.items()]
        heapify(heads)
        while heads:
            share, _, owner = heads[0]
            first = queues[owner].popleft()
            result.append(first)
            used[owner] = share + max(first.share, 1e-3)
            if queues[owner]:
                heapreplace(heads, (used[owner], queues[owner][0].due, owner))
            else:
                heappop(heads)
    return result
