"""Forms of GPU-hours for people and spreadsheets."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def time_of(unix: float) -> str:
    """`2026-11-26 17:40 UTC`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def hours(amount: float) -> str:
    """`1,234.5`."""
    return f"{amount:,.1f}"


def part(part: float, whole: float) -> str:
    """`12 %`, or `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A heading, and a line for each row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Authors choose names, and spreadsheets take some for formulas."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
