"""The least cost of moves by a mixed-integer program; counts whole GPUs, and ignores the order of moves."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from scipy import optimize, sparse

from extender.planning.moves.problems import Problem, RunningPod
from extender.planning.plans import PlanPod


def movable(problem: Problem, unit: list[RunningPod]) -> bool:
    """Whether a pod or gang may move at all."""
    used = Counter(key for pod in unit for key in set(pod.budgets))
    return (
        not any(pod.stays or pod.priority > problem.target.priority for pod in unit)
        and all(num <= problem.budgets.get(key, 0) for key, num in used.items())
        and (problem.max_moves is None or len(unit) <= problem.max_moves)
    )


def units(problem: Problem) -> list[list[RunningPod]]:
    """Single pods, and gangs."""
    found: dict[str, list[RunningPod]] = defaultdict(list)
    for pod in problem.running:
        found[pod.gang or pod.uid].append(pod)
    return list(found.values())


class Program:
    """Columns and rows of a program."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def add(self, terms: dict[int, float], low: float, high: float) -> None:
        self.rows.append((terms, low, high))

    def solve(self) -> float | None:
        entries = [
            (factor, row, column) for row, (terms, _, _) in enumerate(self.rows) for column, factor in terms.items()
        ]
        factors, rows, columns = zip(*entries, strict=True)
        matrix = sparse.csr_array((factors, (rows, columns)), shape=(len(self.rows), len(self.cost)))
        limits = optimize.LinearConstraint(matrix, [row[1] for row in self.rows], [row[2] for row in self.rows])
        found = optimize.milp(
            np.array(self.cost),
            constraints=limits,
            integrality=np.ones(len(self.cost)),
            bounds=optimize.Bounds(0, 1),
            options={"time_limit": 60.0, "mip_rel_gap": 1e-6},
        )
        assert found.status in (0, 2), found.message
        return None if found.x is None else float(found.fun)


def demand(pod: PlanPod) -> list[float]:
    return [pod.gpus.count if pod.gpus else 0, pod.cpu_milli, pod.memory_mib, 1]


def optimum(problem: Problem) -> float | None:  # noqa: PLR0912, PLR0915 - the whole program in one place
    """GPU-seconds of the cheapest moves, None if no moves make room."""
    view, target = problem.view, problem.target
    N = view.num_nodes
    program = Program()
    capacity = np.stack([view.cluster.gpu_idle.sum(axis=1), view.cpu_free_milli, view.memory_free_mib, view.pods_free])
    capacity = capacity.astype(float)
    use: list[list[dict[int, float]]] = [[{} for _ in range(N)] for _ in range(4)]
    arrivals: list[list[int]] = [[] for _ in range(N)]
    stayers: list[list[tuple[int | None, RunningPod]]] = [[] for _ in range(N)]
    moved_pods: dict[int, float] = {}
    in_domain: list[tuple[list[dict[int, int]], np.ndarray]] = []

    def places_of(pod: PlanPod, rows: Iterable[int]) -> dict[int, int]:
        """Columns by row that say where a pod goes."""
        to = {row: program.column() for row in rows if view.allowed[pod.kind, row]}
        for row, column in to.items():
            arrivals[row].append(column)
            for resource, amount in enumerate(demand(pod)):
                use[resource][row][column] = amount
        return to

    for unit in units(problem):
        moves = program.column(sum(pod.cost_gpu_s for pod in unit)) if movable(problem, unit) else None
        if moves is not None:
            moved_pods[moves] = len(unit)
        places = []
        for pod in unit:
            stayers[pod.row].append((moves, pod))
            for resource, amount in enumerate(demand(pod.pod)):
                if moves is not None:
                    use[resource][pod.row][moves] = use[resource][pod.row].get(moves, 0) - amount
            if moves is None:
                continue
            to = places_of(pod.pod, (row for row in range(N) if row != pod.row or len(unit) > 1))
            program.add({**dict.fromkeys(to.values(), 1.0), moves: -1.0}, 0, 0)
            places.append(to)
        topology = unit[0].pod.topology
        if moves is not None and topology and len(unit) > 1:
            in_domain.append((places, view.domains[topology]))
    of_target: list[dict[int, int]] = []
    for wanted in target.pods:
        of_target.append(to := places_of(wanted, range(N)))
        program.add(dict.fromkeys(to.values(), 1.0), 1, 1)
    if target.pods and target.pods[0].topology:
        in_domain.append((of_target, view.domains[target.pods[0].topology]))
    if target.apart:
        for row in range(N):
            program.add({to[row]: 1.0 for to in of_target if row in to}, 0, 1)
    for places, domain in in_domain:
        chosen = {int(number): program.column() for number in np.unique(domain)}
        program.add(dict.fromkeys(chosen.values(), 1.0), 0, 1)
        for to in places:
            for row, column in to.items():
                program.add({column: 1.0, chosen[int(domain[row])]: -1.0}, -np.inf, 0)
    emptied = {}
    for row in range(N):
        may = target.may_empty is None or target.may_empty[row]
        if row in target.empty or (target.num_empty and may):
            empty = emptied[row] = program.column()
            if row in target.empty:
                program.add({empty: 1.0}, 1, 1)
            for column in arrivals[row]:
                program.add({column: 1.0, empty: 1.0}, -np.inf, 1)
            for moves, _ in stayers[row]:
                program.add({empty: 1.0} if moves is None else {empty: 1.0, moves: -1.0}, -np.inf, 0)
    if target.num_empty:
        chosen_rows = {column: 1.0 for row, column in emptied.items() if row not in target.empty}
        program.add(chosen_rows, target.num_empty, target.num_empty)
    for resource in range(4):
        for row in range(N):
            program.add(use[resource][row], -np.inf, capacity[resource, row])
    if problem.max_moves is not None:
        program.add(moved_pods, 0, problem.max_moves)
    return program.solve()
