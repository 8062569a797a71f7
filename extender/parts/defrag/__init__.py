"""Making room: plans which pods to move so that others fit, and moves them. See docs/parts/defrag.md.

A question (`questions`) goes through `answers` to a process of its own (`process`, `targets`, `movable`), where
`extender.planning.moves` finds the moves. `applying` takes operators' orders, `policy` acts by itself. `mover` carries
a plan out: `starts` begins a step after `checks` and `proof`, `steps` follows it, `target_pods` places the target.
"""

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
