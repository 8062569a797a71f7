"""What answers questions beside the loop, as the settings want it."""

import time
from collections.abc import Callable

from extender.core.occupancies import ObservedRules, sick
from extender.explain.defrag.answers import RoomAnswers, queued_in
from extender.explain.defrag.applying import Applying
from extender.explain.defrag.facts import Costs
from extender.explain.defrag.targets import by_node
from extender.explain.defrag_policy import MovePolicy
from extender.explain.processes import Turns
from extender.explain.stranded import Stranding
from extender.explain.what_if.answers import WhatIfAnswers
from extender.explain.what_if.waiting import waiting_in
from extender.planning.quotas import Quotas
from extender.queueing.controller import QueueController
from extender.queueing.defrag.checks import crowded
from extender.queueing.defrag.mover import Mover
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.telemetry import TelemetrySettings
from extender.settings.tree import Settings
from extender.telemetry.service import rules_of


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


def build_room(
    settings: Settings, base: Foundation, what_if: WhatIfAnswers, queue: QueueController | None, mover: Mover | None
) -> RoomAnswers:
    """What answers how room could be made, in turn with what-if questions."""
    backlog, wanted = queue.backlog if queue else None, settings.defrag
    rules = _trusted_rules(settings.telemetry)
    return RoomAnswers(
        transport=base.transport,
        ledger=base.ledger,
        mirror=base.mirror,
        clock=base.clock,
        wall_clock=time.time,
        policy=what_if.policy,
        policies=what_if.policies,
        turns=what_if.turns,
        quotas=Quotas(settings.queue.quotas) if queue else Quotas(),
        queued=lambda: queued_in(backlog),
        costs=lambda: Costs(
            wanted.restart_s,
            exempt=frozenset(wanted.exempt_namespaces),
            crowded=crowded(queue.backlog.entries) if queue and mover else frozenset(),
        ),
        gated_in=lambda: queue.namespaces.names if queue and mover else None,
        sick=lambda cluster: by_node(cluster, sick(cluster, rules)),
    )


def build_applying(
    settings: Settings, room: RoomAnswers, queue: QueueController | None, mover: Mover | None, policy: MovePolicy | None
) -> Applying:
    """What has room made."""
    why_off = "setting defrag.record names no ConfigMap" if queue else "the queue is off (setting queue.enabled)"
    off = f"no pods are moved here: {why_off}"
    return Applying(room, mover, off, lambda: policy.state() if policy is not None else None)


def _trusted_rules(wanted: TelemetrySettings) -> ObservedRules | None:
    """By which samples tell that a GPU is sick: None where anybody who may create a Service could have sent them."""
    named = wanted.source not in ("auto", "off") or wanted.url or wanted.exporters
    return rules_of(wanted) if named else None
