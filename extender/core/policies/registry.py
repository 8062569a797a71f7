"""Policies by name: a deployment chooses one in its settings, a pod by the annotation `kerf.dev/policy`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from extender.core.policies import alnair, binpack, fgd, genius, installed, kerf, live, spread, tightest
from extender.core.policies.policy import Make, Options, Policy

BUILT_IN: Final[tuple[Make, ...]] = (
    tightest.policy,
    binpack.policy,
    spread.policy,
    live.policy,
    genius.policy,
    alnair.policy,
    fgd.policy,
    kerf.policy,
)
"""A line for each file."""
_RENAMED: Final = {"bestfit": "tightest"}
"""Old names that go on working until the next version: in the simulator they mean a published formula."""
AUTO: Final = "auto"
"""Name of whatever is the deployment's when it chooses none: `kerf` where a model is served to all, or
what is better there; else `tightest`."""
CANDIDATE: Final = "kerf-candidate"
"""Name of a model on trial, which comes and goes: pods are drawn for it, and none may choose it."""


def policies_of(options: Options) -> dict[str, Policy]:
    """All policies by name, those of other packages too, as a deployment wants them."""
    found = {policy.name: policy for policy in (make(options) for make in BUILT_IN)}
    found |= {name: policy for name, policy in installed.made(options).items() if name not in found}
    old = {name: replace(found[new], name=name, renamed=new) for name, new in _RENAMED.items()}
    return found | {AUTO: found[kerf.HEURISTIC]} | old


DEFAULTS: Final = Options()
POLICIES: Final = policies_of(DEFAULTS)
"""As nobody configured them; those of other packages are among them once `load_installed` was called."""


def load_installed() -> None:
    """Load the policies of other packages. What is wrong with one is in `installed.faults`, and costs that one only."""
    installed.load(tuple(POLICIES))
    for name, policy in installed.made(DEFAULTS).items():
        POLICIES.setdefault(name, policy)


def names(policies: Mapping[str, Policy]) -> str:
    """The names to choose from, for a sentence."""
    return ", ".join(name for name, policy in policies.items() if not policy.renamed and name != CANDIDATE)


def renamed(policy: Policy) -> str:
    """A sentence for whoever goes on using an old name, "" for a name that stays."""
    if not policy.renamed:
        return ""
    return f"policy {policy.name} is now called {policy.renamed}; the old name will be removed in the next version"
