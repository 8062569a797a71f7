"""The course of a fitted model: shadow, canary, service. Each step takes evidence, and worse evidence takes it back.

What counts as evidence is the pods that came since the step before: neither the fit nor an earlier step has seen them.
They are offered to both ranks on the nodes that there are (`trials`), and the difference has an interval.
"""

from enum import StrEnum
from math import isfinite
from typing import Final

import msgspec

_MAX_TRIALS: Final = 7
"""Of a stage: what has not shown itself better by then is no better."""
_LEAST_POINTS: Final = 0.1
"""Of the GPUs, that the released rank has to allocate more to take the place of a fitted one that serves."""
_MAX_REFUSED: Final = 20
_HASH_CHARS: Final = 12


class Stage(StrEnum):
    """What a candidate does."""

    NONE = "none"
    SHADOW = "shadow"
    """It ranks beside the one that serves, and nobody acts on it."""
    CANARY = "canary"
    """It places a part of the pods."""


class Course(msgspec.Struct, frozen=True):
    """Where things stand. Outlives the process."""

    candidate: str = ""
    """SHA-256 of the model on trial, "" for none."""
    stage: Stage = Stage.NONE
    since: float = 0.0
    """Unix time at which the stage began."""
    trials: int = 0
    """In this stage."""
    serving: str = ""
    """SHA-256 of the fitted model that serves, "" while the one that came with Kerf does."""
    refused: tuple[str, ...] = ()
    """Models that were taken back, the latest ones."""
    said: str = ""
    """The last step, in a sentence."""
    at: float = 0.0
    """Unix time of the last step."""
    promoted: int = 0
    """Models that came to serve."""
    taken_back: int = 0
    """Models that were taken back, at whichever step."""


def offered(course: Course, candidate: str, now: float) -> Course:
    """Another model is handed in; one that serves, or was taken back, does not begin again."""
    if candidate in (course.candidate, course.serving, *course.refused):
        return course
    said = f"model {short(candidate)} is tried in shadow"
    return _with(course, now, said, candidate=candidate, stage=Stage.SHADOW, since=now, trials=0)


def withdrawn(course: Course, why: str, now: float) -> Course:
    """The candidate is taken back."""
    said = f"model {short(course.candidate)} is taken back from {course.stage}: {why}"
    return _with(
        course, now, said, candidate="", stage=Stage.NONE, since=now, trials=0,
        refused=_refused(course, course.candidate), taken_back=course.taken_back + 1,
    )  # fmt: skip


def judged(course: Course, more: float, doubt: float, rival: str, now: float, promised: float | None = None) -> Course:
    """The candidate allocates so many points more than the rank that serves, plus or minus: go on, wait, or go back.

    `promised` is what the fit had found on days of its own, which this is held against.
    """
    told = f"{more:+.2f} ± {doubt:.2f} points beside {rival} on the pods that came since"
    if promised is not None:
        told += f", where the fit had found {promised:+.2f}"
    course = msgspec.structs.replace(course, trials=course.trials + 1)
    if more < -doubt or not isfinite(more + doubt):
        return withdrawn(course, told, now)
    name = short(course.candidate)
    if course.stage is Stage.CANARY:
        said = f"model {name} serves: {told}"
        return _with(
            course, now, said, candidate="", stage=Stage.NONE, since=now, trials=0, serving=course.candidate,
            promoted=course.promoted + 1,
        )  # fmt: skip
    if more > doubt:
        said = f"model {name} places a part of the pods: {told}"
        return _with(course, now, said, stage=Stage.CANARY, since=now, trials=0)
    if course.trials >= _MAX_TRIALS:
        return withdrawn(course, f"no better in {course.trials} trials, {told}", now)
    return course


def watched(course: Course, more: float, doubt: float, now: float) -> Course:
    """The fitted model that serves allocates so many points more than the released one, plus or minus."""
    if more >= -max(doubt, _LEAST_POINTS):
        return course
    return stopped(course, f"{more:+.2f} ± {doubt:.2f} points beside the released one", now)


def stopped(course: Course, why: str, now: float) -> Course:
    """The fitted model serves no more, and the released one does."""
    said = f"model {short(course.serving)} serves no more: {why}"
    return _with(
        course, now, said, serving="", refused=_refused(course, course.serving), taken_back=course.taken_back + 1
    )


def short(sha256: str) -> str:
    """As people read it."""
    return sha256[:_HASH_CHARS]


def _with(course: Course, now: float, said: str, **changes: object) -> Course:
    return msgspec.structs.replace(course, said=said, at=now, **changes)


def _refused(course: Course, model: str) -> tuple[str, ...]:
    return (*course.refused, model)[-_MAX_REFUSED:]
