"""Ranking of nodes for requests by ResourceClaims, under any policy."""

from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Rows, num_true
from extender.core.dra.allocator import Allocation
from extender.core.dra.asks import DeviceClaims
from extender.core.fit.device_fits import best_allocation, devices_at, parts_at, whole
from extender.core.fit.reasons import Fit
from extender.core.policies.breakdowns import Breakdown, BreakdownOf, Part, on_rows, percent
from extender.core.policies.policy import Policy, Score
from extender.core.resources.requests import GpuRequest

_RANKED: Final = 1e6
"""Penalty for a later alternative of a request, larger than any worth of a node."""
_LEFT: Final = 1e-3
"""Weight, in GPUs, of the free fraction of a node's GPUs: a tie-break between nodes of equal loss."""


def device_score(policy: Policy, asked: DeviceClaims) -> Score:
    """The score for claims: minus the worth that a node loses beyond the devices allocated.

    Where whole GPUs are allocated, the policy's own score is added.
    """

    def score(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        loss, rank, where = _losses(cluster, asked, rows, fit)
        score = -loss - _RANKED * rank + _per_free(policy) * _free(cluster, rows)
        if len(where):
            score[where] += policy.score(cluster, replace(request, devices=None), rows[where], fit.take(where))
        return score

    return score


def device_breakdown(policy: Policy, own: BreakdownOf, asked: DeviceClaims) -> BreakdownOf:
    """The breakdown of `device_score`; `own` is that of the policy's own score."""

    def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        loss, rank, where = _losses(cluster, asked, rows, fit)
        free = _free(cluster, rows)
        all_parts = [
            Part(
                "devicesLost", "room for later claims lost beyond the devices given, where a free GPU counts 1",
                -loss, loss, _lost,
            ),
            Part("alternative", "earlier alternatives of a request come first", -_RANKED * rank, rank, _choice),
            Part("freeGpus", "part of its GPUs that is free", _per_free(policy) * free, free, _part_free),
        ]  # fmt: skip
        score = -loss - _RANKED * rank + _per_free(policy) * free
        if len(where):
            by_policy = own(cluster, replace(request, devices=None), rows[where], fit.take(where))
            score[where] += by_policy.score
            all_parts += on_rows(by_policy, where, len(rows))
        return Breakdown(score, tuple(all_parts))

    return parts


def _losses(cluster: Cluster, asked: DeviceClaims, rows: Rows, fit: Fit) -> tuple[Floats, Floats, Rows]:
    """(R,) loss of the allocations, (R,) rank of their alternatives, and the positions where they take whole GPUs."""
    loss, rank, wholes = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
    for position in np.flatnonzero(fit.fits).tolist():
        row = int(rows[position])
        allocation = best_allocation(devices_at(cluster, row), asked)
        if isinstance(allocation, Allocation):  # else the cache dropped it, and this search hit its limit
            loss[position], rank[position] = allocation.loss, sum(allocation.rank)
            wholes[position] = whole(parts_at(cluster, row, allocation))
    return loss, rank, np.flatnonzero(wholes)


def _free(cluster: Cluster, rows: Rows) -> Floats:
    """(R,) free fraction of the healthy GPUs."""
    free = cluster.take_rows(cluster.gpu_free_milli, rows).sum(axis=1) / WHOLE_MILLI
    fraction: Floats = free / np.maximum(num_true(cluster.take_rows(cluster.gpu_healthy, rows)), 1)
    return fraction


def _per_free(policy: Policy) -> float:
    return _LEFT if policy.spreads else -_LEFT


def _lost(amount: float) -> str:
    lost = f"{amount:.2f}" if amount >= 0.005 else "nothing"
    return f"{lost} lost of the room for later claims (a free GPU counts 1)"


def _choice(amount: float) -> str:
    return "a later alternative of the request" if amount else "the first alternative of the request"


def _part_free(amount: float) -> str:
    return f"{percent(amount)} of its GPUs free"
