"""Ceilings: what no policy can allocate more than, whatever it does, by a configuration LP over the pods at hand."""

import numpy as np

from extender.ranking.prices import MAX_ROUNDS, PricesError, prices
from model.workloads.workloads import Workload


def ceiling(offered: Workload, load: int = 100) -> float | None:
    """Percent of the GPUs at an arrived load that no policy passes, None where that load is never reached.

    Places the arrived pods that ask for GPUs on the empty nodes, in fractions and all at once. `allocation_curve` gives
    a load the mean over the arrivals that round to it: the optimum is concave in what has arrived, so that of the mean
    arrival is no less. None too where the LP finds no optimum: half a bound is none.
    """
    arrived = np.round(np.cumsum(offered.asked_milli) / offered.num_gpus / 10).astype(np.int64)
    at = np.flatnonzero(arrived == load)
    if not len(at):
        return None
    present = np.clip((at[-1] + 1 - np.arange(at[-1] + 1)) / len(at), 0.0, 1.0)  # part of those arrivals that saw each
    asks = offered.asks
    count = np.bincount(offered.classes[: at[-1] + 1], weights=present, minlength=len(asks.cpu_milli))
    try:
        found = prices(offered.nodes, asks, np.where(asks.num_gpus > 0, count, 0.0))
    except PricesError:
        return None
    return None if found.num_rounds == MAX_ROUNDS else 100 * found.bound / offered.num_gpus
