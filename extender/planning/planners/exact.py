"""The exact planner: a mixed-integer program solved by HiGHS, the yardstick for small batches.

Variables count the pods of each group on each node, so that equal pods don't multiply the search. It maximizes the
weight of placed pods, then uses the fewest nodes. SciPy (100 MB) comes with the extra `plan`; nothing else needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from extender.core.clusters import Ints, Longs, Rows
from extender.planning.planners.problem import Problem, plan_of, problem_of
from extender.planning.plans import Plan, PlanError, PlanPod, View

_MAX_VARIABLES: Final = 100_000
_TIME_LIMIT_S: Final = 60.0
_NODE_COST: Final = 1e-4
"""Cost of each node used, where a pod weighs 1 or more: breaks ties only."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Maximizes the number of placed pods, weighted by priority."""

    name: ClassVar[str] = "exact"
    description: ClassVar[str] = "mixed-integer optimum by HiGHS (extra `plan`); small batches"

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """The plan. Raises PlanError without SciPy, for too large a batch, and for gangs with a topology."""
        try:
            from scipy import optimize, sparse  # noqa: PLC0415 - optional dependency, see above
        except ModuleNotFoundError as error:
            raise PlanError("the exact planner needs SciPy: pip install kerf[plan]") from error
        rows = [-1] * len(pods)
        if pods and view.num_nodes:
            _assign(problem_of(view, pods), rows, optimize, sparse)
        return plan_of(view, pods, rows, self.name)


def _assign(problem: Problem, rows: list[int], optimize: Any, sparse: Any) -> None:
    """Set `rows` (P,) for the pods that get a node. Raises PlanError."""
    if any(domain is not None for domain in problem.domain_of):
        raise PlanError("exact does not support gangs with a topology; use greedy or genetic")
    groups = _groups(problem)
    first = [members[0] for members in groups]
    group, row = np.nonzero(problem.eligible[problem.class_of[first]])
    if len(group) > _MAX_VARIABLES:
        raise PlanError(
            f"exact takes up to {_MAX_VARIABLES} pairs of pod class and node, these are {len(group)}; use genetic"
        )
    if not len(group):
        return
    waiting = [iter(members) for members in groups]
    counts = _solve(problem, groups, group, row, optimize, sparse)
    for number, node, count in zip(group.tolist(), row.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            rows[next(waiting[number])] = node


def _groups(problem: Problem) -> list[list[int]]:
    """Groups of positions of interchangeable pods: of one class, and of one gang or none."""
    groups: dict[tuple[int, int], list[int]] = {}
    for position, key in enumerate(zip(_gang_of(problem).tolist(), problem.class_of.tolist(), strict=True)):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _gang_of(problem: Problem) -> Ints:
    """(P,) number of each pod's gang, -1 for none."""
    gang_of = np.full(len(problem.demand), -1, np.int32)
    for number, gang in enumerate(problem.gangs):
        gang_of[gang] = number
    return gang_of


def _solve(problem: Problem, groups: list[list[int]], group: Rows, row: Rows, optimize: Any, sparse: Any) -> Longs:
    """(Q,) number of pods for each pair of group and node, given by `group` and `row` (Q,)."""
    first = np.array([members[0] for members in groups])
    size = np.array([len(members) for members in groups])
    gang = _gang_of(problem)[first]
    nodes, node = np.unique(row, return_inverse=True)
    # Columns: a count for each pair, used or not for each node, placed or not for each gang.
    num_pairs, num_nodes, num_gangs = len(group), len(nodes), len(problem.gangs)
    cost = np.concatenate([-problem.weight[first][group], np.full(num_nodes, _NODE_COST), np.zeros(num_gangs)])
    upper = np.concatenate([size[group], np.ones(num_nodes + num_gangs)])
    pairs = np.arange(num_pairs)
    room, no_gang = [], sparse.csr_array((num_nodes, num_gangs))
    for demand, free in zip(problem.demand[first].T, problem.free[nodes].T.astype(np.float64), strict=True):
        requested = sparse.csr_array((demand[group], (node, pairs)), shape=(num_nodes, num_pairs))
        room.append(sparse.hstack([requested, sparse.diags_array(-free), no_gang]))  # no capacity on unused nodes
    members = sparse.csr_array((np.ones(num_pairs), (group, pairs)), shape=(len(groups), num_pairs))
    ganged = np.flatnonzero(gang >= 0)
    whole = sparse.csr_array((-size[ganged], (ganged, gang[ganged])), shape=(len(groups), num_gangs))
    all_or_none = sparse.hstack([members, sparse.csr_array((len(groups), num_nodes)), whole])
    low = np.concatenate([np.full(num_nodes * len(room), -np.inf), np.where(gang >= 0, 0.0, -np.inf)])
    high = np.concatenate([np.zeros(num_nodes * len(room)), np.where(gang >= 0, 0, size)])
    solution = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(sparse.vstack([*room, all_or_none]).tocsr(), low, high),
        integrality=np.ones(num_pairs + num_nodes + num_gangs),
        bounds=optimize.Bounds(0, upper),
        options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 1e-6},
    )
    if solution.x is None:
        raise PlanError(f"HiGHS found no plan within {_TIME_LIMIT_S:g} s: {solution.message}")
    counts: Longs = np.rint(solution.x[:num_pairs]).astype(np.int64)
    return counts
