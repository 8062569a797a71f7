"""JSON report of a plan: assignments, and each node's pods and utilization after it is carried out."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypedDict

from extender.planning.plan_state import free_units, state_after, units
from extender.planning.plans import Plan, View, priority_weights

_REASON: Final = "needs 2 GPUs, best node: 1 free"

NodeLoad = Mapping[str, Any]
"""A node after the plan, as JSON data; percentages are of allocatable and include running pods."""


class PlanReport(TypedDict):
    """The report's keys, with examples for the API's schema."""

    planner: Annotated[str, "greedy"]
    version: Annotated[int, 261]
    pods: Annotated[int, 2]
    placed: Annotated[int, 1]
    gpus: Annotated[int, 2]
    fragments: Annotated[float, 0.2]
    assignments: Annotated[list[dict[str, Any]], [{"pod": "research/train-0", "node": "a100-0", "gpus": [0, 1]}]]
    unassigned: Annotated[list[dict[str, str]], [{"pod": "research/train-1", "reason": _REASON}]]
    nodes: list[NodeLoad]


def node_loads(view: View, plan: Plan) -> list[NodeLoad]:
    """The load of every node, sorted by node name."""
    cluster = state_after(view, plan).cluster
    pods: dict[int, list[str]] = {}
    for pod, row in zip(plan.pods, plan.rows, strict=True):
        pods.setdefault(row, []).append(pod.key)
    cpu, memory, gpus = view.cpu_allocatable_milli, view.memory_allocatable_mib, units(cluster)
    used = gpus - free_units(cluster)
    return [
        {
            "node": name,
            "pods": pods.get(row, []),
            "cpuPercent": _percent(int(cpu[row] - cluster.cpu_free_milli[row]), int(cpu[row])),
            "memoryPercent": _percent(int(memory[row] - cluster.memory_free_mib[row]), int(memory[row])),
            "gpuPercent": _percent(int(used[row]), int(gpus[row])),
            "gpusUsed": int(used[row]),
            "gpus": int(gpus[row]),
        }
        for name, row in sorted(cluster.row_of.items())
    ]


def report(view: View, plan: Plan) -> PlanReport:
    """The report of a plan."""
    quality = state_after(view, plan).quality(priority_weights(plan.pods))
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
        "unassigned": [
            {"pod": plan.pods[position].key, "reason": str(why)} for position, why in plan.unassigned.items()
        ],
        "nodes": node_loads(view, plan),
    }


def _percent(used: int, total: int) -> float:
    return round(100 * used / total, 1) if total > 0 else 0.0
