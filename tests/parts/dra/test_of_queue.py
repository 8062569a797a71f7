"""What a queue does about the ResourceClaims of its pods: nothing, unless Kerf allocates them."""

import asyncio
from collections.abc import Collection
from functools import partial
from typing import cast

import msgspec
import pytest

from extender.dra.objects import SLICES
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.client import Transport
from extender.kube.decoding import convert
from extender.kube.objects import Pod, PodStatus
from extender.ledger.mirror import Mirror
from extender.parts.dra.for_queue import allocating
from extender.parts.dra.keeper import ClaimKeeper
from extender.planning.wait_reasons import Code
from extender.queueing.devices import MakesAllocation, QueueClaims
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Stage
from extender.scheduling.fence import Fence
from tests.dra.claim_api import ClaimApi
from tests.ledger.builders import until
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_maker import pod as asking_pod


class Queue:
    """A backlog, and what allocates for it if anything does."""

    def __init__(self, *, allocates: bool = True, classes: Collection[str] = (), api: ClaimApi | None = None) -> None:
        rig = self.rig = ClaimRig(api=api)
        self.num_rounds_due = 0
        clock = lambda: rig.now  # noqa: E731 - a clock
        make_keeper = partial(
            ClaimKeeper,
            transport=cast(Transport, rig.api),
            mirror=cast(Mirror, rig.mirror),
            ledger=rig.ledger,
            owned=rig.owned,
            fence=cast(Fence, rig.fence),
            resolver=rig.resolver,
            clock=clock,
            max_age_s=float("inf"),
            classes_to_make=classes,
        )
        self.backlog = Backlog(clock, lambda: None, left=lambda entry: None, claims_of=self.of)
        made: MakesAllocation = lambda **of_queue: allocating(make_keeper(**of_queue))  # noqa: E731
        self.claims = QueueClaims(made if allocates else None, self.backlog, self.dirty)

    def of(self, pod: Pod) -> PodClaims:
        return self.claims.of(pod)

    def dirty(self) -> None:
        self.num_rounds_due += 1

    def add(self, *names: str, claim: str = "") -> None:
        """Pods that wait, each with a claim of its name unless it is said."""
        for name in names:
            self.backlog.upsert(self.rig.pod(name, claim or name).pod)

    def tell(self, name: str) -> None:
        self.rig.api.add(name)
        self.rig.tell(name)


def test_without_an_allocator_pods_have_no_claims_to_care_for() -> None:
    queue = Queue(allocates=False)
    queue.add("a", "b", claim="shared")
    waiting = list(queue.backlog.entries.values())
    assert queue.claims.of(waiting[0].pod) is NO_CLAIMS
    assert queue.claims.sort_out(iter(waiting)) == (waiting, [])
    assert queue.claims.works() == {}


@pytest.mark.parametrize(
    ("classes", "works"),
    [((), {"queue's ResourceClaims"}), (("gpu",), {"queue's ResourceClaims", "claims for extended resources"})],
)
def test_with_one_devices_are_taken_back_and_claims_made(classes: tuple[str, ...], works: set[str]) -> None:
    assert Queue(classes=classes).claims.works().keys() == works


def test_claims_are_read_as_they_are_and_pods_that_share_one_take_turns() -> None:
    queue = Queue()
    queue.tell("shared")
    queue.add("a", "b", claim="shared")
    waiting = list(queue.backlog.entries.values())
    assert [claim.metadata.uid for claim in queue.claims.of(waiting[0].pod).unallocated] == ["u-shared"]
    planned, passed = queue.claims.sort_out(waiting)
    assert (planned, [(entry, why.code) for entry, why in passed]) == ([waiting[0]], [(waiting[1], Code.CLAIM_SHARED)])


def take_stock(queue: Queue, *, opted_out: bool = False) -> None:
    asyncio.run(queue.claims.take_stock(lambda pod: opted_out))


