"""Upper bounds of the allocation of any policy, by a configuration LP."""

from typing import Final

import numpy as np

from extender.ranking.prices import MAX_ROUNDS, PricesError, prices
from model.workloads.workloads import Workload

_MISSING: Final = 1e-6


def ceiling(offered: Workload, load: int = 100, num_placed: int = 0) -> float | None:
    """Upper bound of the allocated percent at an arrived load, for policies that place the first `num_placed` arrivals.

    The LP places the arrived pods that request GPUs on the empty nodes, fractionally and all at once, and all of the
    first arrivals, also those without GPUs. (A policy that refuses nothing places all pods before the first that does
    not fit.) `allocation_curve` averages over the arrivals that round to a load; the optimum is concave in them, so the
    LP uses their mean. None if the load is never reached, or the LP finds no optimum.
    """
    arrived = np.round(np.cumsum(offered.asked_milli) / offered.num_gpus / 10).astype(np.int64)
    at = np.flatnonzero(arrived == load)
    if not len(at):
        return None
    present = np.clip((at[-1] + 1 - np.arange(at[-1] + 1)) / len(at), 0.0, 1.0)  # fraction that saw each pod
    asks, num_classes = offered.asks, len(offered.asks.cpu_milli)
    classes = offered.classes[: at[-1] + 1]
    count = np.bincount(classes, weights=present, minlength=num_classes)
    weights = np.where(np.arange(len(classes)) < num_placed, present, 0.0)
    first = np.bincount(classes, weights=weights, minlength=num_classes).astype(np.float64)
    try:
        solution = prices(offered.nodes, asks, np.where(asks.num_gpus > 0, count, first), first)
    except PricesError:
        return None
    unsolved = solution.num_rounds == MAX_ROUNDS or solution.num_missing > _MISSING
    return None if unsolved else 100 * solution.bound / offered.num_gpus
