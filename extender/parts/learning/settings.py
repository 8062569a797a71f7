"""By which evidence a rank comes to serve."""

from typing import Final, Self

from pydantic import Field, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section


class LearningSettings(Section):
    """Ranks that are tried beside the one that serves: see docs/guides/your-own-rank.md."""

    EXPERIMENTAL = frozenset({"config_map", "stage_s", "stage_pods", "canary_frac"})

    enabled: bool = True
    """Whether the ranks are tried on the pods that came, for policy `auto` to be the best of them (`model.mode` serve),
    and a model is compared with what serves (shadow)."""
    config_map: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """`auto`: NAMESPACE/NAME of the ConfigMap in which fitted models are handed over. They come to serve by evidence.
    Empty: none."""
    stage_s: float = Field(default=86400.0, gt=0)
    """Shortest time that a fitted model spends in shadow, and as a canary, in seconds."""
    stage_pods: int = Field(default=500, ge=1)
    """Pods that have to come meanwhile, each time, to judge it by."""
    canary_frac: float = Field(default=0.1, gt=0, le=0.5)
    """Fraction of the pods that it places as a canary."""

    @model_validator(mode="after")
    def _tries_what_is_handed_over(self) -> Self:
        if self.config_map and not self.enabled:
            raise ValueError("config_map needs enabled: nobody else tries what is handed over there")
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
