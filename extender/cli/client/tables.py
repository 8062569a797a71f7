"""What tables of commands share: columns, the first few of many names, times in few letters; and rows as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from extender.core.texts import printable

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def age(seconds: float) -> str:
    """A length of time as kubectl writes it: 45s, 12m, 3h07m, 2d4h."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m" if minutes else f"{whole}s"


def shortened(text: str, width: int) -> str:
    """A name of at most `width` characters: what tells names apart is at their ends, so the middle goes."""
    if len(text) <= width:
        return text
    head = max(width - 1, 0) // 2
    tail = max(width - 1 - head, 0)
    return text[:head] + _ELLIPSIS + text[len(text) - tail :]


def names(given: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    return ", ".join(given[:most]) + (f" and {len(given) - most} more" if len(given) > most else "")


def columns(*headings: str, **options: Any) -> Table:
    """A table without lines. `>` before a heading makes its column one of numbers, `|` one that is never wrapped; the
    others are wrapped anywhere, and have `options`."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        match heading[0]:
            case ">":
                table.add_column(heading[1:], justify="right", no_wrap=True)
            case "|":
                table.add_column(heading[1:], no_wrap=True)
            case _:
                table.add_column(heading, overflow="fold", **options)
    return table


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
