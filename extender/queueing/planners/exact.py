"""The exact planner: a mixed-integer programme solved by HiGHS, the yardstick for small batches.

Variables count how many pods of each class go to each node, so that equal pods don't multiply the search. Pods that
are worth more go first; among equal values fewer nodes are used. SciPy comes with the extra `plan`, since nothing
else in a running service needs its 100 MB.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from extender.queueing.planners.problems import Problem, problem_of, realise
from extender.queueing.plans import Plan, PlanError, PlanPod, View

MAX_VARIABLES: Final = 100_000
_TIME_LIMIT_S: Final = 60.0
_NODE_COST: Final = 1e-4
"""Of a pod's worth, for each node used: breaks ties only."""


def make(view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
    """The optimum in pods placed, weighted by priority. Raises PlanError without SciPy, or for too large a batch."""
    try:
        from scipy import optimize, sparse  # noqa: PLC0415 - an extra, see above
    except ModuleNotFoundError as error:
        raise PlanError("the exact planner needs SciPy: pip install kerf[plan]") from error
    if not pods or not view.num_nodes:
        return realise(view, pods, [-1] * len(pods), "exact")
    problem = problem_of(view, pods)
    if any(domain is not None for domain in problem.domain_of):
        raise PlanError("exact does not know gangs that keep to one domain of a topology; use greedy or genetic")
    groups = _groups(problem)
    pairs = [(group, row) for group, members in enumerate(groups) for row in _eligible(problem, members)]
    if len(pairs) > MAX_VARIABLES:
        raise PlanError(
            f"exact takes up to {MAX_VARIABLES} pairs of pod class and node, these are {len(pairs)}; use genetic"
        )
    if not pairs:
        return realise(view, pods, [-1] * len(pods), "exact")
    counts = _solve(problem, groups, pairs, optimize, sparse)
    return realise(view, pods, _rows(groups, pairs, counts, len(pods)), "exact")


def _groups(problem: Problem) -> list[list[int]]:
    """Positions of pods that are interchangeable: of one class, and of one gang or none."""
    gang_of = {int(position): number for number, gang in enumerate(problem.gangs) for position in gang}
    groups: dict[tuple[int, int], list[int]] = {}
    for position, number in enumerate(problem.class_of.tolist()):
        groups.setdefault((gang_of.get(position, -1), number), []).append(position)
    return list(groups.values())


def _eligible(problem: Problem, members: list[int]) -> list[int]:
    rows: list[int] = np.flatnonzero(problem.eligible[problem.class_of[members[0]]]).tolist()
    return rows


def _solve(
    problem: Problem, groups: list[list[int]], pairs: list[tuple[int, int]], optimize: Any, sparse: Any
) -> list[int]:
    """How many pods of its group each pair gives to its node."""
    nodes = {row: number for number, row in enumerate(sorted({row for _, row in pairs}))}
    num_pairs, num_nodes, num_gangs = len(pairs), len(nodes), len(problem.gangs)
    gang_of = {int(gang[0]): number for number, gang in enumerate(problem.gangs)}
    size = np.array([len(members) for members in groups])
    worth = np.array([problem.weight[members[0]] for members in groups])
    # Columns: a count for each pair, used or not for each node, placed or not for each gang.
    num_columns = num_pairs + num_nodes + num_gangs
    cost = np.concatenate([[-worth[group] for group, _ in pairs], np.full(num_nodes, _NODE_COST), np.zeros(num_gangs)])
    upper = np.concatenate([[size[group] for group, _ in pairs], np.ones(num_nodes + num_gangs)])
    entries: list[tuple[int, int, float]] = []
    high: list[float] = []
    low: list[float] = []

    def constrain(terms: Sequence[tuple[int, float]], smallest: float, largest: float) -> None:
        entries.extend((len(high), column, factor) for column, factor in terms if factor)
        low.append(smallest)
        high.append(largest)

    at_node: dict[int, list[int]] = {}
    of_group: dict[int, list[int]] = {}
    for column, (group, row) in enumerate(pairs):
        at_node.setdefault(row, []).append(column)
        of_group.setdefault(group, []).append(column)
    for row, columns in at_node.items():
        for resource in range(problem.demand.shape[1]):
            demand = [float(problem.demand[groups[pairs[column][0]][0], resource]) for column in columns]
            free = float(problem.free[row, resource])
            # Room only where the node counts as used.
            terms = [*zip(columns, demand, strict=True), (num_pairs + nodes[row], -free)]
            constrain(terms, -np.inf, 0.0)
    members_of_gang: dict[int, int] = {}
    for gang in problem.gangs:
        members_of_gang.update(dict.fromkeys(gang.tolist(), gang_of[int(gang[0])]))
    for group, members in enumerate(groups):
        terms = [(column, 1.0) for column in of_group.get(group, ())]
        number = members_of_gang.get(members[0])
        if number is None:
            constrain(terms, -np.inf, float(size[group]))
        else:
            constrain([*terms, (num_pairs + num_nodes + number, -float(size[group]))], 0.0, 0.0)
    lines, columns_, factors = zip(*entries, strict=True)
    matrix = sparse.csr_array((factors, (lines, columns_)), shape=(len(high), num_columns))
    found = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(matrix, low, high),
        integrality=np.ones(num_columns),
        bounds=optimize.Bounds(0, upper),
        options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 1e-6},
    )
    if found.x is None:
        raise PlanError(f"HiGHS found no plan within {_TIME_LIMIT_S:g} s: {found.message}")
    counts: list[int] = np.rint(found.x[:num_pairs]).astype(int).tolist()
    return counts


def _rows(groups: list[list[int]], pairs: list[tuple[int, int]], counts: list[int], num_pods: int) -> list[int]:
    """A node for each pod, -1 for none."""
    rows = [-1] * num_pods
    waiting = [iter(members) for members in groups]
    for (group, row), count in zip(pairs, counts, strict=True):
        for _ in range(count):
            rows[next(waiting[group])] = row
    return rows
