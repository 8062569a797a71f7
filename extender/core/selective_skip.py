"""Selective skip: a pod waits a little rather than harm allocation.

Two rules; how long and how often is for the caller to bound. One looks a step ahead: where exactly one node has room
for a larger pod that waits, and a smaller one put there would leave it none, that node is kept from the smaller one.
The other goes by prices: a share that takes more of a GPU's worth than its part gives way to others that wait.
"""

import numpy as np

from extender.core.bookings import book, bookable, booking
from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask
from extender.core.decisions import Decision
from extender.core.fit.fits import fit
from extender.core.resources.requests import GpuRequest


def is_larger(request: GpuRequest, than: GpuRequest) -> bool:
    """Whether a request asks for more compute than another; MIG devices compare with nothing."""
    if request.mig or than.mig:
        return False
    return _milli(request) > _milli(than)


def leaves_room(cluster: Cluster, decision: Decision, request: GpuRequest) -> bool:
    """Whether a request still fits the node of a decision once that is carried out. The decision has a node."""
    return bool(fit(_after(cluster, decision), request, np.zeros(1, np.intp)).fits[0])


def takes_more(worth: Floats, num_gpus: Longs, gpu_milli: Longs) -> Mask:
    """(C,) whether pods that ask for (C,) GPUs of (C,) milli each take more of a GPU's worth than their part of it.

    So does a share of 810 where nobody asks for the 190 that it leaves. `worth` (M, 1001) is that of what is left of
    a GPU by model (`features.Worth.left`), rows of models without a price are 0; models count alike. Whole GPUs
    leave nothing, and by plain worth nobody takes more.
    """
    priced = worth[worth[:, WHOLE_MILLI] > 0]
    if len(priced) == 0:
        return np.zeros(len(gpu_milli), bool)
    mean = priced.mean(axis=0)  # (1001,)
    share = (num_gpus == 1) & (gpu_milli > 0) & (gpu_milli < WHOLE_MILLI)
    taken = np.where(share, gpu_milli, 0)
    spoils: Mask = mean[WHOLE_MILLI] - mean[WHOLE_MILLI - taken] > taken / WHOLE_MILLI * mean[WHOLE_MILLI] * (1 + 1e-6)
    return spoils


def _milli(request: GpuRequest) -> int:
    return max(request.count, 1) * (request.milli or WHOLE_MILLI)


def _after(cluster: Cluster, decision: Decision) -> Cluster:
    """The node of a decision alone, as row 0, with what was decided booked."""
    if decision.best is None:
        raise ValueError("a decision without a node changes nothing")
    node = bookable(cluster.only(decision.best))
    book(node, 0, booking(node, 0, decision.request, decision.gpus))
    return node
