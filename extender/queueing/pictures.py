"""A plan as a picture (row M9): an SVG with three bars for each node, and what was left out."""

from collections.abc import Sequence
from html import escape
from typing import Final

from extender.queueing.plans import Plan
from extender.queueing.reports import NodeLoad

_ROW: Final = 46
_LEFT, _BAR, _RIGHT = 190, 420, 190
_COLOURS: Final = (("CPU", "#4c78a8"), ("memory", "#72b7b2"), ("GPU", "#e45756"))
_MAX_NODES: Final = 200
_MAX_LEFT_OUT: Final = 20


def picture(loads: Sequence[NodeLoad], plan: Plan) -> str:
    """The SVG; of a large cluster the nodes that the plan uses, 200 at most."""
    shown = [load for load in loads if load.pods] if len(loads) > _MAX_NODES else list(loads)
    shown = shown[:_MAX_NODES]
    left_out = list(plan.unassigned.items())[:_MAX_LEFT_OUT]
    width = _LEFT + _BAR + _RIGHT
    height = 40 + _ROW * len(shown) + (30 + 16 * len(left_out) if left_out else 0) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" role="img">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(plan.planner)}: {plan.num_placed} of {len(plan.pods)} pods</text>',
    ]
    for place, (name, colour) in enumerate(_COLOURS):
        x = _LEFT + 90 * place
        parts.append(
            f'<rect x="{x}" y="10" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="20">{name}</text>'
        )
    for number, load in enumerate(shown):
        parts += _node(load, 40 + _ROW * number)
    y = 40 + _ROW * len(shown) + 20
    for number, (position, why) in enumerate(left_out):
        text = escape(f"{plan.pods[position].key}: {why}")
        parts.append(f'<text x="10" y="{y + 16 * number}" fill="#b00020">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _node(load: NodeLoad, y: int) -> list[str]:
    parts = [f'<text x="10" y="{y + 20}">{escape(load.node)}</text>']
    percents = (load.cpu_percent, load.memory_percent, load.gpu_percent)
    for place, (percent, (_, colour)) in enumerate(zip(percents, _COLOURS, strict=True)):
        top = y + 12 * place
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{_BAR}" height="10" fill="#eeeeee"/>')
        length = _BAR * min(percent, 100.0) / 100
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="10" fill="{colour}"/>')
    pods = "1 pod" if len(load.pods) == 1 else f"{len(load.pods)} pods"
    gpus = f", GPUs {load.gpus_used}/{load.gpus}" if load.gpus else ""
    parts.append(f'<text x="{_LEFT + _BAR + 10}" y="{y + 20}">{pods}{gpus}</text>')
    return parts
