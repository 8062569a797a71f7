"""Reads telemetry periodically."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from extender.core.observations import SampleState
from extender.kube import objects
from extender.kube.background import Tasks
from extender.ledger.arrays import SampleTimes
from extender.ledger.ledger import Ledger
from extender.telemetry.errors import TelemetryError
from extender.telemetry.folding import MAX_SKEW_S, Folder
from extender.telemetry.readings import Feed, Reading
from extender.telemetry.sources.discovery import Found
from extender.telemetry.sources.source import PROMETHEUS, Access, Bounds, Command, PodUsage
from extender.telemetry.status import State, Status, passed_over_reason
from extender.telemetry.tables import Most

logger = logging.getLogger(__name__)

_PODS_AT_ONCE: Final = 500
_DISCOVER_EVERY_S: Final = 60.0
_LOG_AGAIN_S: Final = 600.0
_MAX_LOGGED: Final = 5
_FOUND_BYTES: Final = 8 * 2**20
"""Response limit of a discovered source; 12,000 series, the most that one query asks for, are 2 MiB."""
_MARGIN_FACTOR: Final = 4
_MARGIN: Final = 2000
"""A discovered source may have this factor times the cluster's hosts and GPUs, plus this margin for removed ones."""
_LEADER_POLL_S: Final = 0.2
_NO_SECRETS: Final = "none of telemetry's credentials and headers: set telemetry.url to it if you trust it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sources to read, and how often."""

    kind: str = PROMETHEUS
    addresses: tuple[str, ...] = ()
    """Addresses of sources of this kind."""
    access: Access = field(default_factory=Access)
    discover: bool = True
    """Whether to discover a Prometheus if there are no addresses."""
    interval_s: float = 15.0
    times: SampleTimes = field(default_factory=SampleTimes)


@dataclass(frozen=True, slots=True)
class Finders:
    """Discovery of addresses in the cluster; replaceable where there is no API server."""

    prometheus: Callable[[], Awaitable[Found]]
    exporters: Callable[[], Awaitable[dict[str, str]]]


