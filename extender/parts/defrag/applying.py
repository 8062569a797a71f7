"""HTTP calls that carry out a plan by its ID, and stop it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from extender.explain.processes import NotKnownError, QuestionError, RefusedError
from extender.parts.defrag.answers import RoomAnswers
from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.plan import RoomPlan
from extender.parts.defrag.state import PolicyState, RoomState, state_of

logger = logging.getLogger(__name__)

_MAX_NAMED: Final = 3


class Apply(msgspec.Struct, forbid_unknown_fields=True):
    """The plan to carry out."""

    id: str
    """ID from `POST /defrag`."""


class Applied(msgspec.Struct):
    """The plan under way."""

    id: str
    """ID in `GET /defrag`."""


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    """Stop evicting pods."""

    why: str = ""


class Stopped(msgspec.Struct):
    """Result of a stop."""

    stopped: bool
    """Whether a plan was under way; its current move is finished."""


class Mover(Protocol):
    """Carries out plans."""

    async def begin(self, plan: RoomPlan, target: str = "") -> str:
        """Begin a plan; returns its new ID."""

    def give_up(self, why: str) -> bool:
        """Stop evicting; returns whether a plan was under way."""

    def state(self) -> RoomState:
        """State of the current plan, or of the last one."""


_apply: Final = msgspec.json.Decoder(Apply)
_stop: Final = msgspec.json.Decoder(Stop)


@dataclass(eq=False)
class Applying:
    """Answers `POST /defrag/apply` and `/defrag/stop`."""

    answers: RoomAnswers
    mover: Mover | None
    """None if Kerf moves no pods."""
    why_off: str
    """Why there is no mover."""
    policy: Callable[[], PolicyState | None] = lambda: None
    """State of the policy; None if it is off."""

    async def apply(self, body: bytes) -> bytes:
        """Begin to carry out a plan. Raises QuestionError, NotKnownError, RefusedError."""
        request = _read(_apply, body)
        mover = self._require_mover()
        plan = self.answers.kept(request.id)
        if plan is None:
            raise NotKnownError(f"no plan {request.id[:40]!r} is kept (any more): request a new one")
        try:
            begun = await mover.begin(plan, target_of(plan))
        except RoomError as error:
            raise RefusedError(str(error)) from None
        logger.info("plan %s is carried out as %s: %d moves", request.id, begun, len(plan.moves))
        return msgspec.json.encode(Applied(begun))

    def stop(self, body: bytes) -> bytes:
        """Stop evicting pods. Raises QuestionError, RefusedError."""
        request = _read(_stop, body or b"{}")
        stopped = self._require_mover().give_up(f"stopped by hand: {request.why[:200] or 'no reason'}")
        return msgspec.json.encode(Stopped(stopped))

    def state(self) -> RoomState:
        """State of the current plan, or of the last one, and of the policy."""
        state = self.mover.state() if self.mover is not None else state_of(None, [], 0, self.why_off)
        state.policy = self.policy()
        return state

    def _require_mover(self) -> Mover:
        if self.mover is None:
            raise RefusedError(self.why_off)
        return self.mover


def target_of(plan: RoomPlan) -> str:
    """What room is made for, in words."""
    if not plan.target and not plan.emptied:
        return "moving pods off unhealthy GPUs"
    names = [pod.pod for pod in plan.target] or plan.emptied
    what = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
    return what if plan.target else f"emptying {what}"


def _read(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"invalid request: {error}") from None
