"""Policies of other packages, by the entry point group `kerf.policies`: `NAME = "package.module:policy"`.

What an entry point names is what the file of a policy here has: a function of `Options` that returns the `Policy` of
that name. This is the one place of the core that looks at what is installed.
"""

from importlib.metadata import entry_points
from typing import Final

from extender.core.policies.policy import Make, Options, Policy

_GROUP: Final = "kerf.policies"

_found: Final[dict[str, Make]] = {}
faults: Final[dict[str, str]] = {}
"""Why each policy that could not be loaded could not, in a sentence, by name."""


def load(taken: tuple[str, ...]) -> None:
    """Load what is installed by now; `taken` are the names of Kerf's own."""
    for entry in entry_points(group=_GROUP):
        if entry.name in _found:
            continue
        try:
            if entry.name in taken:
                raise ValueError("Kerf already has a policy of that name")
            _found[entry.name] = entry.load()
            faults.pop(entry.name, None)
        except (Exception, SystemExit) as error:  # whatever it is, it costs that policy only
            package = entry.dist.name if entry.dist else entry.value
            faults[entry.name] = f"policy {entry.name} of package {package} could not be loaded: {_told(error)}"


def forget() -> None:
    """As before `load`."""
    _found.clear()
    faults.clear()


def made(options: Options) -> dict[str, Policy]:
    """What was loaded, by name, as a deployment wants it."""
    policies: dict[str, Policy] = {}
    for name, make in _found.items():
        try:
            policy: object = make(options)
            if not isinstance(policy, Policy) or policy.name != name:
                raise TypeError(f"it is not a Policy of that name but {policy!r:.80}")
            policies[name] = policy
        except (Exception, SystemExit) as error:
            faults[name] = f"policy {name} could not be created: {_told(error)}"
    return policies


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
