"""Settings of making room."""

from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from extender.kube.rights import Need, Rights
from extender.planning.windows import window_of
from extender.settings.parts import Part
from extender.settings.section import Initiative, Section


class DefragSettings(Section):
    """Making room: see docs/guides/making-room.md. Plans and advice need no queue; moving pods needs queue.enabled."""

    EXPERIMENTAL = frozenset(
        {"replace_s", "start_s", "target_s", "budget_s", "every_s", "free_nodes", "heal", "sick_s"}
    )

    enabled: bool = True
    """Whether Kerf plans moves on request, and makes them if the other settings say so."""
    record: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """NAMESPACE/NAME of the ConfigMap that records the moves under way, so that nothing is lost when Kerf restarts.
    Empty: Kerf makes plans, but moves no pod."""
    exempt_namespaces: list[str] = ["kube-system"]
    """Namespaces whose pods are never moved."""
    restart_s: float = Field(default=60.0, ge=0)
    """Seconds until a moved pod works again. They count as lost, beside its work since its start or its last checkpoint
    (annotation kerf.dev/last-checkpoint). If running pods of its owner show how long they took from scheduled to ready,
    their median counts instead: at least a quarter of this, and without those above 16 times this."""
    moves_an_hour: int = Field(default=60, ge=1)
    """Most pods moved per hour."""
    replace_s: float = Field(default=600.0, gt=0)
    """Seconds for an evicted pod to end, and again for its replacement to appear in the queue. Its new place is kept
    meanwhile."""
    start_s: float = Field(default=600.0, gt=0)
    """Seconds for the replacement to be running, and ready if it has a readiness probe."""
    target_s: float = Field(default=300.0, gt=0)
    """Seconds for which nodes are kept for the pods that room was made for, after the last move."""
    budget_s: float = Field(default=60.0, ge=0)
    """Seconds for which an eviction refused by a PodDisruptionBudget is retried."""
    mode: Initiative = Initiative.OFF
    """`advise`: Kerf regularly searches for moves that let waiting pods start, and reports those that pay. `act`: it
    makes them; needs defrag.record and queue.enabled. `off`: it only answers questions."""
    every_s: float = Field(default=300.0, ge=1)
    """Seconds between two searches."""
    after_s: float = Field(default=600.0, ge=0)
    """Seconds that a pod or gang waits before moves are searched for it."""
    least_gain: float = Field(default=2.0, ge=0)
    """GPU-seconds that moves must gain for each one lost. The gain is the target's GPUs times its wait so far, at most
    a day; for an emptied node its GPUs times an hour."""
    windows: list[str] = []
    """When `act` may move pods: `["Mon-Fri 22:00-06:00 Europe/Berlin", "Sat,Sun 00:00-24:00"]`. Without days: every
    day; without a time zone: UTC. Outside the windows `act` works like `advise`. Empty: always."""
    rest_s: float = Field(default=3600.0, ge=0)
    """Pods that have run for fewer seconds are left alone by `advise` and `act`, so that none is moved repeatedly."""
    free_nodes: int = Field(default=0, ge=0, le=1000)
    """While nothing waits for GPUs, up to this many GPU nodes are emptied for an autoscaler to remove, if that pays.
    0: none."""
    heal: bool = False
    """Whether pods are also moved off unhealthy GPUs, at any cost."""
    sick_s: float = Field(default=300.0, ge=0)
    """Seconds for which a GPU has to be unhealthy without a break before `heal` moves pods off it."""

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: list[str]) -> list[str]:
        for window in windows:
            window_of(window)
        return windows

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if self.mode is Initiative.ACT and not self.record:
            raise ValueError("mode: act needs record, the ConfigMap that records the moves under way")
        return self


def _lacking(settings: Any) -> str:
    lacks_queue = settings.defrag.mode is Initiative.ACT and not settings.queue.enabled
    return "mode: act needs queue.enabled: moved pods wait in the queue for their new places" if lacks_queue else ""


_OFF: Final = "making room is off (setting defrag.enabled)"

PART: Final = Part(
    name="defrag",
    settings=DefragSettings,
    wanted=lambda defrag: defrag.enabled,
    module="extender.parts.defrag.part",
    lacks=_lacking,
    rights=(
        Rights(
            capability="making room",
            manifest="manifests/rbac.yaml",
            needs=(
                Need(
                    "policy",
                    "poddisruptionbudgets",
                    ("list",),
                    "Kerf can't plan how to make room (kerf defrag)",
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
