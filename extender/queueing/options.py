"""The queue's options and counters."""

from dataclasses import dataclass, field, fields
from typing import Self

from extender.core.orders import HELD_MOST_S, Order
from extender.planning.plan_state import DEFAULT_POLICY
from extender.planning.quotas import Quotas
from extender.settings.decisions import DecisionSettings
from extender.settings.queue import QueueSettings


@dataclass(frozen=True, slots=True)
class Options:
    """The queue's options; times in seconds."""

    planner: str = "greedy"
    policy: str = DEFAULT_POLICY
    rank_cpu_pods: bool = True
    """Whether pods without GPUs go where GPU pods lose least."""
    order: Order = Order.KERF
    held_most_s: float = HELD_MOST_S
    ageing_s: float = 3600.0
    interval_s: float = 0.05
    retry_s: float = 5.0
    batch_pods: int = 500
    max_open: int = 256
    reserve_frac: float = 0.0
    reserve_after_s: float = 10.0
    skip_s: float = 3600.0
    patience_s: float = 0.0
    fail_open_s: float = 0.0
    gang_timeout_s: float = 0.0
    gangs_end_whole: bool = True
    fair_share: bool = False
    quotas: Quotas = field(default_factory=Quotas)

    @classmethod
    def of(cls, settings: QueueSettings, decisions: DecisionSettings) -> Self:
        """Return the options from the settings."""
        given = {name: getattr(settings, name) for item in fields(cls) if hasattr(settings, name := item.name)}
        decided = {"policy": decisions.policy, "rank_cpu_pods": decisions.rank_cpu_pods}
        return cls(**given | decided | {"quotas": Quotas(settings.quotas, settings.weights)})


@dataclass
class Counts:
    """Counters since the start."""

    rounds: int = 0
    opened: int = 0
    honoured: int = 0
    """Released pods that got their nominated node."""
    fallbacks: int = 0
    """Released pods that were bound elsewhere, deleted, or bound without Kerf."""
    nominated_anew: int = 0
    """Repeated nominations of released pods that had lost their nodes."""
    failed_open: int = 0
    outdated: int = 0
    """Planned pods that had changed or no longer fitted at release."""
    reassigned: int = 0
    """Pods that were bound elsewhere and assigned GPUs there."""
    unassigned: int = 0
    """Pods that were bound elsewhere, where no GPUs were free."""
    errors: int = 0
    round_s: float = 0.0
    """Seconds that planning the last round took."""
