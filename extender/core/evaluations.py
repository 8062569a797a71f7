"""Fit and score of a request on the nodes of a cluster, and how they are remembered."""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.fit.checks import TABLE, resolvable
from extender.core.fit.fits import fit
from extender.core.fit.fittings import RowState, keep, state_of
from extender.core.fit.reasons import Fit, Reason
from extender.core.occupancies import Counting, ObservedRules, counting_observed
from extender.core.policies.breakdowns import Breakdown, BreakdownOf, Part
from extender.core.policies.devices import device_breakdown, device_score
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest


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
    return Evaluation(reasons(cluster, seen, request, rows, checked), checked.available, score)


def broken_down(cluster: Cluster, request: GpuRequest, policy: Policy, rows: Rows) -> tuple[Evaluation, Breakdown]:
    """Fit and score of R rows, as `evaluate`, and what the score is made of. It keeps to itself: a thread may ask about
    any snapshot."""
    seen = counting_observed(cluster, policy.rules)
    checked = fit(seen, request, rows)
    found = policy.breakdown or _one_number(policy)
    if request.devices is not None:
        found = device_breakdown(policy, found, request.devices)
    told = found(seen, request, rows, checked)
    score = np.where(checked.fits, told.score, -np.inf)
    return Evaluation(reasons(cluster, seen, request, rows, checked), checked.available, score), told


def _one_number(policy: Policy) -> BreakdownOf:
    """The score of a policy that says nothing of what it is made of."""
    apart = policy.apart() if policy.apart is not None else policy

    def parts(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        score = np.where(fit.fits, apart.score(cluster, request, rows, fit), -np.inf)
        number = np.where(fit.fits, score, 0.0)
        meaning = f"the score of policy {policy.name}, which does not say what it is made of"
        return Breakdown(score, (Part("score", meaning, number, number, lambda amount: f"a score of {amount:.4g}"),))

    return parts


def reasons(cluster: Cluster, seen: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> npt.NDArray[np.uint8]:
    """(R,) the reasons of a fit; OCCUPIED where by its bookings alone a node would do."""
    reason = checked.reason
    if seen is not cluster and (busy := np.flatnonzero(resolvable(reason))).size:
        booked = fit(cluster, request, rows[busy])
        reason = reason.copy()
        reason[busy[booked.fits]] = Reason.OCCUPIED
    return reason


class _Class(NamedTuple):
    """What is remembered of a class of requests."""

    version: int
    """Of the cluster."""
    context: Hashable
    known: Known
    serial: int
    """Another one whenever the same state of a row may come to other values than before."""
    brought_by: str


class _Row(NamedTuple):
    """What a request comes to on one row."""

    reason: int
    available: int
    score: float
    room: Mask
    """(G,)."""
    shares: bool

    def put(self, row: int, known: Known) -> None:
        """Write it into a row."""
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
"""Up to so many rows that changed since are looked up one by one."""


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
    _entries: OrderedDict[tuple[GpuRequest, str], _Class] = field(default_factory=OrderedDict)
    _num_of: Counter[str] = field(default_factory=Counter)
    """Classes by who has brought them."""
    _counting: dict[ObservedRules, Counting] = field(default_factory=dict)
    _rows: dict[tuple[int, RowState], _Row] = field(default_factory=dict)
    """By class and state of a row: nodes fill up alike, and forty NumPy calls for one row cost more than all else."""
    _fits: dict[tuple[int, RowState], Fit] = field(default_factory=dict)
    """Likewise of one row, where its score depends on samples besides."""
    _serials: "count[int]" = field(default_factory=count)

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
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._num_of[entry.brought_by] -= 1
        seen = self.seen(cluster, policy)
        if entry is None or entry.known.room.shape != cluster.gpu_model.shape or context != entry.context:
            rows = np.arange(cluster.num_nodes)
            checked = fit(seen, request, rows)
            known = Known(_evaluation(cluster, seen, request, policy, rows, checked), checked.room, checked.shares)
            serial = next(self._serials)
        else:
            known, serial = entry.known, entry.serial
            if entry.version != cluster.version:
                changed = np.flatnonzero(cluster.row_version > entry.version)
                self._refresh(known, serial, cluster, seen, request, policy, changed)
        if policy.context and (context_now := policy.context(cluster)) != context:
            # The score has found out that it must be another one: what was computed before is of no use.
            context, serial, rows = context_now, next(self._serials), np.arange(cluster.num_nodes)
            known.evaluation.put(rows, evaluate(cluster, request, policy, rows))
        brought_by = self.asker if entry is None else entry.brought_by
        self._entries[key] = _Class(cluster.version, context, known, serial, brought_by)
        self._num_of[brought_by] += 1
        if len(self._entries) > self.max_classes:
            most = max(self._num_of, key=self._num_of.__getitem__)
            self._num_of[most] -= 1
            if not self._num_of[most]:
                del self._num_of[most]
            del self._entries[next(key for key, known_of in self._entries.items() if known_of.brought_by == most)]
        return known

    def _refresh(
        self,
        known: Known,
        serial: int,
        cluster: Cluster,
        seen: Cluster,
        request: GpuRequest,
        policy: Policy,
        changed: Rows,
    ) -> None:
        """Work out what has changed on R rows, or look it up."""
        states: list[tuple[int, RowState]] = []
        by_state = policy.by_state and TABLE.by_state and not request.by_identity
        if len(changed) <= _FEW and by_state and cluster.observed is None:
            rows = changed.tolist()
            states = [(serial, state_of(cluster, row)) for row in rows]
            found = [self._rows.get(state) for state in states]
            for row, remembered in zip(rows, found, strict=True):
                if remembered is not None:
                    remembered.put(row, known)
            unknown = [position for position, remembered in enumerate(found) if remembered is None]
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
        """The fit on R rows, looked up where it is one that is sampled: what is observed is in `seen` already."""
        if len(changed) != 1 or seen.observed is None or request.by_identity or not TABLE.by_state:
            return fit(seen, request, changed)
        state = serial, state_of(seen, int(changed[0]))
        known = self._fits.get(state)
        if known is None:
            known = fit(seen, request, changed)
            keep(self._fits, state, known)
        return known
