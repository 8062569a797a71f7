"""Making room for what waits, by moving pods."""

from pydantic import Field

from extender.settings.section import Section


class DefragSettings(Section):
    """Making room: see docs/guides/making-room.md. Needs queue.enabled."""

    record: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*)?$")
    """NAMESPACE/NAME of the ConfigMap in which the moves under way are written down, so that nothing is lost when Kerf
    restarts. Empty: plans are made, and no pod is moved."""
    exempt_namespaces: list[str] = ["kube-system"]
    """Namespaces whose pods are never moved."""
    restart_s: float = Field(default=60.0, ge=0)
    """Seconds until a pod that was moved works again: they count as lost beside its work since its start, or since its
    last checkpoint (annotation kerf.dev/last-checkpoint)."""
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
