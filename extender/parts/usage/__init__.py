"""Accounts for GPU-hours booked, used, idle and stranded: docs/parts/usage.md."""

from typing import Final

from extender.core.faces import Command, Face, Heading

FACE: Final = Face(
    commands={
        "usage": Command(
            "GPU-hours booked, used and idle, by namespace, owner or GPU model; pods that are idle now.",
            Heading.ASK,
            f"{__name__}.command",
        )
    }
)
