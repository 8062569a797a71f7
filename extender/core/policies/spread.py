"""Policy `spread`: the node's fraction of free GPU units after placement, the emptiest node first (LeastAllocated)."""

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.policies import binpack as of_binpack
from extender.core.policies.binpack import binpack
from extender.core.policies.breakdowns import Breakdown, scaled
from extender.core.policies.policy import Options, Policy
from extender.core.resources.requests import GpuRequest


def _spread(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) minus `binpack`."""
    return -binpack(cluster, request, rows, fit)


def _parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
    """The breakdown of `_spread`."""
    return scaled(of_binpack.parts(cluster, request, rows, fit), -1)


def policy(options: Options) -> Policy:
    """Create the policy."""
    description = "emptiest node first, by fraction of its GPUs"
    return Policy("spread", _spread, description, spreads=True, by_state=True, breakdown=_parts)
