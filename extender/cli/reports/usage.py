"""`kerf usage`: GPU-hours booked, used and idle, by namespace, owner or GPU model; and the pods that are idle now."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extender.cli.client.kerf import FAILED, USAGE, AnswerError, Kerf, Output, asks_kerf, fail, show
from extender.cli.client.tables import age
from extender.cli.printing import echo
from extender.cli.reports.forms import hours, part, time_of
from extender.cli.reports.over_time import BAD_REQUEST, TIMEOUT_S, show_over_time
from extender.cli.reports.sheets import Form, FormOption, as_csv
from extender.core.texts import printable


class By(StrEnum):
    """What a row is of."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    MODEL = "model"


class Source(StrEnum):
    """Who tells of the past."""

    AUTO = "auto"
    KERF = "kerf"
    PROMETHEUS = "prometheus"


@asks_kerf
def usage(
    kerf: Kerf,
    since: Annotated[
        str, typer.Option(help="How far back: 7d, 36h, 90m. Default: since Kerf began to count.", metavar="TIME")
    ] = "",
    by: Annotated[By, typer.Option(help="What a row is of.")] = By.NAMESPACE,
    idle: Annotated[
        bool, typer.Option("--idle", help="Instead, pods that have GPUs and do nothing with them.")
    ] = False,
    source: Annotated[
        Source, typer.Option(help="Who is asked: Prometheus where Kerf knows one, Kerf itself, or as is there.")
    ] = Source.AUTO,
    step: Annotated[
        str, typer.Option(help="Instead of rows by name, one for each step of --since: 1d, 15m.", metavar="TIME")
    ] = "",
    output: FormOption = Form.TABLE,
) -> None:
    """GPU-hours booked, used and idle. From Prometheus with --since, where Kerf has one; else since Kerf's start."""
    if step:
        if not since or idle or by is not By.NAMESPACE:
            fail("--step needs --since, and goes with neither --idle nor --by", USAGE)
        show_over_time(kerf, since, step, source.value, output)
        return
    query = urlencode({"since": since, "by": by.value, "source": source.value})
    try:
        told = kerf.ask(f"/usage?{query}", timeout_s=TIMEOUT_S)
    except AnswerError as error:
        if error.status in BAD_REQUEST:
            fail(f"--since {since}: {str(error).removeprefix('since: ')}", USAGE)
        fail(str(error), FAILED)
    if told.get("note"):
        echo(f"{told['note']}: this is what Kerf has counted itself since {time_of(told['since'])}", err=True)
    if idle and told["idle"] is None:
        fail("another replica leads, and it alone knows which pods are idle", FAILED)
    rows = told["idle"]["items"] if idle else told["rows"]
    match output:
        case Form.CSV:
            echo(as_csv(_IDLE_COLUMNS if idle else _columns(by, told), rows), nl=False)
        case Form.JSON:
            answer = {"rows": rows, "totals": _without_items(told["idle"])} if idle else _as_json(told)
            show(answer, Output.JSON, lambda console: None)
        case Form.TABLE:
            picture = _idle_picture(told["idle"]) if idle else _picture(told, by)
            show(told, Output.TABLE, lambda console: console.print(picture))


_IDLE_COLUMNS = "pod", "owner", "node", "gpus", "idleSeconds"
_HOURS = "bookedGpuHours", "usedGpuHours", "idleGpuHours", "measuredGpuHours"


def _without_items(idle: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in idle.items() if name != "items"}


def _as_json(told: Mapping[str, Any]) -> dict[str, Any]:
    """`rows` and `totals`, and what they are of."""
    return {name: told[name] for name in ("rows", "totals", "source", "since", "until", "by")}


def _columns(by: By, told: Mapping[str, Any]) -> Sequence[str]:
    """The columns of all rows."""
    names = ("namespace", "owner") if by is By.OWNER else (by.value,)
    budgets = ("budgetGpuHours", "budgetSpentGpuHours") if told.get("budgets") else ()
    return (*names, *_HOURS, *budgets)


def _picture(told: Mapping[str, Any], by: By) -> Group:
    totals, budgets = told["totals"], told.get("budgets") or {}
    whose = "by Prometheus" if told["source"] == "prometheus" else "by Kerf, since it began to count"
    capacity = totals["capacityGpuHours"]
    head = Text(
        f"GPU-hours from {time_of(told['since'])} to {time_of(told['until'])} ({whose})\n"
        f"{hours(capacity)} GPU-hours available: {part(totals['bookedGpuHours'], capacity)} booked, "
        f"{part(totals['freeGpuHours'], capacity)} free, {part(totals['strandedGpuHours'], capacity)} stranded, "
        f"{part(totals['sickGpuHours'], capacity)} out of use"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("NAMESPACE", "OWNER") if by is By.OWNER else (by.value.upper(),):
        table.add_column(name, overflow="fold")
    for name in ("BOOKED", "USED", "IDLE", *(("BUDGET",) if budgets else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in told["rows"]:
        table.add_row(*_line(row, by, with_budgets=bool(budgets)))
    idle = told["idle"]
    foot = (
        [Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs are idle now (--idle)")] if idle and idle["pods"] else []
    )
    return Group(head, table if told["rows"] else Text("nothing was booked"), *foot)


def _line(row: Mapping[str, Any], by: By, *, with_budgets: bool) -> list[str]:
    names = [row["namespace"], row["owner"]] if by is By.OWNER else [row[by.value]]
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
    table = Table(box=None, pad_edge=False)
    for name in ("POD", "OWNER", "NODE"):
        table.add_column(name, overflow="fold")
    for name in ("GPUS", "IDLE"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in idle["items"]:
        names = (escape(printable(item[name])) for name in ("pod", "owner", "node"))
        table.add_row(*names, f"{item['gpus']:g}", age(item["idleSeconds"]))
    hidden = idle["pods"] - len(idle["items"])
    head = Text(f"{idle['pods']} pods with {idle['gpus']:g} GPUs have been idle for {after} or more")
    return Group(head, table, *([Text(f"and {hidden} more")] if hidden else []))
