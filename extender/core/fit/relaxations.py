"""What would make a request fit that fits nowhere: the smallest changes of it, and the nodes that lack least.

Computed by asking `fit` about relaxed requests. Room only grows as a request shrinks, so the largest value that fits is
found by halving: some dozens of fits in all, each over all R rows, made when somebody asks and never to decide.

What keeps a request from each single GPU, in few words.

What would make claims fit that fit nowhere: one condition, constraint, capacity or some devices fewer.

Made when somebody asks: a bounded number of variants, each on
all R rows, of which those that are alike are searched once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Ints, Longs, Rows
from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked
from extender.core.dra.explained import shown
from extender.core.fit.checks import TABLE, Change
from extender.core.fit.device_fits import devices_at, obstacle_on
from extender.core.fit.fits import fit, fit_devices, lost
from extender.core.fit.fittings import mig_devices
from extender.core.fit.reasons import Fit, Reason
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest


def obstacles(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[list[str]]:
    """R lists of G texts, "" where a GPU has room for the request or there is none: of each other one what the first
    check says of it that takes it away."""
    if request.devices is not None:
        return _of_devices(cluster, rows)
    texts = np.full((len(rows), cluster.gpu_model.shape[1]), "", dtype=object)
    if not request.mig:
        fitting, codes = lost(cluster, request, rows)
        for row, slot in np.argwhere(codes).tolist():
            texts[row, slot] = TABLE[int(codes[row, slot])].gpu(fitting, row, slot)
    found: list[list[str]] = texts.tolist()
    return found


def _of_devices(cluster: Cluster, rows: Rows) -> list[list[str]]:
    """Where claims ask, what is gone of each GPU: which device of it would do, is not a matter of the GPU."""
    installed = cluster.taken(cluster.gpu_model, rows) >= 0  # (R, G)
    healthy, milli = cluster.taken(cluster.gpu_healthy, rows), cluster.taken(cluster.gpu_free_milli, rows)
    some = np.where(milli < WHOLE_MILLI, "partly in use", "")
    texts = np.where(healthy, np.where(milli <= 0, "in use", some), "unhealthy")
    found: list[list[str]] = np.where(installed, texts, "").tolist()
    return found


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A smaller request that fits."""

    change: str
    """What of the request changes: a `checks.Change`, or several joined by "+"; "filter" for what a check of another
    package would have."""
    text: str
    request: GpuRequest
    size: float
    """How much of the request it gives up: 0 nothing, 1 a whole condition."""
    rows: Rows
    """Where it fits."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A node on which others hold what is missing."""

    row: int
    missing: int
    unit: str
    """What `missing` counts: GPUs, MIG devices, milli or MiB."""

    @property
    def text(self) -> str:
        """What would have to become free."""
        match self.unit:
            case "milli":
                return f"{self.missing} milli more free on one GPU"
            case "MiB":
                return f"{format_mib(self.missing)} more free"
            case things:
                return f"{self.missing} more {things.removesuffix('s') if self.missing == 1 else things} free"


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a request that may be smaller."""

    change: str
    asked: int
    smaller: Callable[[int], GpuRequest]
    words: Callable[[int], str]
    limits: Sequence[int]
    """Values worth trying, ascending, all below what is asked."""


_MAX_SIZES: Final = 8
_OF_FILTER: Final = "filter"


def relaxations(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[Relaxation]:
    """Changes of a request each of which would make it fit on some of R rows, the smallest first.

    Two conditions are given up only where no single one helps.
    """
    if request.mig or not len(rows):
        return []
    dropped = list(_dropped(request, rows))
    found = [*_reduced(cluster, request, rows), *_fitting(cluster, dropped, rows)]
    if not found:
        found = [
            _joined(first, further)
            for first in dropped
            for further in (
                *_reduced(cluster, first.request, rows),
                *_fitting(cluster, [one for one in _dropped(first.request, rows) if one.change > first.change], rows),
            )
        ]
        found += _smaller_and_fewer(cluster, request, rows)
    return sorted(found, key=lambda relaxation: relaxation.size)


def shortfalls(cluster: Cluster, request: GpuRequest, rows: Rows, most: int = 3) -> list[Shortfall]:
    """The nodes among R rows where the request would fit if others let go of something, those that lack least first."""
    return lacking(cluster, request, rows, fit(cluster, request, rows), most)


class Checked(Protocol):
    """What a check of a request on R rows has found: a Fit, or an Evaluation."""

    @property
    def reason(self) -> npt.NDArray[np.uint8]:
        """(R,) Reason."""

    @property
    def available(self) -> Longs:
        """(R,) the number behind it."""


def lacking(cluster: Cluster, request: GpuRequest, rows: Rows, checked: Checked, most: int) -> list[Shortfall]:
    """The same where the rows were checked before."""
    found: dict[tuple[float, int], Shortfall] = {}
    for check in TABLE.checks:
        if check.missing is None:
            continue
        at = np.flatnonzero(checked.reason == check.reason)
        asked = check.missing.asked(request, cluster.taken(cluster.gpu_memory_mib, rows[at]))
        missing = _missing_mig(cluster, request, rows[at]) if request.mig else asked - checked.available[at]
        order = np.lexsort((cluster.tie_rank[rows[at]], missing))[:most]
        for index in order.tolist():
            row, lacks = int(rows[at[index]]), int(missing[index])
            part = lacks / max(int(asked[index]), 1)
            counted = "MIG devices" if request.mig else check.missing.unit
            found[part, int(cluster.tie_rank[row])] = Shortfall(row, lacks, counted)
    return [found[nearness] for nearness in sorted(found)[:most] if found[nearness].missing > 0]


def _joined(first: Relaxation, further: Relaxation) -> Relaxation:
    return replace(
        further,
        change=f"{first.change}+{further.change}",
        text=f"{first.text}, and {further.text}",
        size=first.size + further.size,
    )


def _smaller_and_fewer(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[Relaxation]:
    """The largest memory of each GPU, of a few sizes below what is asked, with which fewer of them fit."""
    for number in _numbers(cluster, request, rows):
        if number.change != Change.MEMORY_EACH:
            continue
        for mib in list(number.limits)[: -_MAX_SIZES - 1 : -1]:
            size = (number.asked - mib) / number.asked
            first = Relaxation(number.change, number.words(mib), number.smaller(mib), size, rows)
            fewer = [one for one in _reduced(cluster, first.request, rows) if one.change == Change.COUNT]
            if fewer:
                return [_joined(first, fewer[0])]
    return []


def _missing_mig(cluster: Cluster, request: GpuRequest, rows: Rows) -> Longs:
    """(R,) devices that are not free, of all profiles together."""
    missing: Longs = np.sum(
        [np.maximum(count - mig_devices(cluster, profile, rows)[1], 0) for profile, count in request.mig], axis=0
    )
    return missing


def _dropped(request: GpuRequest, rows: Rows) -> Iterable[Relaxation]:
    """The request without each of its conditions on what a GPU is; whether they fit is not looked at."""
    found = [(check.change or _OF_FILTER, relaxed) for check in TABLE.checks if (relaxed := check.relaxed(request))]
    for change, (text, smaller) in sorted(found, key=lambda one: one[0]):
        yield Relaxation(change, text, smaller, 1, rows)


def _fitting(cluster: Cluster, candidates: Iterable[Relaxation], rows: Rows) -> Iterable[Relaxation]:
    """Those that fit, with where they do."""
    for candidate in candidates:
        checked = fit(cluster, candidate.request, rows)
        if checked.fits.any():
            text = candidate.text
            if candidate.change == Change.MODEL and (names := _models(cluster, checked, rows)):
                text += f" (there is room on {names})"
            yield replace(candidate, text=text, rows=rows[checked.fits])


def _models(cluster: Cluster, checked: Fit, rows: Rows) -> str:
    """Names of the models of the GPUs that have room where the request fits."""
    with_room = cluster.taken(cluster.gpu_model, rows)[checked.room & checked.fits[:, None]]
    names = sorted({cluster.models[index].name for index in np.unique(with_room).tolist()} - {""})
    return ", ".join(names)


def _reduced(cluster: Cluster, request: GpuRequest, rows: Rows) -> Iterable[Relaxation]:
    """For each number of the request the largest smaller one that fits."""
    for number in _numbers(cluster, request, rows):
        low, high = 0, len(number.limits)  # limits[:low] fit, limits[high:] don't
        while low < high:
            middle = (low + high) // 2
            if fit(cluster, number.smaller(number.limits[middle]), rows).fits.any():
                low = middle + 1
            else:
                high = middle
        if low:
            value = number.limits[low - 1]
            smaller = number.smaller(value)
            where = rows[fit(cluster, smaller, rows).fits]
            size = (number.asked - value) / number.asked
            yield Relaxation(number.change, number.words(value), smaller, size, where)


def _numbers(cluster: Cluster, request: GpuRequest, rows: Rows) -> Iterable[_Number]:
    """What may be smaller, with the values that make a difference: what some GPU has, or has free."""
    if request.count > 1:
        largest = min(request.count, int(cluster.gpu_model.shape[1] * cluster.units_per_gpu.max()) + 1)
        yield _Number(
            Change.COUNT,
            request.count,
            lambda count: replace(request, count=count),
            lambda count: _fewer(request.count, count),
            range(1, largest),
        )
    if request.memory_each_mib:
        of_unit = cluster.taken(cluster.gpu_memory_mib, rows) // cluster.taken(cluster.units_per_gpu, rows)[:, None]
        yield _Number(
            Change.MEMORY_EACH,
            request.memory_each_mib,
            lambda mib: replace(request, memory_each_mib=mib),
            lambda mib: f"{format_mib(mib)} instead of {format_mib(request.memory_each_mib)} each",
            _below(request.memory_each_mib, of_unit, cluster.taken(cluster.gpu_free_mib, rows)),
        )
    if request.memory_total_mib:
        memory = cluster.taken(cluster.gpu_memory_mib, rows)
        most = min(request.memory_total_mib, int(memory.sum(axis=1).max()) + 1)
        yield _Number(
            Change.MEMORY_TOTAL,
            request.memory_total_mib,
            lambda mib: replace(request, memory_total_mib=mib),
            lambda mib: f"{format_mib(mib)} instead of {format_mib(request.memory_total_mib)} in total",
            range(1, most),
        )
    if request.milli:
        yield _Number(
            Change.SHARE,
            request.milli,
            lambda milli: replace(request, milli=milli),
            lambda milli: f"{milli} milli instead of {request.milli} milli of a GPU",
            _below(request.milli, cluster.taken(cluster.gpu_free_milli, rows)),
        )


def _below(asked: int, *values: Ints) -> Sequence[int]:
    """The different values from 1 to less than what is asked, ascending."""
    distinct = np.unique(np.concatenate([value.ravel() for value in values]))
    return [value for value in distinct.tolist() if 0 < value < asked]


def _fewer(asked: int, count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'} instead of {asked}"


_MAX_VARIANTS: Final = 24
_MAX_ROWS: Final = 500
"""Of those on which others have the devices: so many are asked how many are missing."""


def device_relaxations(cluster: Cluster, request: GpuRequest, asked: DevicesAsked, rows: Rows) -> list[Relaxation]:
    """Changes of what claims ask each of which would make it fit on some of R rows, the smallest first; of several
    counts for one request the largest."""
    found: dict[tuple[str, str], Relaxation] = {}
    for change, where, text, size, smaller in islice(_variants(asked), _MAX_VARIANTS):
        if (change, where) in found:
            continue
        fits = fit_devices(cluster, smaller, rows).reason == Reason.FITS
        if fits.any():
            relaxed = replace(request, count=smaller.num_devices, devices=smaller)
            found[change, where] = Relaxation(change, text, relaxed, size, rows[np.flatnonzero(fits)])
    return sorted(found.values(), key=lambda one: one.size)


def device_shortfalls(cluster: Cluster, asked: DevicesAsked, rows: Rows, most: int = 3) -> list[Shortfall]:
    """The nodes among R rows where claims could be met if others let go of devices, those that lack least first."""
    busy = rows[fit_devices(cluster, asked, rows).reason == Reason.BUSY]
    found: dict[tuple[int, int], Shortfall] = {}
    for row in busy[np.argsort(-cluster.gpu_free_milli[busy].sum(axis=1), kind="stable")][:_MAX_ROWS].tolist():
        devices = devices_at(cluster, row)
        obstacle = None if devices is None else obstacle_on(devices, asked)
        if obstacle is not None and obstacle.missing:
            found[obstacle.missing, int(cluster.tie_rank[row])] = Shortfall(row, obstacle.missing, "devices")
    return [found[nearness] for nearness in sorted(found)[:most]]


_Variant = tuple[str, str, str, float, DevicesAsked]
"""Change, what it is about, words, size, and what is asked then."""


def _variants(asked: DevicesAsked) -> Iterator[_Variant]:
    for number, claim in enumerate(asked.claims):
        for constraint in claim.constraints:
            rest = tuple(other for other in claim.constraints if other is not constraint)
            text = f"without the constraint on {shown(constraint.attribute)}"
            yield (
                "constraint",
                constraint.attribute,
                text,
                1.0,
                _with_claim(asked, number, replace(claim, constraints=rest)),
            )
        for place, request in enumerate(claim.requests):
            first, *others = request.alternatives
            for change, where, text, size, smaller in _of_ask(first):
                requests = list(claim.requests)
                requests[place] = replace(request, alternatives=(smaller, *others))
                about = f" for request {shown(request.name)}"
                key = f"{number}/{place}/{where}"
                yield (
                    change,
                    key,
                    text + about,
                    size,
                    _with_claim(asked, number, replace(claim, requests=tuple(requests))),
                )


def _of_ask(ask: DeviceAsk) -> Iterator[tuple[str, str, str, float, DeviceAsk]]:
    for selector in ask.selectors:
        others = tuple(other for other in ask.selectors if other is not selector)
        text = f"without the condition {shown(selector.expression)}"
        yield "condition", selector.expression, text, 1.0, replace(ask, selectors=others)
    for item in ask.capacity:
        rest = tuple(other for other in ask.capacity if other != item)
        yield "capacity", item[0], f"without a capacity of {shown(item[0])}", 1.0, replace(ask, capacity=rest)
    for count in range(ask.count - 1, 0, -1):
        text = f"{count} device{'' if count == 1 else 's'} instead of {ask.count}"
        yield "count", "", text, (ask.count - count) / ask.count, replace(ask, count=count)


def _with_claim(asked: DevicesAsked, number: int, claim: ClaimAsk) -> DevicesAsked:
    claims = list(asked.claims)
    claims[number] = claim
    return DevicesAsked(tuple(claims))
