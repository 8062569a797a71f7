"""Self-contained HTML charts for the report of a replay: lines over time, and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 1000.0, 300.0


@dataclass(frozen=True)
class Line:
    """Values over time."""

    name: str
    style: str
    """CSS class."""
    values: Sequence[float]


def lines(series: Sequence[Line], capacity: Sequence[float], days: float) -> str:
    """Return lines over a period of `days` days, with the capacity as a dashed line."""
    top = _round_up(max([*capacity, *(value for line in series for value in line.values), 1.0]))
    ticks = [top * part / 4 for part in range(5)]
    grid = "".join(f'<line class="grid" x1="0" x2="1000" y1="{_y(tick, top)}" y2="{_y(tick, top)}"/>' for tick in ticks)
    paths = "".join(f'<path class="{line.style}" d="{_path(line.values, top)}"/>' for line in reversed(series))
    names = ", ".join(line.name for line in series)
    labels = "".join(f'<span class="y" style="top:{100 - 100 * tick / top:.1f}%">{tick:,.0f}</span>' for tick in ticks)
    keys = "".join(f'<li><i class="{line.style}"></i>{escape(line.name)}</li>' for line in series)
    return (
        f'<ul class="key">{keys}<li><i class="dashed"></i>GPUs in the cluster</li></ul>'
        f'<figure><div class="plot">{labels}<svg viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" '
        f'aria-label="GPUs in use over time: {escape(names)}">{grid}<path class="there" d="{_path(capacity, top)}"/>'
        f"{paths}</svg></div>"
        f'<div class="x">{"".join(f"<span>{mark}</span>" for mark in _marks(days))}</div></figure>'
    )


def bars(groups: Mapping[str, Sequence[tuple[str, str, float, str]]]) -> str:
    """Return bars of (name, style, length, label) by group, scaled to the longest."""
    longest = max((length for rows in groups.values() for _, _, length, _ in rows), default=0.0)
    parts = []
    for group, rows in groups.items():
        parts.append(f"<h3>{escape(group)}</h3>")
        for name, style, length, label in rows:
            width = 60 * length / longest if longest > 0 else 0.0
            bar = f'<i class="{style}" style="width:{width:.1f}%"></i>'
            parts.append(f"<span>{escape(name)}</span><div>{bar}{escape(label)}</div>")
    return f'<div class="bars">{"".join(parts)}</div>'


def _path(values: Sequence[float], top: float) -> str:
    """Return an SVG path through the middle of each interval."""
    step = _WIDTH / max(len(values), 1)
    points = [f"{step * (number + 0.5):.1f} {_y(value, top)}" for number, value in enumerate(values)]
    return "M" + "L".join(points) if points else ""


def _y(value: float, top: float) -> str:
    return f"{_HEIGHT * (1 - value / top):.1f}"


def _round_up(value: float) -> float:
    """Round up to a number with readable quarters."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(size * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if size * factor >= value)


def _marks(days: float) -> list[str]:
    """Return the labels of the time axis."""
    if days < 2:
        return [f"hour {24 * days * part / 4:.0f}" for part in range(5)]
    return [f"day {days * part / 4:.0f}" for part in range(5)]
