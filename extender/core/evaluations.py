"""Fit and score of a request on the nodes of a cluster, and their cache."""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.fit.checks import TABLE, resolvable
from extender.core.fit.fits import fit
from extender.core.fit.fittings import GpuState, RowState, keep, state_of
from extender.core.fit.reasons import FITS, Fit, Reason
from extender.core.occupancies import ObservedRules, ObservedUsageCache, with_observed_usage
from extender.core.policies.breakdowns import Breakdown, BreakdownOf, Part
from extender.core.policies.devices import device_breakdown, device_score
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest


class Evaluation(msgspec.Struct, frozen=True):
    """Fit and score of a request on R rows."""

    reason: npt.NDArray[np.uint8]
    """(R,) Reason."""
    available: Longs
    """(R,) the number behind the reason (see `reasons.Fit`)."""
    score: Floats
    """(R,) higher is better, -inf where the request does not fit."""

    @property
    def fits(self) -> Mask:
        """(R,) where the request fits."""
        fits: Mask = self.reason == FITS
        return fits

    def take(self, rows: Rows) -> "Evaluation":
        """A copy for a selection of rows."""
        return Evaluation(self.reason.take(rows), self.available.take(rows), self.score.take(rows))

    def copy(self) -> "Evaluation":
        """A copy."""
        return Evaluation(self.reason.copy(), self.available.copy(), self.score.copy())

    def put(self, rows: Rows, fresh: "Evaluation") -> None:
        """Overwrite a selection of rows."""
        self.reason[rows] = fresh.reason
        self.available[rows] = fresh.available
        self.score[rows] = fresh.score


@dataclass(frozen=True, slots=True)
class FullEvaluation:
    """An evaluation of all N rows, with the inputs for choosing GPUs."""

    evaluation: Evaluation
    room: Mask
    """(N, G) as in `reasons.Fit`."""
    shares: Mask
    """(N,) as in `reasons.Fit`."""

    def of(self, row: int) -> tuple[Mask, bool]:
        """(G,) the GPUs of a row with room, and whether the request would get shares there."""
        return self.room[row], bool(self.shares[row])


def evaluate(cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows) -> Evaluation:
    """Fit and score of a request on R rows."""
    seen = with_observed_usage(cluster, policy.rules)
    return _evaluation(cluster, seen, request, policy, rows, fit(seen, request, rows))


def _evaluation(
    cluster: Cluster, seen: Cluster, request: GpuRequest, policy: Policy, rows: Rows, checked: Fit
) -> Evaluation:
    """The evaluation for `checked`, the fit on `seen`, the cluster with the policy's observed usage."""
    score_of = policy.score if request.devices is None else device_score(policy, request.devices)
    score = np.where(checked.fits, score_of(seen, request, rows, checked), -np.inf)
    return Evaluation(reasons(cluster, seen, request, rows, checked), checked.available, score)


def evaluate_with_breakdown(
    cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows
) -> tuple[Evaluation, Breakdown]:
    """Fit and score of R rows, as `evaluate`, with the parts of the score. Stateless: safe from any thread."""
    seen = with_observed_usage(cluster, policy.rules)
    checked = fit(seen, request, rows)
    breakdown_of = policy.breakdown or _one_number(policy)
    if request.devices is not None:
        breakdown_of = device_breakdown(policy, breakdown_of, request.devices)
    breakdown = breakdown_of(seen, request, rows, checked)
    score = np.where(checked.fits, breakdown.score, -np.inf)
    return Evaluation(reasons(cluster, seen, request, rows, checked), checked.available, score), breakdown


def _one_number(policy: Policy) -> BreakdownOf:
    """The breakdown into a single part, for a policy without its own."""
    apart = policy.apart() if policy.apart is not None else policy

    def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        score = np.where(fit.fits, apart.score(cluster, request, rows, fit), -np.inf)
        number = np.where(fit.fits, score, 0.0)
        meaning = f"the score of policy {policy.name}, which has no breakdown"
        return Breakdown(score, (Part("score", meaning, number, number, lambda amount: f"a score of {amount:.4g}"),))

    return parts


