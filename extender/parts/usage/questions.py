"""Queries to Prometheus and their results, exchanged with the process that runs them."""

import re
from typing import Final

import msgspec

from extender.telemetry.sources.source import Access

OF_HOLDERS: Final = ("booked", "used", "measured", "idle")
"""Counters by namespace, owner and GPU model, in the order of `Rates.of_groups`."""
OF_MODELS: Final = ("capacity", "free", "stranded", "sick")
"""Counters by GPU model, in the order of `Rates.of_nodes`."""
LABELS: Final = {"namespace": "namespace", "owner": "owner", "model": "gpu_model"}
"""Label by which rows are grouped, by name of the grouping."""
COUNTED: Final = "kerf_counted_seconds_total"
"""Counter of the time for which GPU-seconds were counted."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MAX_S: Final = 366 * 86_400


class PastError(Exception):
    """There are no figures for the time; the message says why."""


class PrometheusQuery(msgspec.Struct):
    """Asks for the increase of all counters over the last `window_s`; with `step_s`, in each step."""

    url: str
    access: Access
    window_s: int
    by: str
    matchers: str = ""
    """Further label matchers, as in PromQL: `cluster="a"`."""
    step_s: int = 0
    """0 for no steps."""
    first: int = 0
    """Unix time at which the first step begins."""
    last: int = 0
    """Unix time at which the last step ends; may be in the future."""
    most: int = 1000
    """Most rows, those that booked most; the others are summed as OTHER."""
    always: list[str] = []
    """Namespaces that always get a row."""


class Step(msgspec.Struct):
    """The counts of a step."""

    at: int
    """Unix time at which it begins."""
    seconds: float
    """Time counted; less than the step if it is not over or no process counted for a while."""
    amounts: list[float]
    """GPU-seconds in the order of OF_MODELS and OF_HOLDERS."""
    booked: dict[str, float]
    """GPU-seconds by namespace."""


class PrometheusAnswer(msgspec.Struct):
    """The figures, in GPU-seconds."""

    rows: dict[str, list[float]] = {}
    """By row, in the order of OF_HOLDERS; rows by owner are named `namespace/owner`."""
    totals: list[float] = []
    """In the order of OF_MODELS."""
    steps: list[Step] = []
    fault: str = ""
    """Why there are no figures."""


def series_name(what: str) -> str:
    """Name in Prometheus of the counter of one of OF_HOLDERS or OF_MODELS."""
    return f"kerf_{what}_gpu_seconds_total"


def query(question: PrometheusQuery, what: str) -> str:
    """PromQL for the increase of a counter over the window, summed over all leaders."""
    labels = "namespace, owner" if question.by == "owner" else LABELS[question.by]
    by = f"by ({labels}) " if what in OF_HOLDERS else ""
    return f"sum {by}({_increase(question, series_name(what), question.window_s)})"


def step_query(question: PrometheusQuery, name: str, by: str = "") -> str:
    """PromQL for the increase of a counter in a step, summed over all leaders."""
    return f"sum {f'by ({by}) ' if by else ''}({_increase(question, name, question.step_s)})"


def _increase(question: PrometheusQuery, name: str, window_s: int) -> str:
    matchers = f"{{{question.matchers}}}" if question.matchers else ""
    return f"increase({name}{matchers}[{window_s}s])"


def seconds_of(text: str) -> int:
    """Seconds of a duration such as `7d`, `36h`, `90m`. Raises ValueError."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([smhdw])", text)
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 60 <= seconds <= _MAX_S:
        raise ValueError(f"{text[:40]!r} is not a duration from 1m to 366d: write 7d, 36h or 90m")
    return seconds
