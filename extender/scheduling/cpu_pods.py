"""Places pods without GPUs on those GPU nodes where they cost GPU pods the least.

kube-scheduler spreads such pods, and GPUs without free CPU stay idle. When only GPU nodes are candidates,
kube-scheduler chooses among the few that lose least by the deployment's policy. Nothing is reserved; without Kerf these
pods are scheduled as usual.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.decisions import MAX_LEVEL, levels, ranked
from extender.core.evaluations import Evaluation, Memo
from extender.core.fit.fits import enough_compute
from extender.core.policies.policy import Policy
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.kube import objects
from extender.plugins.pod_resources import read_compute
from extender.scheduling.assignments import Candidates, rows_of

_NO_GPUS: Final = GpuRequest(0, AskedUnit.NONE)
_FEW: Final = 64
"""Up to this many nodes are searched in the encoded candidates; for more, these are decoded."""


class CpuPods:
    """Filters and scores the candidates of pods without GPUs."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        snapshot: Callable[[], Cluster],
        *,
        near_best_nodes: int,
        enabled: bool = True,
    ) -> None:
        """`policy` returns the deployment's policy; unless `enabled`, all candidates stay."""
        self._policy = policy
        self._snapshot = snapshot
        self._near_best_nodes = near_best_nodes
        self._enabled = enabled
        self._memo = Memo()

    def near_best(self, pod: objects.Pod, candidates: Candidates) -> list[str] | None:
        """Return the candidates that lose least, best first; None when all may stay. Raises WireError."""
        cluster, policy = self._snapshot(), self._policy()
        if not self._ranks(policy) or len(candidates) <= self._near_best_nodes:
            return None
        if _any_without_gpus(cluster, candidates):
            return None
        names, evaluation = cluster.node_names, self._evaluation(cluster, pod, policy)
        first = islice(ranked(cluster, np.arange(cluster.num_nodes), evaluation), _FEW)
        near_best = [names[row] for row in first if names[row] in candidates][: self._near_best_nodes]
        if len(near_best) < self._near_best_nodes:  # the candidates are a sample
            rows, _ = rows_of(cluster, candidates.decode())
            best = islice(ranked(cluster, rows, evaluation.take(rows)), self._near_best_nodes)
            near_best = [names[row] for row in best]
        return near_best or None

    def scores(self, pod: objects.Pod, names: Sequence[str]) -> list[int]:
        """Return scores from 0 to 10: nodes with GPUs get 0, or are ranked by what they lose if there are no others."""
        cluster, policy = self._snapshot(), self._policy()
        rows = [cluster.row_of.get(name, -1) for name in names]
        with_gpus = (cluster.unit != GpuUnit.NONE).tolist()
        scores: list[int] = [0 if row >= 0 and with_gpus[row] else MAX_LEVEL for row in rows]
        if any(scores) or not rows or not self._ranks(policy):
            return scores
        scores = levels(self._evaluation(cluster, pod, policy).take(np.array(rows, np.intp))).tolist()
        return scores

    def _ranks(self, policy: Policy) -> bool:
        return self._enabled and policy.without_gpus

    def _evaluation(self, cluster: Cluster, pod: objects.Pod, policy: Policy) -> Evaluation:
        """Evaluate all N rows; nodes without enough free CPU and memory do not fit."""
        cpu_milli, memory_mib = read_compute(pod.spec)
        request = policy.weighed_request(PodRequest(_NO_GPUS, cpu_milli=cpu_milli, memory_mib=memory_mib)) or _NO_GPUS
        known = self._memo.of(pod.metadata.namespace).evaluate(cluster, request, policy).evaluation
        has_room = enough_compute(cluster, cpu_milli, memory_mib, np.arange(cluster.num_nodes))
        return Evaluation(known.reason, known.available, np.where(has_room, known.score, -np.inf))


def _any_without_gpus(cluster: Cluster, candidates: Candidates) -> bool:
    """Whether a node without GPUs is among the candidates."""
    rows: Rows = np.flatnonzero((cluster.unit == GpuUnit.NONE) & (cluster.cpu_milli > 0))
    names = cluster.node_names
    if any(names[row] in candidates for row in rows[:_FEW].tolist()):
        return True
    return len(rows) > _FEW and not {names[row] for row in rows.tolist()}.isdisjoint(candidates.decode())