def reasons(cluster: Cluster, seen: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> npt.NDArray[np.uint8]:
    """(R,) the reasons of a fit; OCCUPIED where the request would fit by bookings alone."""
    reason = checked.reason
    if seen is not cluster and (busy := np.flatnonzero(resolvable(reason))).size:
        booked = fit(cluster, request, rows[busy])
        reason = reason.copy()
        reason[busy[booked.fits]] = Reason.OCCUPIED
    return reason


class _Class(NamedTuple):
    """The cache entry of a class of requests."""

    version: int
    """Version of the cluster."""
    context: Hashable
    known: FullEvaluation
    serial: int
    """Changes whenever equal row states may evaluate differently than before."""
    owner: str
    """`Memo.asker` of the first request."""


class _Row(NamedTuple):
    """The evaluation of a request on one row."""

    reason: int
    available: int
    score: float
    room: Mask
    """(G,)."""
    shares: bool

    def put(self, row: int, known: FullEvaluation) -> None:
        """Write it to a row of `known`."""
        evaluation = known.evaluation
        evaluation.reason[row] = self.reason
        evaluation.available[row] = self.available
        evaluation.score[row] = self.score
        known.room[row] = self.room
        known.shares[row] = self.shares


def _row_at(position: int, fresh: Evaluation, checked: Fit) -> _Row:
    return _Row(
        reason=fresh.reason.item(position),
        available=fresh.available.item(position),
        score=fresh.score.item(position),
        room=checked.room[position].copy(),
        shares=checked.shares.item(position),
    )


_FEW: Final = 16
"""Up to this many changed rows are looked up one by one."""


class Memo(msgspec.Struct, frozen=True, eq=False):
    """A cache of evaluations per class of request: only rows changed since the last call are recomputed.

    For successive snapshots of one cluster. Fit and scores depend only on a row's own state and the policy's context,
    so cached values equal those of `evaluate`. When the cache is full, the asker with most classes (a namespace, say)
    loses its least recently used one.
    """

    max_classes: int = 64
    asker: str = ""
    """Owner of classes added through this object."""
    _entries: OrderedDict[tuple[GpuRequest, str], _Class] = msgspec.field(default_factory=OrderedDict)
    _num_of: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of classes by asker."""
    _observed_usage: dict[ObservedRules, ObservedUsageCache] = msgspec.field(default_factory=dict)
    _rows: dict[tuple[int, RowState], _Row] = msgspec.field(default_factory=dict)
    """By class serial and row state. Many nodes reach equal states, and forty NumPy calls for one row are slow."""
    _fits: dict[tuple[int, GpuState | RowState], Fit] = msgspec.field(default_factory=dict)
    """Fits of single rows, which depend on less than scores do: not on samples, nor on CPU unless a filter does."""
    _serials: "count[int]" = msgspec.field(default_factory=count)

    def of(self, asker: str) -> "Memo":
        """The same cache, used by another asker."""
        return structs.replace(self, asker=asker)

    def with_observed_usage(self, cluster: Cluster, policy: Policy) -> Cluster:
        """The cluster with the policy's observed usage subtracted."""
        if policy.rules is None:
            return cluster
        cache = self._observed_usage.get(policy.rules)
        if cache is None:
            cache = self._observed_usage[policy.rules] = ObservedUsageCache(policy.rules)
        return cache(cluster)

    def evaluate(self, cluster: Cluster, request: GpuRequest, policy: Policy) -> FullEvaluation:
        """Fit and score of a request on all N rows. Later calls overwrite the arrays: copy what you keep."""
        key = (request, policy.name)
        context = policy.context(cluster) if policy.context else None
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._num_of[entry.owner] -= 1
        seen = self.with_observed_usage(cluster, policy)
        if entry is None or entry.known.room.shape != cluster.gpu_model.shape or context != entry.context:
            rows = np.arange(cluster.num_nodes)
            checked = fit(seen, request, rows)
            known = FullEvaluation(
                _evaluation(cluster, seen, request, policy, rows, checked), checked.room, checked.shares
            )
            serial = next(self._serials)
        else:
            known, serial = entry.known, entry.serial
            if entry.version != cluster.version:
                changed = (cluster.row_version > entry.version).nonzero()[0]
                self._refresh(known, serial, cluster, seen, request, policy, changed)
        if policy.context and (context_now := policy.context(cluster)) != context:
            # Scoring itself changed the context, so everything computed before is stale.
            context, serial, rows = context_now, next(self._serials), np.arange(cluster.num_nodes)
            known.evaluation.put(rows, evaluate(cluster, request, policy, rows))
        owner = self.asker if entry is None else entry.owner
        self._entries[key] = _Class(cluster.version, context, known, serial, owner)
        self._num_of[owner] += 1
        if len(self._entries) > self.max_classes:
            most = max(self._num_of, key=self._num_of.__getitem__)
            self._num_of[most] -= 1
            if not self._num_of[most]:
                del self._num_of[most]
            del self._entries[next(key for key, cached in self._entries.items() if cached.owner == most)]
        return known

    def _refresh(
        self,
        known: FullEvaluation,
        serial: int,
        cluster: Cluster,
        seen: Cluster,
        request: GpuRequest,
        policy: Policy,
        changed: Rows,
    ) -> None:
        """Update changed rows, from the cache where possible."""
        states: list[tuple[int, RowState]] = []
        by_state = policy.by_state and TABLE.by_state and not request.by_identity
        if len(changed) <= _FEW and by_state and not cluster.is_sampled:
            rows = changed.tolist()
            states = [(serial, state_of(cluster, row)) for row in rows]
            cached_rows = [self._rows.get(state) for state in states]
            for row, cached in zip(rows, cached_rows, strict=True):
                if cached is not None:
                    cached.put(row, known)
            unknown = [position for position, cached in enumerate(cached_rows) if cached is None]
            changed, states = changed[unknown], [states[position] for position in unknown]
        if not len(changed):
            return
        checked = self._fit(serial, seen, request, changed)
        fresh = _evaluation(cluster, seen, request, policy, changed, checked)
        known.evaluation.put(changed, fresh)
        known.room[changed] = checked.room
        known.shares[changed] = checked.shares
        for position, state in enumerate(states):
            keep(self._rows, state, _row_at(position, fresh, checked))

    def _fit(self, serial: int, seen: Cluster, request: GpuRequest, changed: Rows) -> Fit:
        """The fit on R rows, cached for a single one: `seen` already includes its observations."""
        if len(changed) != 1 or request.by_identity or not TABLE.by_state:
            return fit(seen, request, changed)
        row_state = state_of(seen, int(changed[0]))
        state = serial, row_state[0] if TABLE.by_gpus else row_state
        known = self._fits.get(state)
        if known is None:
            known = fit(seen, request, changed)
            keep(self._fits, state, known)
        return known
