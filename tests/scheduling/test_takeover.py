"""Taking over: late Bindings of the leader before fail, and what it has written is known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from extender.kube.client import ApiError, Query, UnreachableError
from extender.kube.commit import FencedError
from extender.kube.connections import MAX_CONNECTIONS
from extender.kube.leadership import Election, HeldLease, LeaseName, LeaseTimes, Spectator, Terms, Unelected
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.watches import PENDING_PODS, PODS
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.scheduling import takeover
from extender.scheduling.fence import Fence
from extender.scheduling.takeover import Leadership, epoch_key
from tests.ledger.builders import Clock, node_manifest, pod_manifest, until

LEASE = LeaseName("kube-system", "kerf")
KEY = epoch_key("kerf")
ENDED = "the leader's term in which it was decided has ended"


@pytest.fixture(autouse=True)
def _tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_FIRST_RETRY_S", 0.01)


class Server(MemoryCluster):
    """Refuses patches of pods while told to; its watches may lie dead."""

    def __init__(self, *objects: Manifest) -> None:
        super().__init__([node_manifest("n", 2), *objects])
        self.refuses = False
        self.errors = 0
        """How many patches fail before they succeed again."""
        self.heard = asyncio.Event()
        self.heard.set()
        self.num_held_back = 0
        """What watches would have told while they lay dead."""
        self.marks: list[str] = []
        self.refusals: dict[str, list[ApiError]] = {}
        """By pod: how the API server refuses changes of it, until there are no more."""

    async def patch(self, path: str, body: bytes) -> bytes:
        if path.endswith("/status"):
            if refusals := self.refusals.get(path.split("/")[-2]):
                raise refusals.pop(0)
            if self.refuses:
                raise UnreachableError("refused")
            if self.errors:
                self.errors -= 1
                raise ApiError(500, "InternalError", "no")
            self.marks.append(path.split("/")[-2])
        return await super().patch(path, body)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        async for lines in super().watch(path, query):
            self.num_held_back += not self.heard.is_set()
            await self.heard.wait()
            yield lines


class Replica:
    """What a process has of leadership."""

    def __init__(
        self,
        server: Server,
        election: Election | None = None,
        clock: Clock | None = None,
        *,
        marks_gated: bool = False,
    ) -> None:
        self.clock = clock or Clock()
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.fence = Fence(self.clock, election)
        self.mirror = Mirror(server, self.ledger, self.clock, max_age_s=100.0)
        self.election = election or Unelected()
        key = KEY if election else epoch_key()
        self.catch_ups: list[Callable[[], Awaitable[None]]] = []
        self.leadership = Leadership(
            server,
            self.election,
            self.fence,
            self.mirror,
            self.clock,
            key=key,
            marks_gated=marks_gated,
            catch_ups=self.catch_ups,
        )

    async def leads(self) -> None:
        await until(lambda: not self.fence.fault() and not self.mirror.fault())

    def free(self) -> int:
        return int(self.ledger.snapshot(self.clock()).gpu_free_milli.sum()) // 1000


def held(server: Server, clock: Callable[[], float], identity: str = "a") -> HeldLease:
    return HeldLease(server, LEASE, identity, LeaseTimes(2, 1.5, 0.005), clock)


class Appointed(Terms):
    """An election that goes as it is told."""

    async def run(self) -> None:
        self.appoint("the first")

    def appoint(self, held: str) -> None:
        """It is won, as another term than before."""
        self._prolong(held, self._clock() + 10.0)

    async def resign(self) -> None:
        """Nothing to give."""

    async def confirm(self, since: int) -> bool:
        return True

    def standing(self) -> str:
        return "nobody leads"


@asynccontextmanager
async def running(replica: Replica) -> AsyncIterator[None]:
    replica.leadership.start()
    try:
        yield
    finally:
        await replica.leadership.stop()
        await replica.mirror.stop()


def run(replica: Replica, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(replica):
            await scenario()

    asyncio.run(main())


def test_only_pods_that_may_be_bound_with_gpus_are_marked() -> None:
    gated = pod_manifest("gated", 1)
    gated["spec"]["schedulingGates"] = [{"name": "wait"}]
    server = Server(
        pod_manifest("asks", 1),
        pod_manifest("unreadable", "-1"),
        pod_manifest("plain"),
        pod_manifest("bound", 1, node="n", assigned="0"),
        pod_manifest("leaving", 1, terminating=True),
        pod_manifest("failed", 1, phase="Failed"),
        gated,
    )
    replica = Replica(server)
    run(replica, replica.leads)
    assert sorted(server.marks) == ["asks", "unreadable"]
    assert epoch_key() in server.pod("default", "asks")["metadata"]["annotations"]


def test_where_assignments_are_written_behind_the_gate_gated_pods_are_marked_too() -> None:
    gated, plain = pod_manifest("gated", 1), pod_manifest("plain")
    gated["spec"]["schedulingGates"] = plain["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    server = Server(gated, plain, pod_manifest("asks", 1))
    replica = Replica(server, marks_gated=True)
    run(replica, replica.leads)
    assert sorted(server.marks) == ["asks", "gated"]


def test_what_else_is_listed_again_is_so_after_the_marks_and_before_the_pods_with_a_node() -> None:
    server = Server(pod_manifest("p", 1))
    replica = Replica(server)
    seen: list[tuple[list[str], bool]] = []

    async def catch_up() -> None:
        seen.append((list(server.marks), replica.mirror.running))
        if len(seen) == 1:
            raise UnreachableError("once more")
        assert replica.fence.fault()

    replica.catch_ups.append(catch_up)
    run(replica, replica.leads)
    assert seen == [(["p"], False)] * 2


def test_pods_without_a_node_are_known_as_they_were_after_all_that_and_before_anything_is_decided() -> None:
    """However far a watch lags: this one tells nothing while what a predecessor has under way is looked after."""
    server = Server(pod_manifest("p", 1))
    replica = Replica(server)
    waiting = replica.mirror.hub.part(PENDING_PODS)
    known: list[set[str]] = []

    async def catch_up() -> None:
        server.apply(pod_manifest("late", 1))
        for _ in range(10):
            await asyncio.sleep(0)
        known.append(set(waiting))

    async def opened() -> None:
        await until(lambda: not replica.fence.fault())
        known.append(set(waiting))

    replica.catch_ups.append(catch_up)
    run(replica, opened)
    assert known == [set(), {"uid-p", "uid-late"}]


@pytest.mark.parametrize("contested", [False, True])
def test_pods_are_listed_once_all_else_is_taken_over_and_until_then_nothing_is_taken_in(contested: bool) -> None:
    server, clock = Server(pod_manifest("p", 1, uid="u")), Clock()
    replica = Replica(server, held(server, clock) if contested else None, clock)
    of_pods = replica.mirror.hub.reflector(PODS)
    lists: list[int] = []

    async def catch_up() -> None:
        lists.append(of_pods.num_lists)
        server.apply(pod_manifest("q", 1, uid="v", node="n", assigned="0"))
        await asyncio.sleep(0.02)
        assert (replica.ledger.claim("v"), of_pods.num_lists) == (None, lists[0])

    async def scenario() -> None:
        async with running(replica):
            await until(lambda: not replica.fence.fault())
            assert of_pods.num_lists > lists[0]
            assert replica.ledger.claim("v") is not None

    replica.catch_ups.append(catch_up)
    asyncio.run(scenario())
    assert len(lists) == 1


def test_where_who_stands_by_holds_nothing_each_term_begins_with_marks_and_lists() -> None:
    server, clock = Server(pod_manifest("p", 1, uid="u")), Clock()
    replica = Replica(server, held(server, clock), clock, marks_gated=True)

    async def scenario() -> None:
        async with running(replica):
            await replica.leads()
            lists = replica.mirror.num_lists
            clock.now += 1.6
            assert replica.fence.standby()
            await replica.leads()
            assert replica.mirror.num_lists == lists + 1

    asyncio.run(scenario())
    assert server.marks == ["p", "p"]


def test_a_late_binding_of_the_process_before_fails() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    version = server.pod("default", "p")["metadata"]["resourceVersion"]
    metadata = {"name": "p", "uid": "u", "resourceVersion": version}
    late = msgspec.json.encode({"metadata": metadata, "target": {"name": "n"}})
    replica = Replica(server)

    async def scenario() -> None:
        await replica.leads()
        with pytest.raises(ApiError, match="409"):
            await server.post("/api/v1/namespaces/default/pods/p/binding", late)

    run(replica, scenario)
    assert "nodeName" not in server.pod("default", "p")["spec"]


def test_a_spectator_writes_nothing() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    replica = Replica(server, Spectator())

    async def scenario() -> None:
        await until(lambda: not replica.mirror.fault())
        assert replica.fence.standby() == "standby: this process never decides"

    run(replica, scenario)
    assert server.marks == []


def test_two_take_overs_never_write_the_same_mark() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    marks = set()
    for _ in range(2):
        replica = Replica(server)
        run(replica, replica.leads)
        marks.add(server.pod("default", "p")["metadata"]["annotations"][epoch_key()])
    assert len(marks) == 2, "a patch that changes nothing would not change the resourceVersion"


def test_nothing_is_decided_before_every_pod_is_marked() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    server.refuses = True
    replica = Replica(server)

    async def scenario() -> None:
        await until(lambda: "refused" in replica.fence.fault())
        assert replica.fence.fault() == "pods are not synced yet: refused"
        assert replica.fence.standby() == ""
        with pytest.raises(FencedError):
            replica.fence.enter()
        server.refuses = False
        await replica.leads()

    run(replica, scenario)


def test_what_is_marked_is_not_marked_again_because_others_failed() -> None:
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(100)))
    server.errors = 40
    replica = Replica(server)
    run(replica, replica.leads)
    assert len(server.marks) == len(set(server.marks)) == 100


def test_thousands_of_pods_are_marked_many_at_once_and_leave_connections_for_the_lease() -> None:
    """Each answer takes a while, as of an API server that is far away."""
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(1000)))
    real, at_once, most = server.patch, 0, 0

    async def patch(path: str, body: bytes) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return await real(path, body)

    server.patch = patch  # type: ignore[method-assign]
    replica = Replica(server)
    run(replica, replica.leads)
    assert len(server.marks) == 1000
    assert MAX_CONNECTIONS / 2 < most < 0.75 * MAX_CONNECTIONS


def test_a_new_leader_lists_what_its_watch_has_not_told_yet() -> None:
    """The watch of a standby lies dead while the leader before it binds a pod, and dies."""
    server = Server(pod_manifest("p", 1, uid="u"))
    clock = Clock()
    replica = Replica(server, held(server, clock), clock)

    async def scenario() -> None:
        other = held(server, clock, "other")
        await other.attempt()
        async with running(replica):
            await until(lambda: not replica.mirror.fault() and "held by other" in replica.fence.standby())
            server.heard.clear()
            server.apply(pod_manifest("p", 1, uid="u", node="n", assigned="0"))
            await until(lambda: server.num_held_back)
            assert replica.free() == 2
            assert server.marks == [], "a standby writes nothing"
            clock.now += 3  # no renewal
            await until(lambda: not replica.fence.fault())
            assert replica.free() == 1
            server.heard.set()

    asyncio.run(scenario())


def test_the_fence_shuts_when_the_lease_is_lost_and_opens_in_a_new_epoch() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    clock = Clock()
    replica = Replica(server, held(server, clock), clock)

    async def scenario() -> None:
        async with running(replica):
            await replica.leads()
            first = replica.fence.enter()
            lease = msgspec.json.decode(await server.get(LEASE.path))
            change = {"metadata": lease["metadata"], "spec": {"holderIdentity": "b", "leaseDurationSeconds": 2}}
            await server.patch(LEASE.path, msgspec.json.encode(change))
            await until(lambda: "held by b" in replica.fence.standby())
            with pytest.raises(FencedError, match="held by b"):
                replica.fence.check(first)
            clock.now += 2.1
            await replica.leads()
            with pytest.raises(FencedError, match=ENDED):
                replica.fence.check(first)
            replica.fence.check(replica.fence.enter())

    asyncio.run(scenario())
    assert len(server.marks) == 2
    assert replica.leadership.num_terms == 2


def test_the_fence_is_shut_from_the_very_moment_that_another_term_begins() -> None:
    """Calls that are answered before the take-over of that term has even started find it shut."""
    server, clock = Server(), Clock()
    election = Appointed(clock)
    replica = Replica(server, election, clock)

    async def scenario() -> None:
        async with running(replica):
            await replica.leads()
            epoch = replica.fence.enter()
            election.appoint("another")
            with pytest.raises(FencedError):
                replica.fence.check(epoch)
            await until(lambda: not replica.fence.fault())
            with pytest.raises(FencedError, match=ENDED):
                replica.fence.check(epoch)

    asyncio.run(scenario())


def test_a_term_that_ran_out_goes_on_as_another_and_nothing_is_marked_anew() -> None:
    """Nobody else has led: an API server that is slow is not asked for more because of that."""
    server = Server(pod_manifest("p", 1, uid="u"))
    clock = Clock()
    replica = Replica(server, held(server, clock), clock)

    async def scenario() -> None:
        async with running(replica):
            await replica.leads()
            first, lists = replica.fence.enter(), replica.mirror.num_lists
            clock.now += 1.6
            assert replica.fence.standby()
            await replica.leads()
            with pytest.raises(FencedError, match=ENDED):
                replica.fence.check(first)
            assert replica.mirror.num_lists == lists

    asyncio.run(scenario())
    assert server.marks == ["p"]


def test_a_take_over_that_outlasts_its_term_goes_on_where_it_was() -> None:
    server = Server(*(pod_manifest(f"p{number}", 1) for number in range(50)))
    server.refusals["p49"] = [ApiError(503, "", "slow")] * 2
    clock = Clock()
    replica = Replica(server, held(server, clock), clock)

    async def scenario() -> None:
        async with running(replica):
            await until(lambda: "slow" in replica.fence.fault())
            term = replica.election.term
            clock.now += 1.6
            await until(lambda: replica.election.term != term)
            await replica.leads()

    asyncio.run(scenario())
    assert len(server.marks) == len(set(server.marks)) == 50


def test_at_a_stop_the_lease_is_released() -> None:
    server = Server()
    replica = Replica(server, held(server, Clock()))
    run(replica, replica.leads)
    assert msgspec.json.decode(asyncio.run(server.get(LEASE.path)))["spec"]["holderIdentity"] == ""
    assert replica.fence.standby() == "standby: shutting down"


TOO_LONG = ApiError(422, "Invalid", "metadata.annotations: Too long: may not be more than 262144 bytes")
TOO_LARGE = ApiError(500, "", "etcdserver: request is too large")
DENIED = ApiError(403, "Forbidden", "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no")
NO_RIGHT = ApiError(403, "Forbidden", 'User "kerf" cannot patch resource "pods/status" in API group ""')


@pytest.mark.parametrize(
    "refusal", [TOO_LONG, TOO_LARGE, DENIED, ApiError(400, "", ""), ApiError(413, "", "")], ids=str
)
def test_a_pod_that_takes_no_annotation_is_changed_in_a_smaller_way(refusal: ApiError) -> None:
    theirs = {"theirs": "x", "kerf.dev/gpu-count": "1", "kerf.dev/explanation": "y", "hami.io/vgpu-node": "z"}
    server = Server(pod_manifest("big", 1, uid="u", annotations=theirs), pod_manifest("other", 1))
    before = server.pod("default", "big")["metadata"]["resourceVersion"]
    server.refusals["big"] = [refusal]
    replica = Replica(server)
    run(replica, replica.leads)
    changed = server.pod("default", "big")
    assert changed["metadata"]["resourceVersion"] != before
    assert changed["metadata"]["annotations"] == {"theirs": "x", "kerf.dev/gpu-count": "1"}, (
        "a Binding would replace the others: what is left is smaller than a bound pod, whatever it was filled with"
    )
    assert changed["status"]["message"].startswith("Kerf ")
    assert (replica.leadership.num_marked, replica.leadership.num_unmarkable) == (2, 0)


def test_a_pod_that_cannot_be_changed_at_all_holds_nobody_up() -> None:
    server = Server(pod_manifest("fixed", 1), *(pod_manifest(f"p{number}", 1) for number in range(40)))
    server.refusals["fixed"] = [DENIED] * 2
    replica = Replica(server)
    run(replica, replica.leads)
    assert (len(server.marks), replica.leadership.num_unmarkable) == (40, 1)


def test_a_pod_created_again_between_list_and_mark_is_no_pod_that_cannot_be_marked() -> None:
    server = Server(pod_manifest("p", 1, uid="u"))
    real = server.patch

    async def patch(path: str, body: bytes) -> bytes:
        server.apply(pod_manifest("p", 1, uid="another"))
        return await real(path, body)

    server.patch = patch  # type: ignore[method-assign]
    replica = Replica(server)
    run(replica, replica.leads)
    assert (replica.leadership.num_marked, replica.leadership.num_unmarkable) == (0, 0)


@pytest.mark.parametrize(
    "error", [NO_RIGHT, ApiError(500, "", "no"), ApiError(429, "", ""), ApiError(409, "", "")], ids=str
)
def test_what_is_not_the_pods_own_fault_is_tried_again(error: ApiError) -> None:
    server = Server(pod_manifest("p", 1))
    server.refusals["p"] = [error] * 3
    replica = Replica(server)

    async def scenario() -> None:
        await until(lambda: str(error) in replica.fence.fault())
        await replica.leads()

    run(replica, scenario)
    assert (server.marks, replica.leadership.num_unmarkable) == (["p"], 0)
