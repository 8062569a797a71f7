"""Answers what-if questions on a copy of the cluster: docs/parts/what_if.md."""

from typing import Final

from extender.core.faces import Command, Face, Heading

FACE: Final = Face(
    commands={
        "what-if": Command(
            "Where pods would go now, and which would stay pending. Changes nothing.",
            Heading.ASK,
            f"{__name__}.command",
        )
    }
)
