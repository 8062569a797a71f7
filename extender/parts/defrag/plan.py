"""JSON form of a plan that makes room, with names of pods and nodes."""

import msgspec


class PlannedMove(msgspec.Struct, rename={"from_node": "from", "to_node": "to"}):
    """A pod to evict, and the node on which its replacement starts."""

    pod: str
    """`namespace/name`."""
    uid: str
    from_node: str
    to_node: str
    step: int
    """Number of the step. A gang's moves share one and are made together; the next step waits for them."""
    gpus: list[int]
    """Indices of the GPUs assumed on its new node, empty if the device plugin chooses them."""
    cost_gpu_s: float
    """GPU-seconds lost by its restart."""
    controller: str
    """UID of the controller that creates its replacement."""
    gang: str = ""


class TargetPod(msgspec.Struct):
    """A pod that room is made for."""

    pod: str
    """`namespace/name`; for pods that do not exist yet, the future name."""
    node: str
    """Its planned node, "" for none."""
    gpus: list[int]
    uid: str = ""
    """"" if it does not exist."""


class RoomPlan(msgspec.Struct):
    """The cheapest moves found after which the target fits; none if it can't be made to fit."""

    fits: bool
    """Whether the target fits after the moves."""
    moves: list[PlannedMove]
    """In order."""
    cost_gpu_s: float
    target: list[TargetPod]
    emptied: list[str]
    """Requested nodes that are empty after the moves."""
    impossible: list[str]
    """Why the target does not fit, the most useful reason first."""
    priority: int = 0
    """The target's priority: pods of higher priority do not move for it."""
