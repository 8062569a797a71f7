"""What a plan changes, in figures: whole nodes that are free, and GPUs that are of use to the target."""

from dataclasses import replace

import numpy as np

from extender.core.bookings import Booking, book, bookable, booking
from extender.core.clusters import WHOLE_MILLI
from extender.explain.defrag.room_answers import Figures
from extender.planning.moves.problems import MovePlan, Problem
from extender.planning.plan_state import PlanState, free_units, units
from extender.planning.plans import View


def figures(problem: Problem, view: View) -> Figures:
    """Of a view of the problem's cluster."""
    free, installed = free_units(view.cluster), units(view.cluster)
    whole = int(((free == installed) & (installed > 0)).sum())
    pods = problem.target.pods
    if not pods or pods[0].gpus is None or not pods[0].gpus.count:
        return Figures(whole, None)
    each = pods[0].gpus.count
    fits = PlanState(view, pods[:1], problem.policy).fits(0)
    return Figures(whole, int((free[fits] // each * each).sum()))


def gpus_of_use(problem: Problem, plan: MovePlan) -> float:
    """GPUs that a plan makes usable: those that the target asks for, shares as parts, and those of the nodes that
    its moves empty."""
    asked = sum(
        pod.gpus.count * (pod.gpus.milli / WHOLE_MILLI if pod.gpus.milli else 1)
        for pod in problem.target.pods
        if pod.gpus
    )
    rows = sorted({move.pod.row for move in plan.moves}.intersection(plan.emptied))
    return float(asked + (problem.view.cluster.gpu_model[rows] >= 0).sum())


def view_after(view: View, plan: MovePlan) -> View:
    """The view with the moves made, before the target's pods come."""
    cpu, memory, slots = view.cpu_free_milli.copy(), view.memory_free_mib.copy(), view.pods_free.copy()
    version = view.cluster.version + 1
    left = np.zeros(view.cluster.gpu_model.shape, np.bool_)
    for move in plan.moves:
        left[move.pod.row, list(move.pod.booked.all_gpus)] = True
    observed = view.cluster.observed.without_memory_of(left) if view.cluster.observed is not None else None
    cluster = replace(
        bookable(view.cluster),
        version=version,
        observed=observed,
        row_version=view.cluster.row_version.copy(),
        cpu_free_milli=cpu,
        memory_free_mib=memory,
    )
    for move in plan.moves:
        book(cluster, move.pod.row, move.pod.booked, 1)
        slots[move.pod.row] += 1
    for move in plan.moves:
        pod = move.pod.pod
        booked = Booking(cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)
        if pod.gpus is not None:
            booked = booking(cluster, move.row, pod.gpus, move.gpus, pod.cpu_milli, pod.memory_mib)
        book(cluster, move.row, booked)
        slots[move.row] -= 1
    for move in plan.moves:
        cluster.row_version[[move.pod.row, move.row]] = version
    return replace(view, cluster=cluster, cpu_free_milli=cpu, memory_free_mib=memory, pods_free=slots)
