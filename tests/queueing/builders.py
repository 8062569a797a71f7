"""Batches and clusters for planners, and a checker of plans that shares no code with them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from extender.core.clusters import Ints, Mask
from extender.core.resources.requests import GpuRequest
from extender.planning.plans import Plan, PlanPod, View
from tests.core.builders import NodeState, cluster_of, node

A100 = "NVIDIA-A100-SXM4-40GB"
T4 = "Tesla-T4"


def view_of(
    nodes: Mapping[str, NodeState],
    *,
    cpu_milli: int | Sequence[int] = 64_000,
    memory_mib: int | Sequence[int] = 262_144,
    pods: int = 110,
    allowed: Mask | None = None,
    domains: Mapping[str, Ints] | None = None,
) -> View:
    """A view of a cluster whose nodes have this much CPU and memory, all of it free."""
    cluster = cluster_of(nodes)
    size = cluster.num_nodes
    cpu = np.broadcast_to(np.asarray(cpu_milli, np.int64), size).copy()
    memory = np.broadcast_to(np.asarray(memory_mib, np.int64), size).copy()
    return View(
        cluster,
        cpu,
        memory,
        cpu.copy(),
        memory.copy(),
        np.full(size, pods, np.int64),
        np.ones((1, size), np.bool_) if allowed is None else allowed,
        domains or {},
    )


def plain_view(num_nodes: int, cpu_milli: int = 8000, memory_mib: int = 16_384) -> View:
    """M3's demo cluster: nodes without GPUs."""
    return view_of({f"n{number}": node() for number in range(num_nodes)}, cpu_milli=cpu_milli, memory_mib=memory_mib)


def gpu_view(num_nodes: int, gpus: int = 8, product: str = A100, memory_mib: int = 40_960) -> View:
    """Equal nodes of whole GPUs."""
    return view_of({f"n{number:04}": node(*[(product, memory_mib)] * gpus) for number in range(num_nodes)})


def gpu_pod(key: str, gpus: int = 1, *, priority: int = 0, gang: str = "", topology: str = "") -> PlanPod:
    return PlanPod(key, 1000, 1024, GpuRequest(gpus), priority=priority, gang=gang, topology=topology)


def demo_pods() -> list[PlanPod]:
    """M3: 20 pods of 1 CPU and 1 GiB, the last of 9 CPU, which no node of 8 has."""
    return [PlanPod(f"p{number}", 1000, 1024) for number in range(19)] + [PlanPod("huge", 9000, 1024)]


def reasons(plan: Plan) -> dict[int, str]:
    """The reasons of the pods that get no node, by position."""
    return {position: str(why) for position, why in plan.unassigned.items()}


def check(view: View, pods: Sequence[PlanPod], plan: Plan) -> None:
    """Assert that no node is overbooked and gangs are whole, counted pod by pod in Python's integers."""
    assert plan.pods == tuple(pods)
    assert len(plan.rows) == len(plan.gpus) == len(pods)
    assert {position for position, row in enumerate(plan.rows) if row < 0} == set(plan.unassigned)
    cluster = view.cluster
    cpu, memory, slots, units = (Counter[int]() for _ in range(4))
    taken: set[tuple[int, int]] = set()
    for pod, row, gpus in zip(pods, plan.rows, plan.gpus, strict=True):
        if row < 0:
            assert gpus == ()
            continue
        assert cluster.node_names[row]
        assert view.allowed[pod.kind][row]
        cpu[row] += pod.cpu_milli
        memory[row] += pod.memory_mib
        slots[row] += 1
        if pod.gpus is not None:
            assert len(gpus) == pod.gpus.count
            units[row] += pod.gpus.count
        for gpu in gpus:
            assert (row, gpu) not in taken
            assert cluster.gpu_model[row, gpu] >= 0
            assert cluster.gpu_memory_mib[row, gpu] >= (pod.gpus.memory_each_mib if pod.gpus else 0)
            taken.add((row, gpu))
    for row in slots:
        assert cpu[row] <= view.cpu_free_milli[row]
        assert memory[row] <= view.memory_free_mib[row]
        assert slots[row] <= view.pods_free[row]
        assert units[row] <= cluster.gpu_idle[row].sum() - cluster.untracked_units[row]
    gangs: dict[str, set[bool]] = {}
    for pod, row in zip(pods, plan.rows, strict=True):
        if pod.gang:
            gangs.setdefault(pod.gang, set()).add(row >= 0)
    assert all(len(states) == 1 for states in gangs.values())
