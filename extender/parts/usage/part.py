"""Assembles the usage part: the meter, its metrics, routes and panel of the page."""

import time
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Final, ParamSpec, TypeVar

from fastapi import HTTPException, Query

from extender.api.contributions import Contribution, Kernel
from extender.api.reads import Reads
from extender.explain.counting import CountsGpuHours
from extender.parts.usage.answers import By, Source, UsageOverTime, UsageReport
from extender.parts.usage.budgets import DAY_S, Budgets
from extender.parts.usage.meter import Meter, MeterInputs
from extender.parts.usage.metrics import gpu_hour_metrics
from extender.parts.usage.over_time import over_time
from extender.parts.usage.past import Past
from extender.parts.usage.questions import PastError
from extender.parts.usage.report import BudgetWatch, IdleRecall, Usage
from extender.parts.usage.settings import UsageSettings
from extender.parts.usage.steps import SpanError, length_of, span_of
from extender.ranking.demands import gpu_mix
from extender.telemetry.service import wanted_of
from extender.telemetry.sources.source import PROMETHEUS

_BUDGET_DAYS: Final = 30
"""Rolling window of a budget."""
_UNAVAILABLE: Final = "Another replica leads, or Prometheus does not answer; gives the reason."
_SourceParameter = Annotated[Source, Query(description="Where the figures come from.")]

_ParamsP = ParamSpec("_ParamsP")
_AnswerT = TypeVar("_AnswerT")


def build(kernel: Kernel, wanted: UsageSettings) -> Contribution:
    """A meter that counts while this process leads, its metrics and routes."""
    base, mix = kernel.base, kernel.rank.mix.counts
    sight = MeterInputs(
        ledger=base.ledger,
        led=base.fence.led,
        standby=base.fence.standby,
        fault=lambda: base.fence.fault() or base.mirror.fault(),
        mix=lambda cluster: gpu_mix(cluster, mix()),
        clock=base.clock,
        wall_clock=time.time,
    )
    meter = Meter(wanted, sight)
    meter.holders.subscribe(base.mirror.hub)
    past = _past(kernel, wanted)
    budgets = Budgets(wanted.budgets, _BUDGET_DAYS * DAY_S)
    usage = Usage(meter, budgets, past, base.fence.standby, base.clock, time.time)
    watches = [BudgetWatch(usage, base.events)] if wanted.budgets else []
    recalls = [IdleRecall(usage, past)] if past is not None else []
    return Contribution(
        work=[meter, *watches, *recalls],
        metrics=partial(gpu_hour_metrics, usage),
        routes=partial(_install_routes, usage),
        offers={CountsGpuHours: meter},
        shown={"usage": usage.panel},
        panel=Path(__file__).parent / "page",
    )


def _past(kernel: Kernel, wanted: UsageSettings) -> Past | None:
    """Queries the Prometheus of the settings, None if none is configured."""
    telemetry = kernel.settings.telemetry
    source = wanted_of(telemetry)
    url = next(iter(source.addresses), "") if source.kind == PROMETHEUS and telemetry.source != "off" else ""
    return Past(url, source.access, wanted.matchers, kernel.base.clock, tuple(wanted.budgets)) if url else None


def _install_routes(counted: Usage, reads: Reads) -> None:
    @reads.get("/usage", {400: "`since` or `by` is invalid.", 503: _UNAVAILABLE})
    @_with_errors
    async def usage(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h. Empty: since the start.")] = "",
        by: Annotated[By, Query(description="What to group rows by.")] = "namespace",
        source: _SourceParameter = "auto",
    ) -> UsageReport:
        """GPU-hours booked, used and idle: over the last `since` from Prometheus, else since the start of this Kerf."""
        return await counted.report(by, length_of("since", since) if since else None, source)

    @reads.get(
        "/usage/over-time",
        {400: "`since` or `step` is invalid, or would be too many steps.", 503: _UNAVAILABLE},
    )
    @_with_errors
    async def usage_over_time(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h.")] = "24h",
        step: Annotated[str, Query(max_length=16, description="Length of a step. Empty: chosen by Kerf.")] = "",
        source: _SourceParameter = "auto",
    ) -> UsageOverTime:
        """GPU-hours step by step: from this Kerf if it has counted for that long, else from Prometheus."""
        return await over_time(counted, span_of(since, step), source)


def _with_errors(handler: Callable[_ParamsP, Awaitable[_AnswerT]]) -> Callable[_ParamsP, Awaitable[_AnswerT]]:
    """The handler, answering 400 to an invalid time and 503 if there are no figures."""

    @wraps(handler)
    async def answer(*args: _ParamsP.args, **kwargs: _ParamsP.kwargs) -> _AnswerT:
        try:
            return await handler(*args, **kwargs)
        except SpanError as error:
            raise HTTPException(400, str(error)) from error
        except PastError as error:
            raise HTTPException(503, str(error)) from error

    return answer
