"""The learned rank."""

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from extender.settings.section import Section


class ModelMode(StrEnum):
    """What a model is loaded for."""

    SERVE = "serve"
    CANARY = "canary"
    SHADOW = "shadow"
    OFF = "off"


class RankSettings(Section):
    """The learned rank, policy `kerf`: see docs/research/model.md."""

    GONE = {
        "value_weight": "always 1",
        "live_weight": "always 2",
        "refresh_s": "always 30",
        "refresh_max_s": "always 120",
        "min_drift": "always 0.05",
        "look_frac": "always 0.1",
        "look_s": "always 300",
        "half_life_pods": "always 2000",
        "evidence_s": "always 14400",
        "evidence_pods": "always 500",
        "shadow_frac": "always 0.05",
    }
    EXPERIMENTAL = frozenset({"check_s", "prices", "prior_pods"})

    path: Path | None = None
    """Directory of the model, reloaded when it changes. Empty: the built-in model, or none if mode is `serve` and
    `decisions.policy` is neither `auto` nor `kerf`."""
    mode: ModelMode = ModelMode.SERVE
    """`serve`: policy `auto` means `kerf`. `canary`: only for the pods selected below. `shadow`: scores alongside the
    active policy, for metrics only (part learning). `off`: no model is loaded."""
    canary_namespaces: list[str] = []
    """Mode canary: namespaces whose pods use policy `kerf`."""
    canary_labels: dict[str, str] = {}
    """Mode canary: pods with any of these labels use policy `kerf`: `{team: vision}`."""
    check_s: float = Field(default=10.0, gt=0)
    """Interval between checks of the model's files and of the mix of pods, in seconds."""
    prices: str = Field(default="auto", pattern="^(auto|lp|plain)$")
    """How the remainder of a GPU is valued. `lp`: by a linear program over the expected pods, solved in a process of
    its own. `plain`: at face value. `auto`: `lp` if SciPy is installed (extra `plan`)."""
    prior_pods: float | None = Field(default=None, ge=0)
    """How many observed pods `decisions.typical_pods` count as at the start; empty: 3 for 100 GPUs, at least 10.
    Without typical pods, a fifth of those expected accept only one GPU model or one with more memory, spread evenly
    over the GPU models present."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return ModelMode.OFF if value is False else value  # YAML reads a bare `off` as false
