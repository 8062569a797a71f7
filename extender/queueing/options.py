"""How the queue works, and what it has done."""

from dataclasses import dataclass, field, fields
from typing import Self

from extender.core.orders import HELD_MOST_S, Order
from extender.planning.plan_state import DEFAULT_POLICY
from extender.planning.quotas import Quotas
from extender.settings.decisions import DecisionSettings
from extender.settings.queue import QueueSettings


@dataclass(frozen=True, slots=True)
class Options:
    """How the queue works; times in seconds."""

    planner: str = "greedy"
    policy: str = DEFAULT_POLICY
    rank_cpu_pods: bool = True
    """Whether pods without GPUs go where those who ask for GPUs lose least."""
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
        """As the settings want it."""
        given = {name: getattr(settings, name) for item in fields(cls) if hasattr(settings, name := item.name)}
        decided = {"policy": decisions.policy, "rank_cpu_pods": decisions.rank_cpu_pods}
        return cls(**given | decided | {"quotas": Quotas(settings.quotas, settings.weights)})


@dataclass
class Counts:
    """What has happened since the start."""

    rounds: int = 0
    opened: int = 0
    honoured: int = 0
    """Pods that Kerf bound, or was binding, to the node nominated."""
    fallbacks: int = 0
    """Pods let go that went another way: another node, deleted, bound past Kerf."""
    nominated_anew: int = 0
    """Nominations of pods let go whose node was not to be had."""
    failed_open: int = 0
    outdated: int = 0
    """Pods that no longer fitted their node at release."""
    reassigned: int = 0
    """Pods that kube-scheduler placed elsewhere, and that were given GPUs there."""
    unassigned: int = 0
    """Those for which none were free there."""
    errors: int = 0
    round_s: float = 0.0
    """How long the last round took to plan."""
