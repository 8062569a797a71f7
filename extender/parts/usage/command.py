"""`kerf usage`: GPU-hours booked, used and idle, by name or by step, and the pods that are idle now."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from extender.cli.client.kerf import FAILED, USAGE, Form, FormOption, Kerf, asks_kerf, fail, show
from extender.cli.consoles import age, as_csv, columns
from extender.cli.printing import echo
from extender.core.texts import printable
from extender.parts.usage.answers import By, Source, UsageOverTime, UsageReport

_TIMEOUT_S: Final = 90.0
"""Prometheus may take a minute for a query over weeks."""
_STEP_COLUMNS: Final = {
    "capacity": "ALL",
    "booked": "BOOKED",
    "used": "USED",
    "idle": "IDLE",
    "free": "FREE",
    "stranded": "STRANDED",
    "sick": "OUT",
}
_AMOUNTS: Final = (*(f"{name}GpuHours" for name in _STEP_COLUMNS), "measuredGpuHours")
_DAY_S: Final = 86_400
_MANY: Final = 10_000
_MILLION: Final = 1_000_000
_KEYS: Final = "rows", "totals", "source", "since", "until", "by"
_KEYS_OF_STEPS: Final = "source", "since", "until", "stepSeconds", "namespaces"


@asks_kerf
def usage(
    kerf: Kerf,
    since: Annotated[
        str, typer.Option(help="How far back: 7d, 36h, 90m. Default: since Kerf began to count.", metavar="TIME")
    ] = "",
    by: Annotated[By, typer.Option(help="What to group rows by.")] = "namespace",
    idle: Annotated[bool, typer.Option("--idle", help="List the pods whose GPUs are idle now instead.")] = False,
    source: Annotated[
        Source, typer.Option(help="Where the figures come from: Prometheus, Kerf itself, or whichever has them.")
    ] = "auto",
    step: Annotated[
        str, typer.Option(help="Show a row for each step of --since instead: 1d, 15m.", metavar="TIME")
    ] = "",
    output: FormOption = Form.TABLE,
) -> None:
    """GPU-hours booked, used and idle. With --since from Prometheus, if Kerf has one; else since Kerf's start."""
    if step:
        if not since or idle or by != "namespace":
            fail("--step needs --since and can't be combined with --idle or --by", USAGE)
        _show_over_time(kerf, since, step, source, output)
        return
    query = urlencode({"since": since, "by": by, "source": source})
    wrong = f"--since {since}: "
    report: UsageReport = kerf.ask(
        f"/usage?{query}", None, _TIMEOUT_S, wrong=lambda why: wrong + why.removeprefix("since: ")
    )
    if note := report.get("note"):
        echo(f"{note}: showing what Kerf itself has counted since {_time_of(report['since'])}", err=True)
    if not idle:
        answer: dict[str, Any] = {name: value for name, value in report.items() if name in _KEYS}
        show(
            answer,
            output,
            lambda console: console.print(_picture(report, by)),
            lambda: as_csv(_columns(by, report), report["rows"]),
        )
        return
    if (pods := report["idle"]) is None:
        fail("another replica leads, and only the leader knows which pods are idle", FAILED)
    answer = {"rows": pods["items"], "totals": {name: value for name, value in pods.items() if name != "items"}}
    show(
        answer,
        output,
        lambda console: console.print(_idle_picture(pods)),
        lambda: as_csv(_IDLE_COLUMNS, pods["items"]),
    )


_IDLE_COLUMNS = "pod", "owner", "node", "gpus", "idleSeconds"
_HOURS = "bookedGpuHours", "usedGpuHours", "idleGpuHours", "measuredGpuHours"


def _columns(by: By, report: UsageReport) -> Sequence[str]:
    """The keys of a row, in order."""
    names = ("namespace", "owner") if by == "owner" else (by,)
    budgets = ("budgetGpuHours", "budgetSpentGpuHours") if report.get("budgets") else ()
    return (*names, *_HOURS, *budgets)


