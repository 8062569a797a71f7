"""Carrying out a plan that was shown: that very one, by its id, and no other."""

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
    """Which plan to carry out."""

    id: str
    """As `POST /defrag` has told it."""


class Applied(msgspec.Struct):
    """The plan that is carried out."""

    id: str
    """As `GET /defrag` tells it from now on."""


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    """Evict nobody any more."""

    why: str = ""


class Stopped(msgspec.Struct):
    """What came of it."""

    stopped: bool
    """Whether a plan was carried out; the move under way is finished."""


class Mover(Protocol):
    """What carries plans out."""

    async def begin(self, plan: RoomPlan, target: str = "") -> str:
        """The id of the plan under way."""

    def give_up(self, why: str) -> bool:
        """Whether anything was."""

    def state(self) -> RoomState:
        """How far it is."""


_apply: Final = msgspec.json.Decoder(Apply)
_stop: Final = msgspec.json.Decoder(Stop)


@dataclass(eq=False)
class Applying:
    """Has plans carried out, where there is somebody to do it."""

    answers: RoomAnswers
    mover: Mover | None
    """None where no pods are moved."""
    why_off: str
    """Then: why not."""
    policy: Callable[[], PolicyState | None] = lambda: None
    """How what makes room by itself stands; None where nothing does."""

    async def apply(self, body: bytes) -> bytes:
        """Begin to carry out a plan. Raises QuestionError, NotKnownError, RefusedError."""
        asked = _read(_apply, body)
        mover = self._wanted()
        plan = self.answers.kept(asked.id)
        if plan is None:
            raise NotKnownError(f"no plan {asked.id[:40]!r} is kept (any more): ask for one anew")
        try:
            begun = await mover.begin(plan, target_of(plan))
        except RoomError as error:
            raise RefusedError(str(error)) from None
        logger.info("plan %s is carried out as %s: %d moves", asked.id, begun, len(plan.moves))
        return msgspec.json.encode(Applied(begun))

    def stop(self, body: bytes) -> bytes:
        """Evict nobody any more. Raises QuestionError, RefusedError."""
        asked = _read(_stop, body or b"{}")
        return msgspec.json.encode(
            Stopped(self._wanted().give_up(f"stopped by hand: {asked.why[:200] or 'no reason'}"))
        )

    def state(self) -> RoomState:
        """How far the plan is that is carried out, or was last."""
        state = self.mover.state() if self.mover is not None else state_of(None, [], 0, self.why_off)
        state.policy = self.policy()
        return state

    def _wanted(self) -> Mover:
        if self.mover is None:
            raise RefusedError(self.why_off)
        return self.mover


def target_of(plan: RoomPlan) -> str:
    """For what room is made, in words."""
    if not plan.target and not plan.emptied:
        return "taking pods off sick GPUs"
    names = [pod.pod for pod in plan.target] or plan.emptied
    what = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
    return what if plan.target else f"emptying {what}"


def _read(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise QuestionError(f"invalid request: {error}") from None
