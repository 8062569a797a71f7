"""What counts GPU-hours and answers from that, with its metrics, routes and panel."""

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
from extender.parts.usage.meter import Meter, Sight
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
"""The time up to now that a budget is for."""
_NOT_TOLD: Final = "Another replica leads, or Prometheus does not answer; gives the reason."
_SourceParameter = Annotated[Source, Query(description="Who is asked.")]

_AskedP = ParamSpec("_AskedP")
_AnswerT = TypeVar("_AnswerT")


def build(kernel: Kernel, wanted: UsageSettings) -> Contribution:
    """A meter that counts while this process leads, and what is asked of it."""
    base, mix = kernel.base, kernel.rank.mix.counts
    sight = Sight(
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
    """What asks Prometheus of the past, where one is named."""
    telemetry = kernel.settings.telemetry
    asked = wanted_of(telemetry)
    url = next(iter(asked.addresses), "") if asked.kind == PROMETHEUS and telemetry.source != "off" else ""
    return Past(url, asked.access, wanted.matchers, kernel.base.clock, tuple(wanted.budgets)) if url else None


def _install_routes(counted: Usage, reads: Reads) -> None:
    """GPU-hours, for those who share them out."""

    @reads.get("/usage", {400: "`since` or `by` can't be understood.", 503: _NOT_TOLD})
    @_refusing
    async def usage(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h. Empty: since the start.")] = "",
        by: Annotated[By, Query(description="What a row is of.")] = "namespace",
        source: _SourceParameter = "auto",
    ) -> UsageReport:
        """GPU-hours booked, used and idle: in a time up to now by Prometheus, else since the start by this Kerf."""
        return await counted.report(by, length_of("since", since) if since else None, source)

    @reads.get(
        "/usage/over-time",
        {400: "`since` or `step` can't be understood, or would be too many steps.", 503: _NOT_TOLD},
    )
    @_refusing
    async def usage_over_time(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h.")] = "24h",
        step: Annotated[str, Query(max_length=16, description="Length of a step. Empty: as suits.")] = "",
        source: _SourceParameter = "auto",
    ) -> UsageOverTime:
        """GPU-hours step by step: by this Kerf where it has counted for so long, else by Prometheus."""
        return await over_time(counted, span_of(since, step), source)


def _refusing(handler: Callable[_AskedP, Awaitable[_AnswerT]]) -> Callable[_AskedP, Awaitable[_AnswerT]]:
    """A handler whose questions may be wrong, or about a time of which nothing is known."""

    @wraps(handler)
    async def answer(*args: _AskedP.args, **kwargs: _AskedP.kwargs) -> _AnswerT:
        try:
            return await handler(*args, **kwargs)
        except SpanError as error:
            raise HTTPException(400, str(error)) from error
        except PastError as error:
            raise HTTPException(503, str(error)) from error

    return answer
