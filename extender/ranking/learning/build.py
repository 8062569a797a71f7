"""What looks at the learned rank from beside it, as the settings want it."""

import time

from extender.core.clusters import Cluster
from extender.core.policies.registry import AUTO
from extender.ranking.evidence import Evidence
from extender.ranking.learning.controller import Around, Learning
from extender.ranking.learning.shelf import LearnedModels
from extender.ranking.service import LearnedRank
from extender.ranking.shadow import Shadow
from extender.scheduling.build import Foundation
from extender.settings.ranking import ModelMode
from extender.settings.tree import Settings


def build_beside(
    settings: Settings, base: Foundation, rank: LearnedRank
) -> tuple[Shadow | None, Evidence | None, Learning | None]:
    """Shadow, trials of the ranks, and the course of fitted models; None for what is not wanted."""
    wanted, ledger, clock, standby = settings.model, base.ledger, base.clock, base.fence.standby
    if rank.mode is ModelMode.SHADOW:
        return Shadow(lambda: rank.score), None, None
    if rank.mode is not ModelMode.SERVE or settings.decisions.policy != AUTO:
        return None, None, None

    def snapshot() -> Cluster:
        return ledger.snapshot(clock())

    evidence = Evidence(rank, wanted, snapshot, standby, clock)
    if not wanted.learned:
        return None, evidence, None
    models = LearnedModels(base.transport, *wanted.learned.split("/"))
    around = Around(snapshot, ledger.held_by_namespace, standby, clock, time.time)
    learning = Learning(rank, wanted, models, around, base.events)
    return Shadow(lambda: rank.on_trial.score), evidence, learning
