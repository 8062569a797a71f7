"""How room is made, and by whose initiative."""

from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from extender.kube.rights import Need, Rights
from extender.planning.windows import window_of
from extender.settings.parts import Part
from extender.settings.section import Initiative, Section


class DefragSettings(Section):
    """Making room: see docs/guides/making-room.md. Needs queue.enabled."""

    EXPERIMENTAL = frozenset(
        {"replace_s", "start_s", "target_s", "budget_s", "every_s", "free_nodes", "heal", "sick_s"}
    )

    enabled: bool = True
    """Whether moves are worked out for those who ask, and made where the other settings say so."""
    record: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """NAMESPACE/NAME of the ConfigMap in which the moves under way are written down, so that nothing is lost when Kerf
    restarts. Empty: plans are made, and no pod is moved."""
    exempt_namespaces: list[str] = ["kube-system"]
    """Namespaces whose pods are never moved."""
    restart_s: float = Field(default=60.0, ge=0)
    """Seconds until a pod that was moved works again: they count as lost beside its work since its start, or since its
    last checkpoint (annotation kerf.dev/last-checkpoint). Meant where the pods of its owner that run don't tell it by
    the time from their node to their being ready, whose median counts from a quarter to 16 times of this."""
    moves_an_hour: int = Field(default=60, ge=1)
    """Most pods moved in an hour."""
    replace_s: float = Field(default=600.0, gt=0)
    """Seconds that an evicted pod has to end, and its replacement to appear in the queue; its next place is kept
    for it meanwhile."""
    start_s: float = Field(default=600.0, gt=0)
    """Seconds that its replacement has to be running, and ready if it has a readiness probe."""
    target_s: float = Field(default=300.0, gt=0)
    """Seconds for which nodes are kept for the pods that room was made for, once all moves are made."""
    budget_s: float = Field(default=60.0, ge=0)
    """Seconds for which an eviction that a PodDisruptionBudget refuses is retried."""
    mode: Initiative = Initiative.OFF
    """`advise`: Kerf looks again and again for moves by which pods that wait would start, and tells of those that pay.
    `act`: it has them made; needs defrag.record. `off`: it only answers questions."""
    every_s: float = Field(default=300.0, ge=1)
    """Seconds between two looks."""
    after_s: float = Field(default=600.0, ge=0)
    """Room is looked for once a pod or gang has waited this many seconds."""
    least_gain: float = Field(default=2.0, ge=0)
    """GPU-seconds that moves have to gain for each that they lose. Gained are the target's GPUs for as long again as it
    has waited, a day at most; of a node that is emptied its GPUs for an hour."""
    windows: list[str] = []
    """When `act` may move pods: `["Mon-Fri 22:00-06:00 Europe/Berlin", "Sat,Sun 00:00-24:00"]`. Without days: every
    day; without a time zone: UTC. Outside of them it is as `advise`. Empty: always."""
    rest_s: float = Field(default=3600.0, ge=0)
    """Pods that have run for less than this many seconds are not moved by `act`: so none is moved again and again."""
    free_nodes: int = Field(default=0, ge=0, le=1000)
    """While nothing waits for GPUs, up to this many GPU nodes are kept without pods, for an autoscaler to take away,
    where that pays. 0: none."""
    heal: bool = False
    """Whether pods on sick GPUs are moved, too, whatever that costs."""
    sick_s: float = Field(default=300.0, ge=0)
    """A GPU has to be sick for this many seconds without a break before `heal` moves pods off it."""

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: list[str]) -> list[str]:
        for window in windows:
            window_of(window)
        return windows

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if self.mode is Initiative.ACT and not self.record:
            raise ValueError("mode: act needs record, the ConfigMap in which moves under way are written down")
        return self


_OFF: Final = "nobody works out how room could be made here (setting defrag.enabled)"

PART: Final = Part(
    name="defrag",
    settings=DefragSettings,
    wanted=lambda defrag: defrag.enabled,
    module="extender.parts.defrag.part",
    rights=(
        Rights(
            who="making room",
            manifest="manifests/rbac.yaml",
            needs=(
                Need(
                    "policy",
                    "poddisruptionbudgets",
                    ("list",),
                    "nobody is told how room could be made (kerf defrag)",
                    of_some=True,
                ),
                Need(
                    "batch", "jobs", ("list",), "pods of Jobs are never moved to make room (kerf defrag)", of_some=True
                ),
            ),
        ),
    ),
    off=dict.fromkeys(("/defrag", "/defrag/apply", "/defrag/stop"), _OFF),
)
