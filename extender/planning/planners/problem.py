"""A batch as arrays for the search planners: demands, free capacity and eligible nodes.

GPUs are only counted here. A search's result is then placed pod by pod, so that no plan exceeds what a live decision
would allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Ints, Longs, Mask, Rows
from extender.planning.plan_state import PlanState, free_units, units
from extender.planning.plans import Plan, PlanPod, View, priority_weights, units_of

CPU, MEMORY, _SLOTS, GPUS = range(4)
_NEVER: Final = 2**40
"""Demand of a pod that fits no node."""


@dataclass(frozen=True, slots=True)
class Problem:
    """P pods, N nodes, R resources: CPU in milli, memory in MiB, pod slots, GPU units."""

    demand: Longs
    """(P, R)"""
    free: Longs
    """(N, R)"""
    capacity_gpus: Longs
    """(N,) installed GPU units."""
    class_of: Rows
    """(P,) class of each pod; pods of one class are interchangeable apart from gangs."""
    eligible: Mask
    """(C, N) nodes that currently have room for one pod of each class."""
    weight: Floats
    """(P,) priority weights, 1 to 2."""
    gangs: tuple[Rows, ...]
    """Positions of the pods of each gang."""
    domain_of: tuple[Ints | None, ...]
    """For each gang: (N,) domain of each node, of which it must use one; None for no restriction."""


def problem_of(view: View, pods: Sequence[PlanPod]) -> Problem:
    """The batch as arrays."""
    state = PlanState(view, pods)
    cluster = view.cluster
    classes: dict[object, int] = {}
    first: list[int] = []
    class_of = np.zeros(len(pods), np.intp)
    for position, pod in enumerate(pods):
        key = (*view.alike(pod), pod.priority)
        if key not in classes:
            classes[key] = len(first)
            first.append(position)
        class_of[position] = classes[key]
    eligible = np.array([state.fits(position) for position in first], np.bool_).reshape(len(first), view.num_nodes)
    demand = np.array(
        [(pod.cpu_milli, pod.memory_mib, 1, max(pod.gpus.count, 1) if pod.gpus else 0) for pod in pods], dtype=np.int64
    ).reshape(len(pods), 4)
    unplaceable: Mask = eligible.sum(axis=1) == 0  # (C,)
    demand[unplaceable[class_of]] = _NEVER  # nodes with room may be excluded by its selector
    free = np.stack([view.cpu_free_milli, view.memory_free_mib, view.pods_free, free_units(cluster)], axis=1).astype(
        np.int64
    )
    gangs = tuple(np.array(unit) for unit in units_of(pods) if pods[unit[0]].gang)
    domain_of = tuple(view.domains_of([pods[position] for position in gang.tolist()]) for gang in gangs)
    weight = priority_weights(pods)
    return Problem(demand, free, units(cluster).astype(np.int64), class_of, eligible, weight, gangs, domain_of)


def plan_of(view: View, pods: Sequence[PlanPod], rows: Sequence[int], planner: str) -> Plan:
    """The plan for `rows` (P,), -1 for none. Pods are placed one by one, gangs all or none, if they have room."""
    state = PlanState(view, pods)
    for unit in units_of(pods):
        begun = state.num_steps
        for position in unit:
            row = rows[position]
            if row < 0 or not state.has_room(position, row):
                state.undo(begun)
                break
            state.put(position, row)
        else:
            if not _in_one_domain(view, pods, unit, rows):
                state.undo(begun)
    return state.plan(planner)


def _in_one_domain(view: View, pods: Sequence[PlanPod], unit: Sequence[int], rows: Sequence[int]) -> bool:
    domain = view.domains_of([pods[position] for position in unit])
    if domain is None:
        return True
    domains = {int(domain[rows[position]]) for position in unit}
    return len(domains) == 1 and -1 not in domains
