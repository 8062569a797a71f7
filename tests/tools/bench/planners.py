"""Quality and time of the planners on the same batches: no control plane, one process.

The demo is MLTaskScheduler's (row M3). The larger batches meet nodes that are partly in use, with more GPUs and CPU
asked than are free, so that it matters who goes where. Times are of the processor: other work on the machine is none
of the planners'.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.gpu_models import describe_model
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.core.resources.requests import GpuRequest
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from extender.planning.plan_state import state_after
from extender.planning.planners import PLANNERS
from extender.planning.planners.genetic import Genetic
from extender.planning.plans import Plan as Placed
from extender.planning.plans import PlanError, PlanPod, View, priority_weights
from tests.tools.bench import reports

_Batch = tuple[View, list[PlanPod]]

_COLD = "genetic, cold"
"""Without greedy's plan among its first individuals."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    pods: int = 200
    nodes: int = 500
    many_pods: int = 10_000
    many_nodes: int = 5000
    repetitions: int = 3
    """Each with a seed of its own."""

    @property
    def num_steps(self) -> int:
        """Plans made."""
        return self.repetitions * (2 * len(_MAKERS) + 1)


def _cold(view: View, pods: Sequence[PlanPod], seed: int) -> Placed:
    return Genetic(warm_start=False).make(view, pods, seed)


_MAKERS = {**{name: planner.make for name, planner in PLANNERS.items()}, _COLD: _cold}


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan."""

    def scarce(seed: int) -> _Batch:
        return _scarce(plan.pods, plan.nodes, seed)

    def many(seed: int) -> _Batch:
        return _scarce(plan.many_pods, plan.many_nodes, seed)

    batches: list[tuple[str, list[str], Callable[[int], _Batch]]] = [
        ("demo: 20 pods, 3 nodes", list(_MAKERS), _demo),
        (f"{plan.pods} pods, {plan.nodes} nodes", list(_MAKERS), scarce),
        (f"{plan.many_pods} pods, {plan.many_nodes} nodes", ["greedy"], many),
    ]
    results: list[reports.Report] = []
    for title, names, batch in batches:
        for name in names:
            runs: list[reports.Report] = []
            for seed in range(plan.repetitions):
                tell(f"{name}, {title}, seed {seed}")
                view, pods = batch(seed)
                runs.append(_run(name, view, pods, seed))
            results.append({"batch": title, "planner": name, "runs": runs} | _medians(runs))
    return {"results": results, "machine": reports.machine()}


def _run(name: str, view: View, pods: list[PlanPod], seed: int) -> reports.Report:
    began = time.process_time()
    try:
        made = _MAKERS[name](view, pods, seed)
    except PlanError as error:
        return {"refused": str(error)}
    seconds = time.process_time() - began
    quality = state_after(view, made).quality(priority_weights(pods))
    return {
        **{"seconds": round(seconds, 4), "placed": quality.placed, "pods": len(pods), "gpus": quality.gpus},
        **{"worth": round(quality.placed_priority, 2), "fragments": round(quality.fragments, 4)},
    }


def _medians(runs: list[reports.Report]) -> reports.Report:
    measured = [run for run in runs if "refused" not in run]
    if not measured:
        return {"refused": runs[0]["refused"]}
    keys = ("seconds", "placed", "pods", "gpus", "worth", "fragments")
    return {key: statistics.median(run[key] for run in measured) for key in keys}


def _demo(seed: int) -> _Batch:
    """3 nodes of 8 CPU and 16384 MiB; 19 pods of about 1 CPU and one of 9."""
    rng = np.random.default_rng(seed)
    pods = [
        PlanPod(f"p{number}", cpu, memory)
        for number, (cpu, memory) in enumerate(
            zip(rng.integers(200, 2000, 19).tolist(), rng.integers(256, 3000, 19).tolist(), strict=True)
        )
    ]
    return _view(np.zeros((3, 0), np.bool_), 8000, 16_384), [*pods, PlanPod("huge", 9000, 1024)]


def _scarce(num_pods: int, num_nodes: int, seed: int) -> _Batch:
    """8-GPU nodes partly in use; pods of 1 to 8 GPUs that ask for about a tenth more than is free, of CPU as well."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 2, 4, 8], num_pods, p=[0.45, 0.25, 0.2, 0.1])
    num_free = rng.integers(0, 9, num_nodes)
    num_free[np.cumsum(num_free) > 0.9 * sizes.sum()] = 0
    cpu = sizes * rng.integers(1, 13, num_pods) * 1000  # nodes have 8 for each GPU: some pods leave GPUs, others CPU
    priority = np.sort(rng.integers(0, 4, num_pods))[::-1]
    pods = [
        PlanPod(f"p{number}", cpu_milli, 4096, GpuRequest(size), priority=priority)
        for number, (size, cpu_milli, priority) in enumerate(
            zip(sizes.tolist(), np.minimum(cpu, 64_000).tolist(), priority.tolist(), strict=True)
        )
    ]
    view = _view(np.arange(8) < num_free[:, None], 64_000, 262_144)
    return replace(view, cpu_free_milli=8000 * num_free), pods


def _view(free: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], cpu_milli: int, memory_mib: int) -> View:
    """Nodes whose GPUs are free as said, and whose CPU and memory all is."""
    num_nodes, num_gpus = free.shape
    arrays = ClusterArrays()
    gpu = Gpu(describe_model("NVIDIA-A100-SXM4-40GB", {}), 40_960)
    offer = NodeOffer((gpu,) * num_gpus, GpuUnit.WHOLE, 1, num_gpus) if num_gpus else NodeOffer()
    for number in range(num_nodes):
        row = arrays.set_node(f"n{number:05}", offer)
        arrays.set_held(
            row, HeldAmounts(dict.fromkeys(np.flatnonzero(~free[number]).tolist(), (WHOLE_MILLI, 40960)), 0)
        )
    cpu, memory = np.full(num_nodes, cpu_milli), np.full(num_nodes, memory_mib)
    anywhere = np.ones((1, num_nodes), np.bool_)
    return View(arrays.snapshot(), cpu, memory, cpu, memory, np.full(num_nodes, 110), anywhere)
