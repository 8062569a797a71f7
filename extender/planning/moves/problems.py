"""What making room is about: who runs, what shall fit, and the moves that were found.

A move evicts a pod, which then starts again on the node planned: what it leaves is free before it arrives. Moves are
made one after another, the members of a gang together in one step. The target's pods come last.

What moves gain: waiting that the target is spared, by the GPUs that it asks for.

Gain and cost are in one unit, GPU-seconds by which work ends sooner or later, so that their ratio tells whether moves
pay: above 1 the work of the cluster, each job weighing as many as it has GPUs, ends sooner in all.

Where a pod that is moved may go by the model of its GPUs.
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

_MOST_AHEAD_S: Final = 86400.0
"""Nobody is taken to have longer to wait than that: a pod that has waited for weeks must not be worth any number of
restarts."""


def gain_gpu_s(gpus_made_usable: float, waited_s: float, most_ahead_s: float = _MOST_AHEAD_S) -> float:
    """GPU-seconds of waiting that a target is spared if it starts now.

    `gpus_made_usable` are the GPUs that it asks for, all pods of a gang together, shares in part. How long it would
    wait otherwise nobody knows: it is taken to be as long as it has waited already (`waited_s`), `most_ahead_s` at
    most. That is the mean where waits are spread as widely as they are in queues for GPUs, and it is 0 for who has just
    come. What does not wait, such as nodes kept free for an autoscaler, has no `waited_s`: give the time for which the
    GPUs are of use. Raises ValueError for what is negative or no number.
    """
    for name, value in (("GPUs", gpus_made_usable), ("seconds waited", waited_s), ("seconds ahead", most_ahead_s)):
        if not value >= 0:
            raise ValueError(f"{value} {name}: must be 0 or more")
    return 0.0 if gpus_made_usable == 0 else gpus_made_usable * min(waited_s, most_ahead_s)


def is_worth(gain: float, cost: float, least_gain: float) -> bool:
    """Whether moves are worth making: they gain something, and `least_gain` GPU-seconds for each that they lose."""
    return gain > 0 and gain >= least_gain * cost


def keeping_its_model(cluster: Cluster, row: int, pod: PlanPod) -> PlanPod:
    """A pod that runs on a node, as what it is placed elsewhere: one that names no model gets GPUs of a model that its
    node has, since on others its work might be much slower."""
    models = {cluster.models[model].name for model in cluster.gpu_model[row].tolist() if model >= 0} - {""}
    if pod.gpus is None or pod.gpus.include is not None or not models:
        return pod
    text = "|".join(f"^{re.escape(model)}$" for model in sorted(models)).replace("\\-", "-")
    return replace(pod, gpus=replace(pod.gpus, include=ModelPattern(text, re.compile(text))))


NOBODY_ABOVE: Final = 2**31 - 1
"""Priority of a target for which anybody may be moved, such as the maintenance of a node."""


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that holds something of a node."""

    key: str
    """`namespace/name`."""
    uid: str
    row: int
    """Of its node."""
    booked: Booking
    """What its node gets back when it goes, CPU and main memory included."""
    pod: PlanPod
    """As what it would be placed elsewhere; its gang and priority are those below."""
    cost_gpu_s: float = 0.0
    """GPU-seconds that its restart loses; of a gang each member has its own."""
    priority: int = 0
    gang: str = ""
    """Pods of one gang move together or not at all; its name in the whole cluster, "" for a pod on its own."""
    budgets: tuple[str, ...] = ()
    """Keys of the disruption budgets that it counts against."""
    stays: str = ""
    """Why it may not be moved, "" where it may: "has no controller"."""


@dataclass(frozen=True, slots=True)
class Target:
    """What room is made for: pods, empty nodes, or that some pods leave their nodes."""

    priority: int
    """Nobody of a higher priority is moved for it."""
    pods: tuple[PlanPod, ...] = ()
    """Single pods and gangs, all of which shall fit at once."""
    apart: bool = False
    """Whether no two of its pods may be on one node."""
    empty: frozenset[int] = frozenset()
    """Rows that shall be empty: nobody of `Problem.running` is left there."""
    num_empty: int = 0
    """How many more nodes shall be empty, whichever. Those that are empty already count."""
    may_empty: Mask | None = None
    """(N,) nodes of which these are taken; None: any."""
    leave: frozenset[int] = frozenset()
    """Positions in `Problem.running` of pods that have to leave their nodes, and their gangs with them, of which the
    others may come back."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A cluster, who runs on it, and the target."""

    view: View
    """The cluster as it is, with all that runs. `View.allowed` and `View.domains` know of `running` as well."""
    running: Sequence[Running]
    """All pods that hold something, those included that stay; of DaemonSets only where they count against an empty
    node. What the cluster's arrays hold beyond them stays held."""
    target: Target
    max_moves: int | None = None
    """Most pods to move; None: any number."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """How many pods of each disruption budget may be away at once. One that is not named allows none."""
    policy: str = DEFAULT_POLICY
    """Ranks nodes for pods that don't choose a policy."""


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that leaves its node and starts again on another one, or with its gang on its own once more."""

    pod: Running
    row: int
    """Where it goes. Its own row only for a member of a gang that moves because of others of its members."""
    gpus: tuple[int, ...]
    """Indices of the GPUs counted on there, () where the device plugin picks them."""
    step: int
    """Moves of one step, which are those of one gang, are made together; the next step waits for them."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves, in order. Where the target can't be made to fit there are none."""

    version: int
    """Version of the cluster it was made on."""
    fits: bool
    """Whether the target fits once the moves are made; without moves, it fits as it is."""
    moves: tuple[Move, ...] = ()
    rows: tuple[int, ...] = ()
    """(P,) the node of each of the target's pods, -1 for none."""
    gpus: tuple[tuple[int, ...], ...] = ()
    """(P,) indices of the GPUs counted on for each."""
    emptied: tuple[int, ...] = ()
    """Rows that are empty then: all of `Target.empty`, and those chosen."""
    impossible: tuple[str, ...] = ()
    """Where it does not fit, why: sentences that name pods and nodes, the best that can be said first."""

    @property
    def num_pods(self) -> int:
        """How many pods move."""
        return len(self.moves)

    @property
    def cost_gpu_s(self) -> float:
        """GPU-seconds that the moves lose."""
        return sum(move.pod.cost_gpu_s for move in self.moves)
