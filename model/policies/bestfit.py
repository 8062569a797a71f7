"""BestFit as published with FGD: CPU and GPU weigh half each, relative to the trace's largest node, in percent.

The service's own best fit is policy `tightest`.
"""

from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Rows, totals
from extender.core.fit.reasons import Fit
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest

CPU_MILLI: Final = 128000
GPU_MILLI: Final = 8000


def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
    """(R,) score in whole percent: the less CPU and GPU remain, the higher."""
    cpu_left = cluster.take_rows(cluster.cpu_free_milli, rows) - request.cpu_milli
    gpu_left = totals(cluster.take_rows(cluster.gpu_free_milli, rows)) - request.count * (request.milli or WHOLE_MILLI)
    percent: Floats = np.trunc((1 - (0.5 * cpu_left / CPU_MILLI + 0.5 * gpu_left / GPU_MILLI)) * 100)
    return percent


POLICY: Final = Policy("bestfit", score, "least CPU and GPU left over, as published with FGD", weighs_cpu=True)
