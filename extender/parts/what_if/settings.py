"""Settings of the what_if part."""

from typing import Final

from extender.settings.parts import Part
from extender.settings.section import Section


class WhatIfSettings(Section):
    """What-if questions: see docs/reference/explain.md#what-if."""

    enabled: bool = True
    """Whether they are answered; how long that may take is access.what_if_s."""


PART: Final = Part(
    name="what_if",
    settings=WhatIfSettings,
    wanted=lambda what_if: what_if.enabled,
    module="extender.parts.what_if.part",
    off={"/what-if": "what-if questions are not answered here (setting what_if.enabled)"},
)
