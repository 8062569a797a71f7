"""How nodes are ranked for pods that ask devices by ResourceClaims, whatever the policy."""

from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Rows, num_true
from extender.core.dra.asks import DevicesAsked
from extender.core.dra.given import Allocation
from extender.core.fit.device_fits import best_on, devices_at, parts_at, whole
from extender.core.fit.results import Fit
from extender.core.policies.policy import Policy, Score
from extender.core.resources.requests import GpuRequest

_RANKED: Final = 1e6
"""A later alternative of a request costs more than any worth of a node."""
_LEFT: Final = 1e-3
"""Between nodes that lose as much, in GPUs: the fuller one, by the part of its GPUs that is free."""


def device_score(policy: Policy, asked: DevicesAsked) -> Score:
    """A policy's score for what claims ask: by what a node's devices lose in worth beyond those given, and where whole
    GPUs are given by the policy's own measure on top."""

    def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        found, wholes = np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        for position in np.flatnonzero(fit.fits).tolist():
            row = int(rows[position])
            allocation = best_on(devices_at(cluster, row), asked)
            if isinstance(allocation, Allocation):  # else it was forgotten, and took too long this time
                found[position] = -allocation.loss - _RANKED * sum(allocation.rank)
                wholes[position] = whole(parts_at(cluster, row, allocation))
        free = cluster.taken(cluster.gpu_free_milli, rows).sum(axis=1) / WHOLE_MILLI
        fraction = free / np.maximum(num_true(cluster.taken(cluster.gpu_healthy, rows)), 1)
        found += (_LEFT if policy.spreads else -_LEFT) * fraction
        if len(where := np.flatnonzero(wholes)):
            found[where] += policy.score(cluster, replace(request, devices=None), rows[where], fit.take(where))
        return found

    return score
