"""Nodes with GPUs that are alike to a pod: whether where it ran was its author's choice."""

from collections.abc import Callable
from typing import Final

import numpy as np

from extender.core.resources.nodes import GpuUnit
from extender.kube import objects
from extender.kube.cache import Cache
from extender.ledger.ledger import Ledger

_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_LABELS: Final = 20
"""By so many labels a pod may choose; who names more names a node."""


class AlikeNodes:
    """Compares nodes by their labels."""

    def __init__(self, ledger: Ledger, nodes: Cache[objects.Node, objects.Node], clock: Callable[[], float]) -> None:
        self._ledger, self._nodes, self._clock = ledger, nodes, clock

    def chosen_by(self, pod: objects.Pod, node: str) -> bool:
        """Whether a pod's author names the node that it is on, or it is there for it: where it fails he chose.

        It is not, where another node with GPUs has the same values of all labels that the pod chooses by: whatever it
        says of them, it may go there as well.
        """
        keys = _labels_named(pod.spec)
        if pod.metadata.belongs_to_a_node or keys is None or len(keys) > _MOST_LABELS or not self._nodes.named(node):
            return True
        return bool(keys) and not any(self._alike(node, other, keys) for other in self._with_gpus() if other != node)

    def _alike(self, node: str, other: str, keys: frozenset[str]) -> bool:
        known, found = self._nodes.named(node), self._nodes.named(other)
        if known is None or found is None:
            return False
        of_known, of_found = known.metadata.labels or {}, found.metadata.labels or {}
        return all(of_known.get(key) == of_found.get(key) for key in keys)

    def _with_gpus(self) -> list[str]:
        cluster = self._ledger.snapshot(self._clock())
        return [cluster.node_names[row] for row in np.flatnonzero(cluster.unit != GpuUnit.NONE).tolist()]


def _labels_named(spec: objects.PodSpec) -> frozenset[str] | None:
    """Labels of nodes by which a pod chooses, None where it names nodes."""
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    terms = (required and required.node_selector_terms) or ()
    keys = frozenset(spec.node_selector or ()).union(
        item.key for term in terms for item in term.match_expressions or ()
    )
    names = _HOSTNAME in keys or any(term.match_fields for term in terms)  # of fields there is the name alone
    return None if names else keys
