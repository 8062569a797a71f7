"""Replays moves on plain Python objects, step by step; shares no code with the planner."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from extender.planning.moves.problems import Move, MovePlan, Problem, RunningPod
from extender.planning.plans import PlanPod


@dataclass
class Machine:
    """The free resources of a node."""

    cpu_milli: int
    memory_mib: int
    slots: int
    gpu_milli: dict[int, int]
    """Of healthy GPUs."""
    gpu_mib: dict[int, int]
    size_mib: dict[int, int]
    pods: set[str] = field(default_factory=set)


def machines(problem: Problem) -> list[Machine]:
    view, cluster = problem.view, problem.view.cluster
    found = []
    for row in range(view.num_nodes):
        gpus = [gpu for gpu in range(cluster.gpu_model.shape[1]) if cluster.gpu_healthy[row, gpu]]
        found.append(
            Machine(
                int(view.cpu_free_milli[row]),
                int(view.memory_free_mib[row]),
                int(view.pods_free[row]),
                {gpu: int(cluster.gpu_free_milli[row, gpu]) for gpu in gpus},
                {gpu: int(cluster.gpu_free_mib[row, gpu]) for gpu in gpus},
                {gpu: int(cluster.gpu_memory_mib[row, gpu]) for gpu in gpus},
            )
        )
    for pod in problem.running:
        found[pod.row].pods.add(pod.uid)
    return found


def leave(machine: Machine, pod: RunningPod) -> None:
    machine.cpu_milli += pod.booked.cpu_milli
    machine.memory_mib += pod.booked.memory_mib
    machine.slots += 1
    for number, gpu in enumerate(pod.booked.gpus):
        if gpu in machine.gpu_milli:
            whole = pod.booked.milli == 1000
            machine.gpu_milli[gpu] += pod.booked.milli
            machine.gpu_mib[gpu] += machine.size_mib[gpu] if whole else pod.booked.mib_each[number]
    machine.pods.remove(pod.uid)


def arrive(machine: Machine, pod: PlanPod, uid: str, gpus: tuple[int, ...]) -> None:
    machine.cpu_milli -= pod.cpu_milli
    machine.memory_mib -= pod.memory_mib
    machine.slots -= 1
    if pod.gpus is not None:
        assert len(gpus) == pod.gpus.count == len(set(gpus))
    for gpu in gpus:
        assert pod.gpus is not None
        if pod.gpus.milli:
            machine.gpu_milli[gpu] -= pod.gpus.milli
            machine.gpu_mib[gpu] -= pod.gpus.memory_each_mib
        else:
            assert machine.gpu_milli[gpu] == 1000, "a GPU that is given whole is in use"
            machine.gpu_milli[gpu] -= 1000
            machine.gpu_mib[gpu] -= machine.size_mib[gpu]
    assert min([machine.cpu_milli, machine.memory_mib, machine.slots]) >= 0
    assert min([0, *machine.gpu_milli.values(), *machine.gpu_mib.values()]) >= 0
    machine.pods.add(uid)


def check(problem: Problem, plan: MovePlan) -> None:
    """Assert that a plan never overbooks, loses no pod, moves gangs whole, and keeps budgets and priorities."""
    target, view = problem.target, problem.view
    assert plan.version == view.cluster.version
    if not plan.fits:
        assert not plan.moves
        assert not plan.rows
        assert plan.impossible
        assert all(plan.impossible)
        return
    assert plan.impossible == ()
    nodes = machines(problem)
    _check_moves(problem, plan.moves)
    for step in sorted({move.step for move in plan.moves}):
        together = [move for move in plan.moves if move.step == step]
        away = Counter(key for move in together for key in set(move.pod.budgets))
        assert all(num <= problem.budgets.get(key, 0) for key, num in away.items())
        for move in together:
            leave(nodes[move.pod.row], move.pod)
        for move in together:
            assert view.cluster.node_names[move.row]
            assert view.allowed[move.pod.pod.kind][move.row]
            arrive(nodes[move.row], move.pod.pod, move.pod.uid, move.gpus)
    assert sorted(uid for machine in nodes for uid in machine.pods) == sorted(pod.uid for pod in problem.running)
    assert len(plan.rows) == len(plan.gpus) == len(target.pods)
    for number, (pod, row, gpus) in enumerate(zip(target.pods, plan.rows, plan.gpus, strict=True)):
        assert view.allowed[pod.kind][row]
        arrive(nodes[row], pod, f"target-{number}", gpus)
    if target.apart:
        assert len(set(plan.rows)) == len(plan.rows)
    _check_domain(problem, [(pod, row) for pod, row in zip(target.pods, plan.rows, strict=True)])
    assert len(set(plan.emptied)) == len(plan.emptied) == len(target.empty) + target.num_empty
    assert target.empty <= set(plan.emptied)
    left = {move.pod.uid for move in plan.moves if move.row != move.pod.row}
    assert {problem.running[number].uid for number in target.leave} <= left
    for row in plan.emptied:
        assert not nodes[row].pods
        assert row in target.empty or target.may_empty is None or target.may_empty[row]


def _check_moves(problem: Problem, moves: tuple[Move, ...]) -> None:
    assert problem.max_moves is None or len(moves) <= problem.max_moves
    assert [move.step for move in moves] == sorted(move.step for move in moves)
    assert len({move.pod.uid for move in moves}) == len(moves)
    units: dict[str, set[str]] = defaultdict(set)
    for pod in problem.running:
        units[pod.gang or pod.uid].add(pod.uid)
    moved: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        moved[move.step].append(move)
    for together in moved.values():
        first = together[0].pod
        assert {move.pod.uid for move in together} == units[first.gang or first.uid]
        assert any(move.row != move.pod.row for move in together)
        _check_domain(problem, [(move.pod.pod, move.row) for move in together])
    for move in moves:
        assert not move.pod.stays
        assert move.pod.priority <= problem.target.priority


def _check_domain(problem: Problem, placed: list[tuple[PlanPod, int]]) -> None:
    gangs: dict[str, list[tuple[PlanPod, int]]] = defaultdict(list)
    for pod, row in placed:
        if pod.gang and pod.topology:
            gangs[pod.gang].append((pod, row))
    for members in gangs.values():
        domains = {int(problem.view.domains[pod.topology][row]) for pod, row in members}
        assert len(domains) == 1
        assert -1 not in domains
