"""The problem of making room: running pods, the target, and the resulting moves with their gain and cost.

A move evicts a pod, which then restarts on the planned node: its old resources are free before it arrives. Moves are
made one after another, those of a gang together in one step. The target's pods come last.

Gain and cost are in GPU-seconds by which work ends sooner or later. If gain exceeds cost, the cluster's work, weighted
by GPUs, ends sooner in total.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from extender.core.bookings import Booking
from extender.core.clusters import Cluster, Mask
from extender.core.resources.gpu_models import ModelPattern
from extender.planning.plan_state import DEFAULT_POLICY
from extender.planning.plans import PlanPod, View

_MAX_WAIT_S: Final = 86400.0
"""Longest assumed remaining wait: a pod that has waited for weeks must not justify any number of restarts."""


def gain_gpu_s(gpus_made_usable: float, waited_s: float) -> float:
    """GPU-seconds of waiting that a target is spared if it starts now.

    `gpus_made_usable` are its requested GPUs, summed over a gang, shares as fractions. Its remaining wait is unknown
    and assumed to equal its wait so far (`waited_s`), at most `_MAX_WAIT_S`. That is the mean for the heavy-tailed
    waits of GPU queues. For a target that does not wait, such as a node freed for an autoscaler, pass the time for
    which the GPUs are of use. Raises ValueError for negative or NaN arguments.
    """
    for name, value in (("GPUs", gpus_made_usable), ("seconds waited", waited_s)):
        if not value >= 0:
            raise ValueError(f"{value} {name}: must be 0 or more")
    return gpus_made_usable * min(waited_s, _MAX_WAIT_S)


def is_worth(gain: float, cost: float, least_gain: float) -> bool:
    """Whether moves are worth making: the gain is above 0 and at least `least_gain` times the cost."""
    return gain > 0 and gain >= least_gain * cost


def keeping_its_model(cluster: Cluster, row: int, pod: PlanPod) -> PlanPod:
    """A running pod as it is to be placed elsewhere: if it names no GPU model, it is restricted to its node's models,
    since it might be much slower on others."""
    models = {cluster.models[model].name for model in cluster.gpu_model[row].tolist() if model >= 0} - {""}
    if pod.gpus is None or pod.gpus.include is not None or not models:
        return pod
    text = "|".join(f"^{re.escape(model)}$" for model in sorted(models)).replace("\\-", "-")
    return replace(pod, gpus=replace(pod.gpus, include=ModelPattern(text, re.compile(text))))


NOBODY_ABOVE: Final = 2**31 - 1
"""Priority of a target for which pods of any priority may move, such as node maintenance."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod that holds resources on a node."""

    key: str
    """`namespace/name`."""
    uid: str
    row: int
    """Row of its node."""
    booked: Booking
    """What its node gets back when it leaves, including CPU and memory."""
    pod: PlanPod
    """The pod as it would be placed elsewhere; its gang and priority are ignored in favour of those below."""
    cost_gpu_s: float = 0.0
    """GPU-seconds lost by its restart, per pod also in gangs."""
    priority: int = 0
    gang: str = ""
    """Cluster-wide name of its gang, which moves as a whole; "" for none."""
    budgets: tuple[str, ...] = ()
    """Keys of the disruption budgets that cover it."""
    stays: str = ""
    """Why it may not be moved, "" if it may, for example "it has no controller"."""


@dataclass(frozen=True, slots=True)
class Target:
    """What room is made for: pods, empty nodes, or pods that are to leave their nodes."""

    priority: int
    """Pods of higher priority are not moved for it."""
    pods: tuple[PlanPod, ...] = ()
    """Single pods and gangs, all of which must fit together."""
    apart: bool = False
    """Whether no two of its pods may share a node."""
    empty: frozenset[int] = frozenset()
    """Rows to be emptied of all `Problem.running`."""
    num_empty: int = 0
    """Number of further nodes to be empty, chosen by the search; already empty ones count."""
    may_empty: Mask | None = None
    """(N,) candidates for `num_empty`; None: all."""
    leave: frozenset[int] = frozenset()
    """Positions in `Problem.running` of pods that have to leave their nodes. Their gangs move too, but other members
    may return."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A cluster, its running pods, and the target."""

    view: View
    """The cluster with all running pods. `View.allowed` and `View.domains` cover the kinds of `running` too."""
    running: Sequence[RunningPod]
    """All pods that hold resources, also immovable ones; DaemonSet pods only if a node is not empty with them. Other
    usage in the cluster's arrays stays."""
    target: Target
    max_moves: int | None = None
    """Most pods to move; None: no limit."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Allowed disruptions by disruption budget; 0 for those not listed."""
    policy: str = DEFAULT_POLICY
    """Ranks nodes for pods that don't choose a policy."""


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that is evicted and restarts on another node; a gang's member may restart on the same one."""

    pod: RunningPod
    row: int
    """Row of its new node."""
    gpus: tuple[int, ...]
    """Indices of the GPUs assumed there, () if the device plugin chooses them."""
    step: int
    """Number of the step. A gang's moves share one and are made together; the next step waits for them."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves, in order; none if the target can't be made to fit."""

    version: int
    """Version of the cluster that it was made on."""
    fits: bool
    """Whether the target fits after the moves."""
    moves: tuple[Move, ...] = ()
    rows: tuple[int, ...] = ()
    """(P,) row of the node of each of the target's pods, -1 for none."""
    gpus: tuple[tuple[int, ...], ...] = ()
    """(P,) indices of the GPUs assumed for each."""
    emptied: tuple[int, ...] = ()
    """Rows that are empty after the moves: `Target.empty` and those chosen for `num_empty`."""
    impossible: tuple[str, ...] = ()
    """Why the target does not fit: sentences that name pods and nodes, the most useful first."""

    @property
    def cost_gpu_s(self) -> float:
        """GPU-seconds lost by the moves."""
        return sum(move.pod.cost_gpu_s for move in self.moves)
