"""The observer: reads telemetry round by round, and folds what came into the cluster's arrays bit by bit."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.cluster import objects
from extender.cluster.ledger import Ledger
from extender.cluster.observed import ObservedArrays, SampleTimes
from extender.cluster.tasks import Tasks
from extender.core.observations import Gauge, Gauges, SampleState
from extender.telemetry.errors import TelemetryError
from extender.telemetry.frames import Command
from extender.telemetry.matching import NO_ROW, Directory, Match, match_rows, slots
from extender.telemetry.prometheus import Access
from extender.telemetry.readings import Feed, Inventory, Reading
from extender.telemetry.sources import Report

logger = logging.getLogger(__name__)

_HOSTS_AT_ONCE: Final = 200
_DEVICES_AT_ONCE: Final = 2000
_PODS_AT_ONCE: Final = 500
_MAX_TRIES: Final = 3
_LOOK_EVERY_S: Final = 60.0
_MAX_TOLD: Final = 50
_TELL_AGAIN_S: Final = 600.0
_MAX_SKEW_S: Final = 5.0
_NO_SECRETS: Final = "none of telemetry's credentials and headers: set telemetry.url to it, if it is yours"


class State(StrEnum):
    """How telemetry is doing."""

    OFF = "off"
    """Not wanted."""
    ABSENT = "absent"
    """No source is configured, and none was found."""
    WAITING = "waiting"
    """Nothing has been read yet."""
    OK = "ok"
    DEGRADED = "degraded"
    """The last refresh failed, or the samples can't be trusted: `fault` says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read, and how often."""

    urls: tuple[str, ...] = ()
    """Prometheus' addresses; looked for where there are none, and no exporters either."""
    exporters: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)
    discover: bool = True
    interval_s: float = 15.0
    times: SampleTimes = field(default_factory=SampleTimes)


@dataclass
class Status:
    """What people are told."""

    state: State = State.WAITING
    fault: str = ""
    read_at: float = float("-inf")
    """Monotonic time of the last refresh that succeeded."""
    report: Report = field(default_factory=Report)
    num_hosts: int = 0
    num_gpus: int = 0
    num_gpus_matched: int = 0
    unmatched: tuple[str, ...] = ()
    """Hosts that are no node, the first few."""
    candidates: tuple[str, ...] = ()
    """Addresses that were found in the cluster."""
    withheld: str = ""
    """Said where they are asked without the credentials of the settings, "" where there are none."""
    fold_s: float = 0.0
    """Time that folding the last refresh took, pauses included."""
    num_refreshes: int = 0
    num_failures: int = 0


class Finders:
    """How the cluster is asked for addresses; a seam for those that have no API server."""

    def __init__(
        self,
        prometheus: Callable[[], Awaitable[tuple[list[str], str]]],
        exporters: Callable[[], Awaitable[dict[str, str]]],
    ) -> None:
        self.prometheus = prometheus
        self.exporters = exporters