def test_what_a_claim_means_by_now_is_read_in_the_next_round() -> None:
    queue = Queue()
    queue.add("a")
    entry = queue.backlog.entries["p-a"]
    take_stock(queue)
    queue.tell("a")
    take_stock(queue)
    assert entry.planned is not None
    assert entry.planned.claims == ("u-a",)


def test_once_it_is_known_what_claims_may_be_given_all_are_read_again() -> None:
    queue = Queue()
    assert isinstance(queue.claims.keeper, ClaimKeeper)
    queue.tell("a")
    reflector = next(iter(queue.claims.keeper.reflectors.values()))
    reflector.num_lists = 0
    queue.add("a")
    entry = queue.backlog.entries["p-a"]
    take_stock(queue)
    assert entry.fault is not None
    for reflector in queue.claims.keeper.reflectors.values():
        reflector.num_lists = 1
    take_stock(queue)
    assert entry.planned is not None
    assert entry.planned.claims == ("u-a",)


def test_devices_that_come_ask_for_another_round() -> None:
    queue = Queue()
    queue.rig.mirror.hub.cache(SLICES).keep(set(), queue.rig.now)
    assert queue.num_rounds_due > 0


def test_who_was_refused_and_takes_part_waits_for_devices_that_are_kerfs_by_now() -> None:
    queue = Queue()
    queue.tell("a")
    for reflector in cast(ClaimKeeper, queue.claims.keeper).reflectors.values():
        reflector.num_lists = 1
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no devices"}
    pod = queue.rig.pod("a").pod
    queue.backlog.upsert(pod)
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=None)
    status = convert({"phase": "Pending", "conditions": [refused]}, PodStatus)
    queue.backlog.upsert(msgspec.structs.replace(pod, spec=spec, status=status))
    stages = []
    for opted_out in (True, False):
        take_stock(queue, opted_out=opted_out)
        stages.append(queue.backlog.entries["p-a"].stage)
    assert stages == [Stage.OPENED, Stage.LOST]


def test_those_that_a_round_does_not_reach_ask_for_another_one() -> None:
    queue = Queue()
    for number in range(6):
        name = f"c{number}"
        queue.rig.api.add(name, {"name": name, "exactly": {"deviceClassName": "gpu"}})
        queue.rig.tell(name)
        queue.add(name)
    queue.num_rounds_due = 0
    planned, passed = queue.claims.sort_out(queue.backlog.entries.values())
    assert (len(planned), len(passed), queue.num_rounds_due) == (4, 2, 1)


def test_in_the_background_devices_that_nobody_waits_for_are_given_back() -> None:
    queue = Queue()
    rig, keeper = queue.rig, cast(ClaimKeeper, queue.claims.keeper)
    for reflector in keeper.reflectors.values():
        reflector.num_lists = 1
    queue.tell("a")
    queue.add("a")
    assert rig.decide(queue.backlog.entries["p-a"].pod)

    async def run() -> None:
        work = asyncio.create_task(queue.claims.works()["queue's ResourceClaims"]())
        async with asyncio.timeout(5.0):
            await until(lambda: rig.free() == 2)
        work.cancel()

    assert rig.free() == 1
    asyncio.run(run())


def test_in_the_background_claims_are_made_for_those_that_wait() -> None:
    class Creating(ClaimApi):
        async def post(self, path: str, body: bytes) -> bytes:
            posted.append(path)
            return body

    posted: list[str] = []
    queue = Queue(api=Creating(), classes=["gpu"])
    keeper = cast(ClaimKeeper, queue.claims.keeper)
    for reflector in keeper.reflectors.values():
        reflector.num_lists = 1
    queue.backlog.upsert(asking_pod())

    async def run() -> None:
        work = asyncio.create_task(queue.claims.works()["claims for extended resources"]())
        async with asyncio.timeout(5.0):
            await until(lambda: bool(posted))
        work.cancel()

    asyncio.run(run())
