"""Score breakdowns: parts that add up to a score, in numbers and words. For display, never for decisions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a score over R rows."""

    name: str
    meaning: str
    """What it measures, and which direction is better."""
    adds: Floats
    """(R,) contribution to the score."""
    amount: Floats
    """(R,) measured amount, in the unit of `words`."""
    words: Callable[[float], str]
    """Formats an amount, to follow "there:"."""
    tells: bool = True
    """Whether it describes the node; False for remainders such as rounding."""
    unitless: bool = False
    """Whether its amount has no meaningful unit, so that properties of the nodes are shown instead."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A score over R rows and its parts, which add up to it up to rounding. Undefined on rows that do not fit."""

    score: Floats
    """(R,) exactly the policy's score."""
    parts: tuple[Part, ...]


BreakdownOf = Callable[[Cluster, GpuRequest, Rows, Fit], Breakdown]
"""(cluster with the policy's observed usage, request, (R,) rows, their fit) to the breakdown of their scores.

Stateless: any thread may call it on any snapshot.
"""


def scaled(breakdown: Breakdown, factor: float) -> Breakdown:
    """The breakdown of the score times a factor."""
    parts = tuple(replace(part, adds=part.adds * factor) for part in breakdown.parts)
    return Breakdown(breakdown.score * factor, parts)


def on_rows(breakdown: Breakdown, where: Rows, num_rows: int) -> Sequence[Part]:
    """The parts of a breakdown of the rows at positions `where`, expanded to R rows with 0 elsewhere."""

    def expanded(values: Floats) -> Floats:
        result = np.zeros(num_rows)
        result[where] = values
        return result

    return [replace(part, adds=expanded(part.adds), amount=expanded(part.amount)) for part in breakdown.parts]


def noun(request: GpuRequest, cluster: Cluster, rows: Rows) -> str:
    """Singular noun for what a request counts on R rows: "GPU", "time slice", "GPU or time slice" or "MIG device"."""
    by_unit = {AskedUnit.MIG: "MIG device", AskedUnit.SHARED: "time slice"}
    if request.unit in by_unit:
        return by_unit[request.unit]
    sliced = cluster.take_rows(cluster.unit, rows) == GpuUnit.REPLICA_AS_GPU
    return "time slice" if sliced.all() and len(rows) else "GPU or time slice" if sliced.any() else "GPU"


def counted(amount: float, what: str) -> str:
    """A number with its noun: "no GPU", "1 GPU", "3 GPUs"."""
    number = round(amount)
    if number in (0, 1):
        return f"{number or 'no'} {what}"
    return f"{number} {' or '.join(f'{one}s' for one in what.split(' or '))}"


def percent(fraction: float) -> str:
    """A fraction in whole percent; only exactly 0 and 1 become 0 % and 100 %."""
    hundredths = round(100 * fraction)
    if hundredths in (0, 100) and fraction not in (0, 1):
        hundredths = 1 if hundredths == 0 else 99
    return f"{hundredths} %"
