"""Results of a replay as tables for a terminal of 80 columns."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from model.pasts.accounts import SIZES
from model.pasts.trust import spell

Report = Mapping[str, Any]


def tables(report: Report) -> list[Table]:
    """Return tables of GPUs and waits by policy, waits by job size, and GPUs needed and costs."""
    rows = {**report["policies"], **({"actual": report["actual"]} if report["actual"] else {})}
    return [_figures(report, rows), _waiting(rows), _needed(report, rows)]


def _figures(report: Report, rows: Mapping[str, Report]) -> Table:
    about = report["history"]
    title = f"{about['pods']:,} pods in {about['days']:,.1f} days on {about['gpus']:,} GPUs"
    table = Table("policy", "GPUs in use", "mean wait", "p99", "multi-GPU jobs", "fragments", title=title)
    for name, row in rows.items():
        waits = (spell(row[measure]) for measure in ("mean_delay_s", "p99_delay_s", "large_delay_s"))
        table.add_row(escape(name), _number(row["allocated_gpus"], 1), *waits, _number(row["fragments"], 1))
    return table


def _waiting(rows: Mapping[str, Report]) -> Table:
    sizes = [size for size, _ in SIZES if any(size in row["waiting"] for row in rows.values())]
    table = Table("mean wait by GPUs", *sizes, title="Waiting time by requested GPUs")
    for name, row in rows.items():
        found_sizes = (row["waiting"].get(size) for size in sizes)
        table.add_row(escape(name), *(spell(found["mean_delay_s"]) if found else "" for found in found_sizes))
    return table


def _needed(report: Report, rows: Mapping[str, Report]) -> Table:
    """Return blocked starts and fewest GPUs, and the cost per month if there is a price."""
    price, fewer = report["price"], report["fewer"]
    table = Table("policy", "jobs blocked by scattered GPUs", title="GPUs needed")
    if fewer:
        table.add_column("fewest GPUs")
    if price:
        table.title = escape(f"GPUs needed, and cost per month at {price['amount']:g} {price['currency']} a GPU-hour")
        for about in ("in use", "idle", "idle in fragments"):
            table.add_column(about)
    for name, row in rows.items():
        cells = [_number(row["blocked_starts"])]
        if fewer:
            found = fewer["policies"].get(name)
            cells.append(f"{found['gpus']:,}" if found and found["served"] else "")
        if price:
            cells += [_number(row["month"][f"{kind}_cost"]) for kind in ("booked", "idle", "stranded")]
        table.add_row(escape(name), *cells)
    return table


def _number(value: float | None, places: int = 0) -> str:
    return "" if value is None else f"{value:,.{places}f}"
