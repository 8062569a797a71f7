"""The forms of a report: rows as CSV, as spreadsheets may read them; times and GPU-hours, as people read them."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from extender.cli.client.kerf import Output, show
from extender.cli.printing import echo
from extender.core.texts import printable

Form = Literal["table", "json", "csv"]
FormOption = Annotated[Form, typer.Option("--output", "-o", help="table, json or csv.")]


def show_in(form: Form, answer: Any, sheet: Callable[[], str], table: Callable[[Console], None]) -> None:
    """Print an answer; `sheet` makes CSV of it, and `table` prints it for people."""
    if form == "csv":
        echo(sheet(), nl=False)
    else:
        show(answer, Output(form), table)


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A heading, and a line for each row; keys that are no columns are left out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Authors choose names: spreadsheets take some for formulas, and terminals obey others."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value[:1] in ("=", "+", "-", "@") else value)


def time_of(unix: float) -> str:
    """`2026-11-26 17:40 UTC`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def hours(amount: float) -> str:
    """`1,234.5`."""
    return f"{amount:,.1f}"


def part(part: float, whole: float) -> str:
    """`12 %`, or `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"
