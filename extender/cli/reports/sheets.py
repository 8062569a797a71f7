"""The forms of a report; rows as CSV, as spreadsheets may read them."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from extender.cli.client.kerf import Output, show
from extender.cli.printing import echo
from extender.core.texts import printable


class Form(StrEnum):
    """Form of the answer."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormOption = Annotated[Form, typer.Option("--output", "-o", help="table, json or csv.")]


def show_in(form: Form, answer: Any, sheet: Callable[[], str], table: Callable[[Console], None]) -> None:
    """Print an answer; `sheet` makes CSV of it, and `table` prints it for people."""
    if form is Form.CSV:
        echo(sheet(), nl=False)
    else:
        show(answer, Output(form.value), table)


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
