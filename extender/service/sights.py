"""What the page shows: nodes with their GPUs, totals, pods that wait and why, decisions, and the state of the service.

Only read, and only while somebody looks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from extender.cluster.ledger import Ledger
from extender.cluster.placements import Placement, Placer
from extender.cluster.wakes import Waker
from extender.core.clusters import Cluster, Rows
from extender.core.nodes import GpuUnit
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules
from extender.core.requests import GpuRequest
from extender.queueing.backlogs import Backlog, Entry
from extender.service.cells import cells
from extender.service.explanations import RejectionLog
from extender.service.overviews import Overviews

_MAX_WAITING: Final = 100
_MAX_DECISIONS: Final = 50
_WORTH_S: Final = 0.9
"""For so long what was worked out for one client does for another."""


@dataclass
class Sights:
    """Reads the parts of a running service."""

    ledger: Ledger
    placer: Placer
    waker: Waker
    overviews: Overviews
    rejections: RejectionLog
    backlog: Backlog | None
    """None when the queue is off."""
    rules: ObservedRules
    status: Callable[[], dict[str, Any]]
    """What the service says of itself."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _sections: tuple[float, dict[str, Any]] = float("-inf"), {}

    def cluster(self) -> Cluster:
        """The cluster now."""
        return self.ledger.snapshot(self.clock())

    def nodes(self, cluster: Cluster, rows: Rows) -> list[dict[str, Any]]:
        """R nodes; of a row that is free by now only its number, with no name."""
        of_gpus, installed = cells(cluster, rows, self.rules), (cluster.gpu_model[rows] >= 0).sum(axis=1).tolist()
        told: list[dict[str, Any]] = []
        for row, num_gpus, gpus in zip(rows.tolist(), installed, of_gpus.tolist(), strict=True):
            name = cluster.node_names[row]
            if not name:
                told.append({"row": row, "node": ""})
                continue
            observed = cluster.observed
            told.append(
                {
                    "row": row,
                    "node": name,
                    "model": cluster.models[cluster.gpu_model[row, 0]].name if num_gpus else "",
                    "memoryMiB": int(cluster.gpu_memory_mib[row, 0]) if num_gpus else 0,
                    "unit": GpuUnit(int(cluster.unit[row])).name,
                    "samples": "" if observed is None else SampleState(int(observed.state[row])).name,
                    "gpus": gpus[:num_gpus],
                }
            )
        return told

    def sections(self) -> dict[str, Any]:
        """`totals`, `status` and `waiting`; a moment later the same does for another client."""
        at, made = self._sections
        now = self.clock()
        if now - at >= _WORTH_S:
            totals = self.overviews.totals(self.cluster())
            made = {"totals": totals, "status": self.status(), "waiting": self.waiting()}
            self._sections = now, made
        return made

    def waiting(self) -> dict[str, Any]:
        """How many pods have no node, and those of them whose turn comes first."""
        queued, rejected = self.backlog.waiting() if self.backlog else [], self.waker.waiting()
        ahead = self.wall_clock() - self.clock()
        first = [_queued(entry) for entry in nsmallest(_MAX_WAITING, queued, key=_turn)]
        first += [
            _waiting(pod.key, request.gpus, self.rejections.last(pod), "scheduler", request.priority, since + ahead)
            for pod, request, since in nsmallest(_MAX_WAITING, rejected, key=lambda one: (-one[1].priority, one[2]))
        ]
        first.sort(key=lambda item: (-item["priority"], item["since"], item["pod"]))
        return {"total": len(queued) + len(rejected), "items": first[:_MAX_WAITING]}

    @property
    def num_decisions(self) -> int:
        """Made so far: the number of the newest."""
        return self.placer.num_decided

    def decisions(self, after: int) -> list[dict[str, Any]]:
        """The newest decisions that are kept, oldest first, numbered in the order of their making."""
        return [self._decision(number, kept) for number, kept in self.placer.kept_after(after)[-_MAX_DECISIONS:]]

    def _decision(self, number: int, kept: Placement) -> dict[str, Any]:
        decision = kept.decision
        return {
            "number": number,
            "at": round(kept.decided_at, 3),
            "pod": kept.pod.key,
            "node": kept.node,
            "gpus": list(decision.gpus),
            "request": str(decision.request),
            "policy": decision.policy,
            "why": "" if kept.node else self.rejections.last(kept.pod),
        }


def _queued(entry: Entry) -> dict[str, Any]:
    """A pod behind the gate."""
    request = entry.planned.gpus if entry.planned else None
    why = entry.reason or entry.fault
    return _waiting(entry.pod.key, request, why, "queue", _priority(entry), entry.created)


def _waiting(pod: str, request: GpuRequest | None, why: str, where: str, priority: int, since: float) -> dict[str, Any]:
    """A pod without a node; `since` is Unix time."""
    return {
        "pod": pod,
        "request": str(request or ""),
        "why": why,
        "where": where,
        "priority": priority,
        "since": round(since, 1),
    }


def _turn(entry: Entry) -> tuple[int, float]:
    """Sorts by whose turn it is."""
    return -_priority(entry), entry.created


def _priority(entry: Entry) -> int:
    return entry.planned.priority if entry.planned else 0
