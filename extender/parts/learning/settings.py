"""Settings of the learning part."""

from typing import Final, Self

from pydantic import Field, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section


class LearningSettings(Section):
    """Ranks that are tried alongside the serving one: see docs/guides/your-own-rank.md."""

    EXPERIMENTAL = frozenset({"config_map", "stage_s", "stage_pods", "canary_frac"})

    enabled: bool = True
    """Whether ranks are tried on recent pods, so that policy `auto` is the best of them (`model.mode` serve), or a
    model is compared with the serving one (shadow)."""
    config_map: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """For policy `auto`: NAMESPACE/NAME of the ConfigMap through which fitted models are submitted. They are tried
    before they serve. Empty: none."""
    stage_s: float = Field(default=86400.0, gt=0)
    """Shortest time that a fitted model spends in shadow, and again as a canary, in seconds."""
    stage_pods: int = Field(default=500, ge=1)
    """Pods that must arrive in each of these stages before the model is judged."""
    canary_frac: float = Field(default=0.1, gt=0, le=0.5)
    """Fraction of the pods that a canary places."""

    @model_validator(mode="after")
    def _needs_enabled(self) -> Self:
        if self.config_map and not self.enabled:
            raise ValueError("config_map needs enabled, which tries the models submitted there")
        return self


PART: Final = Part(
    name="learning",
    settings=LearningSettings,
    wanted=lambda learning: learning.enabled,
    module="extender.parts.learning.part",
    renamed={
        "model.learned": "learning.config_map",
        "model.stage_s": "learning.stage_s",
        "model.stage_pods": "learning.stage_pods",
        "model.canary_frac": "learning.canary_frac",
    },
)
