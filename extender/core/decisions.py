"""From request to verdict: fit, score, rank, choose GPUs."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.bookings import booked_each
from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask, Rows
from extender.core.devices import choose_among, crossed_groups
from extender.core.dra.asks import DevicesAsked
from extender.core.dra.given import Allocation
from extender.core.fit.device_fits import best_on, devices_at, parts_of
from extender.core.fit.fits import Fit, fit
from extender.core.fit.reasons import Reason, resolvable
from extender.core.occupancies import Counting, ObservedRules, counting_observed
from extender.core.policies.devices import device_score
from extender.core.policies.policy import Policy, Terms
from extender.core.resources.requests import GpuRequest

MAX_LEVEL: Final = 10
"""kube-scheduler's MaxExtenderPriority: scores on the wire are whole numbers from 0 to this."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A request on R rows: fit and score of each."""

    reason: npt.NDArray[np.uint8]
    """(R,) Reason."""
    available: Longs
    """(R,) the number behind the reason (see `fits.Fit`)."""
    score: Floats
    """(R,) higher is better, -inf where the request does not fit."""

    @property
    def fits(self) -> Mask:
        """(R,) where the request fits."""
        fits: Mask = self.reason == Reason.FITS
        return fits

    def take(self, rows: Rows) -> "Evaluation":
        """The same for a selection of rows, copied."""
        return Evaluation(self.reason.take(rows), self.available.take(rows), self.score.take(rows))

    def copy(self) -> "Evaluation":
        """The same, copied."""
        return Evaluation(self.reason.copy(), self.available.copy(), self.score.copy())

    def put(self, rows: Rows, fresh: "Evaluation") -> None:
        """Write other values into a selection of rows."""
        self.reason[rows] = fresh.reason
        self.available[rows] = fresh.available
        self.score[rows] = fresh.score


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict on one request over R candidate rows."""

    request: GpuRequest
    policy: str
    version: int
    """Version of the cluster it was made on."""
    rows: Rows
    """(R,) the candidates."""
    evaluation: Evaluation
    best: int | None
    """Row of the node that wins, None when nothing fits."""
    gpus: tuple[int, ...]
    """Indices of the GPUs chosen on the winner, () when the device plugin alone picks them."""
    milli: int = WHOLE_MILLI
    """Compute booked on each of them; with WHOLE_MILLI all their memory is."""
    mib_each: tuple[int, ...] = ()
    """Memory booked on each of them where they are shared, in their order."""
    crosses: str = ""
    """"" when the GPUs are in one link group and on one NUMA node or nothing is known of that, else "link" or "numa":
    no better choice was possible."""
    terms: Terms | None = None
    """What the score of a row is made of, where the policy can say."""
    allocation: Allocation | None = None
    """Which devices of the winner the pod's ResourceClaims get, where Kerf chooses them."""

    @property
    def mib(self) -> int:
        """The most memory that is booked on one of them where they are shared."""
        return max(self.mib_each, default=0)

    @property
    def units(self) -> int:
        """How many units the winner gives."""
        return self.request.count or len(self.gpus)


@dataclass(frozen=True, slots=True)
class Known:
    """An evaluation of all N rows, and what a choice of GPUs on one of them needs."""

    evaluation: Evaluation
    room: Mask
    """(N, G) as in fits.Fit."""
    shares: Mask
    """(N,) as in fits.Fit."""

    def of(self, row: int) -> tuple[Mask, bool]:
        """(G,) the GPUs of a row with room, and whether it would give shares."""
        return self.room[row], bool(self.shares[row])


def evaluate(cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows) -> Evaluation:
    """Fit and score of a request on R rows."""
    seen = counting_observed(cluster, policy.rules)
    return _evaluation(cluster, seen, request, policy, rows, fit(seen, request, rows))


def _evaluation(
    cluster: Cluster, seen: Cluster, request: GpuRequest, policy: Policy, rows: Rows, checked: Fit
) -> Evaluation:
    """What `checked`, the fit on the cluster as the policy counts it, comes to."""
    found = policy.score if request.devices is None else device_score(policy, request.devices)
    score = np.where(checked.fits, found(seen, request, rows, checked), -np.inf)
    return Evaluation(_reason(cluster, seen, request, rows, checked), checked.available, score)


