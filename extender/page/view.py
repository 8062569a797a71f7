"""The page's data: nodes with their GPUs, decisions, and the sections of panels. Read only while a page is open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from extender.core.clusters import Cluster, Rows
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules
from extender.core.resources.nodes import SLICES, GpuUnit
from extender.explain.explanations import RejectionLog
from extender.explain.occupants import DeviceViews
from extender.ledger.ledger import Ledger
from extender.page.gpu_cells import Mark, cells
from extender.scheduling.placer import Placement, Placer

_MAX_DECISIONS: Final = 50
_MAX_AGE_S: Final = 0.9
"""Time for which sections are shared between clients, in seconds."""


@dataclass
class PageView:
    """Reads the page's data from the parts of a running service."""

    ledger: Ledger
    placer: Placer
    rejections: RejectionLog
    rules: ObservedRules
    panels: Mapping[str, Callable[[], Any]]
    """Functions that return the sections of panels, by name; a section is sent when it changes."""
    clock: Callable[[], float]
    devices: DeviceViews
    _sections: tuple[float, dict[str, Any]] = float("-inf"), {}

    def cluster(self) -> Cluster:
        """The cluster now."""
        return self.ledger.snapshot(self.clock())

    def nodes(self, cluster: Cluster, rows: Rows) -> list[dict[str, Any]]:
        """R nodes as JSON data; a row without a node has only its number and an empty name."""
        of_gpus, installed = cells(cluster, rows, self.rules), (cluster.gpu_model[rows] >= 0).sum(axis=1).tolist()
        nodes: list[dict[str, Any]] = []
        for row, num_gpus, gpus in zip(rows.tolist(), installed, of_gpus.tolist(), strict=True):
            name = cluster.node_names[row]
            if not name:
                nodes.append({"row": row, "node": ""})
                continue
            observed = cluster.observed
            for index in self.ledger.rows.reserved_gpus(name).intersection(range(num_gpus)):
                gpus[index][2] |= Mark.RESERVED
            nodes.append(
                {
                    "row": row,
                    "node": name,
                    "model": cluster.models[cluster.gpu_model[row, 0]].name if num_gpus else "",
                    "memoryMiB": int(cluster.gpu_memory_mib[row, 0]) if num_gpus else 0,
                    "unit": GpuUnit(int(cluster.unit[row])).name,
                    "samples": "" if observed is None else SampleState(int(observed.state[row])).name,
                    "gpus": gpus[:num_gpus],
                    **_kinds(cluster, row),
                    **self._reserved(name),
                    **self._devices(name),
                }
            )
        return nodes

    def _reserved(self, node: str) -> dict[str, Any]:
        """The number of a node's GPUs that are held for unbound pods, if any."""
        reserved = self.ledger.rows.num_reserved(node)
        return {"gpusReserved": round(reserved, 3)} if reserved else {}

    def _devices(self, node: str) -> dict[str, Any]:
        """The free devices that Kerf allocates, and the number of pools with faults, if any."""
        devices = {"free": self.devices.free_words(node), "faults": len(self.devices.faults(node))}
        return {name: value for name, value in devices.items() if value}

    def sections(self) -> dict[str, Any]:
        """The sections of panels, at most `_MAX_AGE_S` old."""
        at, made = self._sections
        now = self.clock()
        if now - at >= _MAX_AGE_S:
            made = {name: read() for name, read in self.panels.items()}
            self._sections = now, made
        return made

    @property
    def num_decisions(self) -> int:
        """Number of decisions so far, which is the number of the newest."""
        return self.placer.decided.num_made

    def decisions(self, after: int) -> list[dict[str, Any]]:
        """The newest kept decisions after a number, oldest first."""
        return [self._decision(number, kept) for number, kept in self.placer.decided.after(after)[-_MAX_DECISIONS:]]

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


def _kinds(cluster: Cluster, row: int) -> dict[str, Any]:
    """Special properties of a node: time slices per GPU, MIG devices (installed, free), whether it is quarantined."""
    mig = zip(cluster.mig_profiles, cluster.mig_installed[row].tolist(), cluster.mig_free[row].tolist(), strict=True)
    kinds = {
        "slices": int(cluster.units_per_gpu[row]) if GpuUnit(int(cluster.unit[row])) in SLICES else 0,
        "mig": [[profile, installed, free] for profile, installed, free in mig if installed],
        "setAside": bool(cluster.set_aside[row]),
    }
    return {name: value for name, value in kinds.items() if value}
