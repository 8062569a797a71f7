"""Explanations for requests that fit nowhere: relaxed requests that fit, nodes that lack least, and faults per GPU.

Relaxations come from running `fit` on smaller requests. Fit is monotonic in the request's numbers, so bisection finds
the largest value that fits with a few dozen fits over all R rows. For claims, a bounded number of variants is tried:
one condition, constraint or capacity fewer, or fewer devices. Never used for decisions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Ints, Longs, Rows
from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec
from extender.core.dra.explained import shown
from extender.core.fit.checks import TABLE, Change
from extender.core.fit.device_fits import devices_at, obstacle_on
from extender.core.fit.fits import exclusion_codes, fit, fit_devices
from extender.core.fit.fittings import mig_devices
from extender.core.fit.reasons import Fit, Reason
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest


def obstacles(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[list[str]]:
    """(R, G) why the first failing check excludes each GPU; "" for GPUs with room and for no GPU."""
    if request.devices is not None:
        return _of_devices(cluster, rows)
    texts = np.full((len(rows), cluster.gpu_model.shape[1]), "", dtype=object)
    if not request.mig:
        fitting, codes = exclusion_codes(cluster, request, rows)
        for row, slot in np.argwhere(codes).tolist():
            texts[row, slot] = TABLE[int(codes[row, slot])].gpu(fitting, row, slot)
    result: list[list[str]] = texts.tolist()
    return result


def _of_devices(cluster: Cluster, rows: Rows) -> list[list[str]]:
    """(R, G) how much of each GPU is in use: for claims, matching depends on devices and not on GPUs."""
    installed = cluster.take_rows(cluster.gpu_model, rows) >= 0  # (R, G)
    healthy, milli = cluster.take_rows(cluster.gpu_healthy, rows), cluster.take_rows(cluster.gpu_free_milli, rows)
    some = np.where(milli < WHOLE_MILLI, "partly in use", "")
    texts = np.where(healthy, np.where(milli <= 0, "in use", some), "unhealthy")
    result: list[list[str]] = np.where(installed, texts, "").tolist()
    return result


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A smaller request that fits."""

    change: str
    """What changes: a `checks.Change`, several joined by "+", or "filter" for a filter of another package."""
    text: str
    request: GpuRequest
    size: float
    """Fraction of the request given up: 0 for nothing, 1 for a whole condition."""
    rows: Rows
    """Where it fits."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A node on which other pods hold what the request lacks."""

    row: int
    missing: int
    unit: str
    """What `missing` counts: GPUs, MIG devices, milli or MiB."""

    @property
    def text(self) -> str:
        """What would have to become free, as text."""
        match self.unit:
            case "milli":
                return f"{self.missing} milli more free on one GPU"
            case "MiB":
                return f"{format_mib(self.missing)} more free"
            case unit:
                return f"{self.missing} more {unit.removesuffix('s') if self.missing == 1 else unit} free"


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a request that may be reduced."""

    change: str
    asked: int
    smaller: Callable[[int], GpuRequest]
    words: Callable[[int], str]
    limits: Sequence[int]
    """Values worth trying, ascending, all below `asked`."""


_MAX_SIZES: Final = 8
_OF_FILTER: Final = "filter"


def relaxations(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[Relaxation]:
    """Changes that make a request fit on some of R rows, smallest first.

    Tries two changes together only where no single one helps.
    """
    if request.mig or not len(rows):
        return []
    dropped = list(_dropped(request, rows))
    result = [*_reduced(cluster, request, rows), *_fitting(cluster, dropped, rows)]
    if not result:
        result = [
            _joined(first, further)
            for first in dropped
            for further in (
                *_reduced(cluster, first.request, rows),
                *_fitting(cluster, [alt for alt in _dropped(first.request, rows) if alt.change > first.change], rows),
            )
        ]
        result += _smaller_and_fewer(cluster, request, rows)
    return sorted(result, key=lambda relaxation: relaxation.size)


def shortfalls(cluster: Cluster, request: GpuRequest, rows: Rows, most: int = 3) -> list[Shortfall]:
    """The nodes among R rows where the request would fit if other pods ended, those that lack least first."""
    return lacking(cluster, request, rows, fit(cluster, request, rows), most)


class Checked(Protocol):
    """The result of checking a request on R rows: a Fit or an Evaluation."""

    @property
    def reason(self) -> npt.NDArray[np.uint8]:
        """(R,) Reason."""

    @property
    def available(self) -> Longs:
        """(R,) the number behind it."""


def lacking(cluster: Cluster, request: GpuRequest, rows: Rows, checked: Checked, most: int) -> list[Shortfall]:
    """`shortfalls` for rows that were already checked."""
    shortfall_of: dict[tuple[float, int], Shortfall] = {}
    for check in TABLE.checks:
        if check.missing is None:
            continue
        at = np.flatnonzero(checked.reason == check.reason)
        asked = check.missing.asked(request, cluster.take_rows(cluster.gpu_memory_mib, rows[at]))
        missing = _missing_mig(cluster, request, rows[at]) if request.mig else asked - checked.available[at]
        order = np.lexsort((cluster.tie_rank[rows[at]], missing))[:most]
        for index in order.tolist():
            row, lacks = int(rows[at[index]]), int(missing[index])
            part = lacks / max(int(asked[index]), 1)
            counted = "MIG devices" if request.mig else check.missing.unit
            shortfall_of[part, int(cluster.tie_rank[row])] = Shortfall(row, lacks, counted)
    nearest = [shortfall_of[key] for key in sorted(shortfall_of)[:most]]
    return [shortfall for shortfall in nearest if shortfall.missing > 0]


def _joined(first: Relaxation, further: Relaxation) -> Relaxation:
    return replace(
        further,
        change=f"{first.change}+{further.change}",
        text=f"{first.text}, and {further.text}",
        size=first.size + further.size,
    )


def _smaller_and_fewer(cluster: Cluster, request: GpuRequest, rows: Rows) -> list[Relaxation]:
    """Fewer GPUs with less memory each: the largest of a few smaller sizes with which fewer GPUs fit."""
    for number in _numbers(cluster, request, rows):
        if number.change != Change.MEMORY_EACH:
            continue
        for mib in list(number.limits)[: -_MAX_SIZES - 1 : -1]:
            size = (number.asked - mib) / number.asked
            first = Relaxation(number.change, number.words(mib), number.smaller(mib), size, rows)
            fewer = [further for further in _reduced(cluster, first.request, rows) if further.change == Change.COUNT]
            if fewer:
                return [_joined(first, fewer[0])]
    return []


def _missing_mig(cluster: Cluster, request: GpuRequest, rows: Rows) -> Longs:
    """(R,) number of MIG devices missing, over all profiles."""
    missing: Longs = np.sum(
        [np.maximum(count - mig_devices(cluster, profile, rows)[1], 0) for profile, count in request.mig], axis=0
    )
    return missing


def _dropped(request: GpuRequest, rows: Rows) -> Iterable[Relaxation]:
    """The request without each of its conditions on the GPUs, without checking fit."""
    options = [(check.change or _OF_FILTER, relaxed) for check in TABLE.checks if (relaxed := check.relaxed(request))]
    for change, (text, smaller) in sorted(options, key=lambda option: option[0]):
        yield Relaxation(change, text, smaller, 1, rows)


def _fitting(cluster: Cluster, candidates: Iterable[Relaxation], rows: Rows) -> Iterable[Relaxation]:
    """The candidates that fit somewhere, with the rows where they fit."""
    for candidate in candidates:
        checked = fit(cluster, candidate.request, rows)
        if checked.fits.any():
            text = candidate.text
            if candidate.change == Change.MODEL and (names := _models(cluster, checked, rows)):
                text += f" (there is room on {names})"
            yield replace(candidate, text=text, rows=rows[checked.fits])


def _models(cluster: Cluster, checked: Fit, rows: Rows) -> str:
    """Names of the models of GPUs with room on rows where the request fits."""
    with_room = cluster.take_rows(cluster.gpu_model, rows)[checked.room & checked.fits[:, None]]
    names = sorted({cluster.models[index].name for index in np.unique(with_room).tolist()} - {""})
    return ", ".join(names)


def _reduced(cluster: Cluster, request: GpuRequest, rows: Rows) -> Iterable[Relaxation]:
    """For each number of the request, the largest smaller one that fits."""
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
    """The request's numbers that may be reduced, with the values that some GPU has or has free."""
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
        of_unit = (
            cluster.take_rows(cluster.gpu_memory_mib, rows) // cluster.take_rows(cluster.units_per_gpu, rows)[:, None]
        )
        yield _Number(
            Change.MEMORY_EACH,
            request.memory_each_mib,
            lambda mib: replace(request, memory_each_mib=mib),
            lambda mib: f"{format_mib(mib)} instead of {format_mib(request.memory_each_mib)} each",
            _below(request.memory_each_mib, of_unit, cluster.take_rows(cluster.gpu_free_mib, rows)),
        )
    if request.memory_total_mib:
        memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
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
            _below(request.milli, cluster.take_rows(cluster.gpu_free_milli, rows)),
        )