class Observer:
    """Reads telemetry in the background, from `start` to `stop`. A standby replica reads nothing."""

    def __init__(
        self,
        wanted: Wanted,
        feed: Feed,
        finders: Finders,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_pods: Callable[[PodUsage], None] = lambda pods: None,
        on_refresh: Callable[[], None] = lambda: None,
        standby: Callable[[], str] = lambda: "",
    ) -> None:
        """`on_pods` gets each refresh's pod samples in batches. `on_refresh` is called after each round.

        `standby` returns why this replica is a standby, "" if it leads.
        """
        self.wanted = wanted
        self._feed = feed
        self._finders = finders
        self._ledger = ledger
        self._clock = clock
        self._discovered_at = float("-inf")
        self._logged: tuple[str, float] = "", float("-inf")
        self._doubts_logged: set[str] = set()
        self.tasks = Tasks()
        self._round_lock = asyncio.Lock()
        self.status = Status()
        self._folder = Folder(ledger, self.status, finders.exporters, clock)
        self._on_pods = on_pods
        self.on_refresh = on_refresh
        self._standby = standby

    def start(self) -> None:
        """Start reading, in the running event loop."""
        self._ledger.arrays.observe(self.wanted.times)
        self.tasks.begin("observer", self._run, needed=False)

    async def stop(self) -> None:
        """Stop reading."""
        await self.tasks.end()
        await self._feed.close()

    def fault(self) -> str:
        """The fault if telemetry is degraded, else ""."""
        return self.status.fault if self.status.state is State.DEGRADED else ""

    def age_s(self) -> float:
        """Seconds since the last successful refresh; inf if there was none."""
        return self._clock() - self.status.read_at

    def num_nodes(self, state: SampleState) -> int:
        """The number of GPU nodes whose samples are in a state."""
        cluster = self._ledger.snapshot(self._clock())
        with_gpus = (cluster.gpu_model >= 0).any(axis=1)
        if cluster.observed is None:
            return int(with_gpus.sum()) if state is SampleState.MISSING else 0
        return int((with_gpus & (cluster.observed.state == state)).sum())

    # Watch events

    def node_changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """Add a node's addresses."""
        if new is not None:
            self._folder.learn_addresses(new)

    # Rounds

    async def _run(self) -> None:
        while True:
            await self._until_leader()
            try:
                await self.round()
                await asyncio.sleep(0)
                self.on_refresh()
            except Exception as error:
                logger.exception("a round of telemetry failed")
                self.status.state, self.status.fault = State.DEGRADED, f"a round of telemetry failed: {error}"
            await asyncio.sleep(self.wanted.interval_s)

    async def _until_leader(self) -> None:
        if not self._standby():
            return
        await self._feed.close()
        self.status.state, self.status.fault = State.STANDBY, ""
        aged_at = float("-inf")
        while self._standby():
            if self._clock() - aged_at >= self.wanted.interval_s:
                self._folder.age()
                aged_at = self._clock()
            await asyncio.sleep(_LEADER_POLL_S)
        self.status.state = State.WAITING

    async def round(self) -> None:
        """Read once, fold the samples, and age old ones."""
        async with self._round_lock:
            await self._round()

    async def _round(self) -> None:
        status = self.status
        try:
            command = await self._command()
            if command is None:
                self._folder.age()
                return
            reading = await self._feed.read(command)
            if not await self._folder.fold(reading):
                self._folder.age()
        except TelemetryError as error:
            status.num_failures += 1
            status.state, status.fault = State.DEGRADED, str(error)
            self._log(f"telemetry: {error}; nodes count as average once their samples are stale")
            self._folder.age()
        else:
            status.num_refreshes += 1
            status.report, status.read_at = reading.report, reading.read_at
            status.fault = self._doubt(reading)
            status.state = State.DEGRADED if status.fault else State.OK
            if status.fault:
                self._log(f"telemetry: {status.fault}")
            self._log_doubts()
            await self._pass_on(self._folder.pods_of(reading))

    async def _pass_on(self, pods: PodUsage) -> None:
        """Call `on_pods` in batches: there may be tens of thousands of pods."""
        items = iter(pods.items())
        while batch := dict(islice(items, _PODS_AT_ONCE)):
            self._on_pods(batch)
            await asyncio.sleep(0)

    async def _command(self) -> Command | None:
        """The next command; None if there is no source."""
        wanted = self.wanted
        if wanted.addresses or not wanted.discover:
            return Command(wanted.kind, list(wanted.addresses), wanted.access)
        await self._discover()
        if not self.status.candidates:
            self.status.state = State.ABSENT
            return None
        # Anyone who may create Services can have one discovered, so it gets no secrets.
        return Command(PROMETHEUS, list(self.status.candidates), wanted.access.anonymous(), self._bounds())

    def _bounds(self) -> Bounds:
        """Limits for a discovered source by the cluster's size; powers of two, since each change reopens the source."""
        cluster = self._ledger.snapshot(self._clock())
        num_gpus = int((cluster.gpu_model >= 0).sum())
        hosts, devices = (1 << (_MARGIN_FACTOR * num + _MARGIN).bit_length() for num in (cluster.num_nodes, num_gpus))
        return Bounds(_FOUND_BYTES, Most(hosts, devices), is_found=True)

    async def _discover(self) -> None:
        """Discover a Prometheus, at most once a minute unless degraded."""
        if self._clock() - self._discovered_at < _DISCOVER_EVERY_S and self.status.state is not State.DEGRADED:
            return
        self._discovered_at = self._clock()
        found = await self._finders.prometheus()
        before = self.status.passed_over
        self.status.candidates, self.status.passed_over = tuple(found.addresses), tuple(found.passed_over)
        self._withhold()
        for address, sentence in zip(self.status.passed_over, passed_over_reason(self.status), strict=True):
            if address not in before:
                logger.warning("telemetry: %s", sentence)
        if found.fault:
            self._log(f"telemetry: {found.fault}")
            self.status.fault = found.fault

    def _withhold(self) -> None:
        """Log once if credentials are configured but withheld from a discovered source."""
        found, access, before = self.status.candidates, self.wanted.access, self.status.withheld
        withheld = f"{found[0]} was discovered, not configured, and gets {_NO_SECRETS}" if found else ""
        self.status.withheld = withheld if access != access.anonymous() else ""
        if self.status.withheld not in ("", before):
            logger.warning("telemetry: %s", self.status.withheld)

    def _doubt(self, reading: Reading) -> str:
        """Why the samples of a successful refresh can't be trusted; "" if they can."""
        report = reading.report
        if not reading.values:
            matchers = self.wanted.access.matchers
            return f"{report.source} has no GPU metrics" + (
                f" that match {matchers} (telemetry.matchers)" if matchers else ""
            )
        if abs(report.skew_s) > MAX_SKEW_S + report.skew_uncertainty_s:
            return f"the clock of {report.source} is {report.skew_s:+.0f} s from Kerf's; ages are measured by its own"
        ages = reading.age_s[~np.isnan(reading.age_s)]
        if len(ages) and float(ages.min()) > self.wanted.times.fresh_s:
            return f"all samples of {report.source} are old: the newest is {float(ages.min()):.0f} s old"
        if len(ages) and float(ages.min()) < -MAX_SKEW_S:
            return f"{report.source} has samples from the future, {-float(ages.min()):.0f} s ahead of its clock"
        if report.faults:
            return f"{len(report.faults)} exporters can't be read: " + "; ".join(
                f"{url}: {fault}" for url, fault in list(report.faults.items())[:3]
            )
        return ""

    def _log_doubts(self) -> None:
        """Log unused samples and sources that were given up, once each."""
        status = self.status
        given_up = {f"{fault}; trying the next source" for fault in status.report.given_up.values()}
        doubts = {*status.doubts, *given_up}
        for sentence in sorted(doubts - self._doubts_logged)[:_MAX_LOGGED]:
            logger.warning("telemetry: %s", sentence)
        self._doubts_logged = doubts

    def _log(self, text: str) -> None:
        """Log a fault when it is new, and again every ten minutes."""
        last, at = self._logged
        if text != last or self._clock() - at > _LOG_AGAIN_S:
            self._logged = text, self._clock()
            logger.warning("%s", text)
