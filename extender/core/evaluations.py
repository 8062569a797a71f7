"""Fit and score of a request on the nodes of a cluster, and how they are remembered."""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason, resolvable
from extender.core.fit.results import Fit
from extender.core.occupancies import Counting, ObservedRules, counting_observed
from extender.core.policies.devices import device_score
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


def reasons(cluster: Cluster, seen: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> npt.NDArray[np.uint8]:
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
