"""The meter: looks at what is booked every few seconds while this process leads, and counts.

Time counts once, whoever leads: up to the last renewal of the lease that succeeded, and for a successor from the last
one that it saw another process make. What was booked in between two leaders is counted by what the successor's ledger
shows.

Pods that have GPUs and do nothing with them: for how long.
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
from extender.kube.leadership import Led
from extender.ledger.ledger import Ledger
from extender.parts.usage.accounts import Accounts, Rate
from extender.parts.usage.lines import Key
from extender.parts.usage.settings import UsageSettings
from extender.parts.usage.timeline import Timeline

_NEARLY: Final = 0.95
_MOSTLY: Final = 0.8
_ALL: Final = 0.999
"""Parts of what Prometheus tells of all of a time: some seconds are lost when another takes the lead, and no load is
known until telemetry is read anew."""


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
    """Since when holders are idle, as far as telemetry tells. Not thread-safe."""

    holders: Holders
    _since_s: Floats
    """(U,) by number, inf where it is not idle."""
    _milli: Longs
    """(U,) booked."""

    @classmethod
    def none(cls, holders: Holders) -> "_IdleTimes":
        """Nobody is, as far as is known."""
        return cls(holders, np.zeros(0), np.zeros(0, np.int64))

    def note(self, rates: Rates, fresh: list[int], now: float) -> None:
        """These are the rates from now on; `fresh` are numbers that are other holders' since the last time.

        A pod of which nothing is known for a while begins anew: nobody can say that it did nothing.
        """
        width = len(rates.idles)
        since = np.append(self._since_s, np.full(max(width - len(self._since_s), 0), np.inf))[:width]
        since[fresh] = np.inf
        idles: Mask = rates.idles
        self._since_s = np.where(idles, np.minimum(since, now), np.inf)
        self._milli = rates.booked

    def forget(self) -> None:
        """Others look after it from now on."""
        self._since_s[:] = np.inf

    def recall(self, rows: Mapping[str, Sequence[float]], window_s: float, now: float) -> None:
        """What others saw who led before: rows are GPU-seconds booked, used, measured and idle in a time up to now, by
        `namespace/owner`. An owner who had all the GPUs that it has now for all of that time, and of whose loads nobody
        saw one that was more than idle, has pods that are idle for so long, unless they are at work now."""
        of_owner: dict[str, list[int]] = {}
        for number in np.flatnonzero(self._milli).tolist():
            if (holder := self.holders.at(number)) is not None:
                of_owner.setdefault("/".join(holder.who), []).append(number)
        for name, numbers in of_owner.items():
            booked, _, measured, idle = rows.get(name, (0.0, 0.0, 0.0, 0.0))
            whole = window_s * int(self._milli[numbers].sum()) / WHOLE_MILLI
            if booked >= _NEARLY * whole and measured >= _MOSTLY * whole and idle >= _ALL * measured:
                since = self._since_s[numbers]
                self._since_s[numbers] = np.where(np.isfinite(since), np.minimum(since, now - window_s), since)

    def seconds(self, now: float, width: int) -> Floats:
        """(U,) for how long each of so many holders has been idle; NaN for those that are not, or that were given their
        numbers since the last note."""
        found = np.full(width, np.nan)
        known = min(width, len(self._since_s))
        idle = now - self._since_s[:known]
        found[:known] = np.where(np.isfinite(idle), idle, np.nan)
        found[[number for number in self.holders.fresh if number < width]] = np.nan
        return found

    def pods(self, now: float, after_s: float) -> Iterator[_IdlePod]:
        """Those that have been idle for so long, the longest first."""
        numbers = np.flatnonzero(self.seconds(now, len(self._since_s)) >= after_s)
        for number in numbers[np.argsort(self._since_s[numbers], kind="stable")].tolist():
            holder = self.holders.at(number)
            if holder is not None:
                idle_s, gpus = now - float(self._since_s[number]), int(self._milli[number]) / WHOLE_MILLI
                yield _IdlePod(holder.name, *holder.who, holder.node, gpus, idle_s)


_IDLE_BELOW_FRAC: Final = 0.05
"""A GPU is idle while its load is below this."""
_MINUTES_AT_ONCE: Final = 50
_MIX_EVERY_S: Final = 300.0
_FIRST_S: Final = 0.5
_FORGET_EVERY_S: Final = 300.0
_MAX_REPORT: Final = 2000
"""Lines of the report since the start: it is told in 20 ms."""
_MAX_GROUPS: Final = 20_000
_S: Final = 1000  # ms


@dataclass(frozen=True, slots=True)
class Sight:
    """What the meter goes by."""

    ledger: Ledger
    led: Callable[[], Led]
    """For how long this process has led for certain."""
    standby: Callable[[], str]
    """Who leads instead of this process, "" while it leads itself."""
    fault: Callable[[], str]
    """Why the ledger is not to be gone by now, "" when it is."""
    mix: Callable[[Cluster], Mix]
    """Of pods that ask for GPUs, as they are expected."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]


