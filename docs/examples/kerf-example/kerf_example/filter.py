"""Filter `MIXED_MODELS`: several GPUs only where all of a node are of one model."""

from dataclasses import replace

import numpy as np

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.fit.filters import Filter
from extender.core.resources.requests import GpuRequest


def alike(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
    """(R,) nodes whose GPUs are all of one model; for one GPU all of them."""
    model = cluster.gpu_model[rows]  # (R, G), -1 where there is no GPU
    same: Mask = ((model == model[:, :1]) | (model < 0)).all(axis=1)
    return same if request.count > 1 else np.ones(len(rows), np.bool_)


FILTER = Filter(
    alike,
    "GPUs of several models here",
    relax=lambda request: None if request.mig or request.devices else replace(request, count=1),
    relaxed="one GPU",
    remedy="put GPUs of different models on different nodes",
    by_state=True,
)
