"""A plan that makes room, in the words of the cluster: names of pods and nodes. What `POST /defrag` answers."""

import msgspec


class PlannedMove(msgspec.Struct, rename={"from_node": "from", "to_node": "to"}):
    """A pod that is evicted, and the node on which it starts again."""

    pod: str
    """`namespace/name`."""
    uid: str
    from_node: str
    to_node: str
    step: int
    """Moves of one step, the members of a gang, are made together; the next step waits for them."""
    gpus: list[int]
    """Indices of the GPUs counted on at its next node, empty where the device plugin picks them."""
    cost_gpu_s: float
    """GPU-seconds that its restart loses."""
    controller: str
    """UID of what makes its replacement."""
    gang: str = ""


class TargetPod(msgspec.Struct):
    """A pod that room is made for."""

    pod: str
    """`namespace/name`; of pods that do not exist yet what they would be called."""
    node: str
    """Where it goes, "" for nowhere."""
    gpus: list[int]
    uid: str = ""
    """"" where it does not exist."""


class RoomPlan(msgspec.Struct):
    """The cheapest moves found after which the target fits. Where it can't be made to fit there are none."""

    fits: bool
    """Whether the target fits once the moves are made."""
    moves: list[PlannedMove]
    """In their order."""
    cost_gpu_s: float
    target: list[TargetPod]
    emptied: list[str]
    """Nodes that are empty then, where that was asked for."""
    impossible: list[str]
    """Where it does not fit, why: the best that can be said first."""
    priority: int = 0
    """Of the target: nobody of a higher one moves for it."""
