"""The mover, as the settings want it."""

import time

from extender.kube.watches.feeds import BOUND_PODS
from extender.queueing.controller import QueueController
from extender.queueing.defrag.checks import Facts
from extender.queueing.defrag.evictions import Evictor
from extender.queueing.defrag.mover import Mover
from extender.queueing.defrag.places import Places
from extender.queueing.defrag.proof import Around
from extender.queueing.defrag.record import Records
from extender.queueing.defrag.steps import Follower, Limits
from extender.queueing.defrag.targets import TargetPlacer
from extender.queueing.defrag.tools import Tools
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.settings.tree import Settings

__all__ = ["Mover", "build_mover"]


def build_mover(settings: Settings, base: Foundation, placer: Placer, queue: QueueController | None) -> Mover | None:
    """What carries plans out that make room, None where no pod is to be moved."""
    wanted = settings.defrag
    if queue is None or not wanted.record:
        return None
    namespace, _, name = wanted.record.partition("/")
    running = base.mirror.hub.part(BOUND_PODS)
    places = Places(base.ledger, placer, queue.dispatcher, base.clock)
    limits = Limits(
        replace_s=wanted.replace_s, start_s=wanted.start_s, target_s=wanted.target_s, budget_s=wanted.budget_s
    )
    exempt = frozenset(wanted.exempt_namespaces)
    tools = Tools(
        records=Records(base.transport, namespace, name),
        evictor=Evictor(base.transport, base.fence, base.resolver),
        follower=Follower(base.transport, queue, running, places, limits),
        targets=TargetPlacer(queue, running, places, limits),
        around=Around(
            base.ledger,
            queue.nodes,
            running.values,
            lambda: placer.policies,
            settings.decisions.policy,
            base.clock,
        ),
        facts=lambda: Facts(running, queue.backlog.entries, queue.namespaces, exempt, queue.use),
        fault=queue.fault,
        fence=base.fence,
        events=base.events,
        clock=base.clock,
        wall_clock=time.time,
        most_an_hour=wanted.moves_an_hour,
    )
    mover = Mover(tools)
    queue.aside = mover.others
    queue.place_kept = mover.place_kept
    return mover
