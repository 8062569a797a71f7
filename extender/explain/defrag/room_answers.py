"""What `POST /defrag` answers."""

import msgspec

from extender.queueing.defrag.plan import RoomPlan


class Figures(msgspec.Struct, rename="camel"):
    """Of the cluster at one moment."""

    free_nodes: int
    """Nodes with GPUs, all of which are free."""
    usable_gpus: int | None
    """Free GPUs on nodes where the target's first pod fits, in multiples of what it asks; None where the target has no
    pods, or they ask for no number of GPUs."""


class LeftPod(msgspec.Struct):
    """A pod without GPUs that stays on a node to be emptied."""

    pod: str
    """`namespace/name`."""
    node: str
    why: str
    """Kerf does not move it."""


class RoomAnswer(RoomPlan):
    """What `POST /defrag` answers: the plan, and what it changes."""

    id: str = ""
    """By which `POST /defrag/apply` knows it, for a while; "" where there is nothing to carry out."""
    before: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    after: Figures = msgspec.field(default_factory=lambda: Figures(0, None))
    left: list[LeftPod] = msgspec.field(default_factory=list)
    """Where nodes are to be emptied: pods that `kubectl drain` has to evict."""
    open: list[str] = msgspec.field(default_factory=list)
    """Of those nodes the ones that take pods again afterwards, since they are not cordoned."""
    gpus: float = 0.0
    """That it makes usable: those that the target asks for, shares as parts, or those of nodes that it empties."""
    on_sick: list[str] = msgspec.field(default_factory=list)
    """Where pods shall leave sick GPUs: all that are on one, `namespace/name`."""
