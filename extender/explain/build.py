"""What answers questions beside the loop, as the settings want it."""

import time

from extender.explain.defrag.answers import RoomAnswers, queued_in
from extender.explain.defrag.applying import Applying
from extender.explain.defrag.facts import Costs
from extender.explain.processes import Turns
from extender.explain.what_if.answers import WhatIfAnswers
from extender.explain.what_if.waiting import waiting_in
from extender.planning.quotas import Quotas
from extender.queueing.controller import QueueController
from extender.queueing.defrag.build import Mover
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.tree import Settings


def build_what_if(settings: Settings, base: Foundation, placer: Placer, queue: QueueController | None) -> WhatIfAnswers:
    """What answers what-if questions."""
    return WhatIfAnswers(
        *(base.transport, base.ledger, base.mirror, base.clock, settings.decisions.policy, placer.policies_apart),
        turns=Turns(settings.access.what_if_s),
        waiting=lambda: waiting_in(queue.backlog if queue else None),
    )


def build_applying(
    settings: Settings, base: Foundation, what_if: WhatIfAnswers, queue: QueueController | None, mover: Mover | None
) -> Applying:
    """What answers how room could be made, in turn with what-if questions, and has it made."""
    backlog, wanted = queue.backlog if queue else None, settings.defrag
    room = RoomAnswers(
        *(base.transport, base.ledger, base.mirror, base.clock, time.time),
        *(what_if.policy, what_if.policies, what_if.turns),
        quotas=Quotas(settings.queue.quotas) if queue else Quotas(),
        queued=lambda: queued_in(backlog),
        costs=lambda: Costs(wanted.restart_s, exempt=frozenset(wanted.exempt_namespaces)),
        gated_in=lambda: queue.namespaces.names if queue and mover else None,
    )
    why_off = "setting defrag.record names no ConfigMap" if queue else "the queue is off (setting queue.enabled)"
    return Applying(room, mover, f"no pods are moved here: {why_off}")
