"""Cluster overview: totals, and each node's GPUs with bookings and use."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules
from extender.core.policies.policy import Policy
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import PodRequest
from extender.explain.answers import ClusterNode, ClusterTotals, GpuSums, NodeDetails, NodesPage
from extender.explain.failing_nodes import NamesFailingNodes
from extender.explain.occupants import DeviceViews, gpus_of
from extender.explain.stranded import Stranding
from extender.ledger.ledger import AllocationState, Ledger
from extender.planning.plan_state import free_units, units


@dataclass(frozen=True)
class Overviews:
    """Builds overviews of the current cluster."""

    ledger: Ledger
    clock: Callable[[], float]
    num_waiting: Callable[[], int]
    """Number of unbound pods that Kerf has rejected."""
    num_pending: Callable[[], int]
    """Number of all unbound pods."""
    rules: ObservedRules
    devices: DeviceViews
    policy_of: Callable[[PodRequest], Policy]
    """Policy of a request, the deployment's if it names none."""
    stranding: Callable[[], Stranding | None] = lambda: None
    """Computes stranded capacity; None if this process does not count GPU-hours."""
    failing: NamesFailingNodes | None = None
    """Names failing nodes; None if they are not detected."""

    def page(self, limit: int, after: str, *, gpus_only: bool) -> NodesPage:
        """Totals of the whole cluster, and up to `limit` nodes after the name `after`, sorted by name."""
        cluster = self.ledger.snapshot(self.clock())
        figures = self._figures(cluster)
        has_gpus = (cluster.unit != GpuUnit.NONE).tolist()
        names = sorted(name for name, row in cluster.row_of.items() if has_gpus[row] or not gpus_only)
        first = bisect_right(names, after) if after else 0
        chosen = names[first : first + limit]
        more = first + limit < len(names)
        return {
            "version": cluster.version,
            "totals": self._totals(figures),
            "items": [self._item(figures, name, cluster.row_of[name]) for name in chosen],
            "next": chosen[-1] if more and chosen else None,
        }

    def node(self, name: str, holders: list[dict[str, Any]]) -> NodeDetails | None:
        """One node with its GPUs and their holders; None if there is no such node."""
        cluster = self.ledger.snapshot(self.clock())
        row = cluster.row_of.get(name)
        if row is None:
            return None
        counted, by_gpu = self.policy_of(PodRequest()).rules, self.devices.by_gpu(name)
        (details,) = gpus_of(cluster, np.array([row]), self.rules, counted)
        details = [gpu | by_gpu.get(gpu["index"], {}) for gpu in details]
        return {
            **self._item(self._figures(cluster), name, row),
            "gpuDetails": details,
            "deviceUses": self.devices.uses(name),
            "holders": holders,
        }

    def totals(self, cluster: Cluster) -> ClusterTotals:
        """Totals of the whole cluster."""
        return self._totals(self._figures(cluster))

    def _figures(self, cluster: Cluster) -> "Figures":
        return Figures(cluster, self.stranding())

    def _totals(self, figures: "Figures") -> ClusterTotals:
        cluster = figures.cluster
        return {
            "nodes": len(cluster.row_of),
            "gpuNodes": int((cluster.unit != GpuUnit.NONE).sum()),
            **figures.sums(num_reserved=self._num_reserved()),
            "strandedPart": figures.stranded_part(),
            "nodesSetAside": int((cluster.set_aside > 0).sum()),
            "nodesFailing": self.failing.num_failing if self.failing else 0,
            "reservations": self.ledger.num_allocations(AllocationState.RESERVED),
            "bindings": self.ledger.num_allocations(AllocationState.BINDING),
            "waitingPods": self.num_waiting(),
            "pendingPods": self.num_pending(),
        }

    def _num_reserved(self) -> float:
        reserved = {claim.node for claim in self.ledger.rows.allocations if claim.state is AllocationState.RESERVED}
        return sum(map(self.ledger.rows.num_reserved, reserved & self.ledger.rows.arrays.row_of.keys()))

    def _item(self, figures: "Figures", name: str, row: int) -> ClusterNode:
        states = [claim.state for claim in self.ledger.allocations_on(name)]
        cluster, installed = figures.cluster, figures.cluster.gpu_model[row] >= 0
        models = {cluster.models[index].name for index in cluster.gpu_model[row][installed].tolist()}
        return {
            "node": name,
            "unit": GpuUnit(int(cluster.unit[row])).name,
            "models": sorted(models - {""}),
            **figures.sums(row, self.ledger.rows.num_reserved(name)),
            "memoryMiB": int(cluster.gpu_memory_mib[row][installed].sum()),
            "memoryFreeMiB": int(cluster.gpu_free_mib[row][installed].sum()),
            "pods": states.count(AllocationState.BOUND),
            "reservations": len(states) - states.count(AllocationState.BOUND),
            "devices": self.devices.summary(name),
            "setAside": (self.failing.words(name) if self.failing else "") or None,
        }


class Figures:
    """Sums over the GPUs of each node, computed once for a page or scrape."""

    def __init__(self, cluster: Cluster, stranding: Stranding | None = None) -> None:
        """Without `stranding`, stranded capacity is None."""
        self.cluster = cluster
        self._stranding = stranding
        self._stranded = None if stranding is None else stranding.milli(cluster)  # (N,)
        self._installed = cluster.gpu_model >= 0  # (N, G)
        per_gpu = cluster.units_per_gpu
        self._units, self._free = units(cluster), free_units(cluster)  # (N,)
        self._healthy = (self._installed & cluster.gpu_healthy).sum(axis=1)
        # How much of a GPU an unknown holder uses is not known: it counts as whole.
        unknown = np.minimum(cluster.untracked_units / np.maximum(per_gpu, 1), cluster.gpu_idle.sum(axis=1))
        free = np.where(self._installed, cluster.gpu_free_milli, 0).sum(axis=1) / WHOLE_MILLI - unknown
        self.booked = np.maximum(self._installed.sum(axis=1) - free, 0.0)
        """(N,) GPUs booked or reserved; half of a GPU counts as 0.5."""
        # Free units of partly used nodes, as `kerf plan` counts them.
        self._cut = np.where(self._free < self._units, self._free, 0)

    def sums(self, row: int | None = None, num_reserved: float = 0.0) -> GpuSums:
        """Sums of one node, or of all; `num_reserved` GPUs are reserved for unbound pods and listed separately."""
        rows = slice(None) if row is None else slice(row, row + 1)
        gpus = int(self._installed[rows].sum())
        return {
            "gpus": gpus,
            "gpusBooked": round(max(float(self.booked[rows].sum()) - num_reserved, 0.0), 3),
            "gpusReserved": round(num_reserved, 3),
            "units": int(self._units[rows].sum()),
            "unitsFree": int(self._free[rows].sum()),
            "fragments": int(self._cut[rows].sum()),
            "gpusStranded": None if self._stranded is None else int(self._stranded[rows].sum()) / WHOLE_MILLI,
            "unhealthy": gpus - int(self._healthy[rows].sum()),
            "load": self._load(rows),
        }

    def stranded_part(self) -> float | None:
        """Stranded fraction of all GPUs; None if unknown."""
        if self._stranding is None or self._stranded is None:
            return None
        return self._stranding.part(self.cluster, self._stranded)

    def _load(self, rows: slice) -> float | None:
        """Mean load of the GPUs with a known load on some nodes; None if there are none."""
        if self.cluster.observed is None:
            return None
        load = self.cluster.observed.gauge(Gauge.LOAD)[rows][self._installed[rows]]
        known = load[np.isfinite(load)]
        return round(float(known.mean()), 4) if len(known) else None
