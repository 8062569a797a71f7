"""`kerf usage --step`: GPU-hours step by step."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from rich.console import Group
from rich.text import Text

from extender.cli.client.kerf import Kerf
from extender.cli.client.tables import table_of
from extender.cli.printing import echo
from extender.cli.reports.sheets import Form, as_csv, hours, show_in, time_of
from extender.usage.answers import Source, UsageOverTime

TIMEOUT_S: Final = 90.0
"""Prometheus may take a minute over weeks."""
_COLUMNS: Final = {
    "capacity": "ALL",
    "booked": "BOOKED",
    "used": "USED",
    "idle": "IDLE",
    "free": "FREE",
    "stranded": "STRANDED",
    "sick": "OUT",
}
_AMOUNTS: Final = (*(f"{name}GpuHours" for name in _COLUMNS), "measuredGpuHours")
_DAY_S: Final = 86_400
_MANY: Final = 10_000
_MILLION: Final = 1_000_000
_TOLD: Final = "source", "since", "until", "stepSeconds", "namespaces"


def show_over_time(kerf: Kerf, since: str, step: str, source: Source, form: Form) -> None:
    """Ask, and print the answer; ends the command where there is none."""
    query = urlencode({"since": since, "step": step, "source": source})
    told: UsageOverTime = kerf.ask(f"/usage/over-time?{query}", timeout_s=TIMEOUT_S, wrong=lambda why: f"--{why}")
    if note := told.get("note"):
        began = f" since {time_of(told['knownSince'])}" if told["knownSince"] else ""
        echo(f"{note}: this is what Kerf has counted itself{began}", err=True)
    rows: Sequence[Mapping[str, Any]] = told["steps"]
    dated = [{**row, "from": datetime.fromtimestamp(row["at"], UTC).isoformat()} for row in rows]
    totals = {name: round(sum(row[name] for row in rows), 6) for name in _AMOUNTS}
    answer = {"rows": rows, "totals": totals} | {name: value for name, value in told.items() if name in _TOLD}
    sheet = partial(as_csv, ("from", "seconds", *_AMOUNTS), dated)
    show_in(form, answer, sheet, lambda console: console.print(_picture(told)))


def _picture(told: UsageOverTime) -> Group:
    whose = "by Prometheus" if told["source"] == "prometheus" else "by Kerf itself"
    head = Text(f"GPU-hours from {time_of(told['since'])} to {time_of(told['until'])} ({whose}); times are UTC")
    date = "%m-%d %H:%M" if told["stepSeconds"] % _DAY_S else "%Y-%m-%d"
    table = table_of((), ("FROM", *_COLUMNS.values()))
    table.columns[0].justify = "left"
    rows: Sequence[Mapping[str, Any]] = told["steps"]
    for row in rows:
        known = row["measuredGpuHours"] > 0
        cells = ("-" if name in ("used", "idle") and not known else _short(row[f"{name}GpuHours"]) for name in _COLUMNS)
        table.add_row(datetime.fromtimestamp(row["at"], UTC).strftime(date), *cells)
    return Group(head, table if rows else Text("nothing was counted"))


def _short(amount: float) -> str:
    """In as many characters as fit seven times on a narrow terminal."""
    if amount >= _MILLION:
        return f"{amount / _MILLION:,.2f}M"
    return f"{amount:,.0f}" if amount >= _MANY else hours(amount)
