"""Small clusters in use, and targets that room is to be made for; random ones by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from extender.core.bookings import Booking
from extender.core.clusters import Ints
from extender.core.resources.requests import GpuRequest
from extender.planning.moves.problems import Problem, RunningPod, Target
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View
from tests.core.builders import node
from tests.queueing.builders import A100, view_of

NOTHING = Booking()
CPU_EACH, MEMORY_EACH = 8000, 32_768
"""CPU (milli) and memory (MiB) of a node per GPU."""


def asking(key: str, gpus: int, cpu_milli: int = 1000, memory_mib: int = 1024, **other: Any) -> PlanPod:
    """A pod of whole GPUs; none for 0."""
    return PlanPod(key, cpu_milli, memory_mib, GpuRequest(gpus) if gpus else None, **other)


def empty_view(num_nodes: int, gpus: int = 8, domains: Mapping[str, Ints] | None = None, slots: int = 110) -> View:
    """Equal, empty nodes."""
    nodes = {f"n{number:03}": node(*[(A100, 40_960)] * gpus) for number in range(num_nodes)}
    return view_of(nodes, cpu_milli=CPU_EACH * gpus, memory_mib=MEMORY_EACH * gpus, pods=slots, domains=domains)


def in_use(view: View, pods: Sequence[tuple[int, RunningPod]]) -> tuple[View, tuple[RunningPod, ...]]:
    """The view with these pods on their rows, booked as by a live decision; pods without room are left out."""
    state = PlanState(view, [pod.pod for _, pod in pods])
    running = []
    for position, (row, pod) in enumerate(pods):
        if not state.has_room(position, row):
            continue
        state.put(position, row)
        _, booked = state.location(position) or (row, NOTHING)
        running.append(replace(pod, row=row, booked=booked))
    cluster = state.cluster
    free = replace(
        view,
        cluster=replace(cluster, row_version=cluster.row_version.copy()),
        cpu_free_milli=cluster.cpu_free_milli.copy(),
        memory_free_mib=cluster.memory_free_mib.copy(),
        pods_free=view.pods_free - np.bincount([pod.row for pod in running], minlength=view.num_nodes),
    )
    return free, tuple(running)


def runs(
    key: str, gpus: int = 1, cost: float = 100.0, cpu_milli: int = 1000, memory_mib: int = 1024, **other: Any
) -> RunningPod:
    """A running pod; `in_use` sets its node."""
    pod = asking(key, gpus, cpu_milli, memory_mib, gang=other.get("gang", ""), topology=other.pop("topology", ""))
    return RunningPod(key, f"uid-{key}", 0, NOTHING, pod, cost, **other)


def drawn(seed: int) -> Problem:
    """A small problem of any kind."""
    rng = np.random.default_rng(seed)
    num_nodes, gpus = int(rng.integers(3, 9)), int(rng.choice([4, 8], p=[0.3, 0.7]))
    racks = {"rack": (np.arange(num_nodes) // 3).astype(np.int32)}
    view = empty_view(num_nodes, gpus, racks)
    pods = _pods(rng, num_nodes, gpus)
    view, running = in_use(view, pods)
    budgets = {"default/a": int(rng.integers(0, 3)), "default/b": 1}
    target = _target(rng, num_nodes, gpus)
    max_moves = int(rng.integers(2, 9)) if rng.random() < 0.2 else None
    return Problem(view, running, target, max_moves, budgets)


def _pods(rng: np.random.Generator, num_nodes: int, gpus: int) -> list[tuple[int, RunningPod]]:
    load = rng.uniform(0.35, 0.85)
    room = np.full(num_nodes, gpus)
    pods: list[tuple[int, RunningPod]] = []
    gangs = 0
    while room.sum() > (1 - load) * num_nodes * gpus:
        size = min(int(rng.choice([0, 1, 2, 3, 4], p=[0.1, 0.35, 0.3, 0.05, 0.2])), gpus)
        num, gang, topology = 1, "", ""
        if rng.random() < 0.08:
            gangs += 1
            num, gang = int(rng.integers(2, 4)), f"default/g{gangs}"
            topology = "rack" if rng.random() < 0.3 else ""
        of_rack = np.flatnonzero(np.arange(num_nodes) // 3 == rng.integers(0, -(-num_nodes // 3)))
        rows = [int(rng.choice(of_rack)) if topology else int(rng.integers(num_nodes)) for _ in range(num)]
        if (room < size * np.bincount(rows, minlength=num_nodes)).any():
            if rng.random() < 0.02:
                break
            continue
        cost = float(np.round(rng.exponential(1000.0) * max(size, 1), 1)) if rng.random() < 0.9 else 0.0
        priority = int(rng.choice([0, 1, 2], p=[0.8, 0.14, 0.06]))
        cpu = int(rng.choice([500, 2000, 8000])) * max(size, 1)
        stays = "has no controller" if rng.random() < 0.04 else ""
        budgets = tuple(name for name in ("default/a", "default/b") if rng.random() < 0.06)
        fields: dict[str, Any] = {"priority": priority, "gang": gang, "topology": topology, "budgets": budgets}
        for row in rows:
            pod = runs(f"default/p{len(pods)}", size, cost, cpu, 2048 * max(size, 1), stays=stays, **fields)
            pods.append((row, pod))
            room[row] -= size
            stays = ""  # of a gang only the first
    return pods


def _target(rng: np.random.Generator, num_nodes: int, gpus: int) -> Target:
    priority = int(rng.choice([1, 2, 5]))
    kind = rng.choice(["pod", "pods", "gang", "rack", "empty", "any", "both"])
    size = int(rng.choice([gpus, gpus // 2, max(gpus - 2, 1)], p=[0.5, 0.3, 0.2]))
    num = int(rng.integers(2, 4))
    one = asking("default/t0", size, 4000, 4096)
    pods = tuple(replace(one, key=f"default/t{n}") for n in range(num))
    match kind:
        case "pod":
            return Target(priority, (one,))
        case "pods":
            return Target(priority, pods, apart=bool(rng.random() < 0.5))
        case "gang" | "rack":
            topology = "rack" if kind == "rack" else ""
            return Target(priority, tuple(replace(pod, gang="default/t", topology=topology) for pod in pods))
        case "empty":
            return Target(priority, empty=frozenset(rng.choice(num_nodes, 1).tolist()))
        case "any":
            return Target(priority, num_empty=int(rng.integers(1, 3)))
        case _:
            return Target(priority, (one,), empty=frozenset({int(rng.integers(num_nodes))}))
