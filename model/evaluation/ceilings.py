"""Ceilings: what no policy can allocate more than, whatever it does, by a configuration LP over the pods at hand."""

from typing import Final

import numpy as np

from extender.ranking.prices import MAX_ROUNDS, PricesError, prices
from model.workloads.workloads import Workload

_MISSING: Final = 1e-6


def ceiling(offered: Workload, load: int = 100, num_placed: int = 0) -> float | None:
    """Percent of the GPUs at an arrived load that no policy passes which places the first `num_placed` arrivals, None
    where that load is never reached.

    Places the arrived pods that ask for GPUs on the empty nodes, in fractions and all at once; of the first arrivals
    all, those without GPUs too. A policy that refuses nothing places what comes before the first that it can't.
    `allocation_curve` gives a load the mean over the arrivals that round to it: the optimum is concave in what has
    arrived, so that of the mean arrival is no less. None too where the LP finds no optimum: half a bound is none.
    """
    arrived = np.round(np.cumsum(offered.asked_milli) / offered.num_gpus / 10).astype(np.int64)
    at = np.flatnonzero(arrived == load)
    if not len(at):
        return None
    present = np.clip((at[-1] + 1 - np.arange(at[-1] + 1)) / len(at), 0.0, 1.0)  # part of those arrivals that saw each
    asks, num_classes = offered.asks, len(offered.asks.cpu_milli)
    classes = offered.classes[: at[-1] + 1]
    count = np.bincount(classes, weights=present, minlength=num_classes)
    weights = np.where(np.arange(len(classes)) < num_placed, present, 0.0)
    first = np.bincount(classes, weights=weights, minlength=num_classes).astype(np.float64)
    try:
        found = prices(offered.nodes, asks, np.where(asks.num_gpus > 0, count, first), first)
    except PricesError:
        return None
    unknown = found.num_rounds == MAX_ROUNDS or found.num_missing > _MISSING
    return None if unknown else 100 * found.bound / offered.num_gpus
