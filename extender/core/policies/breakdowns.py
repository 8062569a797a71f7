"""What a score is made of: parts that add up to it, in numbers and in words. For who asks, never to decide."""

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
    """What it counts, and which way."""
    adds: Floats
    """(R,) what it adds to the score."""
    amount: Floats
    """(R,) what it is of, in the unit of its words."""
    words: Callable[[float], str]
    """An amount in words, to stand behind "there:"."""
    tells: bool = True
    """Whether it says anything of a node; False for what only makes the parts add up, such as rounding."""
    unitless: bool = False
    """Whether its amount is in no unit that people could check: what is seen of the nodes is told instead."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A score over R rows and its parts, which add up to it but for the last digits; where a row does not fit it means
    nothing."""

    score: Floats
    """(R,) to the last digit what the policy says."""
    parts: tuple[Part, ...]


BreakdownOf = Callable[[Cluster, GpuRequest, Rows, Fit], Breakdown]
"""(cluster as the policy counts it, request, (R,) rows, their fit) to what their score is made of.

It keeps to itself: a thread may ask about any snapshot.
"""


def scaled(breakdown: Breakdown, factor: float) -> Breakdown:
    """The same score times a factor."""
    parts = tuple(replace(part, adds=part.adds * factor) for part in breakdown.parts)
    return Breakdown(breakdown.score * factor, parts)


def on_rows(breakdown: Breakdown, where: Rows, num_rows: int) -> Sequence[Part]:
    """The parts of a score of some rows, by position, among R rows: 0 on the others."""

    def among_all(values: Floats) -> Floats:
        spread = np.zeros(num_rows)
        spread[where] = values
        return spread

    return [replace(part, adds=among_all(part.adds), amount=among_all(part.amount)) for part in breakdown.parts]


def noun(request: GpuRequest, cluster: Cluster, rows: Rows) -> str:
    """What a request counts on R rows: where slices of time go by the name of GPUs, a GPU there is a slice."""
    by_unit = {AskedUnit.MIG: "MIG device", AskedUnit.SHARED: "time slice"}
    if request.unit in by_unit:
        return by_unit[request.unit]
    sliced = cluster.taken(cluster.unit, rows) == GpuUnit.REPLICA_AS_GPU
    return "time slice" if sliced.all() and len(rows) else "GPU or time slice" if sliced.any() else "GPU"


def counted(amount: float, what: str) -> str:
    """A number of things: "no GPU", "1 GPU", "3 GPUs"."""
    number = round(amount)
    if number in (0, 1):
        return f"{number or 'no'} {what}"
    return f"{number} {' or '.join(f'{one}s' for one in what.split(' or '))}"


def percent(fraction: float) -> str:
    """A fraction as whole percents: whole ones alone are 0 % and 100 %."""
    hundredths = round(100 * fraction)
    if hundredths in (0, 100) and fraction not in (0, 1):
        hundredths = 1 if hundredths == 0 else 99
    return f"{hundredths} %"
