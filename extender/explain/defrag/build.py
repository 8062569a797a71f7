"""Making room, as the settings want it."""

import time

from extender.explain.defrag.answers import RoomAnswers, queued_in
from extender.explain.defrag.applying import Applying
from extender.explain.processes import Turns
from extender.planning.quotas import Quotas
from extender.queueing.controller import QueueController
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.tree import Settings


def build_applying(
    settings: Settings, base: Foundation, placer: Placer, queue: QueueController | None, turns: Turns
) -> Applying:
    """What answers how room could be made, and has plans carried out."""
    backlog = queue.backlog if queue else None
    answers = RoomAnswers(
        *(base.transport, base.ledger, base.mirror, base.clock, time.time),
        *(settings.decisions.policy, placer.policies_apart, turns),
        quotas=Quotas(settings.queue.quotas) if queue else Quotas(),
        queued=lambda: queued_in(backlog),
    )
    return Applying(answers, None, "no pods are moved here: the queue is off (setting queue.enabled)")