def _reason(cluster: Cluster, seen: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> npt.NDArray[np.uint8]:
    """(R,) the reasons of a fit; OCCUPIED where by its bookings alone a node would do."""
    reason = checked.reason
    if seen is not cluster and (busy := np.flatnonzero(resolvable(reason))).size:
        booked = fit(cluster, request, rows[busy])
        reason = reason.copy()
        reason[busy[booked.fits]] = Reason.OCCUPIED
    return reason


@dataclass(frozen=True, slots=True)
class Memo:
    """Evaluations remembered per class of request: only rows that changed since are computed again.

    Holds for a sequence of snapshots of one cluster. Fit and scores see only a row's own state, and what the policy
    says it depends on besides, so a remembered value is the value that `evaluate` gives. When it is full, whoever has
    brought most classes (a namespace, say) gives up the one that was asked for longest ago.
    """

    max_classes: int = 64
    asker: str = ""
    """Who brings what is not known yet."""
    _entries: OrderedDict[tuple[GpuRequest, str], tuple[int, Hashable, Known, str]] = field(default_factory=OrderedDict)
    _num_of: Counter[str] = field(default_factory=Counter)
    """Classes by who has brought them."""
    _counting: dict[ObservedRules, Counting] = field(default_factory=dict)

    def of(self, asker: str) -> "Memo":
        """The same memory, as somebody else asks it."""
        return replace(self, asker=asker)

    def seen(self, cluster: Cluster, policy: Policy) -> Cluster:
        """The cluster as the policy counts it."""
        if policy.rules is None:
            return cluster
        counting = self._counting.get(policy.rules)
        if counting is None:
            counting = self._counting[policy.rules] = Counting(policy.rules)
        return counting(cluster)

    def evaluate(self, cluster: Cluster, request: GpuRequest, policy: Policy) -> Known:
        """Fit and score of a request on all N rows. The arrays are the memo's own: take, don't keep."""
        key = (request, policy.name)
        context = policy.context(cluster) if policy.context else None
        version, context_then, known, brought_by = self._entries.pop(key, (-1, None, None, self.asker))
        self._num_of[brought_by] -= known is not None
        seen = self.seen(cluster, policy)
        if known is None or known.room.shape != cluster.gpu_model.shape or context != context_then:
            rows = np.arange(cluster.num_nodes)
            checked = fit(seen, request, rows)
            known = Known(_evaluation(cluster, seen, request, policy, rows, checked), checked.room, checked.shares)
        elif version != cluster.version:
            changed = np.flatnonzero(cluster.row_version > version)
            if len(changed):
                checked = fit(seen, request, changed)
                known.evaluation.put(changed, _evaluation(cluster, seen, request, policy, changed, checked))
                known.room[changed] = checked.room
                known.shares[changed] = checked.shares
        if policy.context and (context_now := policy.context(cluster)) != context:
            # The score has found out that it must be another one: what was computed before is of no use.
            context, rows = context_now, np.arange(cluster.num_nodes)
            known.evaluation.put(rows, evaluate(cluster, request, policy, rows))
        self._entries[key] = (cluster.version, context, known, brought_by)
        self._num_of[brought_by] += 1
        if len(self._entries) > self.max_classes:
            most = max(self._num_of, key=self._num_of.__getitem__)
            self._num_of[most] -= 1
            if not self._num_of[most]:
                del self._num_of[most]
            del self._entries[next(key for key, (*_, asker) in self._entries.items() if asker == most)]
        return known


def decide(cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows, memo: Memo) -> Decision:
    """The verdict on a request over R candidate rows: the best node and its GPUs."""
    known = memo.evaluate(cluster, request, policy)
    evaluation = known.evaluation.take(rows)
    plain = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), terms=policy.terms)
    best = next(ranked(cluster, rows, evaluation), None)
    return plain if best is None else _decided(memo.seen(cluster, policy), policy, plain, best, *known.of(best))


def decide_on(cluster: Cluster, request: GpuRequest, policy: Policy, row: int, memo: Memo) -> Decision:
    """The verdict on a node that was chosen before: it is looked at as it is now, and not scored (0)."""
    rows = np.array([row])
    seen = memo.seen(cluster, policy)
    checked = fit(seen, request, rows)
    score = np.where(checked.fits, 0.0, -np.inf)
    evaluation = Evaluation(_reason(cluster, seen, request, rows, checked), checked.available, score)
    plain = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), terms=policy.terms)
    if not checked.fits[0]:
        return plain
    return _decided(seen, policy, plain, row, checked.room[0], bool(checked.shares[0]))


