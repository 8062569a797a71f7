"""Runs pipelines of Jobs: docs/parts/pipelines.md."""

from typing import Final

from extender.core.faces import Command, Face, Heading

FACE: Final = Face(
    commands={
        "pipeline": Command("Pipelines of Jobs: see docs/guides/pipelines.md.", Heading.PLAN, f"{__name__}.command"),
    },
    kinds={"Pipeline": f"{__name__}.manifests:pipeline", "MLFlow": f"{__name__}.manifests:flow"},
)