def _picture(report: UsageReport, by: By) -> Group:
    totals, budgets = report["totals"], report.get("budgets") or {}
    source = "by Prometheus" if report["source"] == "prometheus" else "by Kerf, since it began to count"
    capacity = totals["capacityGpuHours"]
    head = Text(
        f"GPU-hours from {_time_of(report['since'])} to {_time_of(report['until'])} ({source})\n"
        f"{_hours(capacity)} GPU-hours available: {_part(totals['bookedGpuHours'], capacity)} booked, "
        f"{_part(totals['freeGpuHours'], capacity)} free, {_part(totals['strandedGpuHours'], capacity)} stranded, "
        f"{_part(totals['sickGpuHours'], capacity)} out of use"
    )
    names = ["NAMESPACE", "OWNER"] if by == "owner" else [by.upper()]
    table = columns(*names, ">BOOKED", ">USED", ">IDLE")
    if budgets:
        table.add_column("BUDGET", justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(*_line(row, by, with_budgets=bool(budgets)))
    idle = report["idle"]
    foot = (
        [Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs are idle now (--idle)")] if idle and idle["pods"] else []
    )
    return Group(head, table if report["rows"] else Text("nothing was booked"), *foot)


def _line(row: Mapping[str, Any], by: By, *, with_budgets: bool) -> list[str]:
    names = [row["namespace"], row["owner"]] if by == "owner" else [row[by]]
    measured = row["measuredGpuHours"]
    cells = [
        *(escape(printable(name)) for name in names),
        _hours(row["bookedGpuHours"]),
        f"{_hours(row['usedGpuHours'])} ({_part(row['usedGpuHours'], measured)})" if measured else "-",
        f"{_hours(row['idleGpuHours'])} ({_part(row['idleGpuHours'], measured)})" if measured else "-",
    ]
    if with_budgets:
        cells.append(_budget(row))
    return cells


def _budget(row: Mapping[str, Any]) -> str:
    if "budgetGpuHours" not in row:
        return "-"
    budget, spent = row["budgetGpuHours"], row["budgetSpentGpuHours"]
    text = f"{_hours(spent)} of {_hours(budget)}"
    return f"[red]{text}, exceeded[/red]" if spent > budget else text


def _idle_picture(idle: Mapping[str, Any]) -> Group:
    after = f"{idle['afterSeconds'] / 60:g} min"
    if not idle["items"]:
        return Group(Text(f"no pod has been idle for {after}, according to telemetry"))
    table = columns("POD", "OWNER", "NODE", ">GPUS", ">IDLE")
    for item in idle["items"]:
        names = (escape(printable(item[name])) for name in ("pod", "owner", "node"))
        table.add_row(*names, f"{item['gpus']:g}", age(item["idleSeconds"]))
    hidden = idle["pods"] - len(idle["items"])
    head = Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs have been idle for {after} or more")
    return Group(head, table, *([Text(f"and {hidden} more")] if hidden else []))


def _show_over_time(kerf: Kerf, since: str, step: str, source: Source, form: Form) -> None:
    """Query and print the steps; ends the command if there is no answer."""
    query = urlencode({"since": since, "step": step, "source": source})
    answer: UsageOverTime = kerf.ask(f"/usage/over-time?{query}", None, _TIMEOUT_S, wrong=lambda why: f"--{why}")
    if note := answer.get("note"):
        began = f" since {_time_of(answer['knownSince'])}" if answer["knownSince"] else ""
        echo(f"{note}: showing what Kerf itself has counted{began}", err=True)
    rows: Sequence[Mapping[str, Any]] = answer["steps"]
    totals = {name: round(sum(row[name] for row in rows), 6) for name in _AMOUNTS}
    dated = [{**row, "from": datetime.fromtimestamp(row["at"], UTC).isoformat()} for row in rows]
    show(
        {"rows": rows, "totals": totals} | {name: value for name, value in answer.items() if name in _KEYS_OF_STEPS},
        form,
        lambda console: console.print(_steps_picture(answer)),
        lambda: as_csv(("from", "seconds", *_AMOUNTS), dated),
    )


def _steps_picture(answer: UsageOverTime) -> Group:
    source = "by Prometheus" if answer["source"] == "prometheus" else "by Kerf itself"
    head = Text(f"GPU-hours from {_time_of(answer['since'])} to {_time_of(answer['until'])} ({source}); times are UTC")
    date = "%m-%d %H:%M" if answer["stepSeconds"] % _DAY_S else "%Y-%m-%d"
    table = columns("|FROM", *(f">{name}" for name in _STEP_COLUMNS.values()))
    steps: Sequence[Mapping[str, Any]] = answer["steps"]
    for row in steps:
        unknown = () if row["measuredGpuHours"] > 0 else ("used", "idle")
        cells = ("-" if name in unknown else _short(row[f"{name}GpuHours"]) for name in _STEP_COLUMNS)
        table.add_row(datetime.fromtimestamp(row["at"], UTC).strftime(date), *cells)
    return Group(head, table if answer["steps"] else Text("nothing was counted"))


def _short(amount: float) -> str:
    """An amount that is short enough for seven columns on a narrow terminal."""
    if amount >= _MILLION:
        return f"{amount / _MILLION:,.2f}M"
    return f"{amount:,.0f}" if amount >= _MANY else _hours(amount)


def _time_of(unix: float) -> str:
    """`2026-11-26 17:40 UTC`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hours(amount: float) -> str:
    """`1,234.5`."""
    return f"{amount:,.1f}"


def _part(part: float, whole: float) -> str:
    """`12 %`, or `-` if `whole` is 0."""
    return f"{100 * part / whole:.0f} %" if whole else "-"
