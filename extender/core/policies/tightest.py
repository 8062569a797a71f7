"""Policy `tightest`: best fit over the whole node, by its GPUs."""

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
    """(R,) the fewest free units left over; among equals the node whose smallest free GPU is smallest.

    True best fit over the whole node: a 2-GPU node with one in use beats an 8-GPU node with four in use. A share is
    fitted to a GPU instead: one that has shares already before an idle one, then the one that it leaves least of,
    then the node with the fewest idle GPUs. Nodes that can give shares come before those that would give a whole GPU.
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
    # A fraction is a whole number of thousandths, or of MiB; free units are at most MAX_GPUS_PER_NODE.
    score: Floats = -(least_left + fit.free_units / (MAX_GPUS_PER_NODE * 2 * LARGEST_MIB))
    return score


def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
    """What `tightest` is made of: of a row that gives a share what is left of the GPU, of others what is left over."""
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
    thing = noun(request, cluster, rows[fit.fits])
    found = [
        Part(
            "leftOver", "free ones left over on the node: the fewer, the better", -left_over * whole, left_over,
            lambda amount: f"{counted(amount, thing)} left over",
        ),
        Part(
            "smallestGpu", "memory of its smallest GPU that will do: the smaller, the better",
            -smallest / (2 * LARGEST_MIB) * whole, smallest, _size,
        ),
    ]  # fmt: skip
    if shares.any():
        per_free = MAX_GPUS_PER_NODE * 2 * LARGEST_MIB
        found += [
            Part(
                "leftOnGpu", "what is left of the GPU: the less, the better", -of_gpu * (1 - whole), of_gpu,
                lambda amount: f"{percent(amount)} of the GPU left over",
            ),
            Part(
                "idleGpu", "a GPU that nobody uses yet is broken into last", -idle * (1 - whole), idle,
                lambda amount: "an idle GPU broken into" if amount else "a GPU that is shared already",
            ),
            Part(
                "idleGpus", "idle GPUs of the node: the fewer, the better", -free / per_free * (1 - whole), free,
                lambda amount: f"{counted(amount, 'idle GPU')} on the node",
            ),
        ]  # fmt: skip
        if not shares.all() or not request.milli:
            found.append(
                Part(
                    "wholeGpu", "a share comes before a whole GPU", -MAX_GPUS_PER_NODE * whole, whole,
                    lambda amount: "whole GPUs alone" if amount else "shares of GPUs",
                )
            )  # fmt: skip
    return Breakdown(tightest(cluster, request, rows, fit), tuple(found))


def _size(mib: float) -> str:
    return f"a GPU of {format_mib(int(mib))} that will do" if 0 < mib < LARGEST_MIB else "GPUs of unknown memory"


def policy(options: Options) -> Policy:
    """The policy."""
    description = "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
    return Policy("tightest", tightest, description, without_gpus=True, by_state=True, breakdown=parts)
