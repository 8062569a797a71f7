"""When pods have failed often enough on a node, and what is done about that."""

from typing import Final, Self

from pydantic import Field, model_validator

from extender.settings.parts import Part
from extender.settings.section import Initiative, Section


class SetAsideSettings(Section):
    """Nodes on which GPU pods of several namespaces fail soon after their start; see
    docs/guides/operations.md#nodes-on-which-pods-fail."""

    mode: Initiative = Initiative.ADVISE
    """`off`: nothing is looked at. `advise`: metrics, events and `kerf top` name such nodes. `act`: they take no new
    GPU pods for a while."""
    early_s: float = Field(default=60.0, gt=0, le=3600)
    """A pod that fails within this many seconds of its start counts, and one that runs for longer lives well."""
    failures: int = Field(default=5, ge=1, le=1000)
    """Pods that must have failed on a node, of each namespace no more than its part."""
    namespaces: int = Field(default=3, ge=1, le=100)
    """Namespaces that these pods must be of; fewer than 3 only where tenants trust each other."""
    window_s: float = Field(default=600.0, gt=0)
    """Time in which they must have failed, in seconds."""
    max_frac: float = Field(default=0.05, ge=0, le=0.5)
    """Most nodes that are set aside at a time, as a fraction of those with GPUs; one at least where there are
    several."""
    for_s: float = Field(default=1800.0, ge=1)
    """Time for which a node is set aside, in seconds; twice as long each time in a row."""
    max_for_s: float = Field(default=86400.0, ge=1)
    """Longest such time, in seconds."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.failures < self.namespaces:
            raise ValueError("failures must be at least namespaces: each of these has to have one")
        if self.max_for_s < self.for_s:
            raise ValueError("max_for_s must be at least for_s")
        return self


PART: Final = Part(
    name="set_aside",
    settings=SetAsideSettings,
    wanted=lambda set_aside: set_aside.mode is not Initiative.OFF,
    module="extender.parts.set_aside.part",
)
