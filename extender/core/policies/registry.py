"""Policies by name: a deployment chooses one in its settings, a pod by the annotation `kerf.dev/policy`.

Policies of other packages, by the entry point group `kerf.policies`: `NAME = "package.module:policy"`.

What an entry point names is what the file of a policy here has: a function of `Options` that returns the `Policy` of
that name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from extender.core.entry_points import Installed, told_of
from extender.core.policies import alnair, binpack, fgd, genius, kerf, live, spread, tightest
from extender.core.policies.policy import Make, Options, Policy

_INSTALLED: Final = Installed("kerf.policies", "policy")
_load, forget, faults = _INSTALLED.load, _INSTALLED.forget, _INSTALLED.faults


def made(options: Options) -> dict[str, Policy]:
    """What was loaded, by name, as a deployment wants it."""
    policies: dict[str, Policy] = {}
    for name, make in _INSTALLED.found.items():
        try:
            policy: object = make(options)
            if not isinstance(policy, Policy) or policy.name != name:
                raise TypeError(f"it is not a Policy of that name but {policy!r:.80}")
            policies[name] = policy
        except (Exception, SystemExit) as error:
            faults[name] = f"policy {name} could not be created: {told_of(error)}"
    return policies


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
    found |= {name: policy for name, policy in made(options).items() if name not in found}
    old = {name: replace(found[new], name=name, renamed=new) for name, new in _RENAMED.items()}
    return found | {AUTO: found[kerf.HEURISTIC]} | old


DEFAULTS: Final = Options()
POLICIES: Final = policies_of(DEFAULTS)
"""As nobody configured them; those of other packages are among them once `load_installed` was called."""


def load_installed() -> None:
    """Load the policies of other packages. What is wrong with one is in `faults`, and costs that one only."""
    _load(tuple(POLICIES))
    for name, policy in made(DEFAULTS).items():
        POLICIES.setdefault(name, policy)


def names(policies: Mapping[str, Policy]) -> str:
    """The names to choose from, for a sentence."""
    return ", ".join(name for name, policy in policies.items() if not policy.renamed and name != CANDIDATE)


def renamed(policy: Policy) -> str:
    """A sentence for whoever goes on using an old name, "" for a name that stays."""
    if not policy.renamed:
        return ""
    return f"policy {policy.name} is now called {policy.renamed}; the old name will be removed in the next version"
