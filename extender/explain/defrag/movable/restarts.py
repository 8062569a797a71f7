"""How long pods of an owner take to work again once they are moved: as long as those of its pods took that run now.

Nothing is kept for it: every question reads all pods anyway, and who may be moved runs.
"""

from collections.abc import Iterable
from statistics import median
from typing import Final

from extender.explain.defrag.movable.residents import Resident
from extender.plugins.pods import owner_of

_LEAST: Final = 0.25
_MOST: Final = 16.0
"""Of the time that others are thought to take: within that alone a workload's own starts speak for or against it."""


def restart_times(residents: Iterable[Resident], otherwise_s: float) -> dict[str, float]:
    """Seconds by owner, as `owner_of` tells it: the median of its pods' starts, bounded by LEAST and MOST times
    `otherwise_s`, which is meant where an owner is missing.

    Starts beyond that are left out: so long ago as it was, a pod may have been ready before, and unready since.
    """
    starts: dict[str, list[float]] = {}
    for pod, _, _, start_s in residents:
        if start_s is not None and start_s <= _MOST * otherwise_s and pod.metadata.controller is not None:
            starts.setdefault(owner_of(pod.metadata), []).append(start_s)
    return {owner: max(median(found), _LEAST * otherwise_s) for owner, found in starts.items()}
