"""Making room: which pods would have to move so that others fit, and moving them: docs/parts/defrag.md."""

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
            "Which pods have to move, and where, so that nodes be empty; --apply moves them.",
            Heading.ASK,
            f"{__name__}.command",
        ),
    }
)
