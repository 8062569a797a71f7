"""Policies of other packages, by the entry point group `kerf.policies`: `NAME = "package.module:policy"`.

What an entry point names is what the file of a policy here has: a function of `Options` that returns the `Policy` of
that name.
"""

from typing import Final

from extender.core.entry_points import Installed, told_of
from extender.core.policies.policy import Options, Policy

_INSTALLED: Final = Installed("kerf.policies", "policy")
load, forget, faults = _INSTALLED.load, _INSTALLED.forget, _INSTALLED.faults


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
