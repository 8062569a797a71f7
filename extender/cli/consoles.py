"""Rich's console, for texts of others; and what tables of commands share: columns, names, times in few letters, CSV.

Apart from `printing`: whoever prints no table loads no rich."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from extender.cli.printing import shown
from extender.core.texts import printable

_PLAIN_WIDTH: Final = 160
"""Columns of a table that goes to a file or a pipe."""


class PlainConsole(Console):
    """What it prints has no control characters but rich's own, whatever tables and texts it is made of."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, piece by piece; rich's own commands for terminals are pieces of their own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with rich's markup, of the width that it will have."""
        return super().render_str(shown(text), **options)


def console() -> Console:
    """Standard output: in colour on a terminal only, and never with NO_COLOR."""
    found = PlainConsole(highlight=False, emoji=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
    return found if found.is_terminal else PlainConsole(highlight=False, emoji=False, width=_PLAIN_WIDTH)


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
