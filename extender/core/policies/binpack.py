"""Policy `binpack`: the node's fraction of GPU units in use after placement, the fullest node first (MostAllocated)."""

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Rows, num_true, totals
from extender.core.fit.fits import asked_fraction, free_fraction
from extender.core.fit.reasons import Fit
from extender.core.policies.breakdowns import Breakdown, Part, percent
from extender.core.policies.policy import Options, Policy
from extender.core.resources.requests import GpuRequest


def binpack(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) fraction in use after placement: of whole GPUs; for shares, of compute, or of memory if only that is set."""
    capacity, free_after, _ = _units(cluster, request, rows, fit)
    used: Floats = 1 - free_after / capacity
    return used


def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
    """The breakdown of `binpack`: use before placement, and the pod."""
    capacity, free_after, asked = _units(cluster, request, rows, fit)
    before, pod = 1 - (free_after + asked) / capacity, asked / capacity
    breakdown = (
        Part(
            "inUse", "part of its GPUs that is not free", before, before,
            lambda amount: f"{percent(amount)} of its GPUs not free",
        ),
        Part(
            "pod", "part of its GPUs that the pod takes", pod, pod,
            lambda amount: f"{percent(amount)} of its GPUs for the pod",
        ),
    )  # fmt: skip
    return Breakdown(1 - free_after / capacity, breakdown)


def _units(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> tuple[Floats, Floats, Floats]:
    """(R,) GPU units of each row, at least 1, units free after placement, and units that the pod takes."""
    capacity = num_true(cluster.take_rows(cluster.gpu_model, rows) >= 0) * cluster.take_rows(
        cluster.units_per_gpu, rows
    )
    free_after, taken = (fit.free_units - fit.taken_units).astype(float), fit.taken_units.astype(float)
    if fit.shares.any():
        if request.milli:  # sums of integers, so that rounding breaks no ties
            free = totals(cluster.take_rows(cluster.gpu_free_milli, rows)) / WHOLE_MILLI
            asked = request.milli / WHOLE_MILLI
        else:
            free = free_fraction(cluster, request, rows).sum(axis=1)
            of_gpu = np.where(fit.room, asked_fraction(cluster, request, rows), 0)
            asked = of_gpu.sum(axis=1) / np.maximum(num_true(fit.room), 1)
        free = np.maximum(free - cluster.take_rows(cluster.untracked_units, rows), 0)
        free_after = np.where(fit.shares, free - asked * request.count, free_after)
        taken = np.where(fit.shares, asked * request.count, taken)
    return np.maximum(capacity, 1).astype(float), free_after, taken


def policy(options: Options) -> Policy:
    """Create the policy."""
    description = "fullest node first, by fraction of its GPUs"
    return Policy("binpack", binpack, description, without_gpus=True, by_state=True, breakdown=parts)
