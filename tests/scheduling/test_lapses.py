"""Whole processes on one API server: leases that lapse, lost answers, late Bindings, clocks that stop.

Each process has its own clock and connection. The node has one GPU, which never has two holders.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, Query, UnreachableError
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.kube.leadership import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.watches import ReflectorTimes
from extender.ledger.ledger import AllocationState
from extender.ledger.mirror import Mirror
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.binding import Binder, BindError
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.takeover import Leadership, epoch_key
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, FaultyTransport, ledger_of, node_manifest, pod_manifest, until

LEASE = LeaseName("kube-system", "kerf")
TIMES = LeaseTimes(duration_s=2, renew_deadline_s=1.5, retry_s=0.005)
REFLECTORS = ReflectorTimes(first_backoff_s=0.005, max_backoff_s=0.005)


class Line(FaultyTransport):
    """The connection of a process to the API server: it can be cut, and delay a Binding."""

    def __init__(self, server: MemoryCluster) -> None:
        super().__init__(server)
        self.cut = self.keeps_bindings = False
        self.kept: list[tuple[str, bytes]] = []

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self._pass()
        return await super().get(path, query)

    async def patch(self, path: str, body: bytes) -> bytes:
        self._pass()
        return await super().patch(path, body)

    async def post(self, path: str, body: bytes) -> bytes:
        self._pass()
        if self.keeps_bindings and path.endswith("/binding"):
            self.kept.append((path, body))
            self.cut = True
            raise UnreachableError("POST: timed out")
        return await super().post(path, body)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        async for lines in self.inner.watch(path, query):
            self._pass()
            yield lines

    async def arrive(self) -> int:
        """Deliver the delayed Binding to the API server now; return the status of the answer."""
        try:
            await self.inner.post(*self.kept.pop())
        except ApiError as error:
            return error.status
        return 201

    def _pass(self) -> None:
        if self.cut:
            raise UnreachableError("refused")


class Process:
    """Kerf without its HTTP."""

    def __init__(self, server: MemoryCluster, name: str, *, follows: bool = False) -> None:
        self.server, self.clock = server, Clock()
        self.line = Line(server)
        self.ledger = ledger_of()
        self.mirror = Mirror(self.line, self.ledger, self.clock, max_age_s=100.0, times=REFLECTORS)
        lease: type[FollowedLease] | type[HeldLease] = FollowedLease if follows else HeldLease
        self.election: Election = lease(self.line, LEASE, name, TIMES, self.clock)
        self.fence = Fence(self.clock, self.election)
        self.leadership = Leadership(
            self.line, self.election, self.fence, self.mirror, self.clock, key=epoch_key(LEASE.name)
        )
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.resolver = Resolver(self.fence, self.clock)
        self.binder = Binder(
            *(self.line, self.ledger, self.placer, EventRecorder(self.line), self.clock, self.fence, self.clock),
            resolver=self.resolver,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.leadership.start()
        self.resolver.start()
        try:
            yield
        finally:
            await self.resolver.stop()
            await self.leadership.stop()
            await self.mirror.stop()

    @property
    def leads(self) -> bool:
        return not self.fence.fault() and not self.mirror.fault()

    def filter(self, name: str) -> str:
        """Decide and reserve, as filter does; return the node, "" for none."""
        assert not self.fence.fault()
        pod = decode_pod(self.server.pod("default", name))
        request = read_pod_request(pod)
        assert request.gpus is not None
        identity = PodIdentity("default", name, pod.metadata.uid)
        placement = self.placer.place(identity, request.gpus, self.placer.policy_of(request), ["n"])
        self.placer.remember(identity, request)
        self.fence.note(pod.metadata)
        if placement.node:
            self.placer.reserve(placement)
        return placement.node or ""

    async def bind(self, name: str) -> str:
        """Bind; return the error, "" for none."""
        uid = self.server.pod("default", name)["metadata"]["uid"]
        try:
            await self.binder.bind(PodIdentity("default", name, uid), "n", "")
        except BindError as error:
            return str(error)
        return ""

    async def place(self, name: str) -> str:
        """Filter and bind; return the error, "" for none."""
        return await self.bind(name) if self.filter(name) else "no room"

    @property
    def undecided(self) -> int:
        return self.ledger.num_allocations(AllocationState.UNDECIDED)


async def resolved(process: Process) -> None:
    """Resolve all unknown outcomes without waiting for the rounds in the background."""
    async with asyncio.timeout(30):
        while process.undecided:
            await process.resolver.resolve_round()
            await asyncio.sleep(0.001)


class Cluster(MemoryCluster):
    """A node with one GPU."""

    def __init__(self) -> None:
        super().__init__([node_manifest("n", 1)])

    def create(self, name: str) -> None:
        self.apply(pod_manifest(name, 1))

    async def holders(self) -> list[str]:
        """Return the pods that have the GPU."""
        pods: list[Manifest] = msgspec.json.decode(await self.get("/api/v1/pods"))["items"]
        return [pod["metadata"]["name"] for pod in pods if "nodeName" in pod["spec"]]

    async def renew(self, holder: str, transitions: int = 0) -> None:
        """Take or renew the lease for 15 s, as kube-scheduler does."""
        spec: dict[str, Any] = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions}
        try:
            found = msgspec.json.decode(await self.get(LEASE.path))
            await self.patch(LEASE.path, msgspec.json.encode({"metadata": found["metadata"], "spec": spec}))
        except ApiError:
            await self.post(LEASE.collection, msgspec.json.encode({"metadata": {"name": LEASE.name}, "spec": spec}))


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside a standby"])
@pytest.mark.parametrize("arrives", ["before the line is back", "as it is", "after it", "never"])
@in_loop
async def test_a_lapse_that_nobody_takes_over_gives_nothing_away_that_may_come_yet(others: int, arrives: str) -> None:
    """A Binding has no answer, and the API server is away for longer than the lease."""
    server = Cluster()
    first, *rest = (Process(server, name) for name in ("a", "b")[: others + 1])
    async with AsyncExitStack() as stack:
        for process in (first, *rest):
            await stack.enter_async_context(process.running())
            await until(lambda: first.leads)
        server.create("p")
        server.create("q")
        assert first.filter("p") == "n"
        first.line.keeps_bindings = True
        assert "its outcome is unknown" in await first.bind("p")
        for process in rest:
            process.line.cut = True
        epoch = first.fence.enter()
        first.clock.now += 8.0
        for process in rest:
            process.clock.now += 8.0
        assert first.fence.standby()
        await first.resolver.resolve_round()
        assert first.undecided == 1, "nobody has taken over"
        if arrives == "before the line is back":
            assert await first.line.arrive() == 201
        first.line.keeps_bindings = first.line.cut = False
        await until(lambda: first.leads)
        assert first.fence.enter() != epoch, "a lapse ends the term"
        if arrives == "as it is":
            await first.line.arrive()
        error = await first.place("q")
        await resolved(first)
        if arrives == "after it":
            assert await first.line.arrive() == 409
        assert bool(error and await first.place("q")) is bool(server.pod("default", "p")["spec"].get("nodeName"))
    assert len(await server.holders()) == 1


async def take_over(process: Process) -> None:
    """Let the lease run out by its clock: once more if it saw the predecessor's last renewal only then."""
    while not process.leads:
        process.clock.now += 2.1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await until(lambda: process.leads)


