"""Making room on a cluster in use, for a gang of whole nodes: no control plane, one process.

Pods of 1 to 8 GPUs lie where chance has put them, pods without GPUs beside them; each costs its GPUs times the
seconds that it has run. Times are of the processor beside those of the clock: other work on the machine is none of
the planner's. The lower bound is what HiGHS can prove of a relaxation that counts GPUs alone, places elsewhere
included, and thinks of no order of the moves.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, sparse

from extender.core.bookings import Booking
from extender.core.resources.gpu_models import describe_model
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.core.resources.requests import GpuRequest
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from extender.planning.moves.lower_bounds import least_cost
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import Problem, RunningPod, Target
from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import units_of
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View
from tests.tools.bench import reports, rooms

_CPU_MILLI, _MEMORY_MIB = 128_000, 1_048_576
"""Of a node."""
_MEAN_RUN_S = 3600.0
_BOUND_LIMIT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 500
    pods: int = 4000
    gang: int = 64
    """Pods of the gang, each of which asks for a whole node."""
    load: float = 0.8
    """Part of all GPUs in use, as far as there are pods."""
    limit_s: float = 10.0
    """When to stop searching."""
    repetitions: int = 3
    """Each with a seed of its own."""

    @property
    def num_steps(self) -> int:
        """Plans made."""
        return self.repetitions + 1


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan."""
    runs: list[reports.Report] = []
    for seed in range(plan.repetitions):
        tell(f"a gang of {plan.gang} on {plan.nodes} nodes, seed {seed}")
        runs.append(_run(scattered(plan, seed), plan.limit_s, seed))
    sizes = {"nodes": plan.nodes, "pods": plan.pods, "gang": plan.gang, "load": plan.load}
    tell("the same, asked of a service")
    asked = rooms.ask(scattered(plan, 0))
    return {**sizes, "runs": runs, "asked": asked, "machine": reports.machine()}


def _run(problem: Problem, limit_s: float, seed: int) -> reports.Report:
    began, cpu_began = time.perf_counter(), time.process_time()
    made = plan_moves(problem, seed, lambda: time.perf_counter() - began > limit_s)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    least = max(least_cost(MoveTrial(problem, units_of(problem))), _bound(problem))
    return {
        **{"seed": seed, "running": len(problem.running), "fits": made.fits, "impossible": list(made.impossible)},
        **{"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2), "moves": len(made.moves)},
        **{"cost_gpu_h": round(made.cost_gpu_s / 3600, 2), "least_gpu_h": round(least / 3600, 2)},
        "gap": round(made.cost_gpu_s / least - 1, 4) if made.fits and least else None,
    }


def _bound(problem: Problem) -> float:
    """GPU-seconds that moving for the gang costs at least.

    Columns: who moves, which nodes the gang gets, and how many pods of each size come to each node.
    """
    movers = [pod for pod in problem.running if pod.pod.gpus is not None]
    num_movers, num_nodes = len(movers), problem.view.num_nodes
    gpus = np.array([pod.pod.num_gpus for pod in movers])
    rows = np.array([pod.row for pod in movers])
    sizes = np.unique(gpus)
    used = np.bincount(rows, gpus, num_nodes)
    leaves = sparse.csr_array((-gpus, (rows, np.arange(num_movers))), shape=(num_nodes, num_movers))
    each = sparse.eye_array(num_nodes)
    room = sparse.hstack([leaves, 8 * each, *(int(size) * each for size in sizes)])
    nobody, every = sparse.csr_array((1, num_movers)), np.ones((1, num_nodes))
    none = sparse.csr_array((1, num_nodes))
    asked = sparse.hstack([nobody, every, *(none for _ in sizes)])
    settled = [
        sparse.hstack(
            [-(gpus == size)[None, :].astype(float), none, *(every if size == other else none for other in sizes)]
        )
        for size in sizes
    ]
    low = [*np.full(num_nodes, -np.inf), len(problem.target.pods), *np.zeros(len(sizes))]
    high = [*(8 - used), len(problem.target.pods), *np.zeros(len(sizes))]
    num_columns = room.shape[1]
    found = optimize.milp(
        np.concatenate([[pod.cost_gpu_s for pod in movers], np.zeros(num_columns - num_movers)]),
        constraints=optimize.LinearConstraint(sparse.vstack([room, asked, *settled]).tocsr(), low, high),
        integrality=np.ones(num_columns),
        bounds=optimize.Bounds(
            0, np.concatenate([np.ones(num_movers + num_nodes), np.full(num_columns - num_movers - num_nodes, 8)])
        ),
        options={"time_limit": _BOUND_LIMIT_S},
    )
    return float(found.mip_dual_bound or 0.0)


def scattered(plan: Plan, seed: int) -> Problem:
    """The cluster in use, and the gang."""
    rng = np.random.default_rng(seed)
    view = _view(plan.nodes)
    wanted = [_pod(rng, number, int(gpus)) for number, gpus in enumerate(_sizes(rng, plan))]
    state = PlanState(view, [pod.pod for pod in wanted])
    running = []
    for position, pod in enumerate(wanted):
        room = np.flatnonzero(state.fits(position))
        if room.size:
            row = int(rng.choice(room))
            state.put(position, row)
            found = state.location(position)
            running.append(replace(pod, row=row, booked=found[1] if found else Booking()))
    cluster = state.cluster
    in_use = replace(
        view,
        cluster=cluster,
        cpu_free_milli=cluster.cpu_free_milli,
        memory_free_mib=cluster.memory_free_mib,
        pods_free=view.pods_free - np.bincount([pod.row for pod in running], minlength=plan.nodes),
    )
    gang = tuple(PlanPod(f"bench/gang-{n}", 64_000, 65_536, GpuRequest(8), gang="bench/gang") for n in range(plan.gang))
    return Problem(in_use, tuple(running), Target(0, gang))


def _sizes(rng: np.random.Generator, plan: Plan) -> list[int]:
    """GPUs of each pod: until so many are in use, then none."""
    sizes = rng.choice([1, 2, 4, 8], plan.pods, p=[0.6, 0.25, 0.1, 0.05])
    with_gpus = sizes[np.cumsum(sizes) <= plan.load * 8 * plan.nodes]
    return [*with_gpus.tolist(), *[0] * (plan.pods - len(with_gpus))]


def _pod(rng: np.random.Generator, number: int, gpus: int) -> RunningPod:
    key = f"bench/p{number}"
    cpu_milli = int(rng.integers(1, 5)) * 1000 * max(gpus, 1)
    pod = PlanPod(key, cpu_milli, 4096 * max(gpus, 1), GpuRequest(gpus) if gpus else None)
    return RunningPod(key, key, 0, Booking(), pod, float(rng.exponential(_MEAN_RUN_S)) * gpus)


def _view(num_nodes: int) -> View:
    """Equal nodes of 8 GPUs that nobody uses."""
    arrays = ClusterArrays()
    gpu = Gpu(describe_model("NVIDIA-H100-80GB-HBM3", {}), 81_920)
    offer = NodeOffer((gpu,) * 8, GpuUnit.WHOLE, 1, 8)
    for number in range(num_nodes):
        arrays.set_held(arrays.set_node(f"n{number:05}", offer), HeldAmounts({}, 0))
    cpu, memory = np.full(num_nodes, _CPU_MILLI), np.full(num_nodes, _MEMORY_MIB)
    anywhere = np.ones((1, num_nodes), np.bool_)
    return View(arrays.snapshot(), cpu, memory, cpu, memory, np.full(num_nodes, 110), anywhere)
