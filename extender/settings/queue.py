"""The pending queue."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from extender.core.orders import Order
from extender.planning.planners import PLANNERS
from extender.settings.section import Section


class QueueSettings(Section):
    """The pending queue, for pods that opt in: see docs/guides/queueing.md."""

    GONE = {
        "held_most_s": "always a year",
        "reserve_frac": "always 0",
        "batch_pods": "always 500",
        "release_limit_s": "always 900",
    }
    EXPERIMENTAL = frozenset({"planner", "patience_s"})

    enabled: bool = False
    """Whether pods behind the gate `kerf.dev/queue` are ordered, planned and released."""
    extender: bool = True
    """Whether kube-scheduler calls Kerf. `false`, where it can't be configured: Kerf nominates a node for queued pods
    and writes their GPUs on them, and kube-scheduler binds them by itself: see docs/guides/managed-clusters.md."""
    planner: str = "greedy"
    """`greedy`, `genetic`, `q-learning` or `exact`. Plans of the last three are used only if they place more of a batch
    than greedy."""
    order: Order = Order.KERF
    """Order within a priority. `kerf`: least expected GPU time first, estimated from earlier pods of the same kind.
    `fifo`: first come, first served."""
    ageing_s: float = Field(default=3600.0, ge=0)
    """Every this many seconds of waiting raise a pod's priority by one; in the order `kerf`, waiting beyond what the
    order itself adds. 0: never."""
    fair_share: bool = False
    """Within a priority, the namespace with the fewest GPUs in use relative to its weight goes first."""
    quotas: dict[str, float] = {}
    """GPUs that pods of a namespace may hold at once: `{team-a: 16, "*": 4}`. Pods beyond that wait."""
    weights: dict[str, float] = {}
    """Weights of namespaces for fair share; 1 if not listed."""
    reserve_after_s: float = Field(default=10.0, ge=0)
    """Once the first pod in the queue has waited this many seconds without room, nodes are kept for it."""
    skip_s: float = Field(default=3600.0, ge=0)
    """A pod kept off such a node for this many seconds, although it would fit, may use it. Once other pods have been
    kept off for that long, nodes are kept for the next pod instead, for as long."""
    patience_s: float = Field(default=0.0, ge=0)
    """A share that wastes GPU capacity, by the learned rank's prices, yields to pods of the same priority that arrive
    up to this many seconds after it; 0: never."""
    max_open: int = Field(default=256, ge=1)
    """Most pods released, or being released, that have no node yet; shared among namespaces, which take turns if there
    are more of them."""
    fail_open_s: float = Field(default=0.0, ge=0)
    """The gate of a pod that has waited this many seconds is opened regardless; 0: never."""
    gang_timeout_s: float = Field(default=0.0, ge=0)
    """The remaining pods of a released gang that has been incomplete for this many seconds are evicted; 0: never."""
    gangs_end_whole: bool = True
    """Whether a gang that has lost a pod to preemption, and has fewer than its size left, ends as a whole, and counts
    as one victim of preemption."""

    @field_validator("planner")
    @classmethod
    def _known_planner(cls, name: str) -> str:
        if name not in PLANNERS:
            raise ValueError(f"no planner of that name; use one of {', '.join(PLANNERS)}")
        return name

    @model_validator(mode="after")
    def _served(self) -> Self:
        if not self.extender and not self.enabled:
            raise ValueError("extender: false needs enabled: true, since Kerf would otherwise decide nothing")
        return self
