"""What a queue does about the ResourceClaims of its pods: nothing, unless Kerf allocates them."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from extender.dra.objects import SLICES
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.decoding import convert
from extender.kube.objects import Pod, PodStatus
from extender.planning.wait_reasons import Code
from extender.queueing.devices import QueueClaims
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Stage
from tests.ledger.builders import until
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_maker import pod as asking_pod

RECLAIMS, MAKES = "queue's ResourceClaims", "claims for extended resources"


class Queue:
    """A backlog, and what allocates for it if anything does."""

    def __init__(self, *, allocates: bool = True, classes: Collection[str] = ()) -> None:
        rig = self.rig = ClaimRig()
        self.num_rounds_due = 0
        self.backlog = Backlog(rig.clock, lambda: None, left=lambda entry: None, claims_of=self.of)
        made = partial(rig.make_allocation, classes_to_make=classes)
        self.claims = QueueClaims(made if allocates else None, self.backlog, self.dirty)

    def of(self, pod: Pod) -> PodClaims:
        return self.claims.of(pod)

    def dirty(self) -> None:
        self.num_rounds_due += 1

    def add(self, *names: str, claim: str = "") -> None:
        """Pods that wait, each with the claim or one of its name."""
        for name in names:
            self.backlog.upsert(self.rig.pod(name, claim or name).pod)

    def take_stock(self, *, opted_out: bool = False) -> None:
        asyncio.run(self.claims.take_stock(lambda pod: opted_out))

    def work(self, name: str, done: Callable[[], object]) -> None:
        """Run the background work of that name until something is done."""

        async def run() -> None:
            work = asyncio.create_task(self.claims.works()[name]())
            async with asyncio.timeout(5.0):
                await until(lambda: bool(done()))
            work.cancel()

        asyncio.run(run())


def test_without_an_allocator_pods_have_no_claims_to_care_for() -> None:
    queue = Queue(allocates=False)
    queue.add("a", "b", claim="shared")
    waiting = list(queue.backlog.entries.values())
    assert queue.claims.of(waiting[0].pod) is NO_CLAIMS
    assert queue.claims.select(iter(waiting)) == (waiting, [])
    assert queue.claims.works() == {}


def test_claims_are_read_as_they_are_and_pods_that_share_one_take_turns() -> None:
    queue = Queue()
    queue.rig.add("shared")
    queue.add("a", "b", claim="shared")
    waiting = list(queue.backlog.entries.values())
    assert [claim.metadata.uid for claim in queue.claims.of(waiting[0].pod).unallocated] == ["u-shared"]
    planned, passed = queue.claims.select(waiting)
    assert (planned, [(entry, why.code) for entry, why in passed]) == ([waiting[0]], [(waiting[1], Code.CLAIM_SHARED)])


def test_a_changed_claim_is_read_again_in_the_next_round() -> None:
    queue = Queue()
    queue.add("a")
    entry = queue.backlog.entries["p-a"]
    queue.take_stock()
    queue.rig.add("a")
    queue.take_stock()
    assert entry.planned is not None
    assert entry.planned.claims == ("u-a",)


def test_all_claims_are_read_again_once_the_devices_are_known() -> None:
    queue = Queue()
    queue.rig.add("a")
    reflector = queue.rig.keeper.reflectors["slices"]
    reflector.num_lists = 0
    queue.add("a")
    entry = queue.backlog.entries["p-a"]
    queue.take_stock()
    assert entry.fault is not None
    reflector.num_lists = 1
    queue.take_stock()
    assert entry.planned is not None
    assert entry.planned.claims == ("u-a",)


def test_devices_that_come_ask_for_another_round() -> None:
    queue = Queue()
    queue.rig.mirror.hub.cache(SLICES).retain_only(set(), queue.rig.now)
    assert queue.num_rounds_due > 0


def test_a_pod_that_kube_scheduler_refused_waits_for_devices_that_are_kerfs_by_now_unless_it_opted_out() -> None:
    queue = Queue()
    queue.rig.add("a")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no devices"}
    pod = queue.rig.pod("a").pod
    queue.backlog.upsert(pod)
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=None)
    status = convert({"phase": "Pending", "conditions": [refused]}, PodStatus)
    queue.backlog.upsert(msgspec.structs.replace(pod, spec=spec, status=status))
    for opted_out, stage in ((True, Stage.OPENED), (False, Stage.LOST)):
        queue.take_stock(opted_out=opted_out)
        assert queue.backlog.entries["p-a"].stage is stage


def test_a_round_takes_four_new_requests_of_a_namespace_and_asks_for_another_round() -> None:
    queue = Queue()
    for number in range(6):
        queue.rig.add(f"c{number}", count=1)
        queue.add(f"c{number}")
    waiting = list(queue.backlog.entries.values())
    queue.num_rounds_due = 0
    planned, passed = queue.claims.select(waiting)
    assert (planned, [entry for entry, _ in passed]) == (waiting[:4], waiting[4:])
    assert queue.num_rounds_due == 1
    assert queue.claims.select(waiting) == (waiting, [])


def test_unused_devices_are_taken_back_in_the_background() -> None:
    queue = Queue()
    assert queue.claims.works().keys() == {RECLAIMS}
    queue.rig.add("a")
    queue.add("a")
    assert queue.rig.decide(queue.backlog.entries["p-a"].pod)
    assert queue.rig.free() == 1
    queue.work(RECLAIMS, lambda: queue.rig.free() == 2)


def test_claims_for_extended_resources_are_made_in_the_background() -> None:
    queue = Queue(classes=["gpu"])
    assert queue.claims.works().keys() == {RECLAIMS, MAKES}
    queue.backlog.upsert(asking_pod())
    queue.work(MAKES, lambda: queue.rig.api.posted)
