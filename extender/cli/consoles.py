"""A rich console that is safe for untrusted text, and helpers for tables: columns, short names, durations, CSV.

Separate from `printing`, so that commands without tables don't import rich."""

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
"""Width of a table that goes to a file or pipe, in characters."""


class PlainConsole(Console):
    """A console that prints no control characters except rich's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments to print, with their text escaped; rich's terminal commands are separate segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with rich's markup, escaped so that its width is final."""
        return super().render_str(shown(text), **options)


def console() -> Console:
    """A console for standard output: coloured on a terminal only, and never with NO_COLOR."""
    terminal = PlainConsole(highlight=False, emoji=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
    return terminal if terminal.is_terminal else PlainConsole(highlight=False, emoji=False, width=_PLAIN_WIDTH)


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def age(seconds: float) -> str:
    """A duration in kubectl's format: 45s, 12m, 3h07m, 2d4h."""
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m" if minutes else f"{whole}s"


def shortened(text: str, width: int) -> str:
    """A name cut to `width` characters in its middle, since names differ mostly at their ends."""
    if len(text) <= width:
        return text
    head = max(width - 1, 0) // 2
    tail = max(width - 1 - head, 0)
    return text[:head] + _ELLIPSIS + text[len(text) - tail :]


def names(given: Sequence[str], most: int = 5) -> str:
    """The first `most` names, and the number of others."""
    return ", ".join(given[:most]) + (f" and {len(given) - most} more" if len(given) > most else "")


def columns(*headings: str, **options: Any) -> Table:
    """A table without lines. `>` before a heading right-aligns its column, `|` prevents wrapping; other columns wrap
    anywhere and get `options`."""
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
    """CSV with a heading and a line per row; keys without a column are left out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _safe(value: Any) -> Any:
    """A cell that is safe for spreadsheets, which may take names as formulas, and for terminals."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value[:1] in ("=", "+", "-", "@") else value)
