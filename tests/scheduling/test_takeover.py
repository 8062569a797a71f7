"""Taking over: late Bindings of the previous leader fail, and what it has written is known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import FencedError
from extender.kube.connections import MAX_CONNECTIONS
from extender.kube.leadership import Election, HeldLease, LeaseName, LeaseTimes, Spectator, Unelected
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.watches import PENDING_PODS, PODS
from extender.ledger.mirror import Mirror
from extender.scheduling import takeover
from extender.scheduling.fence import Fence
from extender.scheduling.takeover import Leadership, epoch_key
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, ledger_of, node_manifest, pod_manifest, until

LEASE = LeaseName("kube-system", "kerf")
ENDED = "the leader's term in which it was decided has ended"


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_FIRST_RETRY_S", 0.01)


class Server(MemoryCluster):
    """Refuses patches of pods as configured."""

    def __init__(self, *objects: Manifest) -> None:
        super().__init__([node_manifest("n", 2), *objects])
        self.errors = 0
        """How many patches fail before they succeed again."""
        self.marks: list[str] = []
        self.refusals: dict[str, list[ApiError]] = {}
        """By pod: errors of its next patches."""
        self.before_patch: Callable[[], Awaitable[None]] | None = None

    async def patch(self, path: str, body: bytes) -> bytes:
        if path.endswith("/status"):
            if self.before_patch:
                await self.before_patch()
            if refusals := self.refusals.get(path.split("/")[-2]):
                raise refusals.pop(0)
            if self.errors:
                self.errors -= 1
                raise UnreachableError("refused")
            self.marks.append(path.split("/")[-2])
        return await super().patch(path, body)


class Replica:
    """The parts of a process that leadership concerns; without an election unless there is one, or it is contested."""

    def __init__(
        self, server: Server, election: Election | None = None, *, contested: bool = False, marks_gated: bool = False
    ) -> None:
        self.clock = Clock()
        if contested:
            election = Appointed(server, self.clock)
        self.ledger = ledger_of()
        self.fence = Fence(self.clock, election)
        self.mirror = Mirror(server, self.ledger, self.clock, max_age_s=100.0)
        self.election = election or Unelected()
        self.catch_ups: list[Callable[[], Awaitable[None]]] = []
        self.leadership = Leadership(
            *(server, self.election, self.fence, self.mirror, self.clock),
            key=epoch_key("kerf" if election else ""),
            marks_gated=marks_gated,
            catch_ups=self.catch_ups,
        )

    async def leads(self) -> None:
        await until(lambda: not self.fence.fault() and not self.mirror.fault())


class Appointed(HeldLease):
    """An election that the test may decide."""

    def __init__(self, server: Server, clock: Callable[[], float]) -> None:
        super().__init__(server, LEASE, "a", LeaseTimes(2, 1.5, 0.005), clock)

    def appoint(self, held: str) -> None:
        """Begin another term."""
        self._prolong(held, self._clock() + 10.0)


@asynccontextmanager
async def running(replica: Replica) -> AsyncIterator[Replica]:
    replica.leadership.start()
    try:
        yield replica
    finally:
        await replica.leadership.stop()
        await replica.mirror.stop()


async def lead(replica: Replica) -> None:
    """Run a replica until it leads."""
    async with running(replica):
        await replica.leads()


@pytest.mark.parametrize("marks_gated", [False, True])
@in_loop
async def test_only_pods_that_may_be_bound_with_gpus_are_marked(marks_gated: bool) -> None:
    gated, plain = pod_manifest("gated", 1), pod_manifest("gated-plain")
    gated["spec"]["schedulingGates"] = plain["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    server = Server(
        pod_manifest("asks", 1),
        pod_manifest("unreadable", "-1"),
        pod_manifest("plain"),
        pod_manifest("bound", 1, node="n", assigned="0"),
        pod_manifest("leaving", 1, terminating=True),
        pod_manifest("failed", 1, phase="Failed"),
        gated,
        plain,
    )
    await lead(Replica(server, marks_gated=marks_gated))
    assert sorted(server.marks) == ["asks", *["gated"] * marks_gated, "unreadable"]
    assert epoch_key() in server.pod("default", "asks")["metadata"]["annotations"]


@pytest.mark.parametrize("contested", [False, True])
@in_loop
async def test_pods_are_listed_after_marks_and_catch_ups_and_until_then_nothing_is_taken_in(contested: bool) -> None:
    server = Server(pod_manifest("p", 1))
    replica = Replica(server, contested=contested)
    of_pods, waiting = replica.mirror.hub.reflector(PODS), replica.mirror.hub.group(PENDING_PODS)
    lists: list[int] = []

    async def catch_up() -> None:
        assert server.marks == ["p"]
        assert replica.fence.fault()
        assert replica.mirror.running is contested
        lists.append(of_pods.num_lists)
        if len(lists) == 1:
            raise UnreachableError("once more")
        server.apply(pod_manifest("bound", 1, node="n", assigned="0"))
        server.apply(pod_manifest("late", 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (replica.ledger.allocation("uid-bound"), "uid-late" in set(waiting)) == (None, False)

    replica.catch_ups.append(catch_up)
    async with running(replica):
        await until(lambda: not replica.fence.fault())
        assert of_pods.num_lists > lists[1] == lists[0]
        assert replica.ledger.allocation("uid-bound") is not None
        assert set(waiting) == {"uid-p", "uid-late"}
    assert len(lists) == 2


@pytest.mark.parametrize("marks_gated", [False, True])
@in_loop
async def test_a_term_that_ran_out_begins_again_with_marks_only_if_gated_pods_are_marked(marks_gated: bool) -> None:
    """Otherwise nobody else has led, and the ledger has all that is under way."""
    server = Server(pod_manifest("p", 1, uid="u"))
    replica = Replica(server, contested=True, marks_gated=marks_gated)
    async with running(replica):
        await replica.leads()
        first, lists = replica.fence.enter(), replica.mirror.num_lists
        replica.clock.now += 1.6
        assert replica.fence.standby()
        await replica.leads()
        with pytest.raises(FencedError, match=ENDED):
            replica.fence.check(first)
        assert replica.mirror.num_lists == lists + marks_gated
    assert server.marks == ["p"] * (1 + marks_gated)


@in_loop
async def test_a_spectator_writes_nothing() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    replica = Replica(server, Spectator())
    async with running(replica):
        await until(lambda: not replica.mirror.fault())
        assert replica.fence.standby().startswith("standby: ")
    assert server.marks == []


@in_loop
async def test_two_take_overs_never_write_the_same_mark() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    marks = set()
    for _ in range(2):
        await lead(Replica(server))
        marks.add(server.pod("default", "p")["metadata"]["annotations"][epoch_key()])
    assert len(marks) == 2, "a patch that changes nothing would not change the resourceVersion"


@in_loop
async def test_nothing_is_decided_before_every_pod_is_marked_and_none_is_marked_again() -> None:
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(100)))
    server.errors = 64 + 40
    replica = Replica(server)
    async with running(replica):
        await until(lambda: "refused" in replica.fence.fault())
        assert replica.fence.fault() == "pods are not synced yet: refused"
        assert replica.fence.standby() == ""
        with pytest.raises(FencedError):
            replica.fence.enter()
        await replica.leads()
    assert len(server.marks) == len(set(server.marks)) == 100


@in_loop
async def test_thousands_of_pods_are_marked_many_at_once_and_leave_connections_for_the_lease() -> None:
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(1000)))
    at_once = most = 0

    async def answer_slowly() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1

    server.before_patch = answer_slowly
    await lead(Replica(server))
    assert len(server.marks) == 1000
    assert MAX_CONNECTIONS / 2 < most < 0.75 * MAX_CONNECTIONS


@in_loop
async def test_the_fence_shuts_when_the_lease_is_lost_and_opens_in_a_new_epoch() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    replica = Replica(server, contested=True)
    async with running(replica):
        await replica.leads()
        first = replica.fence.enter()
        lease = msgspec.json.decode(await server.get(LEASE.path))
        change = {"metadata": lease["metadata"], "spec": {"holderIdentity": "b", "leaseDurationSeconds": 2}}
        await server.patch(LEASE.path, msgspec.json.encode(change))
        await until(lambda: "held by b" in replica.fence.standby())
        with pytest.raises(FencedError, match="held by b"):
            replica.fence.check(first)
        replica.clock.now += 2.1
        await replica.leads()
        with pytest.raises(FencedError, match=ENDED):
            replica.fence.check(first)
        replica.fence.check(replica.fence.enter())
    assert (len(server.marks), replica.leadership.num_terms) == (2, 2)
    lease = msgspec.json.decode(await server.get(LEASE.path))
    assert lease["spec"]["holderIdentity"] == "", "it is released at the stop"
    assert replica.fence.standby() == "standby: shutting down"


@in_loop
async def test_the_fence_is_shut_from_the_very_moment_that_another_term_begins() -> None:
    """Calls that are answered before the take-over of that term has even started find it shut."""
    replica = Replica(Server(), contested=True)
    async with running(replica):
        await replica.leads()
        epoch = replica.fence.enter()
        assert isinstance(replica.election, Appointed)
        replica.election.appoint("another")
        with pytest.raises(FencedError):
            replica.fence.check(epoch)
        await until(lambda: not replica.fence.fault())
        with pytest.raises(FencedError, match=ENDED):
            replica.fence.check(epoch)


@in_loop
async def test_a_take_over_that_outlasts_its_term_goes_on_where_it_was() -> None:
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(50)))
    server.refusals["p49"] = [ApiError(503, "", "slow")] * 2
    replica = Replica(server, contested=True)
    async with running(replica):
        await until(lambda: "slow" in replica.fence.fault())
        term = replica.election.term
        replica.clock.now += 1.6
        await until(lambda: replica.election.term != term)
        await replica.leads()
    assert len(server.marks) == len(set(server.marks)) == 50


@in_loop
async def test_a_pod_that_cannot_be_patched_does_not_block_the_takeover() -> None:
    server = Server(pod_manifest("fixed", 1), *(pod_manifest(f"p{number}", 1) for number in range(40)))
    server.refusals["fixed"] = [ApiError(422, "Invalid", "denied")] * 2
    replica = Replica(server)
    await lead(replica)
    assert (len(server.marks), replica.leadership.num_marked, replica.leadership.num_unmarkable) == (40, 40, 1)
