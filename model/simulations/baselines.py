"""The policies that can be simulated, by name: the service's, those of other packages, and what is compared with."""

from dataclasses import dataclass
from typing import Final

from extender.core.policies import registry
from extender.core.policies.policy import Policy
from model.engine.ranks import Rank, Tie
from model.policies import alike, bestfit, kube_default


@dataclass(frozen=True)
class Baseline:
    """A policy, which of the nodes it ranks highest is taken, and its compiled twin."""

    policy: Policy
    """`fgd` goes by the mix of the trace instead of its own."""
    tie: Tie = Tie.FIRST
    rank: Rank | None = None
    """None where there is no twin: the service's own functions decide, which is slower."""

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name


def _listed() -> dict[str, Baseline]:
    own = registry.POLICIES
    with_twins = {
        "fgd": Baseline(own["fgd"], rank=Rank.FGD),
        "bestfit": Baseline(bestfit.POLICY, rank=Rank.BESTFIT),
        "tightest": Baseline(own["tightest"], rank=Rank.TIGHTEST),
        "binpack": Baseline(own["binpack"], rank=Rank.BINPACK),
        "spread": Baseline(own["spread"], rank=Rank.SPREAD),
        "round-robin": Baseline(alike.ROUND_ROBIN, Tie.NEXT, Rank.NONE),
        "random": Baseline(alike.RANDOM, Tie.RANDOM, Rank.NONE),
        "genius": Baseline(own["genius"], rank=Rank.LISTED),
        "kube-default": Baseline(kube_default.POLICY, Tie.SAMPLED, Rank.KUBE),
    }
    others = [make(registry.DEFAULTS) for make in registry.BUILT_IN]
    without = (*with_twins, "kerf")  # that one needs a model
    return with_twins | {policy.name: Baseline(policy) for policy in others if policy.name not in without}


BASELINES: Final = _listed()
POOL: Final = Baseline(Policy("pool", alike.score, "GPU and CPU of all nodes in one, by model"), rank=Rank.NONE)
"""A bound to compare with where pods depart, and nothing to be served: `model.engine.pools`."""


class UnknownPolicyError(ValueError):
    """A name that no policy has."""


def baseline(name: str) -> Baseline:
    """A policy by name. Raises UnknownPolicyError that lists them, or says why it could not be loaded."""
    if name in BASELINES:
        return BASELINES[name]
    registry.load_installed()
    others = registry.made(registry.DEFAULTS)
    if name in others:
        return Baseline(others[name])
    fault = registry.faults.get(name, f"no policy {name!r}")
    raise UnknownPolicyError(f"{fault}; there are {', '.join([*BASELINES, *others])}")
