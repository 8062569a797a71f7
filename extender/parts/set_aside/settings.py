"""Settings: how many failures quarantine a node, and for how long."""

from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Initiative, Section


class SetAsideSettings(Section):
    """Nodes on which GPU pods of several namespaces fail soon after their start; see
    docs/guides/operations.md#nodes-on-which-pods-fail."""

    GONE = {
        "early_s": "always 60",
        "failures": "always 5, or set_aside.namespaces if that is more",
        "window_s": "always 600",
        "max_for_s": "always a day, or set_aside.for_s if that is more",
    }
    EXPERIMENTAL = frozenset({"mode", "namespaces", "max_frac", "for_s"})

    mode: Initiative = Initiative.ADVISE
    """`off`: Kerf doesn't watch for them. `advise`: metrics, events and `kerf top` name such nodes. `act`: Kerf also
    quarantines them: they take no new GPU pods for a while."""
    namespaces: int = Field(default=3, ge=1, le=100)
    """Namespaces whose pods must have failed on a node within a minute of their start. At least five pods must fail in
    ten minutes, or one for each of these namespaces where that is more. Use fewer than 3 only where tenants trust each
    other."""
    max_frac: float = Field(default=0.05, ge=0, le=0.5)
    """Largest fraction of the GPU nodes that are quarantined at a time; at least one node, if there are several."""
    for_s: float = Field(default=1800.0, ge=1)
    """Quarantine of a node, in seconds. It doubles each time in a row, up to a day or this value if that is longer."""


PART: Final = Part(
    name="set_aside",
    settings=SetAsideSettings,
    wanted=lambda set_aside: set_aside.mode is not Initiative.OFF,
    module="extender.parts.set_aside.part",
)
