"""Policies by name: a deployment chooses one in its settings, a pod by the annotation `kerf.dev/policy`."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from extender.core import scores
from extender.core.alnair import AlnairScore
from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fits import Fit
from extender.core.genius import GeniusScore, GeniusWeights
from extender.core.learned import LearnedScore
from extender.core.live import LiveScore, LiveWeights
from extender.core.occupancies import ObservedRules, counting_observed
from extender.core.requests import GpuRequest, PodRequest
from extender.core.typical import DEFAULT_MIX, Expected, FragmentScore

Score = Callable[[Cluster, GpuRequest, Rows, Fit], Floats]
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
    """What the score of one row is made of."""
    apart: Callable[[], "Policy"] | None = None
    """The same ranking for another thread and another line of snapshots; None where any may use this one."""
    weighs_memory: bool = False
    """Whether it depends on the pod's main memory, likewise."""

    def asked(self, request: PodRequest) -> GpuRequest | None:
        """The GPU request of a pod, as this policy tells requests apart."""
        if request.gpus is None or not (self.weighs_cpu or self.weighs_memory):
            return request.gpus
        return replace(
            request.gpus,
            cpu_milli=request.cpu_milli if self.weighs_cpu else 0,
            memory_mib=request.memory_mib if self.weighs_memory else 0,
        )


POLICIES: Final[dict[str, Policy]] = {}


def register(name: str, score: Score, description: str, *, spreads: bool = False) -> None:
    """Make a policy known by its name. Raises ValueError when the name is taken."""
    if name in POLICIES:
        raise ValueError(f"a policy named {name!r} is registered already")
    POLICIES[name] = Policy(name, score, description, spreads)


register(
    "bestfit", scores.best_fit, "fewest free GPUs left on the node, then the smallest GPUs; fullest GPU for a share"
)
register("binpack", scores.binpack, "fullest node first, by fraction of its GPUs")
register("spread", scores.spread, "emptiest node first, by fraction of its GPUs", spreads=True)


def observing(
    live: LiveWeights | None = None,
    genius: GeniusWeights | None = None,
    rules: ObservedRules | None = None,
) -> list[Policy]:
    """The policies that rank by what GPUs are really doing, with weights and rules of a deployment's own."""
    counted = rules or ObservedRules()

    def by_live() -> Policy:
        score = LiveScore(live, counted.xids)
        description = "most headroom by what GPUs are really doing"
        return Policy("live", score, description, rules=counted, context=score.context, apart=by_live)

    def by_genius() -> Policy:
        score = GeniusScore(genius)
        description = "Genius' static and dynamic score"
        return Policy("genius", score, description, rules=counted, context=score.context, apart=by_genius)

    def by_alnair() -> Policy:
        score = AlnairScore()
        description = "Alnair's utilisation score: large and full nodes first"
        return Policy("alnair", score, description, rules=counted, context=score.context, apart=by_alnair)

    return [by_live(), by_genius(), by_alnair()]


POLICIES.update({policy.name: policy for policy in observing()})


def fgd(mix: Sequence[Expected] = DEFAULT_MIX) -> Policy:
    """Fragmentation gradient descent against a mix of pods that are expected."""
    score = FragmentScore(mix)
    description = "fewest new fragments for the pods that are expected (decisions.typical_pods)"
    return Policy("fgd", score, description, share=score.share, weighs_cpu=True, apart=lambda: fgd(mix))


POLICIES["fgd"] = fgd()


def kerf(score: LearnedScore, rules: ObservedRules | None = None) -> Policy:
    """The learned rank with a model and an outlook, or without."""
    return Policy(
        "kerf",
        score,
        "most learned value left behind, and most headroom by what GPUs are really doing; best fit without a model",
        rules=rules,
        context=score.context,
        share=score.share,
        weighs_cpu=True,
        weighs_memory=True,
        terms=lambda cluster, request, row: score.told(counting_observed(cluster, rules), request, row),
        apart=lambda: kerf(score.apart(), rules),
    )


POLICIES["kerf"] = kerf(LearnedScore())
AUTO: Final = "auto"
"""Name of whatever is the deployment's when it chooses none: `kerf` where a model is served to all, else best fit."""
POLICIES[AUTO] = POLICIES["bestfit"]
