"""The policy, as the settings want it."""

import time

from extender.core.clusters import Cluster
from extender.explain.defrag.answers import RoomAnswers
from extender.explain.defrag_policy.policy import MovePolicy
from extender.explain.defrag_policy.sick_gpus import SickGpus
from extender.explain.defrag_policy.surroundings import Around, Terms
from extender.explain.defrag_policy.telling import Teller
from extender.explain.defrag_policy.waits import waits_of
from extender.planning.windows import window_of
from extender.queueing.controller import QueueController
from extender.queueing.defrag.build import Mover
from extender.scheduling.build import Foundation
from extender.scheduling.waking.unbound_pods import UnboundPods
from extender.settings.queue import DefragSettings
from extender.settings.section import Initiative
from extender.settings.tree import Settings


def build_policy(
    settings: Settings,
    base: Foundation,
    room: RoomAnswers,
    queue: QueueController | None,
    mover: Mover | None,
    unbound: UnboundPods,
) -> MovePolicy | None:
    """What makes room by itself, or says how; None where it is only asked."""
    wanted = settings.defrag
    if wanted.mode is Initiative.OFF:
        return None
    backlog = queue.backlog if queue is not None else None

    def is_there(uid: str) -> bool:
        waits = backlog is not None and uid in backlog.entries
        return waits or unbound.get(uid) is not None or base.ledger.claim(uid) is not None

    def standby() -> str:
        return base.fence.fault() or base.mirror.fault() or (queue.fault() if queue is not None else "")

    def cluster() -> Cluster:
        return base.ledger.snapshot(base.clock())

    around = Around(
        cluster,
        lambda: waits_of(backlog, unbound),
        is_there,
        standby,
        base.clock,
        time.time,
        SickGpus(room.sick, wanted.sick_s),
    )
    return MovePolicy(room, mover, Teller(base.events), around, _terms(wanted))


def _terms(wanted: DefragSettings) -> Terms:
    return Terms(
        mode=wanted.mode.value,
        acts=wanted.mode is Initiative.ACT,
        every_s=wanted.every_s,
        after_s=wanted.after_s,
        least_gain=wanted.least_gain,
        rest_s=wanted.rest_s,
        free_nodes=wanted.free_nodes,
        heal=wanted.heal,
        moves_an_hour=wanted.moves_an_hour,
        windows=tuple(window_of(text) for text in wanted.windows),
    )
