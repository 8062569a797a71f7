"""The promises of a commit, for every target: two leaders, and an API server that loses, delays, repeats and reorders.

What is checked of each schedule, once all that is on its way has arrived:

- a write that was settled as done has taken effect, one that was settled otherwise has not and never does;
- nothing that a leader has sent takes effect once its successor has taken over;
- whatever was unknown is known in the end.

A new target is a line in `CASES`, or a test of its part that calls `takes_effect_once_or_never`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube.client import ApiError, ApiServer, ClusterError, UnreachableError
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, Term, commit
from extender.kube.decoding import Decoder
from extender.kube.leadership import Unelected
from extender.kube.objects import Pod
from extender.kube.patches import Patch, write
from extender.kube.records import _Write
from extender.ledger.ledger import Ledger
from extender.plugins.pods import read_holding
from extender.queueing.direct.mode import DirectMode, _Doubt
from extender.queueing.direct.writer import DirectWriter, _Assignment, is_blank
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.nominations import PLANNED_BY
from extender.scheduling.binding import Binding, BindingTools, Handovers, change
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity
from tests.controlplane import ControlPlane
from tests.controlplane.objects import gpu_node, pod
from tests.kube.slow_server import Line, Request, SlowServer
from tests.ledger.builders import node_object, pod_object
from tests.queueing.contract import CONFLICT, CONTRACT, Server, Stand, hold

POD = PodIdentity("default", "p", "uid-p")
MAP = "/api/v1/namespaces/default/configmaps/plan"
MAX_STEPS = 800
WRITE, THEN = "write", "then"


@dataclass(eq=False)
class Asked(Unelected):
    """A lease as its process knows it: by requests that come as late as all others, and by no clock."""

    line: Line
    num_asked: int = 0
    confirmed: int = 0
    """The last of them that has shown that it leads."""
    has_heard: bool = False
    """Whether it knows that another one leads."""

    async def confirm(self, since: int) -> bool:
        return self.confirmed > since or (await self.renew() and self.confirmed > since)

    async def renew(self) -> bool:
        """Ask once more; whether it is shown to lead."""
        self.num_asked += 1
        number = self.num_asked
        try:
            found = await self.line.ask("lease", self.line.slow.server.asked_who_leads)
        except ClusterError:
            return False
        if found.decode() != self.line.name:
            self.has_heard = True
            return False
        self.confirmed = max(self.confirmed, number)
        return True


@dataclass(eq=False)
class Process:
    """One of the two leaders, and the writes that it has decided on. Its clock stands until it hears of another one."""

    name: str
    slow: SlowServer
    case: "Case"
    settled: list[Outcome] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.line = self.slow.line(self.name)
        self.lease = Asked(self.line)
        self.fence = Fence(lambda: 0.0, self.lease)
        self.resolver = Resolver(self.fence, self._clock)

    def lead(self) -> None:
        """It leads from now on, until it hears that another one does."""
        self.fence.take_over("", lambda: float("-inf" if self.lease.has_heard else "inf"), lambda: "another one leads")
        self.fence.open(self.name)

    @property
    def leads(self) -> bool:
        """Whether it does, as far as it knows."""
        return not self.fence.standby()

    def _clock(self) -> float:
        self.now += 100.0  # whatever paused is due
        return self.now

    async def write(self) -> None:
        """Commit what it decides on, and then what follows from that."""
        term, target = self.fence.as_of_now(), self.case.target(self)
        if target is None:
            return
        settle = target.settle

        def settled(result: Result[Any]) -> None:
            self.settled.append(result.outcome)
            settle(result)

        target.settle = settled  # type: ignore[method-assign]
        self._mark(target, WRITE)
        try:
            await self._write(target, term)
        except (UnreachableError, FencedError):
            pass
        except ApiError as error:
            assert error.status == CONFLICT, error

    async def _write(self, target: Target[Any], term: Term) -> None:
        if not (self.case.then and isinstance(target, Patch)):
            await commit(target, term)
            return
        known = self.slow.server.pod("default", "p")["metadata"]["resourceVersion"]
        found = await write(target, term, known)
        if found is not None:
            following = self.case.then(self, found)
            self._mark(following, THEN)
            await write(following, term, found.metadata.resource_version)

    def _mark(self, target: Target[Any], words: str) -> None:
        send = target.send

        async def sent(version: str) -> Any:
            self.line.decisive = words
            return await send(version)

        target.send = sent  # type: ignore[method-assign]

    @property
    def outcome(self) -> Outcome | None:
        """What became of its write, as far as it knows."""
        return self.settled[-1] if self.settled else None


@dataclass(frozen=True)
class Case:
    """A target, and how whoever takes over makes what is under way fail."""

    name: str
    target: Callable[[Process], Target[Any] | None]
    """What a process decides to write, None where there is nothing to decide any more."""
    take_over: Callable[[Process], Coroutine[Any, Any, object]]
    shared: bool = False
    """Whether it is done whoever has done it, as a pod is gone."""
    is_late: bool = False
    """Whether it may yet be written after another leads, as long as nobody else has, and is not found out about."""
    is_kept: bool = False
    """Whether who leads no more finds out what became of it; of others whoever leads next does."""
    then: Callable[[Process, Pod], Patch[Pod]] | None = None
    """What is written next, in the same term, on the object as it was answered or found to be by then."""


def binding(process: Process) -> Binding:
    ledger = Ledger(reservation_ttl_s=30.0)
    node = "n" if process.name == "a" else "m"
    ledger.upsert_node(node_object(node, 2))
    holding, _ = read_holding(pod_object("p", 1, node=node, assigned="0"))
    clock = lambda: 0.0  # noqa: E731 - a clock
    handovers = Handovers(process.line, ledger.rows, clock, clock)
    tools = BindingTools(process.line, ledger, process.resolver, handovers, clock)
    held = ledger.begin_binding(POD.uid, node, holding, 0.0)
    annotations = {"kerf.dev/node": node}
    return Binding(tools, POD, PodRequest(GpuRequest(1)), node, held=held, annotations=annotations)


class Assigned(_Assignment):
    """Written on a pod that has no gate; what is unknown about it is in doubt, as in the queue."""

    def __init__(self, process: Process, found: Pod) -> None:
        self.process, self.entry = process, Entry(found, 0.0, 0.0)
        self.writer = DirectWriter(process.line)
        node = "n" if process.name == "a" else "m"
        reserved = {"kerf.dev/assigned-node": node, "kerf.dev/assigned-gpus": "0"}
        self.entry.reserve(node)
        super().__init__(process.line, found, node, lambda: reserved, "", self.writer._unsealed)  # noqa: SLF001 - as the writer does

    def settle(self, result: Result[Pod]) -> None:
        super().settle(result)
        if result.outcome is Outcome.UNKNOWN:
            self.entry.doubt()
            self.process.resolver.add(Doubted(self))


class Doubted(_Doubt):
    """Tells what it comes to."""

    def __init__(self, assigned: Assigned) -> None:
        process, entry = assigned.process, assigned.entry
        ledger = SimpleNamespace(release=lambda uid: None, hold_as_read=lambda pod, now: None)
        backlog = SimpleNamespace(entries={entry.uid: entry}, read_again=lambda entry: None)
        mode = SimpleNamespace(
            writer=assigned.writer,
            ledger=ledger,
            backlog=backlog,
            fence=process.fence,
            resolver=process.resolver,
            clock=lambda: 0.0,
            changed=lambda: None,
        )
        super().__init__(cast(DirectMode, mode), entry)
        self.process = process

    def settle(self, result: Result[Pod]) -> None:
        self.process.settled.append(result.outcome)
        super().settle(result)


def assignment(process: Process) -> Assigned | None:
    found = msgspec.convert(process.slow.server.pod("default", "p"), Pod)
    return Assigned(process, found) if is_blank(found) else None  # else it is taken back first


def opening(process: Process, found: Pod) -> Patch[Pod]:
    """As of a gate: the pod is kube-scheduler's from then on."""
    metadata = {"annotations": {PLANNED_BY: process.name}}
    return Patch(process.line, POD.path, Decoder(Pod), uid=found.metadata.uid, part="/status", metadata=metadata)


