"""Plans that are carried out after the ResourceClaims of their pods have changed."""

import asyncio
from typing import Any, cast

from extender.kube.cache import Cache
from extender.kube.client import Transport
from extender.planning.plans import Plan
from extender.queueing.asked import Asked
from extender.queueing.dispatch import Dispatcher
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Stage
from extender.scheduling.placer import Placer
from tests.queueing.claims.rigs import ClaimRig


class PlannedPod:
    """A pod whose claim has its devices, and the plan by which it is let go for them."""

    def __init__(self) -> None:
        rig = self.rig = ClaimRig()
        clock = lambda: rig.now  # noqa: E731 - a clock
        pod = rig.allot("a").pod
        backlog = Backlog(clock, lambda: None, left=lambda entry: None, claims_of=rig.keeper.read)
        rig.keeper.changed = backlog.claim_changed
        backlog.upsert(pod)
        self.entry = backlog.entries["p-a"]
        planned = self.entry.planned
        assert planned is not None
        self.batch = [(self.entry, planned)]
        self.plan = Plan("greedy", 1, (planned,), (0,), ((),), {})
        self.counts = Counts()
        placer = Placer(rig.ledger, default_policy="bestfit", clock=clock, wall_clock=clock)
        shared: dict[str, Any] = {
            "ledger": rig.ledger,
            "placer": placer,
            "backlog": backlog,
            "nodes": NodeBook(Cache(lambda node: node), lambda: None),
            "counts": self.counts,
            "clock": clock,
            "changed": lambda: None,
        }
        mode = Asked(transport=cast(Transport, rig.api), taken=lambda *_: None, resolver=rig.resolver, **shared)
        self.dispatcher = Dispatcher(mode=mode, claims=rig.keeper, **shared)

    def carry_out(self) -> Stage:
        """Carry the plan out as far as to its first write; the stage of the pod then."""

        async def run() -> Stage:
            await self.dispatcher.carry_out(self.plan, ("n",), self.batch)
            stage = self.entry.stage
            await self.dispatcher.stop()
            return stage

        return asyncio.run(run())


def test_a_pod_is_let_go_for_the_devices_that_its_claim_has() -> None:
    planned = PlannedPod()
    assert planned.carry_out() is Stage.NOMINATING
    assert not planned.counts.outdated


def test_not_for_those_that_are_being_taken_back() -> None:
    planned = PlannedPod()
    planned.rig.keeper.freeing.add("u-a")
    planned.rig.keeper.changed("default/a")
    assert planned.carry_out() is Stage.GATED
    assert planned.counts.outdated == 1


def test_nor_for_those_that_were_taken_back() -> None:
    planned = PlannedPod()
    planned.rig.api.take_away("a")
    planned.rig.tell("a")
    assert planned.carry_out() is Stage.GATED
    assert planned.counts.outdated == 1
