"""Draws a plan as an SVG with three bars per node, and a list of unplaced pods."""

from collections.abc import Sequence
from html import escape
from typing import Final

from extender.planning.plans import Plan
from extender.planning.reports import NodeLoad

_ROW: Final = 46
_LEFT, _BAR, _RIGHT = 190, 420, 190
_BARS: Final = (
    ("CPU", "cpuPercent", "#4c78a8"),
    ("memory", "memoryPercent", "#72b7b2"),
    ("GPU", "gpuPercent", "#e45756"),
)
_MAX_NODES: Final = 200
_MAX_LEFT_OUT: Final = 20


def picture(loads: Sequence[NodeLoad], plan: Plan) -> str:
    """The SVG. Above `_MAX_NODES` nodes it shows only those with pods of the plan, up to that number."""
    shown = [load for load in loads if load["pods"]] if len(loads) > _MAX_NODES else list(loads)
    shown = shown[:_MAX_NODES]
    left_out = list(plan.unassigned.items())[:_MAX_LEFT_OUT]
    width = _LEFT + _BAR + _RIGHT
    height = 40 + _ROW * len(shown) + (30 + 16 * len(left_out) if left_out else 0) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" role="img">',
        _bar(0, 0, width, height, "white"),
        f'<text x="10" y="20" font-size="14">{escape(plan.planner)}: {plan.num_placed} of {len(plan.pods)} pods</text>',
    ]
    for place, (name, _, colour) in enumerate(_BARS):
        x = _LEFT + 90 * place
        parts += [_bar(x, 10, 10, 10, colour), f'<text x="{x + 14}" y="20">{name}</text>']
    for number, load in enumerate(shown):
        parts += _node(load, 40 + _ROW * number)
    y = 40 + _ROW * len(shown) + 20
    for number, (position, why) in enumerate(left_out):
        text = escape(f"{plan.pods[position].key}: {why}")
        parts.append(f'<text x="10" y="{y + 16 * number}" fill="#b00020">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _node(load: NodeLoad, y: int) -> list[str]:
    parts = [f'<text x="10" y="{y + 20}">{escape(load["node"])}</text>']
    for place, (_, key, colour) in enumerate(_BARS):
        length = round(_BAR * min(load[key], 100.0) / 100, 1)
        parts += [_bar(_LEFT, y + 12 * place, width, 10, fill) for width, fill in ((_BAR, "#eeeeee"), (length, colour))]
    pods = "1 pod" if len(load["pods"]) == 1 else f"{len(load['pods'])} pods"
    gpus = f", GPUs {load['gpusUsed']}/{load['gpus']}" if load["gpus"] else ""
    parts.append(f'<text x="{_LEFT + _BAR + 10}" y="{y + 20}">{pods}{gpus}</text>')
    return parts


def _bar(x: int, y: int, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>'