def record(process: Process) -> _Write:
    return _Write(process.line, MAP, {"by": process.name}, {}, {})


async def nothing(process: Process) -> None:
    """A record that is late is refused for its version: nobody has to see to that."""


async def mark(process: Process) -> None:
    """What a leader does with each pod that may be bound or evicted."""
    await change(process.line, POD, "kerf.dev/epoch", process.name)


CASES = [
    Case("a Binding", binding, mark, is_kept=True),
    Case("an assignment on a pod", assignment, mark, then=opening),
    Case("a record", record, nothing, is_late=True),
]


class World:
    """Two processes, of which "a" leads at first and "b" takes over at some time."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.chance = case, random.Random(seed)
        self.slow = SlowServer(Server())
        self.a, self.b = (Process(name, self.slow, case) for name in "ab")
        self.a.lead()
        self.first_leads = self.chance.choice((0, 3, 10, 40, 120))
        """Steps, before another process takes the lease."""
        self.until_applied = self.chance.random() < 0.5
        """Whether that is as soon as a write has taken effect, if not before."""
        self.ended = asyncio.Event()
        self.is_paused = self.chance.random() < 0.5
        """Whether the first one stands still until the other has taken over, its clock with it: it hears of nothing."""
        self.loss = self.chance.choice((0.1, 0.25, 0.7))
        """Of answers; where it is high, of those to writes alone, or nothing would come to an end."""
        self.lateness = self.chance.choice((0.0, 0.9, 0.97))
        """How often what nobody waits for any more is passed over."""
        self.taken_over = 0
        """How many decisive writes had taken effect when that was done."""
        self.tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        works = (self.a.write(), self.a.lease.renew(), self.succeed())
        self.tasks = [asyncio.create_task(work) for work in works]
        for number in range(MAX_STEPS):
            if number >= self.first_leads or (self.until_applied and self.slow.applied):
                self.ended.set()
            if number == MAX_STEPS // 2:
                self.loss = 0.0  # and by that all comes to an end
            await self.settle_down()
            if all(task.done() for task in self.tasks) and not self.open():
                break
            await self.step()
        assert all(task.done() for task in self.tasks), "all ends"
        await self.end()
        await asyncio.gather(*self.tasks)

    async def succeed(self) -> None:
        """The other process takes the lease, makes what is under way fail, and decides for itself."""
        await self.ended.wait()
        await self.again(lambda: self.b.line.ask("lease", lambda: self.slow.server.lead("b")))
        await self.again(lambda: self.case.take_over(self.b))
        self.taken_over = len(self.slow.applied)
        self.b.lead()
        for request in self.open():
            if self.is_paused and request.awaited and request.line is self.a.line and self.chance.random() < 0.5:
                self.slow.lose(request)  # its time has run out meanwhile
        await self.b.write()

    async def again(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            try:
                await work()
                return
            except ClusterError:
                continue

    def open(self) -> list[Request]:
        """Requests that are awaited or have not arrived."""
        return [one for one in self.slow.requests if one.awaited or not one.num_arrived]

    async def step(self) -> None:
        """One request comes a step further, or is lost; or somebody looks after what is unknown."""
        requests, processes = self.open(), [self.a, self.b]
        if self.ended.is_set() and self.is_paused and not self.b.leads:
            requests, processes = [one for one in requests if one.line is self.b.line], [self.b]
        elif self.slow.server.leader == "b" and not self.is_paused and self.chance.random() < 0.1:
            self.a.lease.has_heard = True
        prompt = [one for one in requests if one.awaited or self.chance.random() >= self.lateness]
        if not prompt or self.chance.random() < 0.1:
            process = self.chance.choice(processes)
            renews = process.leads and self.chance.random() < 0.5
            work = process.lease.renew if renews else process.resolver.resolve_round
            self.tasks.append(asyncio.create_task(work()))
            return
        request = self.chance.choice(prompt)
        safe = self.loss > 0.5 and not request.what.startswith(("PATCH", "POST"))
        if request.awaited and not safe and self.chance.random() < self.loss:
            self.slow.lose(request)
        elif not request.num_arrived:
            await self.slow.arrive(request)
            if self.chance.random() < 0.1:
                await self.slow.arrive(request)  # a proxy repeats it
        elif request.awaited:
            self.slow.tell(request)

    async def end(self) -> None:
        """All that is on its way arrives, and nothing is lost any more."""
        for _ in range(20):
            for request in list(self.slow.requests):
                if not request.num_arrived:
                    await self.slow.arrive(request)
                if request.awaited:
                    self.slow.tell(request)
            rounds = [asyncio.create_task(process.resolver.resolve_round()) for process in (self.a, self.b)]
            while not all(task.done() for task in rounds):
                await self.settle_down()
                for request in [one for one in self.slow.requests if one.awaited]:
                    if not request.num_arrived:
                        await self.slow.arrive(request)
                    self.slow.tell(request)

    @staticmethod
    async def settle_down() -> None:
        """Until nobody can go on before another request is answered."""
        loop: Any = asyncio.get_running_loop()
        while loop._ready:  # noqa: ASYNC110, SLF001 - what else is to run, this task aside
            await asyncio.sleep(0)

    def check(self) -> None:
        of_all = [request.line.name for request in self.slow.applied]
        by = [request.line.name for request in self.slow.applied if request.decisive == WRITE]
        late = of_all[self.taken_over :] if not self.case.is_late else by[by.index("b") :] if "b" in by else []
        assert "a" not in late, "nothing of a leader takes effect once another has taken over"
        for process in (self.a, self.b):
            if process.outcome is Outcome.UNKNOWN:
                assert self.case.is_late
            elif process.outcome is Outcome.DONE:
                assert process.name in by or self.case.shared
            elif process.outcome is not Outcome.FENCED or process.leads or self.case.is_kept:
                assert process.name not in by, f"{process.outcome}, and it has taken effect"
        assert all(by.count(name) <= 1 for name in "ab"), "and all of this at most once"
        assert len(by) <= 1 or self.case.is_late


def takes_effect_once_or_never(case: Case, seed: int) -> None:
    """Whatever is lost, delayed, repeated and reordered of the answers."""
    world = World(case, seed)
    asyncio.run(world.run())
    world.check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=4 * settings().max_examples)
@given(seed=st.integers(0, 2**32))
def test_a_write_takes_effect_once_or_never_and_it_is_known_which(case: Case, seed: int) -> None:
    takes_effect_once_or_never(case, seed)


@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_the_slow_server_answers_as_a_real_one_does(rule: Callable[[Stand], Awaitable[None]]) -> None:
    hold(Server(), "default", rule)


@pytest.mark.controlplane
@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_a_real_api_server_keeps_the_contract(
    rule: Callable[[Stand], Awaitable[None]], control_plane: ControlPlane
) -> None:
    namespace = f"commit-{CONTRACT.index(rule)}"
    control_plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        gpu_node("n", 2),
        pod("p", 1, namespace=namespace),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plan", "namespace": namespace}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "a", "namespace": namespace},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        },
    )
    server = ApiServer(kubeconfig=str(control_plane.kubeconfig()), service_account_dir=Path())
    hold(server, namespace, rule, closing_s=0.25)  # connections by TLS are closed a moment later
