"""Parts: capabilities that can be taken out. Kerf's own are folders of `extender/parts` and lines of the list there;
packages bring theirs by the entry point group `kerf.parts` (`NAME = "package.settings:PART"`).

Of a part that settings turn off nothing is imported but the module that says which settings it has, and which rights
it takes; that one imports nothing else of Kerf.
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
    """What is known of a part whether or not it is wanted."""

    name: str
    """Of its folder, and of its section of the settings."""
    settings: type[Section]
    wanted: Callable[[Any], bool]
    """Whether the settings of its section want it."""
    module: str
    """Imported where it is wanted; its `build(kernel, settings)` returns a `Contribution`."""
    alone: Callable[[Any], bool] = lambda settings: False
    """Whether the settings of its section want it to be all that is served, besides probes and metrics: Kerf then
    watches nodes alone, decides nothing, and has no other parts but those that are `beside_one_alone`."""
    beside_one_alone: bool = False
    """Whether it is wanted also where another part is all that is served."""
    allocates: Callable[[Any], bool] = lambda settings: False
    """Whether the settings of its section have it allocate devices of DRA drivers: the ledger then knows these."""
    early: bool = False
    """Whether its module has a `prepare(base, settings, max_age_s)` too, which returns what it does, as
    `Contribution.offers` has it, for the kernel while that is built; `max_age_s` is `cluster.max_age_s`."""
    lacks: Callable[[Any], str] = lambda settings: ""
    """What all settings together lack for a part that is wanted, "" where it is nothing."""
    rights: tuple[Rights, ...] = ()
    """What it takes of the API server while it is wanted, besides what the kernel does."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Settings by the dotted names that they had, which work for one version more, and those that they have."""
    makes: tuple[str, ...] = ()
    """Settings of its that name files or folders which it makes itself."""
    off: Mapping[str, str] = field(default_factory=dict)
    """What its paths answer with 404 where it is off: why, and how it is turned on."""


_INSTALLED: Final = Installed("kerf.parts", "part")


faults: Final = _INSTALLED.faults
"""Why those of other packages that could not be loaded could not, by name."""


def known(sections: Collection[str]) -> tuple[Part, ...]:
    """Those that there are and have settings; `sections` of these are the kernel's own."""
    modules = (f"{parts.__name__}.{name}.settings" for name in parts.NAMES)
    own = (importlib.import_module(module).PART for module in modules if find_spec(module) is not None)
    _INSTALLED.load([*parts.NAMES, *sections])
    for name, part in list(_INSTALLED.found.items()):
        if not isinstance(part, Part) or part.name != name:
            why = f"it is not a Part of that name but {part!r:.80}"
        elif not name.isidentifier():
            why = "its name has to be one that a section of the settings can have"
        else:
            continue
        del _INSTALLED.found[name]
        faults[name] = f"part {name} could not be loaded: {why}"
    return (*own, *_INSTALLED.found.values())
