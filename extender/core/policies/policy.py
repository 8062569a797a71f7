"""What a policy is: a way to rank the nodes that a pod fits."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.occupancies import ObservedRules
from extender.core.policies.breakdowns import BreakdownOf
from extender.core.resources.requests import GpuRequest, PodRequest

Score = Callable[[Cluster, GpuRequest, Rows, Fit], Floats]
"""(cluster, request, (R,) rows, their fit) to (R,) how good each is: higher is better, in units of its own.

It sees each row's own state alone, so that its value can be remembered until the row changes, and what `context` says.
"""
Share = Callable[[Cluster, GpuRequest, int, Mask], int]
"""(cluster, request, row, (G,) room) to the GPU that a share is taken from."""
Terms = Callable[[Cluster, GpuRequest, int], Mapping[str, Any]]
"""(cluster as the policy counts it, request, row that fits) to what its score is made of, for people."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to rank nodes that fit."""

    name: str
    score: Score
    description: str
    spreads: bool = False
    """Whether a share goes on the emptiest GPU of its node instead of the one it fills best."""
    rules: ObservedRules | None = None
    """How fit counts what is observed; None: only bookings count."""
    context: Callable[[Cluster], Hashable] | None = None
    """What the score of every row depends on besides the row itself, such as sums over the cluster."""
    share: Share | None = None
    """How the GPU for a share is chosen, where it is neither of these."""
    weighs_cpu: bool = False
    """Whether the score depends on the pod's CPU: requests that differ in it are then different classes."""
    terms: Terms | None = None
    """What the score of one row is made of, where that is more than its parts."""
    breakdown: BreakdownOf | None = None
    """The parts that add up to the score; None where the score is one number."""
    apart: Callable[[], "Policy"] | None = None
    """The same ranking for another thread and another line of snapshots; None where any may use this one."""
    weighs_memory: bool = False
    """Whether it depends on the pod's main memory, likewise."""
    without_gpus: bool = False
    """Whether it ranks pods that ask for no GPU too (`AskedUnit.NONE`): by what they cost those who do."""
    by_state: bool = False
    """Whether rows with equal columns have equal scores while nobody samples, as long as `context` is the same: then
    the score of one is remembered for the others. A name, a UUID or the number of the row must not count."""
    renamed: str = ""
    """Its new name, where this is an old one that goes with the next version."""

    def asked(self, request: PodRequest) -> GpuRequest | None:
        """The GPU request of a pod, as this policy tells requests apart."""
        if request.gpus is None or not (self.weighs_cpu or self.weighs_memory):
            return request.gpus
        return replace(
            request.gpus,
            cpu_milli=request.cpu_milli if self.weighs_cpu else 0,
            memory_mib=request.memory_mib if self.weighs_memory else 0,
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """A class of pods that is expected to come."""

    cpu_milli: int
    gpus: int
    gpu_milli: int
    count: int
    models: tuple[str, ...] = ()
    """Product names; () for any."""
    memory_mib: int = 0
    """Main memory, 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a deployment says about its policies; a policy takes what concerns it."""

    rules: ObservedRules = field(default_factory=ObservedRules)
    """How fit counts what is observed, where a policy goes by it."""
    expected: Sequence[Expected] = ()
    """The pods that are expected; () for those of a public trace."""


Make = Callable[[Options], Policy]
"""What the file of a policy is for: the policy as a deployment wants it."""
