"""Policy `tightest`: best fit by the free GPUs of the whole node."""

import numpy as np

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.fits import LARGEST_MIB, asked_fraction, free_fraction, smallest_mib
from extender.core.fit.reasons import Fit
from extender.core.policies.breakdowns import Breakdown, Part, counted, noun, percent
from extender.core.policies.policy import Options, Policy
from extender.core.resources.nodes import MAX_GPUS_PER_NODE
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest


def tightest(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) minus the free units left over; ties break by the smallest GPU with room.

    Best fit over the whole node: a 2-GPU node with one in use beats an 8-GPU node with four in use. A share is fitted
    to a GPU instead: partly used GPUs before idle ones, then the least left over, then the node with the fewest idle
    GPUs. Nodes that give a share come before nodes that would give a whole GPU.
    """
    if request.milli:
        return _tightest_share(cluster, request, rows, fit)
    left_over = fit.free_units - fit.taken_units
    score: Floats = -(left_over + smallest_mib(cluster, rows, fit) / (2 * LARGEST_MIB))
    if not fit.shares.any():
        return score
    return np.where(fit.shares, _tightest_share(cluster, request, rows, fit), score - MAX_GPUS_PER_NODE)


def _tightest_share(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    left = free_fraction(cluster, request, rows) - asked_fraction(cluster, request, rows)  # (R, G)
    least_left = np.where(fit.room, left + fit.idle, 2.0).min(axis=1, initial=2.0)  # 0..1 where shared, 1..2 where idle
    # Fractions differ by at least a thousandth or a MiB; free units are at most MAX_GPUS_PER_NODE.
    score: Floats = -(least_left + fit.free_units / (MAX_GPUS_PER_NODE * 2 * LARGEST_MIB))
    return score


def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
    """The breakdown of `tightest`: by the GPU on rows that give a share, by free units on others."""
    shares: Mask = fit.shares | (request.milli > 0)
    left = free_fraction(cluster, request, rows) - asked_fraction(cluster, request, rows)  # (R, G)
    at = np.where(fit.room, left + fit.idle, 2.0)  # (R, G)
    gpu = at.argmin(axis=1)[:, None]
    none = ~fit.room.any(axis=1)
    of_gpu = np.where(none, 2.0, np.take_along_axis(left, gpu, axis=1)[:, 0])
    idle = np.where(none, 0.0, np.take_along_axis(fit.idle, gpu, axis=1)[:, 0])
    left_over = (fit.free_units - fit.taken_units).astype(float)
    smallest = smallest_mib(cluster, rows, fit)
    free = fit.free_units.astype(float)
    whole = np.where(shares, 0.0, 1.0)
    unit = noun(request, cluster, rows[fit.fits])
    breakdown = [
        Part(
            "leftOver", "free ones left over on the node: the fewer, the better", -left_over * whole, left_over,
            lambda amount: f"{counted(amount, unit)} left over",
        ),
        Part(
            "smallestGpu", "memory of its smallest suitable GPU: the smaller, the better",
            -smallest / (2 * LARGEST_MIB) * whole, smallest, _size,
        ),
    ]  # fmt: skip
    if shares.any():
        per_free = MAX_GPUS_PER_NODE * 2 * LARGEST_MIB
        breakdown += [
            Part(
                "leftOnGpu", "what is left of the GPU: the less, the better", -of_gpu * (1 - whole), of_gpu,
                lambda amount: f"{percent(amount)} of the GPU left over",
            ),
            Part(
                "idleGpu", "idle GPUs come after shared ones", -idle * (1 - whole), idle,
                lambda amount: "an idle GPU" if amount else "a GPU that is already shared",
            ),
            Part(
                "idleGpus", "idle GPUs of the node: the fewer, the better", -free / per_free * (1 - whole), free,
                lambda amount: f"{counted(amount, 'idle GPU')} on the node",
            ),
        ]  # fmt: skip
        if not shares.all() or not request.milli:
            breakdown.append(
                Part(
                    "wholeGpu", "a share comes before a whole GPU", -MAX_GPUS_PER_NODE * whole, whole,
                    lambda amount: "only whole GPUs" if amount else "shares of GPUs",
                )
            )  # fmt: skip
    return Breakdown(tightest(cluster, request, rows, fit), tuple(breakdown))


def _size(mib: float) -> str:
    return f"a suitable GPU of {format_mib(int(mib))}" if 0 < mib < LARGEST_MIB else "GPUs of unknown memory"


def policy(options: Options) -> Policy:
    """Create the policy."""
    description = "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
    return Policy("tightest", tightest, description, without_gpus=True, by_state=True, breakdown=parts)
