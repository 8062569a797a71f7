"""The report: rows by namespace, owner or GPU model, and totals, in GPU-hours."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from extender.kube.background import Background, repeat
from extender.kube.events import EventRecorder
from extender.parts.usage.accounts import MICRO
from extender.parts.usage.answers import By, Source, UsageReport, UsageTotals
from extender.parts.usage.budgets import HOUR_S, Budgets, Spent
from extender.parts.usage.meter import Meter
from extender.parts.usage.past import Past
from extender.parts.usage.questions import OF_HOLDERS, PastError
from extender.parts.usage.steps import AMOUNTS

logger = logging.getLogger(__name__)

NO_PROMETHEUS: Final = "no Prometheus is configured (setting telemetry.url)"
_NOT_ASKED: Final = "only Prometheus has figures for a given time, and source=kerf does not query it"
_MAX_IDLE_ITEMS: Final = 200
_MAX_ON_PAGE: Final = 20
_DIGITS: Final = 4
_BUDGETS_EVERY_S: Final = 60.0
_RECALL_EVERY_S: Final = 30.0
_RECALL_AFTER_S: Final = 120.0
_RECALL_TRIES: Final = 5
_PAST_EVERY: Final = 10
"""Rounds of budgets between two queries to Prometheus."""


@dataclass(eq=False)
class Usage:
    """Builds reports from the meter, the budgets and Prometheus."""

    meter: Meter
    budgets: Budgets
    past: Past | None
    """None if no Prometheus is configured."""
    standby: Callable[[], str]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _panel: tuple[int, dict[str, Any]] = field(default=(-1, {}), init=False)
    """The last panel, and the time counted at which it was made."""

    async def report(self, by: By, window_s: int | None, source: Source) -> UsageReport:
        """The counts of the last `window_s` from Prometheus, or since the start from this process.

        With `source` `prometheus` or `kerf` there is no fallback to the other. Raises PastError.
        """
        note = ""
        if source == "kerf":
            note = _NOT_ASKED if window_s else ""
        elif not window_s and source == "auto":
            pass  # since the start, from this process
        elif self.past is None:
            note = NO_PROMETHEUS
        else:
            window_s = window_s or int(self.budgets.window_s)
            try:
                answer = await self.past.answer(window_s, by)
            except PastError as error:
                note = str(error)
            else:
                until = self.wall_clock()
                return self._build_report("prometheus", until - window_s, by, answer.rows, answer.totals)
        if source == "prometheus":
            raise PastError(note)
        if why := self.standby():
            raise PastError(why)
        return self._since_start(by, note)

    def _since_start(self, by: By, note: str) -> UsageReport:
        rows: dict[str, list[float]] = {}
        for key, sums in self.meter.accounts.rows().items():
            names = {"owner": f"{key.namespace}/{key.owner}", "namespace": key.namespace, "model": key.gpu_model}
            name = names[by]
            row = rows.setdefault(name, [0.0] * len(OF_HOLDERS))
            rows[name] = [one + more / MICRO for one, more in zip(row, sums, strict=True)]
        totals = [amount / MICRO for amount in self.meter.accounts.totals()]
        since = self.wall_clock() if self.meter.since is None else self.meter.since
        report = self._build_report("kerf", since, by, rows, totals)
        if note:
            report["note"] = note
        return report

    def _build_report(
        self,
        source: Literal["kerf", "prometheus"],
        since: float,
        by: By,
        rows: Mapping[str, Sequence[float]],
        totals: Sequence[float],
    ) -> UsageReport:
        leads = not self.standby()  # only the leader knows idle pods and budgets
        spent = self.budgets.spent() if leads and by == "namespace" else {}
        lines: list[dict[str, Any]] = []
        for name, row in sorted(rows.items(), key=lambda item: (-item[1][0], item[0])):
            line: dict[str, Any] = {by: name} if by != "owner" else _owner(name)
            line |= _hours_of(OF_HOLDERS, row, _DIGITS)
            if name in spent:
                line |= {"budgetGpuHours": spent[name].budget, "budgetSpentGpuHours": _rounded(spent[name].spent)}
            lines.append(line)
        sums = [sum(row[number] for row in rows.values()) for number in range(len(OF_HOLDERS))]
        return {
            "source": source,
            "since": round(since, 1),
            "until": round(self.wall_clock(), 1),
            "by": by,
            "rows": lines,
            "totals": totals_of((*totals, *sums), _DIGITS),
            "budgets": _of_budgets(spent) if leads else None,
            "idle": self.idle() if leads else None,
        }

    def idle(self) -> dict[str, Any]:
        """Pods that have been idle for long, as of now, as JSON data."""
        wanted = self.meter.wanted
        found = list(self.meter.idle.pods(self.clock(), wanted.idle_after_s)) if self.meter.rates is not None else []
        items = [
            {"pod": one.pod, "owner": one.owner, "node": one.node, "gpus": one.gpus, "idleSeconds": round(one.idle_s)}
            for one in found[:_MAX_IDLE_ITEMS]
        ]
        gpus = round(sum(one.gpus for one in found), 3)
        return {"afterSeconds": wanted.idle_after_s, "pods": len(found), "gpus": gpus, "items": items}

    def panel(self) -> dict[str, Any]:
        """JSON data for the page: namespaces since the start, those that booked most first, totals and idle pods."""
        if self.standby():
            return {}
        if self._panel[0] != self.meter.accounts.counted_ms:
            self._panel = self.meter.accounts.counted_ms, self._build_panel()
        return self._panel[1]

    def _build_panel(self) -> dict[str, Any]:
        report = self._since_start("namespace", "")
        rows = [row | _rounded_hours(row) for row in report["rows"][:_MAX_ON_PAGE]]
        rest = len(report["rows"]) - len(rows)
        now = report["idle"] or self.idle()  # leadership may be lost at any moment
        idle = {name: value for name, value in now.items() if name != "items"}
        return {"since": report["since"], "rows": rows, "more": rest, "totals": report["totals"], "idle": idle}


def _of_budgets(spent: Mapping[str, Spent]) -> dict[str, dict[str, float]]:
    return {name: {"gpuHours": one.budget, "spentGpuHours": _rounded(one.spent)} for name, one in spent.items()}


def _owner(name: str) -> dict[str, str]:
    namespace, _, owner = name.partition("/")
    return {"namespace": namespace, "owner": owner}


def _hours_of(names: Sequence[str], seconds: Sequence[float], digits: int) -> dict[str, float]:
    """GPU-hours by JSON key; `seconds` are the GPU-seconds of `names`."""
    amounts = zip(names, seconds, strict=True)
    return {f"{name}GpuHours": round(amount / HOUR_S, digits) for name, amount in amounts}


def totals_of(seconds: Sequence[float], digits: int) -> UsageTotals:
    """GPU-hours by JSON key; `seconds` are in the order of AMOUNTS."""
    return cast("UsageTotals", _hours_of(AMOUNTS, seconds, digits))


def _rounded(hours: float) -> float:
    return round(hours, _DIGITS)


def _rounded_hours(row: Mapping[str, Any]) -> dict[str, float]:
    """GPU-hours rounded to a hundredth, so that the page is sent fewer changes."""
    return {name: round(value, 2) for name, value in row.items() if name.endswith("GpuHours")}


class BudgetWatch(Background):
    """Warns of budgets that are spent or nearly so; runs from `start` to `stop`."""

    def __init__(self, usage: Usage, events: EventRecorder) -> None:
        super().__init__("budgets", needed=False)
        self._usage, self._events = usage, events
        self._rounds = 0

    async def run(self) -> None:
        await repeat(self.round, _BUDGETS_EVERY_S, "checking budgets")

    async def round(self) -> None:
        """Check all budgets once."""
        usage = self._usage
        if usage.standby():
            return
        booked: dict[str, int] = {}
        for key, sums in usage.meter.accounts.rows().items():
            booked[key.namespace] = booked.get(key.namespace, 0) + sums[0]
        usage.budgets.note(booked, usage.wall_clock())
        if usage.past is not None and self._rounds % _PAST_EVERY == 0:
            try:
                answer = await usage.past.answer(int(usage.budgets.window_s), "namespace")
            except PastError as error:
                logger.info("budgets: %s", error)
            else:
                usage.budgets.record_prometheus({name: row[0] / HOUR_S for name, row in answer.rows.items()})
        self._rounds += 1
        for namespace, text in usage.budgets.warnings().items():
            logger.warning("namespace %s: %s", namespace, text)
            self._events.emit_about_namespace(namespace, reason="GPUBudget", message=text)


class IdleRecall(Background):
    """Lets a new leader query Prometheus for pods that were idle before; runs from `start` to `stop`."""

    def __init__(self, usage: Usage, past: Past) -> None:
        super().__init__("idle times", needed=False)
        self._usage, self._past = usage, past
        self._tenure, self._asks_at, self._tries = "", 0.0, 0

    async def run(self) -> None:
        await repeat(self.round, _RECALL_EVERY_S, "querying past idle times")

    async def round(self) -> None:
        """Query once telemetry has current readings, and a few times more if there is no answer."""
        usage, meter = self._usage, self._usage.meter
        if usage.standby() or meter.rates is None:
            return
        if meter.tenure != self._tenure:
            self._tenure, self._asks_at, self._tries = meter.tenure, usage.clock() + _RECALL_AFTER_S, _RECALL_TRIES
        if not self._tries or usage.clock() < self._asks_at:
            return
        self._tries -= 1
        window_s = int(meter.wanted.idle_after_s)
        try:
            answer = await self._past.answer(window_s, "owner")
        except PastError as error:
            logger.info("idle times: %s", error)
        else:
            self._tries = 0
            meter.idle.recall(answer.rows, window_s, usage.clock())
