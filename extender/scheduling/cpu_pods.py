"""Pods that ask for no GPU: on which nodes with GPUs they cost those who do the least.

kube-scheduler spreads such pods, and GPUs beside CPU that is gone stay idle. So where nodes with GPUs alone have room
for one, kube-scheduler chooses, by its own plugins, among the few of them that lose least by the deployment's policy.
Nothing is reserved: without Kerf these pods are scheduled as if it had never been.
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
"""Nodes that are looked for in the candidates' text; for more, that is read."""


class CpuPods:
    """Which candidates such pods are left, and in which order."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        snapshot: Callable[[], Cluster],
        *,
        near_best_nodes: int,
        enabled: bool = True,
    ) -> None:
        """`policy` is the deployment's; unless `enabled` nothing is narrowed down."""
        self._policy = policy
        self._snapshot = snapshot
        self._near_best_nodes = near_best_nodes
        self._enabled = enabled
        self._memo = Memo()

    def near_best(self, pod: objects.Pod, candidates: Candidates) -> list[str] | None:
        """Names of the candidates that lose least, best first; None where all of them may stay. Raises WireError."""
        cluster, policy = self._snapshot(), self._policy()
        if not self._ranks(policy) or len(candidates) <= self._near_best_nodes:
            return None
        if _any_without_gpus(cluster, candidates):
            return None
        names, evaluation = cluster.node_names, self._evaluation(cluster, pod, policy)
        first = islice(ranked(cluster, np.arange(cluster.num_nodes), evaluation), _FEW)
        found = [names[row] for row in first if names[row] in candidates][: self._near_best_nodes]
        if len(found) < self._near_best_nodes:  # the candidates are a sample
            rows, _ = rows_of(cluster, candidates.decode())
            best = islice(ranked(cluster, rows, evaluation.take(rows)), self._near_best_nodes)
            found = [names[row] for row in best]
        return found or None

    def scores(self, pod: objects.Pod, names: Sequence[str]) -> list[int]:
        """Scores of the candidates, 0 to 10: nodes with GPUs last, and where there are no others, by what they lose."""
        cluster, policy = self._snapshot(), self._policy()
        rows = [cluster.row_of.get(name, -1) for name in names]
        with_gpus = (cluster.unit != GpuUnit.NONE).tolist()
        found = [0 if row >= 0 and with_gpus[row] else MAX_LEVEL for row in rows]
        if any(found) or not rows or not self._ranks(policy):
            return found
        scores: list[int] = levels(self._evaluation(cluster, pod, policy).take(np.array(rows, np.intp))).tolist()
        return scores

    def _ranks(self, policy: Policy) -> bool:
        return self._enabled and policy.without_gpus

    def _evaluation(self, cluster: Cluster, pod: objects.Pod, policy: Policy) -> Evaluation:
        """Of all N rows; where there is no room, as far as Kerf knows, it does not fit."""
        cpu_milli, memory_mib = read_compute(pod.spec)
        asked = policy.asked(PodRequest(_NO_GPUS, cpu_milli=cpu_milli, memory_mib=memory_mib))
        known = self._memo.of(pod.metadata.namespace).evaluate(cluster, asked or _NO_GPUS, policy).evaluation
        has_room = enough_compute(cluster, cpu_milli, memory_mib, np.arange(cluster.num_nodes))
        return Evaluation(known.reason, known.available, np.where(has_room, known.score, -np.inf))


def _any_without_gpus(cluster: Cluster, candidates: Candidates) -> bool:
    """Whether a node without GPUs is among the candidates."""
    rows: Rows = np.flatnonzero((cluster.unit == GpuUnit.NONE) & (cluster.cpu_milli > 0))
    names = cluster.node_names
    if any(names[row] in candidates for row in rows[:_FEW].tolist()):
        return True
    return len(rows) > _FEW and not {names[row] for row in rows.tolist()}.isdisjoint(candidates.decode())
