"""How far a plan is, for whoever asks."""

from typing import Annotated

import msgspec

from extender.parts.defrag.record import Culprit, Phase, Record


class MoveState(msgspec.Struct, rename={"from_node": "from", "to_node": "to"}):
    """A move, and how far it is."""

    pod: str
    from_node: str
    to_node: str
    step: int
    stage: str
    """`planned`, `evicting`, `coming`, `starting`, `done`, `left` or `lost`."""
    why: str
    """What went wrong with it, "" for nothing."""


class Advice(msgspec.Struct):
    """Moves that would help, found by the policy (`defrag.mode`)."""

    purpose: str
    """`room`, `heal` or `free-nodes`."""
    target: str
    """What they would help, in words."""
    plan: str
    """Its id for `POST /defrag/apply`, which is kept for ten minutes."""
    moves: int
    gain_gpu_s: float
    """GPU-seconds that they are estimated to gain; 0 where none is asked for."""
    cost_gpu_s: float
    at: float
    """Unix time."""
    why_not: str
    """Why the policy does not have them made itself."""


class PolicyState(msgspec.Struct):
    """How the policy stands."""

    mode: str
    """`off`, `advise` or `act`."""
    window_open: bool
    """Whether it may begin to move pods at this time."""
    advice: list[Advice]
    """Of the last time that it looked."""
    begun: int
    """Plans that it has begun since the start."""
    fault: str
    """Why it could not look last time, "" where it could."""


class RoomState(msgspec.Struct):
    """The plan that is carried out, or the last one."""

    id: str
    """"" where there was none."""
    target: str
    """What room is made for, in words."""
    phase: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["none", *Phase]})]
    step: int
    """The step under way, -1 before the first."""
    num_steps: int
    moves: list[MoveState]
    kept: list[str]
    """Nodes that are kept from all other pods."""
    why: str
    """Why it goes no further, "" while it does."""
    begun: float
    """Unix time."""
    ended: float
    """Unix time, 0 while it is under way."""
    evicted: int
    """Pods evicted in the last hour."""
    fault: str
    """Why no plan could be begun now, "" where one could."""
    policy: PolicyState | None = None
    """None where it is off."""
    culprit: Culprit = Culprit.NOBODY


def state_of(record: Record | None, kept: list[str], evicted: int, fault: str) -> RoomState:
    """What a record says; None for none."""
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
