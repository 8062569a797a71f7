"""JSON state of the current plan and of the policy (`GET /defrag`)."""

from typing import Annotated

import msgspec

from extender.parts.defrag.record import Culprit, Phase, Record


class MoveState(msgspec.Struct, rename={"from_node": "from", "to_node": "to"}):
    """A move and its stage."""

    pod: str
    from_node: str
    to_node: str
    step: int
    stage: str
    """`planned`, `evicting`, `coming`, `starting`, `done`, `left` or `lost`."""
    why: str
    """What went wrong with it, "" for nothing."""


class Advice(msgspec.Struct):
    """Helpful moves found by the policy (`defrag.mode`)."""

    purpose: str
    """`room`, `heal` or `free-nodes`."""
    target: str
    """What the moves are for, in words."""
    plan: str
    """ID of the plan for `POST /defrag/apply`, valid for ten minutes."""
    moves: int
    gain_gpu_s: float
    """GPU-seconds that the moves are estimated to gain; 0 for `heal`."""
    cost_gpu_s: float
    at: float
    """Unix time."""
    why_not: str
    """Why the policy does not make the moves."""


class PolicyState(msgspec.Struct):
    """State of the policy."""

    mode: str
    """`off`, `advise` or `act`."""
    window_open: bool
    """Whether it may move pods now."""
    advice: list[Advice]
    """Advice of the last round."""
    begun: int
    """Plans begun since the start."""
    fault: str
    """Why the last round failed, "" if it did not."""


class RoomState(msgspec.Struct):
    """The current plan, or the last one."""

    id: str
    """"" if there was none."""
    target: str
    """What room is made for, in words."""
    phase: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["none", *Phase]})]
    step: int
    """The current step, -1 before the first."""
    num_steps: int
    moves: list[MoveState]
    kept: list[str]
    """Nodes closed to all other pods."""
    why: str
    """Why it was stopped, "" if it was not."""
    begun: float
    """Unix time."""
    ended: float
    """Unix time, 0 while it is under way."""
    evicted: int
    """Pods evicted in the last hour."""
    fault: str
    """Why no plan could begin now, "" if one could."""
    policy: PolicyState | None = None
    """None if the policy is off."""
    culprit: Culprit = Culprit.NOBODY


def state_of(record: Record | None, kept: list[str], evicted: int, fault: str) -> RoomState:
    """The state of a recorded plan; `record` is None if there is none."""
    if record is None:
        return RoomState("", "", "none", -1, 0, [], kept, "", 0.0, 0.0, evicted, fault)
    moves = [
        MoveState(move.pod, move.from_node, move.to_node, move.step, progress.stage, progress.why)
        for move, progress in zip(record.plan.moves, record.progress, strict=True)
    ]
    return RoomState(
        id=record.id,
        target=record.target,
        phase=record.phase,
        step=record.step,
        num_steps=len({move.step for move in moves}),
        moves=moves,
        kept=kept,
        why=record.why,
        begun=record.begun,
        ended=record.ended,
        evicted=evicted,
        fault=fault,
        culprit=record.culprit,
    )
