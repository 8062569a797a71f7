"""What answers for workloads, beside the meter where there is one."""

import time

from extender.explain.waiting_pods import Waitlist
from extender.explain.workload_tables.answers import Workloads
from extender.explain.workload_tables.bound_pods import BoundPod, told_of_bound
from extender.kube.watches.feeds import BOUND_PODS
from extender.scheduling.build import Foundation
from extender.usage.holders import Holders
from extender.usage.rates import Occupants
from extender.usage.report import Usage


def build_workloads(base: Foundation, usage: Usage | None, waitlist: Waitlist) -> Workloads:
    """It hears of pods from now on: before the mirror begins."""
    pods, ledger = base.mirror.hub.part(BOUND_PODS), base.ledger

    def bound(uid: str) -> BoundPod | None:
        pod = pods.get(uid)
        return told_of_bound(pod) if pod is not None and ledger.is_bound(uid) else None

    if usage is not None:
        occupants, idle, idle_after_s = usage.meter.occupants, usage.meter.idle, usage.meter.wanted.idle_after_s
    else:
        holders = Holders(ledger)
        holders.subscribe(base.mirror.hub)
        occupants, idle, idle_after_s = Occupants(ledger, holders), None, float("inf")
    return Workloads(
        ledger=ledger,
        occupants=occupants,
        idle=idle,
        idle_after_s=idle_after_s,
        bound=bound,
        waitlist=waitlist,
        clock=base.clock,
        wall_clock=time.time,
    )
