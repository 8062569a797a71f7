"""What answers questions beside the loop, as the settings want it."""

import time

from extender.explain.defrag.answers import RoomAnswers, queued_in
from extender.explain.defrag.applying import Applying
from extender.explain.defrag.facts import Costs
from extender.explain.processes import Turns
from extender.explain.what_if import WhatIfAnswers
from extender.planning.quotas import Quotas
from extender.queueing.controller import QueueController
from extender.queueing.defrag.build import Mover
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.tree import Settings


def build_answers(
    settings: Settings, base: Foundation, placer: Placer, queue: QueueController | None, mover: Mover | None
) -> tuple[WhatIfAnswers, Applying]:
    """What answers what-if questions; and those of how room could be made, and has it made."""
    turns = Turns(settings.access.what_if_s)
    backlog, wanted, policy = queue.backlog if queue else None, settings.defrag, settings.decisions.policy
    what_if = WhatIfAnswers(
        *(base.transport, base.ledger, base.mirror, base.clock, policy, placer.policies_apart), turns=turns
    )
    room = RoomAnswers(
        *(base.transport, base.ledger, base.mirror, base.clock, time.time, policy, placer.policies_apart, turns),
        quotas=Quotas(settings.queue.quotas) if queue else Quotas(),
        queued=lambda: queued_in(backlog),
        costs=lambda: Costs(wanted.restart_s, exempt=frozenset(wanted.exempt_namespaces)),
        gated_in=lambda: queue.namespaces.names if queue and mover else None,
    )
    why_off = "setting defrag.record names no ConfigMap" if queue else "the queue is off (setting queue.enabled)"
    return what_if, Applying(room, mover, f"no pods are moved here: {why_off}")
