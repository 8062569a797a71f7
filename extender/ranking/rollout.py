"""The rollout of a fitted model: shadow, canary, serving. Each step needs evidence; a worse result withdraws the model.

A step is judged only by pods that arrived since the previous step, which neither the fit nor earlier steps have used.
Both ranks place them on the cluster's nodes (`trials`); the difference has a confidence interval.
"""

from enum import StrEnum
from math import isfinite
from typing import Final

import msgspec

_MAX_TRIALS: Final = 7
"""Per stage; a model that is not significantly better by then is withdrawn."""
_MIN_POINTS: Final = 0.1
"""Percentage points of GPUs that the released rank must allocate more than a fitted one to replace it."""
_MAX_REFUSED: Final = 20
_HASH_CHARS: Final = 12


class Stage(StrEnum):
    """A candidate's stage."""

    NONE = "none"
    SHADOW = "shadow"
    """It ranks next to the serving model, without effect."""
    CANARY = "canary"
    """It places part of the pods."""


class Rollout(msgspec.Struct, frozen=True):
    """The state of the rollout, which is persisted."""

    candidate: str = ""
    """SHA-256 of the model on trial; "" for none."""
    stage: Stage = Stage.NONE
    since: float = 0.0
    """Unix time at which the stage began."""
    trials: int = 0
    """Trials in this stage."""
    serving: str = ""
    """SHA-256 of the fitted model that serves; "" if the released one does."""
    refused: tuple[str, ...] = ()
    """The most recently withdrawn models."""
    said: str = ""
    """The last step, in a sentence."""
    at: float = 0.0
    """Unix time of the last step."""
    promoted: int = 0
    """Number of fitted models that came to serve."""
    taken_back: int = 0
    """Number of withdrawn models, including those that served."""


def offered(course: Rollout, candidate: str, now: float) -> Rollout:
    """Start the rollout of a submitted model, unless it is on trial, serves or was withdrawn."""
    if candidate in (course.candidate, course.serving, *course.refused):
        return course
    said = f"model {short(candidate)} is tried in shadow"
    return _with(course, now, said, candidate=candidate, stage=Stage.SHADOW, since=now, trials=0)


def withdrawn(course: Rollout, why: str, now: float) -> Rollout:
    """Withdraw the candidate."""
    said = f"model {short(course.candidate)} is withdrawn from {course.stage}: {why}"
    return _with(
        course, now, said, candidate="", stage=Stage.NONE, since=now, trials=0,
        refused=_refused(course, course.candidate), taken_back=course.taken_back + 1,
    )  # fmt: skip


def judged(
    course: Rollout, more: float, doubt: float, rival: str, now: float, promised: float | None = None
) -> Rollout:
    """Promote, keep or withdraw the candidate after a trial.

    It allocates `more` ± `doubt` percentage points more than the serving rank; the fit had `promised` so many.
    """
    result = f"{more:+.2f} ± {doubt:.2f} points against {rival} on newly arrived pods"
    if promised is not None:
        result += f", the fit had {promised:+.2f}"
    course = msgspec.structs.replace(course, trials=course.trials + 1)
    if more < -doubt or not isfinite(more + doubt):
        return withdrawn(course, result, now)
    name = short(course.candidate)
    if course.stage is Stage.CANARY:
        said = f"model {name} serves: {result}"
        return _with(
            course, now, said, candidate="", stage=Stage.NONE, since=now, trials=0, serving=course.candidate,
            promoted=course.promoted + 1,
        )  # fmt: skip
    if more > doubt:
        said = f"model {name} places part of the pods: {result}"
        return _with(course, now, said, stage=Stage.CANARY, since=now, trials=0)
    if course.trials >= _MAX_TRIALS:
        return withdrawn(course, f"no better in {course.trials} trials, {result}", now)
    return course


def watched(course: Rollout, more: float, doubt: float, now: float) -> Rollout:
    """Stop the serving fitted model if it allocates significantly less than the released one.

    It allocates `more` ± `doubt` percentage points more.
    """
    if more >= -max(doubt, _MIN_POINTS):
        return course
    return stopped(course, f"{more:+.2f} ± {doubt:.2f} points against the released one", now)


def stopped(course: Rollout, why: str, now: float) -> Rollout:
    """Replace the serving fitted model by the released one."""
    said = f"model {short(course.serving)} no longer serves: {why}"
    return _with(
        course, now, said, serving="", refused=_refused(course, course.serving), taken_back=course.taken_back + 1
    )


def short(sha256: str) -> str:
    """A shortened hash, for display."""
    return sha256[:_HASH_CHARS]


def _with(course: Rollout, now: float, said: str, **changes: object) -> Rollout:
    return msgspec.structs.replace(course, said=said, at=now, **changes)


def _refused(course: Rollout, model: str) -> tuple[str, ...]:
    return (*course.refused, model)[-_MAX_REFUSED:]
