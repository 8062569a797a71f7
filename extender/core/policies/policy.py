"""The policy interface: a policy ranks the nodes that a pod fits."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.occupancies import ObservedRules
from extender.core.policies.breakdowns import BreakdownOf
from extender.core.resources.requests import GpuRequest, PodRequest

Score = Callable[[Cluster, GpuRequest, Rows, Fit], Floats]
"""(cluster, request, (R,) rows, their fit) to (R,) scores: higher is better, in the policy's own units.

May depend only on each row's own state and on `context`, so that it can be cached until either changes.
"""
Share = Callable[[Cluster, GpuRequest, int, Mask], int]
"""(cluster, request, row, (G,) room) to the GPU that a share goes on."""
Terms = Callable[[Cluster, GpuRequest, int], Mapping[str, Any]]
"""(cluster, request, row that fits) to the inputs of its score, for display."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to rank nodes that fit."""

    name: str
    score: Score
    description: str
    spreads: bool = False
    """Whether a share goes on the emptiest GPU of its node instead of the one it fills best."""
    rules: ObservedRules | None = None
    """How fit uses observations; None if only bookings count."""
    context: Callable[[Cluster], Hashable] | None = None
    """What all scores depend on besides the row itself, such as sums over the cluster."""
    share: Share | None = None
    """Chooses the GPU for a share; None for the rule of `spreads`."""
    weighs_cpu: bool = False
    """Whether scores depend on the pod's CPU, so that requests that differ in it are different classes."""
    terms: Terms | None = None
    """The inputs of a row's score, where `breakdown` does not show them all."""
    breakdown: BreakdownOf | None = None
    """The parts that add up to the score; None for a single number."""
    apart: Callable[[], "Policy"] | None = None
    """Returns an independent copy for another thread or other snapshots; None if the policy is stateless."""
    weighs_memory: bool = False
    """Whether scores depend on the pod's main memory, likewise."""
    without_gpus: bool = False
    """Whether it also ranks pods without GPUs (`AskedUnit.NONE`), by what they cost GPU pods."""
    by_state: bool = False
    """Whether equal rows have equal scores without telemetry and under the same `context`, so that one row's score can
    be cached for others. Scores must not depend on names, UUIDs or row numbers."""
    renamed: str = ""
    """The new name, where `name` is deprecated and removed in the next version."""

    def weighed_request(self, request: PodRequest) -> GpuRequest | None:
        """The GPU request of a pod, with only the fields that this policy weighs."""
        gpus = request.gpus
        if gpus is None or not (self.weighs_cpu or self.weighs_memory):
            return gpus
        weighed = _weighed.__wrapped__ if gpus.by_identity else _weighed  # it may name thousands of UUIDs
        return weighed(
            gpus, request.cpu_milli if self.weighs_cpu else 0, request.memory_mib if self.weighs_memory else 0
        )


@lru_cache(maxsize=1024)
def _weighed(request: GpuRequest, cpu_milli: int, memory_mib: int) -> GpuRequest:
    """The request of a pod with this CPU and main memory. Equal ones are one object, which is found faster."""
    return replace(request, cpu_milli=cpu_milli, memory_mib=memory_mib)


@dataclass(frozen=True, slots=True)
class Expected:
    """A class of expected pods."""

    cpu_milli: int
    gpus: int
    gpu_milli: int
    count: int
    models: tuple[str, ...] = ()
    """Product names; () for any."""
    memory_mib: int = 0
    """Main memory, 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Options:
    """A deployment's configuration of policies; each policy uses what it needs."""

    rules: ObservedRules = field(default_factory=ObservedRules)
    """How fit uses observations, for policies based on telemetry."""
    expected: Sequence[Expected] = ()
    """Expected pods; () for those of a public trace."""


Make = Callable[[Options], Policy]
"""Creates a policy: the function `policy` of each policy's module."""
