"""What a plan comes to, node by node (row M9): pods, CPU, memory and GPUs in use once it is carried out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extender.queueing.boards import board_of, free_units
from extender.queueing.plans import Plan, View, priority_weights


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node as the plan leaves it; percentages are of what the kubelet offers, running pods and reserve included."""

    node: str
    pods: tuple[str, ...]
    """Keys of the pods that the plan puts there."""
    cpu_percent: float
    memory_percent: float
    gpus_used: int
    gpus: int

    @property
    def gpu_percent(self) -> float:
        """Part of its GPU units in use, 0 for a node without."""
        return _percent(self.gpus_used, self.gpus)


def node_loads(view: View, plan: Plan) -> list[NodeLoad]:
    """Every node, in the order of their names."""
    cluster = board_of(view, plan).cluster
    pods: dict[int, list[str]] = {}
    cpu, memory = view.cpu_free_milli.copy(), view.memory_free_mib.copy()
    for pod, row in zip(plan.pods, plan.rows, strict=True):
        if row >= 0:
            pods.setdefault(row, []).append(pod.key)
            cpu[row] -= pod.cpu_milli
            memory[row] -= pod.memory_mib
    units = (cluster.gpu_model >= 0).sum(axis=1) * cluster.units_per_gpu
    free = free_units(cluster)
    return [
        NodeLoad(
            node=name,
            pods=tuple(pods.get(row, ())),
            cpu_percent=_percent(int(view.cpu_allocatable_milli[row] - cpu[row]), int(view.cpu_allocatable_milli[row])),
            memory_percent=_percent(
                int(view.memory_allocatable_mib[row] - memory[row]), int(view.memory_allocatable_mib[row])
            ),
            gpus_used=int(units[row] - free[row]),
            gpus=int(units[row]),
        )
        for name, row in sorted(cluster.row_of.items())
    ]


def report(view: View, plan: Plan) -> Mapping[str, Any]:
    """The whole report as JSON data."""
    quality = board_of(view, plan).quality(priority_weights(plan.pods))
    names = view.cluster.node_names
    return {
        "planner": plan.planner,
        "version": plan.version,
        "pods": len(plan.pods),
        "placed": plan.num_placed,
        "gpus": quality.gpus,
        "fragments": round(quality.fragments, 4),
        "assignments": [
            {"pod": pod.key, "node": names[row], "gpus": list(gpus)}
            for pod, row, gpus in zip(plan.pods, plan.rows, plan.gpus, strict=True)
            if row >= 0
        ],
        "unassigned": [{"pod": plan.pods[position].key, "reason": why} for position, why in plan.unassigned.items()],
        "nodes": [
            {
                **{"node": load.node, "pods": list(load.pods)},
                **{"cpuPercent": load.cpu_percent, "memoryPercent": load.memory_percent},
                **{"gpuPercent": load.gpu_percent, "gpusUsed": load.gpus_used, "gpus": load.gpus},
            }
            for load in node_loads(view, plan)
        ],
    }


def _percent(used: int, of: int) -> float:
    return round(100 * used / of, 1) if of > 0 else 0.0
