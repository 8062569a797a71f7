"""What answers for workloads, beside the meter where there is one."""

import time

from extender.explain.waiting_pods import Waitlist
from extender.explain.workload_tables.answers import Workloads
from extender.explain.workload_tables.bound_pods import BoundPods
from extender.scheduling.build import Foundation
from extender.usage.holders import Holders
from extender.usage.rates import Occupants
from extender.usage.report import Usage


def build_workloads(base: Foundation, usage: Usage | None, waitlist: Waitlist) -> Workloads:
    """It hears of pods from now on: before the mirror begins."""
    bound = BoundPods(base.ledger)
    base.mirror.listeners.append(bound)
    if usage is not None:
        meter = usage.meter
        return Workloads(
            ledger=base.ledger,
            occupants=meter.occupants,
            idle=meter.idle,
            idle_after_s=meter.wanted.idle_after_s,
            bound=bound,
            waitlist=waitlist,
            clock=base.clock,
            wall_clock=time.time,
        )
    holders = Holders(base.ledger)
    base.mirror.listeners.append(holders)
    return Workloads(
        ledger=base.ledger,
        occupants=Occupants(base.ledger, holders),
        idle=None,
        idle_after_s=float("inf"),
        bound=bound,
        waitlist=waitlist,
        clock=base.clock,
        wall_clock=time.time,
    )
