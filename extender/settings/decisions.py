"""Placement of pods, and aliases of GPU models."""

from enum import StrEnum

from pydantic import Field, field_validator

from extender.core.policies import registry
from extender.core.policies.registry import AUTO, POLICIES, names
from extender.settings.section import Section


class Mode(StrEnum):
    """How the ranking reaches kube-scheduler."""

    DECISIVE = "decisive"
    SCORES = "scores"


class TypicalPodSettings(Section):
    """An expected class of pods: `{cpu_milli: 8000, gpus: 1, gpu_milli: 500, count: 120}`."""

    cpu_milli: int = Field(ge=0)
    """CPU of a pod."""
    gpus: int = Field(ge=0, le=64)
    """GPUs of a pod."""
    gpu_milli: int = Field(default=1000, ge=1, le=1000)
    """Thousandths of each GPU; less than 1000 is a share."""
    memory_mib: int = Field(default=0, ge=0)
    """Main memory of a pod; 0: unknown."""
    count: int = Field(ge=1)
    """Number of pods of this class, relative to the other classes."""
    models: list[str] = Field(default_factory=list)
    """Accepted GPU models; empty for any."""


class DecisionSettings(Section):
    """How pods are placed."""

    GONE = {
        "max_skips": "always 20",
        "memory_tolerance_frac": "always 0.02",
    }
    EXPERIMENTAL = frozenset({"near_best_nodes", "reservation_ttl_s", "skip_s"})

    mode: Mode = Mode.DECISIVE
    """`decisive`: filter returns the best node. `scores`: filter returns all nodes that fit, prioritize ranks them."""
    policy: str = AUTO
    """Ranking policy for pods that choose none with `kerf.dev/policy`. `auto`: `kerf` if a model serves all pods
    (`model.mode`), as by default, or `fgd` or `tightest` where that is better for the pods that were seen; without a
    model `tightest`."""
    near_best_nodes: int = Field(default=16, ge=1)
    """Decisive mode: number of best nodes offered to a pod with soft preferences of its own, such as preferred
    affinity, and to pods without GPUs."""
    rank_cpu_pods: bool = True
    """Also rank GPU nodes for pods without GPUs, by their cost to GPU pods, when no other node has room."""
    reservation_ttl_s: float = Field(default=30.0, gt=0)
    """How long GPUs stay reserved between decision and binding, in seconds."""
    skip_s: float = Field(default=0.0, ge=0)
    """Longest time a pod is left pending so that it does not take the only room of a larger waiting pod, in seconds; 0:
    never. A share that wastes GPU capacity, by the learned rank's prices, yields to any waiting pod."""
    explain_after_s: float = Field(default=60.0, ge=0)
    """A pod pending for this many seconds gets the reason in the annotation `kerf.dev/explanation`; 0: never."""

    typical_pods: list[TypicalPodSettings] = Field(default_factory=list)
    """Expected mix of pods, for policy `fgd`, and for `kerf` until it has seen real ones; empty: that of a public
    production trace."""

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        if name not in POLICIES:
            fault = registry.faults.get(name, "no policy of that name")
            raise ValueError(f"{fault}; use one of {names(POLICIES)}")
        return name


class ModelSettings(Section):
    """GPU models."""

    aliases: dict[str, list[str]] = {}
    """Names that pods may request, each with the GPU models it stands for: `big: [H100-80GB-HBM3]`."""
