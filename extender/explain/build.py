"""What answers questions beside the loop, as the settings want it."""

from collections.abc import Callable

from extender.explain.processes import Turns
from extender.explain.stranded import Stranding
from extender.explain.what_if.answers import WhatIfAnswers
from extender.explain.what_if.waiting import waiting_in
from extender.queueing.controller import QueueController
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.tree import Settings


def build_what_if(
    settings: Settings,
    base: Foundation,
    placer: Placer,
    queue: QueueController | None,
    stranding: Callable[[], Stranding | None],
) -> WhatIfAnswers:
    """What answers what-if questions."""
    return WhatIfAnswers(
        transport=base.transport,
        ledger=base.ledger,
        mirror=base.mirror,
        clock=base.clock,
        policy=settings.decisions.policy,
        policies=placer.policies_apart,
        turns=Turns(settings.access.what_if_s),
        waiting=lambda: waiting_in(queue.backlog if queue else None),
        stranding=stranding,
    )
