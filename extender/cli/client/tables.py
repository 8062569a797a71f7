"""What tables of commands share: lengths of time in few letters, and names that are cut in the middle."""

from collections.abc import Iterable

from rich.table import Table

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def table_of(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    """A table without lines, with these columns: texts may be broken anywhere, numbers never."""
    table = Table(box=None, pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


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
