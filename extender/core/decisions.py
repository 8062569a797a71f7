"""Scheduling decisions: fit, score, rank, choose GPUs."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from extender.core.bookings import booked_each
from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.devices import choose_among, crossed_groups
from extender.core.dra.allocator import Allocation
from extender.core.dra.asks import DeviceClaims
from extender.core.evaluations import Evaluation, Memo, reasons
from extender.core.fit.device_fits import allocation_at, parts_at
from extender.core.fit.fits import fit
from extender.core.policies.policy import Policy, Terms
from extender.core.resources.requests import GpuRequest

MAX_LEVEL: Final = 10
"""kube-scheduler's MaxExtenderPriority: an extender's scores are integers from 0 to this."""


class Decision(msgspec.Struct, frozen=True):
    """The decision on one request over R candidate rows."""

    request: GpuRequest
    policy: str
    version: int
    """Version of the cluster it was made for."""
    rows: Rows
    """(R,) candidates."""
    evaluation: Evaluation
    best: int | None
    """Row of the best node, None when nothing fits."""
    gpus: tuple[int, ...]
    """Indices of the GPUs on the best node, () when the device plugin picks them."""
    milli: int = WHOLE_MILLI
    """Compute booked on each GPU; WHOLE_MILLI includes all its memory."""
    mib_each: tuple[int, ...] = ()
    """MiB booked on each shared GPU, in the order of `gpus`."""
    crosses: str = ""
    """What the GPUs span, as from `crossed_groups`; no better choice was possible."""
    by: Policy | None = None
    """The policy at that time."""
    planned: bool = False
    """Whether the single candidate was chosen earlier and is not scored."""
    allocation: Allocation | None = None
    """Devices of the best node for the pod's ResourceClaims, where Kerf allocates them."""

    @property
    def terms(self) -> Terms | None:
        """The policy's function that breaks down the score of a row, None where it has none."""
        return None if self.by is None else self.by.terms

    @property
    def mib(self) -> int:
        """The largest MiB booked on one shared GPU, 0 for whole GPUs."""
        return max(self.mib_each, default=0)

    @property
    def units(self) -> int:
        """Number of units that the pod gets."""
        return self.request.count or len(self.gpus)


def decide(cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows, memo: Memo) -> Decision:
    """Decide on a request over R candidate rows: the best node and its GPUs."""
    known = memo.evaluate(cluster, request, policy)
    evaluation = known.evaluation.take(rows)
    base = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), by=policy)
    best = next(ranked(cluster, rows, evaluation), None)
    return (
        base
        if best is None
        else _decided(memo.with_observed_usage(cluster, policy), policy, base, best, *known.of(best))
    )


def decide_on(cluster: Cluster, request: GpuRequest, policy: Policy, row: int, memo: Memo) -> Decision:
    """Decide on a node that was chosen earlier: check it against the current cluster, with score 0."""
    rows = np.array([row])
    seen = memo.with_observed_usage(cluster, policy)
    checked = fit(seen, request, rows)
    score = np.where(checked.fits, 0.0, -np.inf)
    evaluation = Evaluation(reasons(cluster, seen, request, rows, checked), checked.available, score)
    base = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), by=policy, planned=True)
    if not checked.fits[0]:
        return base
    return _decided(seen, policy, base, row, checked.room[0], bool(checked.shares[0]))


def decide_from_top(
    cluster: Cluster,
    request: GpuRequest,
    policy: Policy,
    offered: Callable[[str], bool],
    memo: Memo,
    max_tries: int,
) -> Decision | None:
    """Decide by walking the ranking of all N rows from the top until `offered(name)` accepts a node.

    For requests that name most of the cluster, where looking up thousands of names would dominate the cost. None when
    no node within `max_tries` is offered, or nothing fits.
    """
    rows = np.arange(cluster.num_nodes)
    known = memo.evaluate(cluster, request, policy)
    evaluation = known.evaluation.copy()
    for row in islice(ranked(cluster, rows, evaluation), max_tries):
        if offered(cluster.node_names[row]):
            base = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), by=policy)
            return _decided(memo.with_observed_usage(cluster, policy), policy, base, row, *known.of(row))
    return None


def ranked(cluster: Cluster, rows: Rows, evaluation: Evaluation) -> Iterator[int]:
    """Yield the rows that fit, best first, sorting lazily.

    Ties break by the smaller `tie_rank`, so that equal clusters give equal decisions.
    """
    score = evaluation.score.copy()
    while len(score) and (best := score.max()) > -np.inf:
        tied = score == best
        winners = rows[tied]
        rank = cluster.tie_rank.take(winners)
        yield winners.item(rank.argmin())
        yield from winners[rank.argsort()][1:].tolist()
        score[tied] = -np.inf


def near_best(cluster: Cluster, decision: Decision, count: int) -> Rows:
    """The best `count` candidate rows that fit, best first."""
    return np.fromiter(islice(ranked(cluster, decision.rows, decision.evaluation), count), dtype=np.intp)


def _decided(cluster: Cluster, policy: Policy, base: Decision, best: int, room: Mask, shares: bool) -> Decision:
    """`base` with row `best` and GPUs of that node."""
    request = base.request
    if request.devices is not None:
        return _with_devices(cluster, base, best, request.devices)
    gpus = choice(cluster, best, request, policy, room, shares=shares)
    if gpus is None:
        raise AssertionError(f"fit and device choice disagree on {request} at node {cluster.node_names[best]}")
    milli, mib_each = booked_each(cluster, best, request, gpus)
    crosses = crossed_groups(cluster, best, gpus) if len(gpus) > 1 else ""
    return structs.replace(base, best=best, gpus=gpus, milli=milli, mib_each=mib_each, crosses=crosses)


def _with_devices(cluster: Cluster, base: Decision, best: int, asked: DeviceClaims) -> Decision:
    """`base` with row `best` and devices of that node."""
    allocation = allocation_at(cluster, best, asked)
    parts = parts_at(cluster, best, allocation)
    gpus, milli = tuple(part.gpu for part in parts), min((part.milli for part in parts), default=WHOLE_MILLI)
    mib_each = tuple(part.mib for part in parts) if milli < WHOLE_MILLI else ()
    return structs.replace(base, best=best, gpus=gpus, milli=milli, mib_each=mib_each, allocation=allocation)


def choice(
    cluster: Cluster, row: int, request: GpuRequest, policy: Policy, room: Mask, *, shares: bool
) -> tuple[int, ...] | None:
    """The GPUs that a fitting request gets on a node; `cluster` with the policy's observed usage, `room` (G,)."""
    if shares and policy.share is not None and request.count == 1 and not cluster.untracked_units[row]:
        return (policy.share(cluster, request, row, room),)
    return choose_among(cluster, row, request, room, shares=shares, spreads=policy.spreads)


def levels(evaluation: Evaluation) -> npt.NDArray[np.int64]:
    """(R,) extender scores: the best distinct value gets 10, the next 9, ... 1; 0 for all others and misfits.

    By rank and not by size: the protocol has eleven levels for thousands of nodes, and the best few must stay distinct.
    """
    result = np.zeros(len(evaluation.score), dtype=np.int64)
    score = evaluation.score.copy()
    for level in range(MAX_LEVEL, 0, -1):
        best = score.max(initial=-np.inf)
        if best == -np.inf:
            break
        tied = score == best
        result[tied] = level
        score[tied] = -np.inf
    return result
