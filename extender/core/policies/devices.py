"""How nodes are ranked for pods that ask devices by ResourceClaims, whatever the policy."""

from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Rows, num_true
from extender.core.dra.allocator import Allocation
from extender.core.dra.asks import DevicesAsked
from extender.core.fit.device_fits import best_on, devices_at, parts_at, whole
from extender.core.fit.reasons import Fit
from extender.core.policies.breakdowns import Breakdown, BreakdownOf, Part, on_rows, percent
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
        loss, rank, where = _given(cluster, asked, rows, fit)
        found = -loss - _RANKED * rank + _per_free(policy) * _free(cluster, rows)
        if len(where):
            found[where] += policy.score(cluster, replace(request, devices=None), rows[where], fit.take(where))
        return found

    return score


def device_breakdown(policy: Policy, own: BreakdownOf, asked: DevicesAsked) -> BreakdownOf:
    """What that is made of; `own` breaks the policy's own measure down."""

    def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        loss, rank, where = _given(cluster, asked, rows, fit)
        free = _free(cluster, rows)
        found = [
            Part(
                "devicesLost", "room for later claims that its devices lose beyond those given, a free GPU counting 1",
                -loss, loss, _lost,
            ),
            Part("alternative", "what a request names first comes first", -_RANKED * rank, rank, _choice),
            Part("freeGpus", "part of its GPUs that is free", _per_free(policy) * free, free, _part_free),
        ]  # fmt: skip
        score = -loss - _RANKED * rank + _per_free(policy) * free
        if len(where):
            by_policy = own(cluster, replace(request, devices=None), rows[where], fit.take(where))
            score[where] += by_policy.score
            found += on_rows(by_policy, where, len(rows))
        return Breakdown(score, tuple(found))

    return parts


def _given(cluster: Cluster, asked: DevicesAsked, rows: Rows, fit: Fit) -> tuple[Floats, Floats, Rows]:
    """(R,) what the devices lose that rows would give, (R,) the rank of the alternatives, and where whole GPUs go."""
    loss, rank, wholes = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
    for position in np.flatnonzero(fit.fits).tolist():
        row = int(rows[position])
        allocation = best_on(devices_at(cluster, row), asked)
        if isinstance(allocation, Allocation):  # else it was forgotten, and took too long this time
            loss[position], rank[position] = allocation.loss, sum(allocation.rank)
            wholes[position] = whole(parts_at(cluster, row, allocation))
    return loss, rank, np.flatnonzero(wholes)


def _free(cluster: Cluster, rows: Rows) -> Floats:
    """(R,) the part of its healthy GPUs that is free."""
    free = cluster.taken(cluster.gpu_free_milli, rows).sum(axis=1) / WHOLE_MILLI
    fraction: Floats = free / np.maximum(num_true(cluster.taken(cluster.gpu_healthy, rows)), 1)
    return fraction


def _per_free(policy: Policy) -> float:
    return _LEFT if policy.spreads else -_LEFT


def _lost(amount: float) -> str:
    lost = f"{amount:.2f}" if amount >= 0.005 else "nothing"
    return f"{lost} lost of the room for later claims (a free GPU counts 1)"


def _choice(amount: float) -> str:
    return "a later alternative of the request" if amount else "what the request names first"


def _part_free(amount: float) -> str:
    return f"{percent(amount)} of its GPUs free"
