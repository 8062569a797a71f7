"""Repeated planning: pods with pod affinity or spread rules are retried after the pods they depend on.

kube-scheduler likewise retries such a pod when another pod has been placed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from extender.planning.plans import Plan, Planner, PlanPod, View

_MAX_RETRIES: Final = 8


def waits_for_others(pod: PlanPod) -> bool:
    """Whether a pod may fit only after others are placed."""
    return pod.demands is not None and bool(pod.demands.affinity or pod.demands.spread)


def plan_with_retries(planner: Planner, view: View, pods: Sequence[PlanPod]) -> Plan:
    """The plan of P pods in their order; retries move unplaced dependent pods to the end while that places more."""
    order = list(range(len(pods)))
    best = planner.make(view, pods)
    for _ in range(_MAX_RETRIES):
        late = {pods[order[at]].gang or order[at] for at in best.unassigned if waits_for_others(pods[order[at]])}
        if not late:
            break
        last = [number for number in order if (pods[number].gang or number) in late]
        if order[len(order) - len(last) :] == last:
            break  # they were last already
        reordered = [number for number in order if (pods[number].gang or number) not in late] + last
        candidate = planner.make(view, [pods[number] for number in reordered])
        if candidate.num_placed <= best.num_placed:
            break
        order, best = reordered, candidate
    index_of = {number: at for at, number in enumerate(order)}
    return replace(
        best,
        pods=tuple(pods),
        rows=tuple(best.rows[index_of[number]] for number in range(len(pods))),
        gpus=tuple(best.gpus[index_of[number]] for number in range(len(pods))),
        unassigned={order[at]: why for at, why in best.unassigned.items()},
    )
