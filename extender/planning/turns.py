"""Plans in several turns: whoever wants to be near others, or spread beside them, is tried again once these are placed.

As kube-scheduler does, which tries a pod again when another one has come to a node.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from extender.planning.plans import Plan, Planner, PlanPod, View

_MOST_TURNS: Final = 8


def waits_for_others(pod: PlanPod) -> bool:
    """Whether a pod may fit once others are placed."""
    return pod.demands is not None and bool(pod.demands.near or pod.demands.spread)


def made_in_turns(planner: Planner, view: View, pods: Sequence[PlanPod]) -> Plan:
    """A plan of P pods in their order."""
    order = list(range(len(pods)))
    best = planner.make(view, pods)
    for _ in range(_MOST_TURNS):
        late = {pods[order[at]].gang or order[at] for at in best.unassigned if waits_for_others(pods[order[at]])}
        if not late:
            break
        last = [number for number in order if (pods[number].gang or number) in late]
        if order[len(order) - len(last) :] == last:
            break  # they have come last already
        changed = [number for number in order if (pods[number].gang or number) not in late] + last
        made = planner.make(view, [pods[number] for number in changed])
        if made.num_placed <= best.num_placed:
            break
        order, best = changed, made
    place_of = {number: at for at, number in enumerate(order)}
    return replace(
        best,
        pods=tuple(pods),
        rows=tuple(best.rows[place_of[number]] for number in range(len(pods))),
        gpus=tuple(best.gpus[place_of[number]] for number in range(len(pods))),
        unassigned={order[at]: why for at, why in best.unassigned.items()},
    )