def _below(asked: int, *values: Ints) -> Sequence[int]:
    """The distinct values from 1 to below `asked`, ascending."""
    distinct = np.unique(np.concatenate([value.ravel() for value in values]))
    return [value for value in distinct.tolist() if 0 < value < asked]


def _fewer(asked: int, count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'} instead of {asked}"


_MAX_VARIANTS: Final = 24
_MAX_ROWS: Final = 500
"""Number of busy nodes to examine."""


def device_relaxations(cluster: Cluster, request: GpuRequest, asked: DeviceClaims, rows: Rows) -> list[Relaxation]:
    """Changes that make claims fit on some of R rows, smallest first, with the largest fitting count per request."""
    result: dict[tuple[str, str], Relaxation] = {}
    for change, where, text, size, smaller in islice(_variants(asked), _MAX_VARIANTS):
        if (change, where) in result:
            continue
        fits = fit_devices(cluster, smaller, rows).reason == Reason.FITS
        if fits.any():
            relaxed = replace(request, count=smaller.num_devices, devices=smaller)
            result[change, where] = Relaxation(change, text, relaxed, size, rows[np.flatnonzero(fits)])
    return sorted(result.values(), key=lambda relaxation: relaxation.size)


def device_shortfalls(cluster: Cluster, asked: DeviceClaims, rows: Rows, most: int = 3) -> list[Shortfall]:
    """The nodes among R rows where claims would fit if other pods ended, those that lack least first."""
    busy = rows[fit_devices(cluster, asked, rows).reason == Reason.BUSY]
    result: dict[tuple[int, int], Shortfall] = {}
    for row in busy[np.argsort(-cluster.gpu_free_milli[busy].sum(axis=1), kind="stable")][:_MAX_ROWS].tolist():
        devices = devices_at(cluster, row)
        obstacle = None if devices is None else obstacle_on(devices, asked)
        if obstacle is not None and obstacle.missing:
            result[obstacle.missing, int(cluster.tie_rank[row])] = Shortfall(row, obstacle.missing, "devices")
    return [result[key] for key in sorted(result)[:most]]


_Variant = tuple[str, str, str, float, DeviceClaims]
"""(change, its subject, text, size, the relaxed claims)."""


def _variants(asked: DeviceClaims) -> Iterator[_Variant]:
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


def _of_ask(ask: DeviceSpec) -> Iterator[tuple[str, str, str, float, DeviceSpec]]:
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


def _with_claim(asked: DeviceClaims, number: int, claim: ClaimSpec) -> DeviceClaims:
    claims = list(asked.claims)
    claims[number] = claim
    return DeviceClaims(tuple(claims))
