"""What telemetry costs: a refresh of a whole cluster from a real Prometheus, and what it does to filter.

Kerf's app runs in this process on a cluster in memory, with its reading process beside it; a real Prometheus has one
series for each GPU and metric.

- `refresh_s`: wall time of one round, from the first query to samples in the arrays.
- `stall_ms`: the longest that the event loop did not get to a waiting task during refreshes, whoever had the core.
- `stall_cpu_ms`: the same in CPU time of the loop's thread, which other processes of the machine leave alone.
- `stall_idle_ms`, `stall_idle_cpu_ms`: the same of the same loop for as long, without a refresh: what the machine does
  to a process that does nothing.
- `filter_p99_ratio_dead`: p99 of filter while Prometheus is dead and asked again and again, over p99 while refreshes go
  on.
- `score_ratio`: filter with the policy `live` and samples, between refreshes, over filter with `bestfit` and none, in
  CPU time: requests go to both in turn, a block to each; the mean over blocks of the ratio of medians, with
  `score_ratio_half_width`, half of its 95 % interval.

Prometheus runs with a lower priority here: in a cluster it has a machine of its own.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

from extender.api.app import create_app
from extender.api.service import Service
from extender.core.observations import SampleState
from extender.kube.memory import MemoryCluster
from extender.server.run import _tune_garbage_collection
from extender.settings.load import load_settings
from extender.telemetry.observer import Observer
from extender.telemetry.status import State
from model.evaluation.reports import Interval, interval
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import serving
from tests.tools.bench import reports, telemetry_cluster
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

T = TypeVar("T")
Kill = Callable[[], None]
Blocks = list[list[float]]
"""Seconds by block."""
_SCRAPE = "60s"
_READY_WITHIN_S = 300.0
_TICK_S = 0.0005
_BLOCK = 20
"""Requests to one service before the other has its turn."""
_PAUSE_S = 0.25
"""Between two rounds while requests are made: 15 s where nothing else is set."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    refreshes: int = 5
    requests: int = 1000

    @property
    def num_steps(self) -> int:
        """Series scraped, refreshes, and requests in three states."""
        return 5


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError."""
    return _beside_prometheus(plan, tell, _measure) | {
        **{"nodes": plan.nodes, "gpus": plan.nodes * GPUS_PER_NODE, "series": _num_series(plan)},
        "machine": reports.machine(),
    }


def measure_scores(plan: Plan, tell: Callable[[str], None]) -> float:
    """Of all this only `score_ratio`. Raises BenchError."""
    return _beside_prometheus(plan, tell, _measure_scores)


def _beside_prometheus(
    plan: Plan, tell: Callable[[str], None], work: Callable[[Plan, Callable[[str], None], str, Kill], Awaitable[T]]
) -> T:
    """What comes of some work with the address of a Prometheus that has all series."""
    tell(f"{_num_series(plan)} series scraped")
    page = telemetry_cluster.page(plan.nodes)
    with (
        tempfile.TemporaryDirectory(prefix="kerf-bench-") as folder,
        serving(lambda *_: (200, page)) as exporter,
        prometheus(
            Path(folder), [Job("dcgm", f"{exporter.url.removeprefix('http://')}/metrics")], _SCRAPE, niceness=10
        ) as process,
    ):

        async def working() -> T:
            return await work(plan, tell, process.url, process.kill)

        return asyncio.run(working())


def _num_series(plan: Plan) -> int:
    return plan.nodes * GPUS_PER_NODE * len(telemetry_cluster.METRICS)


async def _measure_scores(plan: Plan, tell: Callable[[str], None], url: str, kill: Kill) -> float:
    bodies = [telemetry_cluster.body(number, plan.nodes) for number in range(plan.requests)]
    async with _observing(plan, url) as (service, _):
        tell("requests with and without live scores in turn")
        return _score_ratio(*await _with_and_without(plan, service, bodies)).mean


async def _measure(plan: Plan, tell: Callable[[str], None], url: str, kill: Kill) -> reports.Report:
    bodies = [telemetry_cluster.body(number, plan.nodes) for number in range(plan.requests)]
    async with _observing(plan, url) as (service, observer):
        tell("refreshes")
        refreshes: list[float] = []
        async with _stalls() as stalls:
            for _ in range(plan.refreshes):
                began = time.perf_counter()
                await observer.round()
                refreshes.append(time.perf_counter() - began)
                await asyncio.sleep(0)
                observer.on_refresh()
        async with _stalls() as idle:
            await asyncio.sleep(sum(refreshes))
        rss_mib, reader_cpu_s = observer.status.report.rss_mib, observer.status.report.cpu_s
        tell("requests with and without live scores in turn")
        live, plain = await _with_and_without(plan, service, bodies)
        tell("requests with Prometheus alive")
        alive = await _requests(service, observer, bodies)
        tell("requests with Prometheus dead")
        kill()
        await observer.round()
        if observer.status.state is not State.DEGRADED:
            raise BenchError("Prometheus was killed and nobody noticed")
        dead = await _requests(service, observer, bodies)
    score_ratio = _score_ratio(live, plain)
    return {
        "refresh_s": round(statistics.median(refreshes), 3),
        **_longest("stall", stalls),
        **_longest("stall_idle", idle),
        "filter_p99_ratio_dead": round(_p99(dead) / _p99(alive), 3),
        "reader_rss_mib": round(rss_mib, 1),
        "reader_cpu_s": round(reader_cpu_s, 3),
        "score_ratio": round(score_ratio.mean, 3),
        "score_ratio_half_width": round(score_ratio.half_width or 0.0, 3),
        "filter_ms": {
            name: {"p50": round(statistics.median(times) * 1000, 3), "p99": round(_p99(times) * 1000, 3)}
            for name, times in (
                *(("alive", alive), ("dead", dead)),
                *(("live, CPU", list(chain(*live))), ("bestfit, CPU", list(chain(*plain)))),
            )
        },
    }


def _longest(name: str, stalls: list[tuple[float, float]]) -> dict[str, float]:
    """The longest stall, in wall and in CPU time."""
    return {
        f"{name}_ms": round(max(wall for wall, _ in stalls) * 1000, 3),
        f"{name}_cpu_ms": round(max(cpu for _, cpu in stalls) * 1000, 3),
    }


@contextlib.asynccontextmanager
async def _observing(plan: Plan, url: str) -> AsyncIterator[tuple[Service, Observer]]:
    """The service with live scores, once it has samples of every node."""
    async with _running(plan.nodes, {"telemetry.url": url, "decisions.policy": "live"}) as service:
        if service.observer is None:
            raise BenchError("telemetry is off")
        await _wait_for_samples(service.observer, plan)
        yield service, service.observer


async def _with_and_without(plan: Plan, service: Service, bodies: list[bytes]) -> tuple[Blocks, Blocks]:
    """CPU seconds of filter by block, with live scores and without, in turn."""
    flags: dict[str, object] = {"telemetry.source": "off", "decisions.policy": "tightest"}
    async with _running(plan.nodes, flags) as without:
        live, plain = await _in_turn([service, without], bodies)
    return live, plain


def _score_ratio(live: Blocks, plain: Blocks) -> Interval:
    return interval(
        [statistics.median(ours) / statistics.median(theirs) for ours, theirs in zip(live, plain, strict=True)]
    )


@contextlib.asynccontextmanager
async def _running(num_nodes: int, flags: dict[str, object]) -> AsyncIterator[Service]:
    """The service on a cluster in memory; telemetry is read only when asked for."""
    settings = load_settings(flags={"telemetry.interval_s": 3600.0} | flags)
    app = create_app(settings, MemoryCluster(telemetry_cluster.nodes(num_nodes)))
    service: Service = app.state.service
    async with app.router.lifespan_context(app):
        for _ in range(2000):
            if not service.fault():
                break
            await asyncio.sleep(0.05)
        else:
            raise BenchError(f"Kerf is not ready: {service.fault()}")
        _tune_garbage_collection()
        yield service


async def _wait_for_samples(observer: Observer, plan: Plan) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while observer.num_nodes(SampleState.FRESH) < plan.nodes or len(observer.status.report.series) < len(
        telemetry_cluster.METRICS
    ):
        if time.monotonic() > deadline:
            raise BenchError(f"samples of {observer.num_nodes(SampleState.FRESH)} of {plan.nodes} nodes came")
        await asyncio.sleep(1)
        await observer.round()


async def _requests(service: Service, observer: Observer | None, bodies: list[bytes]) -> list[float]:
    """Seconds of each filter call while rounds of telemetry go on."""

    async def rounds() -> None:
        while observer is not None:
            await observer.round()
            await asyncio.sleep(_PAUSE_S)

    background = asyncio.create_task(rounds())
    times: list[float] = []
    try:
        for body in bodies:
            began = time.perf_counter()
            await asyncio.sleep(0)  # whatever is ready goes first, as it would before a request that arrives now
            answer = service.verbs.filter(body)
            times.append(time.perf_counter() - began)
            _check(answer)
            await asyncio.sleep(0.002)
    finally:
        background.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await background
    return times


async def _in_turn(services: list[Service], bodies: list[bytes]) -> list[Blocks]:
    """CPU seconds of each filter call by service and block: the first of a pair goes second in the next."""
    blocks: list[Blocks] = [[] for _ in services]
    for start in range(0, len(bodies), _BLOCK):
        for number in sorted(range(len(services)), reverse=bool(start // _BLOCK % 2)):
            times: list[float] = []
            for body in bodies[start : start + _BLOCK]:
                await asyncio.sleep(0.001)
                began = time.thread_time()
                answer = services[number].verbs.filter(body)
                times.append(time.thread_time() - began)
                _check(answer)
            blocks[number].append(times)
    return blocks


def _check(answer: bytes) -> None:
    """Raises BenchError when filter found no node."""
    if b'"NodeNames":[]' in answer or b'"Error":""' not in answer:
        raise BenchError(f"Kerf places no pod: {answer[:300]!r}")


@contextlib.asynccontextmanager
async def _stalls() -> AsyncIterator[list[tuple[float, float]]]:
    """Seconds by which a task that wants to run now and again was late, and of CPU time spent meanwhile."""
    late: list[tuple[float, float]] = [(0.0, 0.0)]

    async def tick() -> None:
        while True:
            due, used = time.perf_counter() + _TICK_S, time.thread_time()
            await asyncio.sleep(_TICK_S)
            late.append((time.perf_counter() - due, time.thread_time() - used))

    ticking = asyncio.create_task(tick())
    try:
        yield late
    finally:
        ticking.cancel()


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]
