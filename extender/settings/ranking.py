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

    path: Path | None = None
    """Directory of the model, reloaded when it changes. Empty: the built-in model, or none if mode is `serve` and
    `decisions.policy` is neither `auto` nor `kerf`."""
    mode: ModelMode = ModelMode.SERVE
    """`serve`: policy `auto` means `kerf`. `canary`: only for the pods selected below. `shadow`: scores alongside the
    active policy, for metrics only. `off`: no model is loaded."""
    canary_namespaces: list[str] = []
    """Mode canary: namespaces whose pods use policy `kerf`."""
    canary_labels: dict[str, str] = {}
    """Mode canary: pods with any of these labels use policy `kerf`: `{team: vision}`."""
    value_weight: float = Field(default=1.0, ge=0)
    """Weight of the learned value in the score, per quantum of the model."""
    live_weight: float = Field(default=2.0, ge=0)
    """Weight of the headroom that telemetry shows: how many quanta a fully idle GPU is worth more than a fully loaded
    one. Its terms are weighted by `live`."""
    check_s: float = Field(default=10.0, gt=0)
    """Interval between checks of the model's files and of the mix of pods, in seconds."""
    prices: str = Field(default="auto", pattern="^(auto|lp|plain)$")
    """How the remainder of a GPU is valued. `lp`: by a linear program over the expected pods, solved in a process of
    its own. `plain`: at face value. `auto`: `lp` if SciPy is installed (extra `plan`)."""
    refresh_s: float = Field(default=30.0, gt=0)
    """Shortest time between two computations of the prices, in seconds; after one that took long, nine times as long:
    they have a tenth of a core at most."""
    refresh_max_s: float = Field(default=120.0, gt=0)
    """Longest time a computation may take, in seconds."""
    min_drift: float = Field(default=0.05, ge=0, le=1)
    """Prices are computed again when this fraction of the pod mix, or the set of nodes, has changed."""
    look_frac: float = Field(default=0.1, gt=0, le=1)
    """A model with attention is evaluated again when this fraction of the GPUs has been given out or freed."""
    look_s: float = Field(default=300.0, gt=0)
    """And after this many seconds if anything has changed."""
    half_life_pods: float = Field(default=2000.0, gt=0)
    """Half-life of a pod's weight in the mix, in pods seen after it."""
    prior_pods: float | None = Field(default=None, ge=0)
    """How many observed pods `decisions.typical_pods` count as at the start; empty: 3 for 100 GPUs, at least 10.
    Without typical pods, a fifth of those expected accept only one GPU model or one with more memory, spread evenly
    over the GPU models present."""
    evidence_s: float = Field(default=14400.0, gt=0)
    """`auto`: shortest time between two trials of `kerf`, `fgd` and `tightest` on the mix of pods seen and on the nodes
    there are, in seconds. The best one serves, if it allocates at least 0.1 percentage points more, and more than
    chance."""
    evidence_pods: int = Field(default=500, ge=0)
    """`auto`: pods seen before the first trial."""
    learned: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """`auto`: NAMESPACE/NAME of the ConfigMap in which fitted models are handed over. They come to serve by evidence:
    see docs/guides/your-own-rank.md. Empty: none."""
    stage_s: float = Field(default=86400.0, gt=0)
    """Shortest time that a fitted model spends in shadow, and as a canary, in seconds."""
    stage_pods: int = Field(default=500, ge=1)
    """Pods that have to come meanwhile, each time, to judge it by."""
    canary_frac: float = Field(default=0.1, gt=0, le=0.5)
    """Fraction of the pods that it places as a canary."""
    shadow_frac: float = Field(default=0.05, gt=0, le=0.5)
    """Mode shadow: largest fraction of a CPU core used; decisions beyond that are left out and counted."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return ModelMode.OFF if value is False else value  # YAML reads a bare `off` as false
