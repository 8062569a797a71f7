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
_NOT_ASKED: Final = "only Prometheus can tell of a given time, and source=kerf asks none"
_MAX_IDLE_TOLD: Final = 200
_MAX_ON_PAGE: Final = 20
_DIGITS: Final = 4
_BUDGETS_EVERY_S: Final = 60.0
_RECALL_EVERY_S: Final = 30.0
_RECALL_AFTER_S: Final = 120.0
_RECALL_TRIES: Final = 5
_PAST_EVERY: Final = 10
"""Rounds of budgets from one question to Prometheus to the next."""


@dataclass(eq=False)
class Usage:
    """What people ask of the meter."""

    meter: Meter
    budgets: Budgets
    past: Past | None
    """None where no Prometheus is configured."""
    standby: Callable[[], str]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _panel: tuple[int, dict[str, Any]] = field(default=(-1, {}), init=False)
    """What the page was shown last, and at which time counted."""

    async def report(self, by: By, window_s: int | None, source: Source) -> UsageReport:
        """What was counted: in a time up to now, by Prometheus; else since the start, by this process.

        `source` is `auto`, `prometheus` or `kerf`: the last two take no other. Raises PastError.
        """
        note = ""
        if source == "kerf":
            note = _NOT_ASKED if window_s else ""
        elif not window_s and source == "auto":
            pass  # since the start: what this process knows
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
                return self._told("prometheus", until - window_s, by, answer.rows, answer.totals)
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
        told = self._told("kerf", since, by, rows, totals)
        if note:
            told["note"] = note
        return told

    def _told(
        self,
        source: Literal["kerf", "prometheus"],
        since: float,
        by: By,
        rows: Mapping[str, Sequence[float]],
        totals: Sequence[float],
    ) -> UsageReport:
        leads = not self.standby()  # only who leads knows what is idle, and what is spent of budgets
        spent = self.budgets.spent() if leads and by == "namespace" else {}
        told: list[dict[str, Any]] = []
        for name, row in sorted(rows.items(), key=lambda item: (-item[1][0], item[0])):
            line: dict[str, Any] = {by: name} if by != "owner" else _owner(name)
            line |= _hours_of(OF_HOLDERS, row, _DIGITS)
            if name in spent:
                line |= {"budgetGpuHours": spent[name].budget, "budgetSpentGpuHours": _rounded(spent[name].spent)}
            told.append(line)
        sums = [sum(row[number] for row in rows.values()) for number in range(len(OF_HOLDERS))]
        return {
            "source": source,
            "since": round(since, 1),
            "until": round(self.wall_clock(), 1),
            "by": by,
            "rows": told,
            "totals": totals_of((*totals, *sums), _DIGITS),
            "budgets": _of_budgets(spent) if leads else None,
            "idle": self.idle() if leads else None,
        }

    def idle(self) -> dict[str, Any]:
        """Pods that have been idle for long; of this moment, whatever the report is of."""
        wanted = self.meter.wanted
        found = list(self.meter.idle.pods(self.clock(), wanted.idle_after_s)) if self.meter.rates is not None else []
        items = [
            {"pod": one.pod, "owner": one.owner, "node": one.node, "gpus": one.gpus, "idleSeconds": round(one.idle_s)}
            for one in found[:_MAX_IDLE_TOLD]
        ]
        gpus = round(sum(one.gpus for one in found), 3)
        return {"afterSeconds": wanted.idle_after_s, "pods": len(found), "gpus": gpus, "items": items}

    def panel(self) -> dict[str, Any]:
        """What the page shows: namespaces since the start, those that booked most first, and what nobody had."""
        if self.standby():
            return {}
        if self._panel[0] != self.meter.accounts.counted_ms:
            self._panel = self.meter.accounts.counted_ms, self._made_panel()
        return self._panel[1]

    def _made_panel(self) -> dict[str, Any]:
        told = self._since_start("namespace", "")
        rows = [row | _whole(row) for row in told["rows"][:_MAX_ON_PAGE]]
        rest = len(told["rows"]) - len(rows)
        now = told["idle"] or self.idle()  # the lead may be lost at any moment
        idle = {name: value for name, value in now.items() if name != "items"}
        return {"since": told["since"], "rows": rows, "more": rest, "totals": told["totals"], "idle": idle}


def _of_budgets(spent: Mapping[str, Spent]) -> dict[str, dict[str, float]]:
    return {name: {"gpuHours": one.budget, "spentGpuHours": _rounded(one.spent)} for name, one in spent.items()}


def _owner(name: str) -> dict[str, str]:
    namespace, _, owner = name.partition("/")
    return {"namespace": namespace, "owner": owner}


def _hours_of(names: Sequence[str], seconds: Sequence[float], digits: int) -> dict[str, float]:
    """GPU-hours by key of an answer, of GPU-seconds by name."""
    amounts = zip(names, seconds, strict=True)
    return {f"{name}GpuHours": round(amount / HOUR_S, digits) for name, amount in amounts}


def totals_of(seconds: Sequence[float], digits: int) -> UsageTotals:
    """GPU-hours of GPU-seconds as of AMOUNTS."""
    return cast("UsageTotals", _hours_of(AMOUNTS, seconds, digits))


def _rounded(hours: float) -> float:
    return round(hours, _DIGITS)


def _whole(row: Mapping[str, Any]) -> dict[str, float]:
    """To a hundredth: what the page shows is told again when it has changed."""
    return {name: round(value, 2) for name, value in row.items() if name.endswith("GpuHours")}


class BudgetWatch(Background):
    """Tells of budgets that are nearly spent, or are; runs from `start` to `stop`."""

    def __init__(self, usage: Usage, events: EventRecorder) -> None:
        super().__init__("budgets", needed=False)
        self._usage, self._events = usage, events
        self._rounds = 0

    async def run(self) -> None:
        await repeat(self.round, _BUDGETS_EVERY_S, "looking at budgets")

    async def round(self) -> None:
        """Look once."""
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
                usage.budgets.told({name: row[0] / HOUR_S for name, row in answer.rows.items()})
        self._rounds += 1
        for namespace, text in usage.budgets.warnings().items():
            logger.warning("namespace %s: %s", namespace, text)
            self._events.emit_about_namespace(namespace, reason="GPUBudget", message=text)


class IdleRecall(Background):
    """Has Prometheus tell who leads anew which pods were idle before; runs from `start` to `stop`."""

    def __init__(self, usage: Usage, past: Past) -> None:
        super().__init__("idle times", needed=False)
        self._usage, self._past = usage, past
        self._tenure, self._asks_at, self._tries = "", 0.0, 0

    async def run(self) -> None:
        await repeat(self.round, _RECALL_EVERY_S, "asking which pods were idle")

    async def round(self) -> None:
        """Ask, once telemetry has told of this moment, and a few times more if there is no answer."""
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
