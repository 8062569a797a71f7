"""The observer: reads telemetry round by round."""

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
_LOOK_EVERY_S: Final = 60.0
_TELL_AGAIN_S: Final = 600.0
_MAX_TOLD: Final = 5
_FOUND_BYTES: Final = 8 * 2**20
"""Of an answer of what nobody has named: 12,000 series, as many as are asked for at once, are 2 MiB."""
_TIMES: Final = 4
_SPARE: Final = 2000
"""Hosts and GPUs: so many times what the cluster has, and some more, for those that are gone."""
_LEADS_S: Final = 0.2
"""How often a standby looks whether it leads by now."""
_NO_SECRETS: Final = "none of telemetry's credentials and headers: set telemetry.url to it if you trust it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read, and how often."""

    kind: str = PROMETHEUS
    addresses: tuple[str, ...] = ()
    """Of sources of that kind."""
    access: Access = field(default_factory=Access)
    discover: bool = True
    """Whether a Prometheus is looked for where no addresses are given."""
    interval_s: float = 15.0
    times: SampleTimes = field(default_factory=SampleTimes)


@dataclass(frozen=True, slots=True)
class Finders:
    """How the cluster is asked for addresses; a seam for those that have no API server."""

    prometheus: Callable[[], Awaitable[Found]]
    exporters: Callable[[], Awaitable[dict[str, str]]]


class Observer:
    """Reads telemetry in the background, from `start` to `stop`; a standby, which ranks nothing, reads nothing."""

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
        """`on_pods` gets the samples of pods of each refresh, some at a time; `on_refresh` is called after each."""
        self.wanted = wanted
        self._feed = feed
        self._finders = finders
        self._ledger = ledger
        self._clock = clock
        self._looked_at = float("-inf")
        self._told: tuple[str, float] = "", float("-inf")
        self._doubts_told: set[str] = set()
        self.tasks = Tasks()
        self._one_at_a_time = asyncio.Lock()
        self.status = Status()
        self._folder = Folder(ledger, self.status, finders.exporters, clock)
        self._on_pods = on_pods
        self.on_refresh = on_refresh
        self._standby = standby

    def start(self) -> None:
        """Begin to observe, in the running event loop."""
        self._ledger.arrays.observe(self.wanted.times)
        self.tasks.begin("observer", self._run, needed=False)

    async def stop(self) -> None:
        """End observing."""
        await self.tasks.end()
        await self._feed.close()

    def fault(self) -> str:
        """What is degraded, "" when nothing is."""
        return self.status.fault if self.status.state is State.DEGRADED else ""

    def age_s(self) -> float:
        """Seconds since the last refresh that succeeded, inf when there was none."""
        return self._clock() - self.status.read_at

    def num_nodes(self, state: SampleState) -> int:
        """How many nodes with GPUs have samples of a state."""
        cluster = self._ledger.snapshot(self._clock())
        with_gpus = (cluster.gpu_model >= 0).any(axis=1)
        if cluster.observed is None:
            return int(with_gpus.sum()) if state is SampleState.MISSING else 0
        return int((with_gpus & (cluster.observed.state == state)).sum())

    # What the mirror tells

    def node_changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """Learn a node's addresses."""
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
            await asyncio.sleep(_LEADS_S)
        self.status.state = State.WAITING

    async def round(self) -> None:
        """Read once, fold, and let what is old age."""
        async with self._one_at_a_time:
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
            self._tell(f"telemetry: {error}; nodes count as average once their samples are stale")
            self._folder.age()
        else:
            status.num_refreshes += 1
            status.report, status.read_at = reading.report, reading.read_at
            status.fault = self._doubt(reading)
            status.state = State.DEGRADED if status.fault else State.OK
            if status.fault:
                self._tell(f"telemetry: {status.fault}")
            self._tell_doubts()
            await self._pass_on(self._folder.pods_of(reading))

    async def _pass_on(self, pods: PodUsage) -> None:
        """Tell of pods bit by bit: there may be tens of thousands."""
        items = iter(pods.items())
        while some := dict(islice(items, _PODS_AT_ONCE)):
            self._on_pods(some)
            await asyncio.sleep(0)

    async def _command(self) -> Command | None:
        """What to ask for; None when there is nobody to ask."""
        wanted = self.wanted
        if wanted.addresses or not wanted.discover:
            return Command(wanted.kind, list(wanted.addresses), wanted.access)
        await self._discover()
        if not self.status.candidates:
            self.status.state = State.ABSENT
            return None
        # Anybody who may create Services can have one found: what is found is told no secrets.
        return Command(PROMETHEUS, list(self.status.candidates), wanted.access.anonymous(), self._bounds())

    def _bounds(self) -> Bounds:
        """How much is taken from what nobody has named: by what the cluster has, in steps, as each
        makes the source begin anew."""
        cluster = self._ledger.snapshot(self._clock())
        num_gpus = int((cluster.gpu_model >= 0).sum())
        hosts, devices = (1 << (_TIMES * num + _SPARE).bit_length() for num in (cluster.num_nodes, num_gpus))
        return Bounds(_FOUND_BYTES, Most(hosts, devices), is_found=True)

    async def _discover(self) -> None:
        """Look for a Prometheus, now and then."""
        if self._clock() - self._looked_at < _LOOK_EVERY_S and self.status.state is not State.DEGRADED:
            return
        self._looked_at = self._clock()
        found = await self._finders.prometheus()
        before = self.status.passed_over
        self.status.candidates, self.status.passed_over = tuple(found.addresses), tuple(found.passed_over)
        self._withhold()
        for address, sentence in zip(self.status.passed_over, passed_over_reason(self.status), strict=True):
            if address not in before:
                logger.warning("telemetry: %s", sentence)
        if found.fault:
            self._tell(f"telemetry: {found.fault}")
            self.status.fault = found.fault

    def _withhold(self) -> None:
        """Tell once that what is found is asked without credentials, where there are some."""
        found, access, before = self.status.candidates, self.wanted.access, self.status.withheld
        withheld = f"{found[0]} was discovered, not configured, and gets {_NO_SECRETS}" if found else ""
        self.status.withheld = withheld if access != access.anonymous() else ""
        if self.status.withheld not in ("", before):
            logger.warning("telemetry: %s", self.status.withheld)

    def _doubt(self, reading: Reading) -> str:
        """What makes a refresh that succeeded doubtful, "" for nothing."""
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
            return f"all samples of {report.source} are old, the newest {float(ages.min()):.0f} s"
        if len(ages) and float(ages.min()) < -MAX_SKEW_S:
            return f"{report.source} has samples from the future, {-float(ages.min()):.0f} s ahead of its clock"
        if report.faults:
            return f"{len(report.faults)} exporters can't be read: " + "; ".join(
                f"{url}: {fault}" for url, fault in list(report.faults.items())[:3]
            )
        return ""

    def _tell_doubts(self) -> None:
        """Tell once of samples that are not used, and of sources that are not read for what they answered."""
        status = self.status
        passed = {f"{fault}; the next is asked" for fault in status.report.given_up.values()}
        doubts = {*status.doubts, *passed}
        for sentence in sorted(doubts - self._doubts_told)[:_MAX_TOLD]:
            logger.warning("telemetry: %s", sentence)
        self._doubts_told = doubts

    def _tell(self, text: str) -> None:
        """Log a fault when it is new, and now and then while it lasts."""
        last, at = self._told
        if text != last or self._clock() - at > _TELL_AGAIN_S:
            self._told = text, self._clock()
            logger.warning("%s", text)
