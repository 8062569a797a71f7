"""What Prometheus is asked of the past, and what it answers: shared with the process that asks."""

import re
from typing import Final

import msgspec

from extender.telemetry.sources.source import Access

OF_HOLDERS: Final = ("booked", "used", "measured", "idle")
"""Counters by namespace, owner and GPU model, in the order of `Rates.of_groups`."""
OF_MODELS: Final = ("capacity", "free", "stranded", "sick")
"""Counters by GPU model, in the order of `Rates.of_nodes`."""
LABELS: Final = {"namespace": "namespace", "owner": "owner", "model": "gpu_model"}
"""By what rows are told apart, and its label."""
COUNTED: Final = "kerf_counted_seconds_total"
"""Time for which GPU-seconds were counted."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MAX_S: Final = 366 * 86_400


class PastError(Exception):
    """There is no answer; says why."""


class Question(msgspec.Struct):
    """What was counted in a time up to now; with a step, what in each step of it, by namespace."""

    url: str
    access: Access
    window_s: int
    by: str
    matchers: str = ""
    """More label matchers, as in PromQL: `cluster="a"`."""
    step_s: int = 0
    first: int = 0
    """Unix time at which the first step begins."""
    last: int = 0
    """Unix time at which the last one ends, which may be later than now."""
    most: int = 1000
    """Rows told apart, those that booked most; all others are one."""
    always: list[str] = []
    """Namespaces that have rows of their own, whatever they booked."""


class Step(msgspec.Struct):
    """What was counted in a step."""

    at: int
    """Unix time at which it begins."""
    seconds: float
    """Time counted: less than the step where it is not over, or where nobody counted for a while."""
    amounts: list[float]
    """As of OF_MODELS and then OF_HOLDERS, in GPU-seconds."""
    booked: dict[str, float]
    """GPU-seconds by namespace."""


class Answer(msgspec.Struct):
    """In GPU-seconds."""

    rows: dict[str, list[float]] = {}
    """As of OF_HOLDERS, by the name of a row; of owners, with the namespace before the first slash."""
    totals: list[float] = []
    """As of OF_MODELS."""
    steps: list[Step] = []
    fault: str = ""


def series_name(what: str) -> str:
    """The counter of one of OF_HOLDERS or OF_MODELS, as Prometheus has it."""
    return f"kerf_{what}_gpu_seconds_total"


def query(question: Question, what: str) -> str:
    """What one counter grew by: of all processes that led in that time."""
    labels = "namespace, owner" if question.by == "owner" else LABELS[question.by]
    by = f"by ({labels}) " if what in OF_HOLDERS else ""
    return f"sum {by}({_increase(question, series_name(what), question.window_s)})"


def step_query(question: Question, name: str, by: str = "") -> str:
    """What a counter grew by in a step: of all processes that led in that time."""
    return f"sum {f'by ({by}) ' if by else ''}({_increase(question, name, question.step_s)})"


def _increase(question: Question, name: str, window_s: int) -> str:
    matchers = f"{{{question.matchers}}}" if question.matchers else ""
    return f"increase({name}{matchers}[{window_s}s])"


def seconds_of(text: str) -> int:
    """A length of time such as `7d`, `36h`, `90m`. Raises ValueError with what would be right."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhdw])", text)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 60 <= seconds <= _MAX_S:
        raise ValueError(f"{text[:40]!r} is no length of time from 1m to 366d: write 7d, 36h or 90m")
    return seconds
