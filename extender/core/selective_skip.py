"""Selective skip: rules by which a pod waits briefly rather than harm allocation. Callers bound how long and how often.

Look-ahead: a node that alone has room for a larger waiting pod is not given to a smaller pod that would take this room.
Prices: a share that costs a GPU more of its value than it uses yields to other waiting pods.
"""

import numpy as np

from extender.core.bookings import book, booking, writable_copy
from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask
from extender.core.decisions import Decision
from extender.core.fit.fits import fit
from extender.core.resources.requests import GpuRequest


def is_larger(request: GpuRequest, than: GpuRequest) -> bool:
    """Whether a request asks for more compute than another; False if either asks for MIG devices."""
    if request.mig or than.mig:
        return False
    return _milli(request) > _milli(than)


def leaves_room(cluster: Cluster, decision: Decision, request: GpuRequest) -> bool:
    """Whether a request still fits the decision's node once it is booked. Raises ValueError without a node."""
    return bool(fit(_after(cluster, decision), request, np.zeros(1, np.intp)).fits[0])


def wastes_gpu(worth: Floats, num_gpus: Longs, gpu_milli: Longs) -> Mask:
    """(C,) whether pods with (C,) GPUs of (C,) milli each cost a GPU more of its value than the part they use.

    A share of 810 does where no expected pod can use the remaining 190. `worth` (M, 1001) is the value of what is left
    of a GPU by model (`features.Worth.left`), 0 for models without a price; models are averaged. Always False for whole
    GPUs, and for all pods under `features.plain_worth`.
    """
    priced = worth[worth[:, WHOLE_MILLI] > 0]
    if len(priced) == 0:
        return np.zeros(len(gpu_milli), bool)
    mean = priced.mean(axis=0)  # (1001,)
    share = (num_gpus == 1) & (gpu_milli > 0) & (gpu_milli < WHOLE_MILLI)
    taken = np.where(share, gpu_milli, 0)
    wastes: Mask = mean[WHOLE_MILLI] - mean[WHOLE_MILLI - taken] > taken / WHOLE_MILLI * mean[WHOLE_MILLI] * (1 + 1e-6)
    return wastes


def _milli(request: GpuRequest) -> int:
    return max(request.count, 1) * (request.milli or WHOLE_MILLI)


def _after(cluster: Cluster, decision: Decision) -> Cluster:
    """The decision's node alone, as row 0, with the decision booked."""
    if decision.best is None:
        raise ValueError("the decision has no node")
    node = writable_copy(cluster.only(decision.best))
    book(node, 0, booking(node, 0, decision.request, decision.gpus))
    return node
