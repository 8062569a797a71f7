"""Policy `roomiest`: the node with the most idle GPUs first."""

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.policies.policy import Options, Policy
from extender.core.resources.requests import GpuRequest


def roomiest(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) units that are free: the more, the better."""
    return fit.free_units.astype(float)


def policy(options: Options) -> Policy:
    """What the entry point names."""
    return Policy("roomiest", roomiest, "most idle GPUs first")