class Meter(Background):
    """Runs from `start` to `stop`."""

    def __init__(self, wanted: UsageSettings, sight: Sight) -> None:
        super().__init__("meter", needed=False)
        self.wanted, self._sight = wanted, sight
        self.holders = Holders(sight.ledger)
        self.occupants = Occupants(sight.ledger, self.holders)
        self.accounts = Accounts(wanted.max_series, _MAX_REPORT, self.occupants.models, frozenset(wanted.budgets))
        self.timeline = Timeline()
        self.idle = _IdleTimes.none(self.holders)
        self.since: float | None = None
        """Unix time from which on something was counted, None before."""
        self.rates: Rates | None = None
        """As they were last; None before, and where others lead."""
        self.stranding: Stranding | None = None
        """What tells how much is stranded; None as of `rates`."""
        self.tenure = ""
        """In which it counted last, as of `Led`."""
        self._began = float("inf")
        self._forgot_at = float("-inf")
        self._tables: tuple[float, tuple[int, int], Mix, FragmentTables] | None = None
        self._group_of: npt.NDArray[np.intp] = np.zeros(0, np.intp)
        """(U,) by number."""
        self._lines_of_groups: list[tuple[int, int]] = []
        """Lines of the report and of the series that a group counts on."""
        self._group_at: dict[tuple[int, int], int] = {}
        self._seen: tuple[object, ...] = ()
        self._rate: Rate | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._began = min(self._began, self._sight.clock())
        super().start()

    async def run(self) -> None:
        while self.since is None:  # from the first moment on
            await asyncio.sleep(min(_FIRST_S, self.wanted.every_s))
            await self.tick()
        await repeat(self.tick, self.wanted.every_s, "counting GPU-hours")

    @property
    def idle_after_s(self) -> float:
        """As of `CountsGpuHours`."""
        return self.wanted.idle_after_s

    def idle_s(self, now: float, num_holders: int) -> Floats:
        """As of `CountsGpuHours`."""
        return self.idle.seconds(now, num_holders)

    @property
    def now_ms(self) -> int:
        """Monotonic time."""
        return int(self._sight.clock() * _S)

    def nodes(self, most: int) -> Iterator[tuple[str, dict[str, float]]]:
        """GPUs of nodes by state: those with GPUs out of use first, then by name; nothing while others lead.

        Where somebody has cordoned a node those are told apart: he knows, and nothing is broken.
        """
        rates = self.rates
        if rates is None:
            return
        known = [(name, row) for name, row in self.occupants.names() if row < rates.of_nodes.shape[1]]
        sick = rates.of_nodes[SICK]
        for name, row in sorted(known, key=lambda item: not sick[item[1]])[:most]:
            capacity, free, stranded, out = rates.of_nodes[:, row].tolist()
            cordoned = out if self.holders.closed(name) is Closed.CORDONED else 0
            states = {"booked": capacity - free - stranded - out, "free": free, "stranded": stranded}
            states |= {"sick": out - cordoned, "cordoned": cordoned}
            yield name, {state: milli / WHOLE_MILLI for state, milli in states.items()}

    async def tick(self) -> None:
        """Count what is certain, and look at what is booked now."""
        now, led = self._sight.clock(), self._sight.led()
        if led.tenure == self.tenure:
            await self._count(int(min(now, max(led.until, 0.0)) * _S))
        if self._sight.standby():
            self.idle.forget()
            self.rates = self._rate = self.stranding = None
            return
        if self._sight.fault():
            return  # what was known last goes on to count
        if led.tenure != self.tenure:
            self.tenure = led.tenure
            since = max(led.since, self._began)
            self.cut()  # what was counted before is of that time
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
            if done % _MINUTES_AT_ONCE == 0:  # it has slept for long
                await give_way()
        self.accounts.count(until_ms)

    def cut(self) -> None:
        """Write down in the timeline what was counted up to now."""
        self.timeline.cut(self.accounts.until_ms, self.accounts.sums())

    async def _expected(self, cluster: Cluster, now: float) -> tuple[Mix, FragmentTables]:
        """The pods that are expected; worked out aside, now and then."""
        shape = len(cluster.models), cluster.gpu_model.shape[1]
        if self._tables is None or self._tables[1] != shape or now - self._tables[0] > _MIX_EVERY_S:
            mix = self._sight.mix(cluster)
            self._tables = now, shape, mix, await asyncio.to_thread(tables_of, mix, *shape)
        return self._tables[2], self._tables[3]

    def _rate_in(self, cluster: Cluster, mix: Mix, tables: FragmentTables, now: float) -> Rate:
        """The rates now; the same object where nothing has changed."""
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
        # Of all holders: who has nothing for a while, as its node is gone, comes back to the line that it had.
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
        """Find the lines of new holders, and of those whose model is another now; returns the numbers of new ones."""
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
                key = Key(*holder.who, self.occupants.model_of(holder.node))
                lines = self.accounts.report.number(key), self.accounts.series.number(key)
                group = self._group_at.setdefault(lines, len(self._lines_of_groups))
                if group == len(self._lines_of_groups):
                    self._lines_of_groups.append(lines)
                self._group_of[number] = group
        return fresh

    def _renumber_groups(self) -> None:
        """Forget groups that nobody is in."""
        used, self._group_of = np.unique(self._group_of, return_inverse=True)
        self._lines_of_groups = [self._lines_of_groups[group] for group in used.tolist()]
        self._group_at = {lines: group for group, lines in enumerate(self._lines_of_groups)}


def _summed(values: Longs, line: npt.NDArray[np.integer], num_lines: int) -> Longs:
    """(K, L) sums of (K, X) values by the line of each; exact, for they are far below 2**53."""
    return np.stack([np.bincount(line, row, num_lines) for row in values]).astype(np.int64)
