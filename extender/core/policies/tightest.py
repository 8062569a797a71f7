"""Policy `tightest`: best fit over the whole node, by its GPUs."""

import numpy as np

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.fits import LARGEST_MIB, asked_fraction, free_fraction, smallest_mib
from extender.core.fit.results import Fit
from extender.core.policies.policy import Options, Policy
from extender.core.resources.nodes import MAX_GPUS_PER_NODE
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


def policy(options: Options) -> Policy:
    """The policy."""
    description = "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
    return Policy("tightest", tightest, description, without_gpus=True, by_state=True)
