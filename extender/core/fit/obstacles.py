"""What keeps a request from each single GPU, in few words."""

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.fit.checks import TABLE
from extender.core.fit.fits import lost
from extender.core.resources.requests import GpuRequest


def obstacles(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[list[str]]:
    """R lists of G texts, "" where a GPU has room for the request or there is none: of each other one what the first
    check says of it that takes it away."""
    if request.devices is not None:
        return _of_devices(cluster, rows)
    texts = np.full((len(rows), cluster.gpu_model.shape[1]), "", dtype=object)
    if not request.mig:
        fitting, codes = lost(cluster, request, rows)
        for row, slot in np.argwhere(codes).tolist():
            texts[row, slot] = TABLE[int(codes[row, slot])].gpu(fitting, row, slot)
    found: list[list[str]] = texts.tolist()
    return found


def _of_devices(cluster: Cluster, rows: Rows) -> list[list[str]]:
    """Where claims ask, what is gone of each GPU: which device of it would do, is not a matter of the GPU."""
    installed = cluster.taken(cluster.gpu_model, rows) >= 0  # (R, G)
    healthy, milli = cluster.taken(cluster.gpu_healthy, rows), cluster.taken(cluster.gpu_free_milli, rows)
    some = np.where(milli < WHOLE_MILLI, "partly in use", "")
    texts = np.where(healthy, np.where(milli <= 0, "in use", some), "unhealthy")
    found: list[list[str]] = np.where(installed, texts, "").tolist()
    return found
