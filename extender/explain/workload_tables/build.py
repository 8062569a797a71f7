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
            *(base.ledger, meter.occupants, meter.idle, meter.wanted.idle_after_s),
            *(bound, waitlist, base.clock, time.time),
        )
    holders = Holders(base.ledger)
    base.mirror.listeners.append(holders)
    return Workloads(
        *(base.ledger, Occupants(base.ledger, holders), None, float("inf")),
        *(bound, waitlist, base.clock, time.time),
    )
