"""The meter: samples bookings every few seconds while this process leads, and counts GPU-hours.

All time is counted exactly once: a leader counts up to its last successful renewal of the lease, its successor from the
last renewal that it saw. Time between two leaders is counted with the successor's bookings.

Also tracks for how long pods have been idle.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask
from extender.core.fragmentation import FragmentTables, Mix, tables_of
from extender.explain.holders import Closed, Holders
from extender.explain.rates import CAPACITY, FREE, SICK, STRANDED, Occupants, Rates
from extender.explain.stranded import Stranding, unusable_of
from extender.kube.background import Background, give_way, repeat
from extender.kube.leadership import LeadTime
from extender.ledger.ledger import Ledger
from extender.parts.usage.accounts import Accounts, Rate
from extender.parts.usage.lines import Key
from extender.parts.usage.settings import UsageSettings
from extender.parts.usage.timeline import Timeline

_NEARLY: Final = 0.95
_MOSTLY: Final = 0.8
_ALL: Final = 0.999
"""Fractions of a time that Prometheus must have: some seconds are lost at a failover, and no load is known until the
new leader has read telemetry."""


class _IdlePod(NamedTuple):
    """A pod all of whose GPUs have been idle for long."""

    pod: str
    """`namespace/name`."""
    namespace: str
    owner: str
    node: str
    gpus: float
    idle_s: float


@dataclass(eq=False)
class _IdleTimes:
    """Since when holders have been idle, according to telemetry. Not thread-safe."""

    holders: Holders
    _since_s: Floats
    """(U,) by holder number, monotonic; inf if not idle."""
    _milli: Longs
    """(U,) booked GPU milli by holder number."""

    @classmethod
    def none(cls, holders: Holders) -> "_IdleTimes":
        """No holder is known to be idle."""
        return cls(holders, np.zeros(0), np.zeros(0, np.int64))

    def note(self, rates: Rates, fresh: list[int], now: float) -> None:
        """Apply new rates; `fresh` are numbers that were reassigned to new holders.

        The idle time of a pod without telemetry for a while starts over, as it may have worked meanwhile.
        """
        width = len(rates.idles)
        since = np.append(self._since_s, np.full(max(width - len(self._since_s), 0), np.inf))[:width]
        since[fresh] = np.inf
        idles: Mask = rates.idles
        self._since_s = np.where(idles, np.minimum(since, now), np.inf)
        self._milli = rates.booked

    def forget(self) -> None:
        """Reset all idle times, as another process leads."""
        self._since_s[:] = np.inf

    def recall(self, rows: Mapping[str, Sequence[float]], window_s: float, now: float) -> None:
        """Take over idle times from before this process led.

        `rows` are GPU-seconds booked, used, measured and idle in the last `window_s`, by `namespace/owner`. If an owner
        held its present GPUs for all of that time, and they were idle whenever measured, its pods count as idle for
        that long unless they are busy now.
        """
        of_owner: dict[str, list[int]] = {}
        for number in np.flatnonzero(self._milli).tolist():
            if (holder := self.holders.at(number)) is not None:
                of_owner.setdefault("/".join(holder.ownership), []).append(number)
        for name, numbers in of_owner.items():
            booked, _, measured, idle = rows.get(name, (0.0, 0.0, 0.0, 0.0))
            whole = window_s * int(self._milli[numbers].sum()) / WHOLE_MILLI
            if booked >= _NEARLY * whole and measured >= _MOSTLY * whole and idle >= _ALL * measured:
                since = self._since_s[numbers]
                self._since_s[numbers] = np.where(np.isfinite(since), np.minimum(since, now - window_s), since)

    def seconds(self, now: float, width: int) -> Floats:
        """(`width`,) seconds that each holder has been idle; NaN if it is not, or if its number is new since the last
        `note`."""
        found = np.full(width, np.nan)
        known = min(width, len(self._since_s))
        idle = now - self._since_s[:known]
        found[:known] = np.where(np.isfinite(idle), idle, np.nan)
        found[[number for number in self.holders.fresh if number < width]] = np.nan
        return found

    def pods(self, now: float, after_s: float) -> Iterator[_IdlePod]:
        """Pods that have been idle for `after_s` seconds or longer, the longest first."""
        numbers = np.flatnonzero(self.seconds(now, len(self._since_s)) >= after_s)
        for number in numbers[np.argsort(self._since_s[numbers], kind="stable")].tolist():
            holder = self.holders.at(number)
            if holder is not None:
                idle_s, gpus = now - float(self._since_s[number]), int(self._milli[number]) / WHOLE_MILLI
                yield _IdlePod(holder.name, *holder.ownership, holder.node, gpus, idle_s)


_IDLE_BELOW_FRAC: Final = 0.05
"""A GPU is idle while its load is below this."""
_MINUTES_AT_ONCE: Final = 50
_MIX_EVERY_S: Final = 300.0
_FIRST_S: Final = 0.5
_FORGET_EVERY_S: Final = 300.0
_MAX_REPORT: Final = 2000
"""Lines of the report since the start; it is built in 20 ms."""
_MAX_GROUPS: Final = 20_000
_S: Final = 1000  # ms


@dataclass(frozen=True, slots=True)
class MeterInputs:
    """Inputs of the meter."""

    ledger: Ledger
    led: Callable[[], LeadTime]
    """The time for which this process has certainly led."""
    standby: Callable[[], str]
    """Who leads instead of this process, "" while it leads."""
    fault: Callable[[], str]
    """Why the ledger can't be relied on now, "" if it can."""
    mix: Callable[[Cluster], Mix]
    """The expected mix of GPU pods."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]


class Meter(Background):
    """Counts GPU-hours, from `start` to `stop`."""

    def __init__(self, wanted: UsageSettings, sight: MeterInputs) -> None:
        super().__init__("meter", needed=False)
        self.wanted, self._sight = wanted, sight
        self.holders = Holders(sight.ledger)
        self.occupants = Occupants(sight.ledger, self.holders)
        self.accounts = Accounts(wanted.max_series, _MAX_REPORT, self.occupants.models, frozenset(wanted.budgets))
        self.timeline = Timeline()
        self.idle = _IdleTimes.none(self.holders)
        self.since: float | None = None
        """Unix time from which on GPU-hours are counted, None before."""
        self.rates: Rates | None = None
        """The latest rates; None before the first, and while another process leads."""
        self.stranding: Stranding | None = None
        """Computes stranded GPUs; None if `rates` is."""
        self.tenure = ""
        """`LeadTime.tenure` in which it counted last."""
        self._began = float("inf")
        self._forgot_at = float("-inf")
        self._tables: tuple[float, tuple[int, int], Mix, FragmentTables] | None = None
        self._group_of: npt.NDArray[np.intp] = np.zeros(0, np.intp)
        """(U,) group by holder number."""
        self._lines_of_groups: list[tuple[int, int]] = []
        """Lines of the report and of the series that each group counts on."""
        self._group_at: dict[tuple[int, int], int] = {}
        self._seen: tuple[object, ...] = ()
        self._rate: Rate | None = None

    def start(self) -> None:
        """Start, in the running event loop."""
        self._began = min(self._began, self._sight.clock())
        super().start()

    async def run(self) -> None:
        while self.since is None:  # begin counting as soon as possible
            await asyncio.sleep(min(_FIRST_S, self.wanted.every_s))
            await self.tick()
        await repeat(self.tick, self.wanted.every_s, "counting GPU-hours")

    @property
    def idle_after_s(self) -> float:
        """See `CountsGpuHours`."""
        return self.wanted.idle_after_s

    def idle_s(self, now: float, num_holders: int) -> Floats:
        """See `CountsGpuHours`."""
        return self.idle.seconds(now, num_holders)

    @property
    def now_ms(self) -> int:
        """Monotonic time."""
        return int(self._sight.clock() * _S)

    def nodes(self, most: int) -> Iterator[tuple[str, dict[str, float]]]:
        """GPUs by state of up to `most` nodes, those with GPUs out of use first, then by name.

        Unbooked GPUs of a cordoned node are `cordoned` instead of `sick`. Yields nothing while another process leads.
        """
        rates = self.rates
        if rates is None:
            return
        known = [(name, row) for name, row in self.occupants.names() if row < rates.of_nodes.shape[1]]
        out_of_use = rates.of_nodes[SICK]
        for name, row in sorted(known, key=lambda item: not out_of_use[item[1]])[:most]:
            capacity, free, stranded, out = rates.of_nodes[:, row].tolist()
            cordoned = out if self.holders.closed(name) is Closed.CORDONED else 0
            states = {"booked": capacity - free - stranded - out, "free": free, "stranded": stranded}
            states |= {"sick": out - cordoned, "cordoned": cordoned}
            yield name, {state: milli / WHOLE_MILLI for state, milli in states.items()}

    async def tick(self) -> None:
        """Count the time that was certainly led, and sample what is booked now."""
        now, led = self._sight.clock(), self._sight.led()
        if led.tenure == self.tenure:
            await self._count(int(min(now, max(led.until, 0.0)) * _S))
        if self._sight.standby():
            self.idle.forget()
            self.rates = self._rate = self.stranding = None
            return
        if self._sight.fault():
            return  # counting continues with the last known rates
        if led.tenure != self.tenure:
            self.tenure = led.tenure
            since = max(led.since, self._began)
            self.cut()  # close the step of the previous tenure
            self.timeline.align(int(now * _S), self._sight.wall_clock())
            self.accounts.begin(int(since * _S))
            if self.since is None:
                self.since = self._sight.wall_clock() - (now - since)
        await self.occupants.catch_up()
        cluster = self._sight.ledger.snapshot(now)
        rate = self._rate_in(cluster, *await self._expected(cluster, now), now)
        self.accounts.rate(int(now * _S), rate)
        self.accounts.tend(int(now * _S), rate)
        if now - self._forgot_at > _FORGET_EVERY_S:
            self.holders.forget_gone()
            self._forgot_at = now

    async def _count(self, until_ms: int) -> None:
        """Count up to a time, minute by minute."""
        for done, at_ms in enumerate(self.timeline.bounds(self.accounts.until_ms, until_ms), 1):
            self.accounts.count(at_ms)
            self.cut()
            if done % _MINUTES_AT_ONCE == 0:  # only after a long pause of the process
                await give_way()
        self.accounts.count(until_ms)

    def cut(self) -> None:
        """Add what was counted since the last cut to the timeline."""
        self.timeline.cut(self.accounts.until_ms, self.accounts.sums())

    async def _expected(self, cluster: Cluster, now: float) -> tuple[Mix, FragmentTables]:
        """The expected mix of pods and its tables; recomputed in a thread every `_MIX_EVERY_S`."""
        shape = len(cluster.models), cluster.gpu_model.shape[1]
        if self._tables is None or self._tables[1] != shape or now - self._tables[0] > _MIX_EVERY_S:
            mix = self._sight.mix(cluster)
            self._tables = now, shape, mix, await asyncio.to_thread(tables_of, mix, *shape)
        return self._tables[2], self._tables[3]

    def _rate_in(self, cluster: Cluster, mix: Mix, tables: FragmentTables, now: float) -> Rate:
        """The rates now; the same object if nothing has changed."""
        seen = cluster.version, self.occupants.version, id(tables)
        if self._rate is not None and seen == self._seen:
            return self._rate
        fresh = self._assign_groups()
        accounts, groups = self.accounts, np.array(self._lines_of_groups, np.intp).reshape(-1, 2)
        width, num_groups = self.holders.num_numbers, len(groups)
        self.rates = rates = self.occupants.rates(
            cluster, _IDLE_BELOW_FRAC, unusable_of(cluster, tables), self._group_of[:width], num_groups
        )
        left = rates.of_nodes[FREE] + rates.of_nodes[STRANDED]
        self.stranding = Stranding.of(cluster, mix, tables, rates.of_nodes[CAPACITY], left)
        self.idle.note(rates, fresh, now)
        # Includes holders whose node is gone for a while, so that they keep their lines.
        live = np.flatnonzero(np.bincount(self._group_of[:width][self.holders.given()], minlength=num_groups))
        self._seen = seen
        self._rate = Rate(
            _summed(rates.of_groups, groups[:, 0], len(accounts.report.keys)),
            _summed(rates.of_groups, groups[:, 1], len(accounts.series.keys)),
            _summed(rates.of_nodes, self.occupants.model[: rates.of_nodes.shape[1]], len(self.occupants.models)),
            groups[live, 1],
        )
        return self._rate

    def _assign_groups(self) -> list[int]:
        """Assign new holders, and those whose GPU model changed, to lines; returns the numbers of new holders."""
        fresh, width = list(dict.fromkeys(self.holders.fresh)), self.holders.num_numbers
        to_assign = dict.fromkeys([*fresh, *self.occupants.renamed])
        self.holders.fresh.clear()
        self.occupants.renamed.clear()
        self._group_of = np.append(self._group_of, np.zeros(max(width - len(self._group_of), 0), np.intp))
        if len(self._lines_of_groups) > _MAX_GROUPS:
            self._renumber_groups()
        for number in to_assign:
            holder = self.holders.at(number)
            if holder is not None:
                key = Key(*holder.ownership, self.occupants.model_of(holder.node))
                lines = self.accounts.report.number(key), self.accounts.series.number(key)
                group = self._group_at.setdefault(lines, len(self._lines_of_groups))
                if group == len(self._lines_of_groups):
                    self._lines_of_groups.append(lines)
                self._group_of[number] = group
        return fresh

    def _renumber_groups(self) -> None:
        """Drop groups without holders."""
        used, self._group_of = np.unique(self._group_of, return_inverse=True)
        self._lines_of_groups = [self._lines_of_groups[group] for group in used.tolist()]
        self._group_at = {lines: group for group, lines in enumerate(self._lines_of_groups)}


def _summed(values: Longs, line: npt.NDArray[np.integer], num_lines: int) -> Longs:
    """(K, L) sums of (K, X) values by line; exact, as they are far below 2**53."""
    return np.stack([np.bincount(line, row, num_lines) for row in values]).astype(np.int64)
