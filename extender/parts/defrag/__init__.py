"""Making room: plans which pods to move so that others fit, and moves them. See docs/parts/defrag.md."""

from typing import Final

from extender.core.faces import Command, Face, Heading

FACE: Final = Face(
    commands={
        "defrag": Command(
            "Plan the moves that make room for pods or free nodes; --apply moves them.",
            Heading.ASK,
            f"{__name__}.command",
        ),
        "drain": Command(
            "Plan which pods have to move, and where, to empty nodes; --apply moves them.",
            Heading.ASK,
            f"{__name__}.command",
        ),
    }
)