@in_loop
async def test_what_a_predecessor_has_undecided_is_settled_by_the_pod_when_another_has_led() -> None:
    server = Cluster()
    first, second = Process(server, "a"), Process(server, "b")
    async with first.running(), second.running():
        await until(lambda: first.leads or second.leads)
        leader, other = (first, second) if first.leads else (second, first)
        server.create("p")
        assert leader.filter("p") == "n"
        leader.line.keeps_bindings = True
        assert "its outcome is unknown" in await leader.bind("p")
        await take_over(other)
        leader.clock.now += 2.1
        assert leader.undecided == 1, "it does not know yet"
        assert await leader.line.arrive() == 409
        leader.line.cut = False
        await resolved(leader)
        assert await other.place("p") == ""
    assert await server.holders() == ["p"]


@pytest.mark.parametrize("created", ["before", "after"])
@in_loop
async def test_a_paused_leader_binds_nothing_once_another_leads(created: str) -> None:
    """A paused virtual machine: by its clock the term goes on. Pods created since have no mark."""
    server = Cluster()
    paused, successor = Process(server, "a"), Process(server, "b")
    async with paused.running():
        await until(lambda: paused.leads)
        if created == "before":
            server.create("late")
            assert paused.filter("late") == "n"
        paused.line.cut = True
        async with successor.running():
            await until(lambda: successor.mirror.fault() == "")
            await take_over(successor)
            server.create("good")
            assert await successor.place("good") == ""
            assert paused.leads
            if created == "after":
                server.create("late")
                assert paused.filter("late") == "n"
            paused.line.cut = False
            assert await paused.bind("late") != ""
            await until(lambda: not paused.leads)
    assert await server.holders() == ["good"]


@in_loop
async def test_a_paused_sidecar_binds_nothing_once_another_scheduler_leads() -> None:
    server = Cluster()
    paused = Process(server, "host", follows=True)
    async with paused.running():
        await until(lambda: "held by nobody" in paused.fence.standby())
        await server.renew("host_1")
        await until(lambda: paused.leads)
        paused.line.cut = True
        await server.renew("other_1", 1)
        server.apply(pod_manifest("good", 1, node="n", assigned="0"))
        server.create("late")
        assert paused.filter("late") == "n", "kube-scheduler was paused with it, and asks it again"
        paused.line.cut = False
        assert await paused.bind("late") != ""
    assert await server.holders() == ["good"]


@in_loop
async def test_a_sidecar_cut_off_for_longer_than_the_term_gives_nothing_away_that_may_come_yet() -> None:
    """Its kube-scheduler goes on leading, by its own connection."""
    server = Cluster()
    sidecar = Process(server, "host", follows=True)
    async with sidecar.running():
        await until(lambda: "held by nobody" in sidecar.fence.standby())
        await server.renew("host_1")
        await until(lambda: sidecar.leads)
        epoch = sidecar.fence.enter()
        server.create("p")
        server.create("q")
        assert sidecar.filter("p") == "n"
        sidecar.line.keeps_bindings = True
        assert "its outcome is unknown" in await sidecar.bind("p")
        sidecar.clock.now += 20.0
        await sidecar.resolver.resolve_round()
        assert sidecar.undecided == 1
        sidecar.line.keeps_bindings = sidecar.line.cut = False
        await sidecar.resolver.resolve_round()
        assert sidecar.undecided == 1, "it only reads, and the Binding may still take effect"
        await server.renew("host_1")
        asked = sidecar.election.num_asked
        await until(lambda: sidecar.election.num_asked > asked + 1)
        await server.renew("host_1")
        await until(lambda: sidecar.leads)
        assert sidecar.fence.enter() != epoch
        await resolved(sidecar)
        assert await sidecar.line.arrive() == 409
        assert await sidecar.place("q") == ""
    assert await server.holders() == ["q"]
