"""Nodes with GPUs that are alike to a pod: whether where it ran was its author's choice."""

from collections.abc import Callable
from typing import Final

import numpy as np

from extender.core.resources.nodes import GpuUnit
from extender.kube import objects
from extender.kube.watches.stores import Store
from extender.ledger.ledger import Ledger

_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_LABELS: Final = 20
"""By so many labels a pod may choose; who names more names a node."""


class AlikeNodes(Store[objects.Node]):
    """A sink of nodes."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        super().__init__()
        self._ledger, self._clock = ledger, clock
        self._nodes: dict[str, objects.Node] = {}  # by name

    def changed(self, before: objects.Node | None, after: objects.Node | None) -> None:
        """A node came, changed or went."""
        name = (after or before or objects.Node()).metadata.name
        if after is not None:
            self._nodes[name] = after
        elif self._nodes.get(name) is before:  # else it has come again
            del self._nodes[name]

    def chosen_by(self, pod: objects.Pod, node: str) -> bool:
        """Whether a pod's author names the node that it is on, or it is there for it: where it fails he chose.

        It is not, where another node with GPUs has the same values of all labels that the pod chooses by: whatever it
        says of them, it may go there as well.
        """
        keys = _labels_named(pod.spec)
        if pod.metadata.belongs_to_a_node or keys is None or len(keys) > _MOST_LABELS or node not in self._nodes:
            return True
        return bool(keys) and not any(self._alike(node, other, keys) for other in self._with_gpus() if other != node)

    def _alike(self, node: str, other: str, keys: frozenset[str]) -> bool:
        if other not in self._nodes:
            return False
        known, found = (self._nodes[name].metadata.labels or {} for name in (node, other))
        return all(known.get(key) == found.get(key) for key in keys)

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
