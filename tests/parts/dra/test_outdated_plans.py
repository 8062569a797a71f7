"""Plans that are carried out after the ResourceClaims of their pods have changed."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from extender.kube.cache import Cache
from extender.kube.client import ApiError, Transport
from extender.planning.plans import Plan
from extender.queueing.dispatch import Dispatcher
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Stage
from extender.scheduling.placer import Placer
from tests.parts.dra.rigs import ClaimRig


class PlannedPod:
    """A pod whose claim is allocated, or is to be, and the plan that releases it."""

    def __init__(self, *, allotted: bool = True) -> None:
        rig = self.rig = ClaimRig()
        if allotted:
            pod = rig.allot().pod
        else:
            rig.add("a")
            pod = rig.pod("a").pod
        backlog = Backlog(rig.clock, lambda: None, left=lambda entry: None, claims_of=rig.keeper.read)
        rig.keeper.changed = backlog.claim_changed
        backlog.upsert(pod)
        self.entry = backlog.entries["p-a"]
        planned = self.entry.planned
        assert planned is not None
        self.batch = [(self.entry, planned)]
        self.plan = Plan("greedy", 1, (planned,), (0,), ((),), {})
        self.counts = Counts()
        placer = Placer(rig.ledger, default_policy="bestfit", clock=rig.clock, wall_clock=rig.clock)
        shared: dict[str, Any] = {
            "ledger": rig.ledger, "placer": placer, "backlog": backlog, "counts": self.counts, "clock": rig.clock,
            "nodes": NodeBook(Cache(lambda node: node), lambda: None), "changed": lambda: None,
        }  # fmt: skip
        mode = ExtenderMode(transport=cast(Transport, rig.api), taken=lambda *_: None, resolver=rig.resolver, **shared)
        self.dispatcher = Dispatcher(mode=mode, claims=rig.keeper, **shared)

    def finish(self) -> None:
        """Carry the plan out to its last write; watches report claims at once."""

        async def run() -> None:
            await self.dispatcher.carry_out(self.plan, ("n",), self.batch)
            await self.dispatcher.finish()

        self.rig.api.lose = lambda name, part: self.rig.tell(name)
        asyncio.run(run())

    def carry_out(self) -> Stage:
        """Carry the plan out to its first write; return the pod's stage then."""

        async def run() -> Stage:
            await self.dispatcher.carry_out(self.plan, ("n",), self.batch)
            stage = self.entry.stage
            await self.dispatcher.stop()
            return stage

        return asyncio.run(run())


def test_a_pod_is_released_only_for_devices_that_its_claim_has_and_keeps() -> None:
    planned = PlannedPod()
    assert planned.carry_out() is Stage.NOMINATING
    assert not planned.counts.outdated
    planned = PlannedPod()
    planned.rig.keeper.freeing.add("u-a")
    planned.rig.keeper.changed("default/a")
    for num_outdated in (1, 2):
        assert planned.carry_out() is Stage.GATED
        assert planned.counts.outdated == num_outdated
    planned = PlannedPod()
    planned.rig.api.take_away("a")
    planned.rig.tell("a")
    assert planned.carry_out() is Stage.GATED
    assert planned.counts.outdated == 1


def test_devices_are_held_with_the_reservation_of_the_node_and_released_with_it() -> None:
    planned = PlannedPod(allotted=False)
    assert planned.dispatcher.reserve([(planned.entry, "n")])
    (hold,) = planned.rig.owned.holds.values()
    assert (hold.node, hold.pod.metadata.uid, planned.rig.free()) == ("n", "p-a", 1)
    planned.dispatcher.release(planned.entry)
    assert (planned.rig.free(), planned.rig.owned.holds) == (2, {})


def test_devices_are_written_before_the_node_is() -> None:
    planned = PlannedPod(allotted=False)
    planned.finish()
    assert planned.rig.is_allocated()
    (consumer,) = planned.rig.api.claims["a"]["status"]["reservedFor"]
    assert consumer["uid"] == "p-a"
    assert (planned.entry.stage, planned.counts.errors) == (Stage.GATED, 0), "the pod itself is gone"


def test_a_pod_whose_claims_are_not_written_is_not_nominated() -> None:
    planned = PlannedPod(allotted=False)
    planned.rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"
    planned.rig.api.fail = lambda name, part: None if name == "a" else pytest.fail("it is nominated")
    planned.finish()
    assert not planned.rig.is_allocated()
    assert (planned.rig.free(), planned.entry.stage, planned.counts.errors) == (2, Stage.GATED, 0)


def test_a_pod_whose_claims_are_refused_is_read_again() -> None:
    planned = PlannedPod(allotted=False)
    planned.rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied by a webhook") if part else None
    planned.finish()
    assert not planned.rig.is_allocated()
    assert (planned.rig.free(), planned.entry.stage, planned.counts.errors) == (2, Stage.GATED, 1)
    assert planned.entry.planned is not None
    assert planned.entry.planned.claims == ("u-a",), "they can be given again"


def test_nothing_is_reserved_for_a_pod_whose_devices_can_not_be_held() -> None:
    planned = PlannedPod(allotted=False)
    planned.rig.fence.others_lead = "another one leads"
    assert not planned.dispatcher.reserve([(planned.entry, "n")])
    assert (planned.rig.free(), planned.rig.ledger.allocation("p-a")) == (2, None)


def test_a_pod_that_lost_its_node_is_not_nominated_again_while_its_claims_are_not_written() -> None:
    planned = PlannedPod(allotted=False)
    entry, rig = planned.entry, planned.rig
    entry.pod = msgspec.structs.replace(entry.pod, spec=msgspec.structs.replace(entry.pod.spec, scheduling_gates=None))
    entry.find_open(rig.now)
    entry.lose("m")
    rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"
    rig.api.fail = lambda name, part: None if name == "a" else pytest.fail("it is nominated")
    planned.finish()
    assert (entry.stage, rig.free(), planned.rig.is_allocated()) == (Stage.LOST, 2, False)
    rig.tell("a")
    rig.api.fail = lambda name, part: None
    planned.finish()
    assert (entry.stage, planned.rig.is_allocated()) == (Stage.LOST, True), "the pod itself is gone"
