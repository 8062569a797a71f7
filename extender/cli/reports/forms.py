"""Times and GPU-hours, as people read them."""

from datetime import UTC, datetime


def time_of(unix: float) -> str:
    """`2026-11-26 17:40 UTC`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def hours(amount: float) -> str:
    """`1,234.5`."""
    return f"{amount:,.1f}"


def part(part: float, whole: float) -> str:
    """`12 %`, or `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"