class Observer:
    """Reads telemetry in the background, from `start` to `stop`."""

    def __init__(
        self,
        wanted: Wanted,
        feed: Feed,
        finders: Finders,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wanted = wanted
        self._feed = feed
        self._finders = finders
        self._ledger = ledger
        self._clock = clock
        self._directory = Directory()
        self._match: tuple[object, ...] = ()
        self._matched = Match(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.intp))
        self._looked_at = float("-inf")
        self._looked_for_exporters_at = float("-inf")
        self._told: tuple[str, float] = "", float("-inf")
        self.tasks = Tasks()
        self._one_at_a_time = asyncio.Lock()
        self.status = Status()
        self.on_pods: Callable[[Mapping[tuple[str, str], tuple[float, float]]], None] = lambda pods: None
        """Called with the samples of pods of each refresh, some at a time."""
        self.on_refresh: Callable[[], None] = lambda: None
        """Called after each round."""

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

    def node_changed(self, node: objects.Node) -> None:
        """Learn a node's addresses."""
        for address in node.status.addresses or ():
            if address.type == "InternalIP" and self._directory.node_of_ip.get(address.address) != node.metadata.name:
                self._directory.node_of_ip[address.address] = node.metadata.name
                self._directory.version += 1

    def pod_changed(self, pod: objects.Pod) -> None:
        """Pods are nothing to the observer."""

    # Rounds

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
                await asyncio.sleep(0)
                self.on_refresh()
            except Exception as error:
                logger.exception("a round of telemetry failed")
                self.status.state, self.status.fault = State.DEGRADED, f"a round of telemetry failed: {error}"
            await asyncio.sleep(self.wanted.interval_s)

    async def round(self) -> None:
        """Read once, fold, and let what is old age."""
        async with self._one_at_a_time:
            await self._round()

    async def _round(self) -> None:
        status = self.status
        try:
            command = await self._command()
            if command is None:
                self._age()
                return
            reading = await self._feed.read(command)
            if not await self._fold(reading):
                self._age()
        except TelemetryError as error:
            status.num_failures += 1
            status.state, status.fault = State.DEGRADED, str(error)
            self._tell(f"telemetry: {error}; nodes count as average once their samples are stale")
            self._age()
        else:
            status.num_refreshes += 1
            status.report, status.read_at = reading.report, reading.read_at
            status.fault = self._doubt(reading)
            status.state = State.DEGRADED if status.fault else State.OK
            if status.fault:
                self._tell(f"telemetry: {status.fault}")
            await self._pass_on(reading.pods)

    async def _pass_on(self, pods: Mapping[tuple[str, str], tuple[float, float]]) -> None:
        """Tell of pods bit by bit: there may be tens of thousands."""
        items = iter(pods.items())
        while some := dict(islice(items, _PODS_AT_ONCE)):
            self.on_pods(some)
            await asyncio.sleep(0)

    async def _command(self) -> Command | None:
        """What to ask for; None when there is nobody to ask."""
        wanted = self.wanted
        urls = list(wanted.urls)
        if not urls and not wanted.exporters and wanted.discover:
            if self._clock() - self._looked_at >= _LOOK_EVERY_S or self.status.state is State.DEGRADED:
                self._looked_at = self._clock()
                found, fault = await self._finders.prometheus()
                self.status.candidates = tuple(found)
                self._withhold()
                if fault:
                    self._tell(f"telemetry: {fault}")
                    self.status.fault = fault
            urls = list(self.status.candidates)
        if not urls and not wanted.exporters:
            self.status.state = State.ABSENT
            return None
        # Anybody who may create Services can have one found: what is found is told no secrets.
        is_set = bool(wanted.urls or wanted.exporters)
        return Command(urls, list(wanted.exporters), wanted.access if is_set else wanted.access.anonymous())

    def _withhold(self) -> None:
        """Tell once that what is found is asked without credentials, where there are some."""
        found, access, before = self.status.candidates, self.wanted.access, self.status.withheld
        withheld = f"{found[0]} was found, not set, and gets {_NO_SECRETS}" if found else ""
        self.status.withheld = withheld if access != access.anonymous() else ""
        if self.status.withheld not in ("", before):
            logger.warning("telemetry: %s", self.status.withheld)

    def _doubt(self, reading: Reading) -> str:
        """What makes a refresh that succeeded doubtful, "" for nothing."""
        report = reading.report
        if not reading.values:
            return f"{report.source} has no metrics of GPUs"
        if abs(report.skew_s) > _MAX_SKEW_S + report.skew_uncertainty_s:
            return f"the clock of {report.source} is {report.skew_s:+.0f} s from Kerf's; ages are taken by its own"
        ages = reading.age_s[~np.isnan(reading.age_s)]
        if len(ages) and float(ages.min()) > self.wanted.times.fresh_s:
            return f"all samples of {report.source} are old, the youngest {float(ages.min()):.0f} s"
        if len(ages) and float(ages.min()) < -_MAX_SKEW_S:
            return f"{report.source} has samples from the future, {-float(ages.min()):.0f} s ahead of its clock"
        if report.faults:
            return f"{len(report.faults)} exporters can't be read: " + "; ".join(
                f"{url}: {fault}" for url, fault in list(report.faults.items())[:3]
            )
        return ""

    def _tell(self, text: str) -> None:
        """Log a fault when it is new, and now and then while it lasts."""
        last, at = self._told
        if text != last or self._clock() - at > _TELL_AGAIN_S:
            self._told = text, self._clock()
            logger.warning("%s", text)

    def _age(self) -> None:
        observed = self._ledger.arrays.observed
        if observed is not None:
            self._ledger.arrays.touch(observed.age(self._clock()))

    # Folding

    async def _fold(self, reading: Reading) -> bool:
        """Write a refresh into the arrays, with pauses; False when nodes came and went all the while."""
        began = self._clock()
        arrays = self._ledger.arrays
        for _ in range(_MAX_TRIES):
            version = arrays.inventory_version
            observed = arrays.observed
            if observed is None:
                return False
            match = await self._match_inventory(reading.inventory)
            raw, sampled_at = await self._fill(observed, reading, match)
            if arrays.inventory_version == version and arrays.observed is observed and raw.shape[1:] == observed.shape:
                arrays.touch(observed.commit(raw, sampled_at, self._clock()))
                self.status.fold_s = self._clock() - began
                return True
        logger.info("nodes came and went while samples were folded; the next refresh has them")
        return False

    async def _match_inventory(self, inventory: Inventory) -> Match:
        """Where samples belong: worked out again only when hosts, GPUs or nodes have changed."""
        await self._look_for_exporters(inventory)
        arrays = self._ledger.arrays
        sizes = len(inventory.hosts), len(inventory.host_idx)
        key = (inventory, sizes, arrays.inventory_version, self._directory.version)
        if key == self._match:
            return self._matched
        rows: list[int] = []
        for start in range(0, len(inventory.hosts), _HOSTS_AT_ONCE):
            rows += match_rows(inventory, arrays.row_of, self._directory, start, start + _HOSTS_AT_ONCE)
            await asyncio.sleep(0)
        row_of_host = np.array(rows, np.intp)
        gpu_at = self._ledger.snapshot(self._clock()).gpu_at
        slot: list[npt.NDArray[np.intp]] = []
        host_idx: list[npt.NDArray[np.intp]] = []
        for start in range(0, len(inventory.host_idx), _DEVICES_AT_ONCE):
            end = start + _DEVICES_AT_ONCE
            slot.append(np.array(slots(inventory, gpu_at, row_of_host, start, end), np.intp))
            host_idx.append(np.array(inventory.host_idx[start:end], np.intp))
            await asyncio.sleep(0)
        none = np.empty(0, np.intp)
        self._matched = Match(row_of_host, np.concatenate([none, *host_idx]), np.concatenate([none, *slot]))
        self._match = key
        self._describe(inventory, self._matched)
        return self._matched

    async def _look_for_exporters(self, inventory: Inventory) -> None:
        """Ask which pods the exporters are, where hosts are no nodes by their names."""
        arrays = self._ledger.arrays
        now = self._clock()
        if now - self._looked_for_exporters_at < _LOOK_EVERY_S:
            return
        known = self._directory
        if all(known.node_of(host, arrays.row_of) for host in inventory.hosts[:_HOSTS_AT_ONCE]):
            return
        self._looked_for_exporters_at = now
        found = await self._finders.exporters()
        if found != known.node_of_exporter:
            known.node_of_exporter = found
            known.version += 1

    def _describe(self, inventory: Inventory, match: Match) -> None:
        status = self.status
        unmatched = match.unmatched_hosts()
        status.num_hosts, status.num_gpus = len(inventory.hosts), len(inventory.host_idx)
        matched = match.row_of_host[match.host_idx] != NO_ROW if len(match.host_idx) else np.empty(0, np.bool_)
        status.num_gpus_matched = int((matched & (match.slot >= 0)).sum())
        status.unmatched = tuple(_words(inventory, index) for index in unmatched[:_MAX_TOLD].tolist())

    async def _fill(
        self, observed: ObservedArrays, reading: Reading, match: Match
    ) -> tuple[Gauges, npt.NDArray[np.float64]]:
        """All samples with the refresh written into them, and (N,) when each row's were taken."""
        raw = observed.begin()
        num_rows, num_slots = raw.shape[1:]
        sampled_at = observed.current.sampled_at.copy()
        host_at = np.where(np.isnan(reading.age_s), -np.inf, reading.read_at - reading.age_s)
        host_at = np.minimum(host_at, reading.read_at)  # what comes from the future is no fresher than now
        host_at[reading.age_s < -_MAX_SKEW_S] = -np.inf
        counts = (match.row_of_host >= 0) & (match.row_of_host < num_rows) & np.isfinite(host_at)
        rows = match.row_of_host[counts]
        counts[counts] = host_at[counts] >= sampled_at[rows]  # nothing older takes the place of what is known
        rows = match.row_of_host[counts]
        which = np.flatnonzero(counts[match.host_idx] & (match.slot >= 0) & (match.slot < num_slots))
        await asyncio.sleep(0)
        if np.bincount(rows, minlength=1).max() > 1:
            # Of two series of one GPU the newer has the last word.
            which = which[np.argsort(host_at[match.host_idx[which]], kind="stable")]
            await asyncio.sleep(0)
        row = match.row_of_host[match.host_idx[which]]
        target = row * num_slots + match.slot[which]
        told = np.zeros(num_rows, np.bool_)
        told[row] = True
        newest = np.full(num_rows, -np.inf)
        np.maximum.at(newest, rows, host_at[counts])
        sampled_at[told] = newest[told]
        await asyncio.sleep(0)
        for gauge in Gauge:
            plane = raw[gauge]
            plane[told] = np.nan
            values = reading.values.get(gauge)
            if values is not None:
                flat = plane.reshape(-1)
                flat[target] = values[which]
            await asyncio.sleep(0)
        return raw, sampled_at


def _words(inventory: Inventory, index: int) -> str:
    host = inventory.hosts[index]
    names = "/".join(host.names) or "no name"
    return f"{names} at {host.instance}" if host.instance else names


def unmatched_reason(status: Status) -> Sequence[str]:
    """Sentences about hosts that are no node."""
    return [f"{host}: neither a name, an exporter's pod nor an address of a node" for host in status.unmatched]
