"""Parts: optional capabilities. Kerf's own are folders of `extender/parts`, listed there; other packages add theirs by
the entry point group `kerf.parts` (`NAME = "package.settings:PART"`).

Of a disabled part only the module with its settings and rights is imported, which imports nothing else of the part.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from extender import parts
from extender.core.entry_points import Installed
from extender.kube.rights import Rights
from extender.settings.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Description of a part, enabled or not."""

    name: str
    """Name of its folder and of its section of the settings."""
    settings: type[Section]
    wanted: Callable[[Any], bool]
    """Whether its section enables it."""
    module: str
    """Imported if enabled; its `build(kernel, settings)` returns a `Contribution`."""
    alone: Callable[[Any], bool] = lambda settings: False
    """Whether its section makes it the only thing served, besides probes and metrics: Kerf then watches nodes only,
    decides nothing, and has no other parts but those with `beside_one_alone`."""
    beside_one_alone: bool = False
    """Whether it also runs beside a part that is served alone."""
    allocates: Callable[[Any], bool] = lambda settings: False
    """Whether its section makes it allocate devices of DRA drivers, so that the ledger tracks them."""
    early: bool = False
    """Whether its module also has `prepare(base, settings, max_age_s)`, which returns its `Contribution.offers` while
    the kernel is built; `max_age_s` is `cluster.max_age_s`."""
    lacks: Callable[[Any], str] = lambda settings: ""
    """Returns an unmet requirement of the part in all settings, "" for none."""
    rights: tuple[Rights, ...] = ()
    """RBAC rights of the enabled part, beyond those of the kernel."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New dotted names of settings by their old ones, which work for one more version."""
    makes: tuple[str, ...] = ()
    """Its settings that name files or folders which it creates itself."""
    off: Mapping[str, str] = field(default_factory=dict)
    """404 responses of its paths while it is disabled: why, and how to enable it."""


_INSTALLED: Final = Installed("kerf.parts", "part")


faults: Final = _INSTALLED.faults
"""Why parts of other packages could not be loaded, by name."""


def known(sections: Collection[str]) -> tuple[Part, ...]:
    """Return all parts; those of other packages may not have the name of one of the kernel's `sections`."""
    modules = (f"{parts.__name__}.{name}.settings" for name in parts.NAMES)
    own = (importlib.import_module(module).PART for module in modules if find_spec(module) is not None)
    _INSTALLED.load([*parts.NAMES, *sections])
    for name, part in list(_INSTALLED.found.items()):
        if not isinstance(part, Part) or part.name != name:
            why = f"it is not a Part of that name but {part!r:.80}"
        elif not name.isidentifier():
            why = "its name is not valid for a section of the settings"
        else:
            continue
        del _INSTALLED.found[name]
        faults[name] = f"part {name} could not be loaded: {why}"
    return (*own, *_INSTALLED.found.values())
