"""Policies by name: a deployment chooses one in its settings, a pod by the annotation `kerf.dev/policy`.

Other packages add policies by the entry point group `kerf.policies`: `NAME = "package.module:policy"`, a function that
takes `Options` and returns the `Policy` of that name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from extender.core.entry_points import Installed, describe_error
from extender.core.policies import alnair, binpack, fgd, genius, kerf, live, spread, tightest
from extender.core.policies.policy import Make, Options, Policy

_INSTALLED: Final = Installed("kerf.policies", "policy")
_load, forget, faults = _INSTALLED.load, _INSTALLED.forget, _INSTALLED.faults


def made(options: Options) -> dict[str, Policy]:
    """Policies of other packages by name, created with a deployment's options. Failures go to `faults`."""
    policies: dict[str, Policy] = {}
    for name, make in _INSTALLED.found.items():
        try:
            policy: object = make(options)
            if not isinstance(policy, Policy) or policy.name != name:
                raise TypeError(f"it is not a Policy of that name but {policy!r:.80}")
            policies[name] = policy
        except (Exception, SystemExit) as error:
            faults[name] = f"policy {name} could not be created: {describe_error(error)}"
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
_RENAMED: Final = {"bestfit": "tightest"}
"""Deprecated names, removed in the next version: in the simulator they mean a published formula."""
AUTO: Final = "auto"
"""Default: `kerf`, `fgd` or `tightest`, whichever is best for the observed pods, if a model serves; else `tightest`."""
CANDIDATE: Final = "kerf-candidate"
"""A model on trial: pods are assigned to it at random and can't choose it."""


def policies_of(options: Options) -> dict[str, Policy]:
    """All policies by name, including those of other packages, created with a deployment's options."""
    policies = {policy.name: policy for policy in (make(options) for make in BUILT_IN)}
    policies |= {name: policy for name, policy in made(options).items() if name not in policies}
    old = {name: replace(policies[new], name=name, renamed=new) for name, new in _RENAMED.items()}
    return policies | {AUTO: policies[kerf.HEURISTIC]} | old


DEFAULTS: Final = Options()
POLICIES: Final = policies_of(DEFAULTS)
"""Policies with default options, including those of other packages after `load_installed`."""


def load_installed() -> None:
    """Load the policies of other packages. Failures go to `faults` and don't affect other policies."""
    _load(tuple(POLICIES))
    for name, policy in made(DEFAULTS).items():
        POLICIES.setdefault(name, policy)


def names(policies: Mapping[str, Policy]) -> str:
    """The names to choose from, comma-separated."""
    return ", ".join(name for name, policy in policies.items() if not policy.renamed and name != CANDIDATE)


def renamed(policy: Policy) -> str:
    """A deprecation warning for an old name, "" for a current one."""
    if not policy.renamed:
        return ""
    return f"policy {policy.name} is now called {policy.renamed}; the old name will be removed in the next version"