def decide_from_top(
    cluster: Cluster,
    request: GpuRequest,
    policy: Policy,
    offered: Callable[[str], bool],
    memo: Memo,
    max_tries: int,
) -> Decision | None:
    """The same where `offered` tells whether a node is a candidate: the ranking of all N rows is walked from its top.

    For requests that name most of the cluster: looking up thousands of names costs more than all the rest. None when
    no node within the tries is a candidate, or nothing fits.
    """
    rows = np.arange(cluster.num_nodes)
    known = memo.evaluate(cluster, request, policy)
    evaluation = known.evaluation.copy()
    for row in islice(ranked(cluster, rows, evaluation), max_tries):
        if offered(cluster.node_names[row]):
            plain = Decision(request, policy.name, cluster.version, rows, evaluation, None, (), terms=policy.terms)
            return _decided(memo.seen(cluster, policy), policy, plain, row, *known.of(row))
    return None


def ranked(cluster: Cluster, rows: Rows, evaluation: Evaluation) -> Iterator[int]:
    """The rows that fit, best first; no more of the order is worked out than is asked for.

    Ties go to the smaller `tie_rank`, so that equal clusters give equal verdicts.
    """
    score = evaluation.score.copy()
    while len(score) and (best := score.max()) > -np.inf:
        tied = score == best
        winners = rows[tied]
        yield int(winners[np.argmin(cluster.tie_rank[winners])])
        yield from winners[np.argsort(cluster.tie_rank[winners])][1:].tolist()
        score[tied] = -np.inf


def near_best(cluster: Cluster, decision: Decision, count: int) -> Rows:
    """The best `count` candidate rows that fit, best first."""
    return np.fromiter(islice(ranked(cluster, decision.rows, decision.evaluation), count), dtype=np.intp)


def _decided(cluster: Cluster, policy: Policy, plain: Decision, best: int, room: Mask, shares: bool) -> Decision:
    """A decision for one of its rows, with the GPUs of that node."""
    request = plain.request
    if request.devices is not None:
        return _with_devices(cluster, plain, best, request.devices)
    gpus = choice(cluster, best, request, policy, room, shares=shares)
    if gpus is None:
        raise AssertionError(f"fit and device choice disagree on {request} at node {cluster.node_names[best]}")
    milli, mib_each = booked_each(cluster, best, request, gpus)
    crosses = crossed_groups(cluster, best, gpus) if len(gpus) > 1 else ""
    return replace(plain, best=best, gpus=gpus, milli=milli, mib_each=mib_each, crosses=crosses)


def _with_devices(cluster: Cluster, plain: Decision, best: int, asked: DevicesAsked) -> Decision:
    """A decision for one of its rows, with the devices of that node."""
    devices = devices_at(cluster, best)
    found = best_on(devices, asked)
    if devices is None or not isinstance(found, Allocation):
        raise AssertionError(f"fit and devices disagree at node {cluster.node_names[best]}")
    parts = parts_of(devices, found)
    gpus, milli = tuple(part.gpu for part in parts), min((part.milli for part in parts), default=WHOLE_MILLI)
    mib_each = tuple(part.mib for part in parts) if milli < WHOLE_MILLI else ()
    return replace(plain, best=best, gpus=gpus, milli=milli, mib_each=mib_each, allocation=found)


def choice(
    cluster: Cluster, row: int, request: GpuRequest, policy: Policy, room: Mask, *, shares: bool
) -> tuple[int, ...] | None:
    """The GPUs of a node that a request gets where it fits; `cluster` as the policy counts it, `room` (G,)."""
    if shares and policy.share is not None and request.count == 1 and not cluster.untracked_units[row]:
        return (policy.share(cluster, request, row, room),)
    return choose_among(cluster, row, request, room, shares=shares, spreads=policy.spreads)


def levels(evaluation: Evaluation) -> npt.NDArray[np.int64]:
    """(R,) scores for the wire, 0..10: the best value 10, the next best 9, and so on; 0 where it does not fit.

    By rank of the distinct values and not by size: the wire has eleven levels for thousands of nodes, and what
    matters is that the best few stay apart.
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
