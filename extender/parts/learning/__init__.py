"""Tries ranks and fitted models on recent pods, and lets the best one serve: docs/parts/learning.md."""

from typing import Final

from extender.core.faces import Command, Face, Heading

FACE: Final = Face(
    commands={
        "hand-in": Command(
            "Submit a fitted model to a running Kerf, which tries it before it serves.",
            Heading.SIMULATE,
            f"{__name__}.command",
        )
    }
)
