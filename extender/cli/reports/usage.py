"""`kerf usage`: GPU-hours booked, used and idle, by namespace, owner or GPU model; and the pods that are idle now."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from extender.cli.client.kerf import FAILED, USAGE, Kerf, asks_kerf, fail
from extender.cli.client.tables import age, table_of
from extender.cli.printing import echo
from extender.cli.reports.over_time import TIMEOUT_S, show_over_time
from extender.cli.reports.sheets import FormOption, as_csv, hours, part, show_in, time_of
from extender.core.texts import printable
from extender.usage.answers import By, Source, UsageReport


@asks_kerf
def usage(
    kerf: Kerf,
    since: Annotated[
        str, typer.Option(help="How far back: 7d, 36h, 90m. Default: since Kerf began to count.", metavar="TIME")
    ] = "",
    by: Annotated[By, typer.Option(help="What a row is of.")] = "namespace",
    idle: Annotated[
        bool, typer.Option("--idle", help="Instead, pods that have GPUs and do nothing with them.")
    ] = False,
    source: Annotated[
        Source, typer.Option(help="Who is asked: Prometheus where Kerf knows one, Kerf itself, or as is there.")
    ] = "auto",
    step: Annotated[
        str, typer.Option(help="Instead of rows by name, one for each step of --since: 1d, 15m.", metavar="TIME")
    ] = "",
    output: FormOption = "table",
) -> None:
    """GPU-hours booked, used and idle. From Prometheus with --since, where Kerf has one; else since Kerf's start."""
    if step:
        if not since or idle or by != "namespace":
            fail("--step needs --since, and goes with neither --idle nor --by", USAGE)
        show_over_time(kerf, since, step, source, output)
        return
    query = urlencode({"since": since, "by": by, "source": source})
    told: UsageReport = kerf.ask(
        f"/usage?{query}", timeout_s=TIMEOUT_S, wrong=lambda why: f"--since {since}: {why.removeprefix('since: ')}"
    )
    if note := told.get("note"):
        echo(f"{note}: this is what Kerf has counted itself since {time_of(told['since'])}", err=True)
    if not idle:
        answer = {name: value for name, value in told.items() if name in _TOLD}
        sheet = partial(as_csv, _columns(by, told), told["rows"])
        show_in(output, answer, sheet, lambda console: console.print(_picture(told, by)))
        return
    if (pods := told["idle"]) is None:
        fail("another replica leads, and it alone knows which pods are idle", FAILED)
    answer = {"rows": pods["items"], "totals": {name: value for name, value in pods.items() if name != "items"}}
    sheet = partial(as_csv, _IDLE_COLUMNS, pods["items"])
    show_in(output, answer, sheet, lambda console: console.print(_idle_picture(pods)))


_IDLE_COLUMNS = "pod", "owner", "node", "gpus", "idleSeconds"
_HOURS = "bookedGpuHours", "usedGpuHours", "idleGpuHours", "measuredGpuHours"
_TOLD = "rows", "totals", "source", "since", "until", "by"
"""As JSON."""


def _columns(by: By, told: UsageReport) -> Sequence[str]:
    """The columns of all rows."""
    names = ("namespace", "owner") if by == "owner" else (by,)
    budgets = ("budgetGpuHours", "budgetSpentGpuHours") if told.get("budgets") else ()
    return (*names, *_HOURS, *budgets)


def _picture(told: UsageReport, by: By) -> Group:
    totals, budgets = told["totals"], told.get("budgets") or {}
    whose = "by Prometheus" if told["source"] == "prometheus" else "by Kerf, since it began to count"
    capacity = totals["capacityGpuHours"]
    head = Text(
        f"GPU-hours from {time_of(told['since'])} to {time_of(told['until'])} ({whose})\n"
        f"{hours(capacity)} GPU-hours available: {part(totals['bookedGpuHours'], capacity)} booked, "
        f"{part(totals['freeGpuHours'], capacity)} free, {part(totals['strandedGpuHours'], capacity)} stranded, "
        f"{part(totals['sickGpuHours'], capacity)} out of use"
    )
    names = ("NAMESPACE", "OWNER") if by == "owner" else (by.upper(),)
    table = table_of(names, ("BOOKED", "USED", "IDLE", *(("BUDGET",) if budgets else ())))
    for row in told["rows"]:
        table.add_row(*_line(row, by, with_budgets=bool(budgets)))
    idle = told["idle"]
    foot = (
        [Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs are idle now (--idle)")] if idle and idle["pods"] else []
    )
    return Group(head, table if told["rows"] else Text("nothing was booked"), *foot)


def _line(row: Mapping[str, Any], by: By, *, with_budgets: bool) -> list[str]:
    names = [row["namespace"], row["owner"]] if by == "owner" else [row[by]]
    measured = row["measuredGpuHours"]
    cells = [
        *(escape(printable(name)) for name in names),
        hours(row["bookedGpuHours"]),
        f"{hours(row['usedGpuHours'])} ({part(row['usedGpuHours'], measured)})" if measured else "-",
        f"{hours(row['idleGpuHours'])} ({part(row['idleGpuHours'], measured)})" if measured else "-",
    ]
    if with_budgets:
        cells.append(_budget(row))
    return cells


def _budget(row: Mapping[str, Any]) -> str:
    if "budgetGpuHours" not in row:
        return "-"
    budget, spent = row["budgetGpuHours"], row["budgetSpentGpuHours"]
    text = f"{hours(spent)} of {hours(budget)}"
    return f"[red]{text}, exceeded[/red]" if spent > budget else text


def _idle_picture(idle: Mapping[str, Any]) -> Group:
    after = f"{idle['afterSeconds'] / 60:g} min"
    if not idle["items"]:
        return Group(Text(f"no pod has been idle for {after}, as far as telemetry tells"))
    table = table_of(("POD", "OWNER", "NODE"), ("GPUS", "IDLE"))
    for item in idle["items"]:
        names = (escape(printable(item[name])) for name in ("pod", "owner", "node"))
        table.add_row(*names, f"{item['gpus']:g}", age(item["idleSeconds"]))
    hidden = idle["pods"] - len(idle["items"])
    head = Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs have been idle for {after} or more")
    return Group(head, table, *([Text(f"and {hidden} more")] if hidden else []))
