"""What would make claims fit that fit nowhere: one condition, constraint, capacity or some devices fewer.

As `relaxations`, for what is asked by ResourceClaims. Made when somebody asks: a bounded number of variants, each on
all R rows, of which those that are alike are searched once.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked
from extender.core.dra.explained.obstacles import shown
from extender.core.fit.device_fits import devices_at
from extender.core.fit.device_obstacles import obstacle_on
from extender.core.fit.fits import fit_devices
from extender.core.fit.reasons import Reason
from extender.core.fit.relaxations import Relaxation, Shortfall
from extender.core.resources.requests import GpuRequest

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
