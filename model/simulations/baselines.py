"""Policies of the simulator by name: the service's, those of other packages, and baselines."""

from dataclasses import dataclass
from typing import Final

from extender.core.policies import registry
from extender.core.policies.policy import Policy
from model.engine.ranks import Rank, Tie
from model.policies import alike, bestfit, kube_default


@dataclass(frozen=True)
class Baseline:
    """A policy, its tie-break, and its compiled equivalent."""

    policy: Policy
    """`fgd` uses the mix of the trace instead of its own."""
    tie: Tie = Tie.FIRST
    rank: Rank | None = None
    """Code of the compiled score; None: the service's own functions decide, which is slower."""

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self.policy.name


def _listed() -> dict[str, Baseline]:
    own = registry.POLICIES
    compiled = {
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
    without = (*compiled, "kerf")  # kerf needs a model
    return compiled | {policy.name: Baseline(policy) for policy in others if policy.name not in without}


BASELINES: Final = _listed()
POOL: Final = Baseline(Policy("pool", alike.score, "GPU and CPU of all nodes in one, by model"), rank=Rank.NONE)
"""An upper bound for simulations with departures (`model.engine.pools`); it can't be served."""


class UnknownPolicyError(ValueError):
    """An unknown policy name."""


def baseline(name: str) -> Baseline:
    """Return a policy by name. Raises UnknownPolicyError with the known names, or why the policy failed to load."""
    if name in BASELINES:
        return BASELINES[name]
    registry.load_installed()
    others = registry.made(registry.DEFAULTS)
    if name in others:
        return Baseline(others[name])
    fault = registry.faults.get(name, f"no policy {name!r}")
    raise UnknownPolicyError(f"{fault}; there are {', '.join([*BASELINES, *others])}")
