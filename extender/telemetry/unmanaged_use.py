"""Reports GPUs used by processes outside any pod, and faulty GPUs, in node events and metrics."""

import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from extender.core.occupancies import ObservedRules, faulty, unaccounted_mib
from extender.core.resources.quantities import format_mib
from extender.kube.events import EventRecorder
from extender.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

_REPEAT_AFTER_S: Final = 3600.0
_MAX_EVENTS: Final = 20
"""Per round."""


class UnmanagedWatch:
    """Checks the cluster after each refresh."""

    def __init__(self, ledger: Ledger, events: EventRecorder, rules: ObservedRules, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._events = events
        self._rules = rules
        self._clock = clock
        self._reported: dict[str, tuple[str, float]] = {}
        self.num_gpus = 0
        """GPUs in use by unknown processes."""
        self.total_mib = 0
        """Memory used by unknown processes, in MiB."""
        self.num_faulty = 0
        """GPUs that report a fault."""

    def check(self) -> None:
        """Update the counts, and report nodes where the affected GPUs have changed."""
        now = self._clock()
        cluster = self._ledger.snapshot(now)
        rows = np.arange(cluster.num_nodes)
        beyond = unaccounted_mib(cluster, rows, self._rules)
        broken = faulty(cluster, rows, self._rules) & (cluster.gpu_model >= 0)
        self.num_gpus, self.total_mib = int((beyond > 0).sum()), int(beyond.sum())
        self.num_faulty = int(broken.sum())
        affected = np.flatnonzero((beyond > 0).any(axis=1) | broken.any(axis=1)).tolist()
        names = {cluster.node_names[row] for row in affected}
        for node in self._reported.keys() - names:
            del self._reported[node]
        num_events = 0
        for row in affected:
            node = cluster.node_names[row]
            used = np.flatnonzero(beyond[row]).tolist()
            bad = np.flatnonzero(broken[row]).tolist()
            which = f"{used}{bad}"
            last, at = self._reported.get(node, ("", float("-inf")))
            if not node or (which == last and now - at < _REPEAT_AFTER_S) or num_events >= _MAX_EVENTS:
                continue
            num_events += 1
            self._reported[node] = which, now
            if used:
                memory = format_mib(int(beyond[row].sum()))
                text = f"{memory} on {_gpus(used)} are in use by unknown processes"
                self._events.emit_about_node(node, reason="UnmanagedGPUUse", message=text)
                logger.warning("node %s: %s", node, text)
            if bad:
                text = f"{_gpus(bad)}: a hardware XID error or a failed row remap"
                self._events.emit_about_node(node, reason="FaultyGPU", message=text)
                logger.warning("node %s: %s", node, text)


def _gpus(indices: list[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"
