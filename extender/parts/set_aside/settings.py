"""When pods have failed often enough on a node, and what is done about that."""

from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Initiative, Section


class SetAsideSettings(Section):
    """Nodes on which GPU pods of several namespaces fail soon after their start; see
    docs/guides/operations.md#nodes-on-which-pods-fail."""

    GONE = {
        "early_s": "always 60",
        "failures": "always 5, or set_aside.namespaces where that is more",
        "window_s": "always 600",
        "max_for_s": "always a day, or set_aside.for_s where that is more",
    }
    EXPERIMENTAL = frozenset({"mode", "namespaces", "max_frac", "for_s"})

    mode: Initiative = Initiative.ADVISE
    """`off`: nothing is looked at. `advise`: metrics, events and `kerf top` name such nodes. `act`: they take no new
    GPU pods for a while."""
    namespaces: int = Field(default=3, ge=1, le=100)
    """Namespaces that the pods must be of which failed on a node within a minute of their start, five of them in ten
    minutes, or as many as these namespaces; fewer than 3 only where tenants trust each other."""
    max_frac: float = Field(default=0.05, ge=0, le=0.5)
    """Most nodes that are set aside at a time, as a fraction of those with GPUs; one at least where there are
    several."""
    for_s: float = Field(default=1800.0, ge=1)
    """Time for which a node is set aside, in seconds; twice as long each time in a row, a day at most unless this is
    more."""


PART: Final = Part(
    name="set_aside",
    settings=SetAsideSettings,
    wanted=lambda set_aside: set_aside.mode is not Initiative.OFF,
    module="extender.parts.set_aside.part",
)
