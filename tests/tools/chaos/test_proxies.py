"""The hop to the API server does to a call what each fault says, and tells so."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from tests.ledger.builders import until
from tests.tools.chaos import hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.proxies import ApiProxy

BINDING = "/api/v1/namespaces/default/pods/p/binding"
POD = "/api/v1/namespaces/default/pods/p"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
ALLOCATION = b'{"status":{"allocation":{"allocationTimestamp":"now"}}}'
WATCH = "/api/v1/pods?watch=true"


class Upstream:
    """An API server that counts, and whose watch says one line at once and one more when asked to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.say = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first\n")
            await self.say.wait()
            await response.write(b"second\n")
            return response
        if request.method in ("POST", "PATCH"):
            self.written.append(await request.read())
        return web.Response(status=201 if request.method == "POST" else 200, text="done")


class Missed(list[float]):
    """What a clock leaves out."""

    def add(self, seconds: float) -> None:
        self.append(seconds)


class FakeProcess:
    """A replica that notes its signals."""

    running = True

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.missed = Missed()

    def signal(self, number: int) -> None:
        self.signals.append(number)


class Rig:
    """A proxy before an upstream."""

    def __init__(self) -> None:
        self.upstream = Upstream()
        self.board = Board(asyncio.get_running_loop().time)
        self.process = FakeProcess()
        self.board.replicas.append(self.process)  # type: ignore[arg-type]
        self.url = ""
        self.client = aiohttp.ClientSession()

    async def write(self) -> int:
        """The status that a Binding is answered with, 0 for a connection that ends."""
        try:
            async with self.client.post(self.url + BINDING, data=b"binding") as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def patch(self, body: bytes) -> int:
        """The same of a patch of a pod."""
        try:
            async with self.client.patch(self.url + POD, data=body) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def change(self, body: bytes, part: str = "") -> int:
        """The same of a patch of a claim."""
        try:
            async with self.client.patch(self.url + CLAIM + part, data=body) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def read(self, path: str = "/api/v1/pods") -> int:
        try:
            async with self.client.get(self.url + path) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0


def run(scenario: Callable[[Rig], Awaitable[None]], *faults: Fault) -> Rig:
    """Play a scenario through a proxy with these faults."""

    async def play() -> Rig:
        rig = Rig()
        runner, upstream = await hops.listen(rig.upstream.handle)
        proxy = ApiProxy(rig.board, 0, upstream, None)
        await proxy.start()
        rig.url = proxy.url
        rig.board.begin(faults)
        try:
            async with asyncio.timeout(30.0):
                await scenario(rig)
        finally:
            rig.upstream.say.set()
            await rig.client.close()
            await proxy.stop()
            await runner.cleanup()
        return rig

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("kind", "status", "num_written"),
    [
        (Kind.RESET_BEFORE_WRITE, 0, 0),
        (Kind.RESET_AFTER_WRITE, 0, 1),
        (Kind.ERROR_AFTER_WRITE, 500, 1),
        (Kind.CONFLICT, 409, 0),
        (Kind.THROTTLED, 429, 0),
        (Kind.SERVER_ERROR, 500, 0),
        (Kind.LATE_BINDING, 201, 1),
        (Kind.KILL_BINDING_LOST, 0, 0),
        (Kind.KILL_BINDING_WRITTEN, 0, 1),
        (Kind.KILL_BINDING_ANSWERED, 201, 1),
    ],
)
def test_one_binding_suffers_and_the_next_does_not(kind: Kind, status: int, num_written: int) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == status
        assert len(rig.upstream.written) == num_written
        assert await rig.write() == 201

    rig = run(scenario, Fault(kind, 0.0))
    assert rig.board.counts == {kind: 1}
    assert rig.process.signals == ([signal.SIGKILL] if kind.startswith("kill-") else [])


@pytest.mark.parametrize(
    ("kind", "body", "status", "num_written"),
    [
        (Kind.KILL_NOMINATION_WRITTEN, b'{"status": {"nominatedNodeName": "n"}}', 0, 1),
        (Kind.KILL_OPENING_LOST, b'{"spec": {"schedulingGates": null}}', 0, 0),
        (Kind.KILL_OPENING_WRITTEN, b'{"spec": {"schedulingGates": null}}', 0, 1),
        (Kind.CONFLICT, b'{"spec": {"schedulingGates": null}}', 409, 0),
        (Kind.RESET_AFTER_WRITE, b'{"status": {"nominatedNodeName": "n"}}', 0, 1),
    ],
)
def test_a_pod_that_is_let_go_suffers_and_what_is_noted_on_it_does_not(
    kind: Kind, body: bytes, status: int, num_written: int
) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.patch(b'{"metadata": {"annotations": {}}}') == 200
        assert await rig.patch(body) == status
        assert len(rig.upstream.written) == 1 + num_written
        assert await rig.patch(body) == 200

    assert run(scenario, Fault(kind, 0.0)).board.counts == {kind: 1}


def test_a_binding_of_a_dead_process_arrives_late() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == 0
        await until(lambda: not rig.board.num_pending)
        assert rig.upstream.written == [b"binding"]

    run(scenario, Fault(Kind.KILL_BINDING_ASKED, 0.0, 0.05))


@pytest.mark.parametrize("late", [False, True])
def test_a_pause_holds_the_binding(late: bool) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == 201
        await until(lambda: not rig.board.num_pending)

    rig = run(scenario, Fault(Kind.PAUSE_IN_BIND, 0.0, 0.1, late))
    assert rig.process.signals == [signal.SIGSTOP, signal.SIGCONT]
    assert rig.upstream.written == [b"binding"]


def test_reads_are_gone_throttled_and_slow() -> None:
    async def scenario(rig: Rig) -> None:
        assert [await rig.read() for _ in range(4)] == [410, 429, 500, 200]

    faults = (Fault(Kind.GONE, 0.0), Fault(Kind.THROTTLED, 0.0), Fault(Kind.SERVER_ERROR, 0.0))
    assert run(scenario, *faults).board.counts.total() == 3


def test_nothing_comes_through_while_unreachable() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == 0
        await until(lambda: rig.board.lasting(Kind.UNREACHABLE) is None)
        assert await rig.read() == 200
        assert rig.upstream.written == []

    assert run(scenario, Fault(Kind.UNREACHABLE, 0.0, 0.3)).board.counts == {Kind.UNREACHABLE: 1}


@pytest.mark.parametrize(
    ("kind", "lines"),
    [(Kind.WATCH_CUT, [b"first\n"]), (Kind.WATCH_STALE, [b"first\n", b"second\n"])],
)
def test_watches_are_cut_or_silent(kind: Kind, lines: list[bytes]) -> None:
    heard: list[bytes] = []

    async def scenario(rig: Rig) -> None:
        async with rig.client.get(rig.url + WATCH) as answer:
            heard.append(await answer.content.readline())
            rig.board.begin([Fault(kind, 0.0, 0.3)])
            await until(lambda: bool(rig.board.counts))
            rig.upstream.say.set()
            try:
                heard.append(await answer.content.readline())
            except aiohttp.ClientError:
                assert kind is Kind.WATCH_CUT

    run(scenario)
    assert [line for line in heard if line] == lines


def test_the_clock_of_a_process_that_watches_jumps() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.read() == 200
        async with rig.client.get(rig.url + WATCH) as answer:
            await answer.content.readline()
            await until(lambda: rig.process.signals == [signal.SIGUSR1])

    run(scenario, Fault(Kind.CLOCK_JUMP, 0.0))


def test_a_watch_ends_with_an_error_inside() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.client.get(rig.url + WATCH) as answer:
            await answer.content.readline()
            rig.board.begin([Fault(Kind.WATCH_GONE, 0.0)])
            assert b'"code": 410' in await answer.content.readline()
            assert await answer.content.read() == b""

    run(scenario)


@pytest.mark.parametrize(("kind", "written_at_once"), [(Kind.LAPSE_ANSWER_LOST, 1), (Kind.LAPSE_LATE_BINDING, 0)])
def test_a_lapse_loses_the_answer_and_cuts_all_replicas_off(kind: Kind, written_at_once: int) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == 0
        assert len(rig.upstream.written) == written_at_once
        assert rig.board.is_cut_off
        assert await rig.read() == 0
        assert await rig.write() == 0
        assert len(rig.upstream.written) == 2 * written_at_once
        await until(lambda: not rig.board.is_cut_off)
        assert await rig.read() == 200
        assert rig.board.is_watchless
        async with rig.client.get(rig.url + POD) as answer:  # a call that is no watch comes through
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await rig.client.get(rig.url + WATCH)
        await until(lambda: not rig.board.num_pending)
        assert rig.upstream.written == [b"binding"] * 2

    assert run(scenario, Fault(kind, 0.0, 0.4, late=True)).board.counts == {kind: 1}


def test_a_machine_that_was_paused_has_missed_the_time() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.write() == 201
        await until(lambda: not rig.board.num_pending)

    rig = run(scenario, Fault(Kind.VM_PAUSE, 0.0, 0.2))
    assert rig.process.signals == [signal.SIGSTOP, signal.SIGCONT]
    assert sum(rig.process.missed) >= 0.2


@pytest.mark.parametrize(
    ("kind", "status", "num_written"),
    [
        (Kind.CLAIM_RESET_BEFORE_WRITE, 0, 0),
        (Kind.CLAIM_RESET_AFTER_WRITE, 0, 1),
        (Kind.CLAIM_ERROR_AFTER_WRITE, 500, 1),
        (Kind.CLAIM_CONFLICT, 409, 0),
        (Kind.CLAIM_ERROR, 500, 0),
        (Kind.LATE_ALLOCATION, 200, 1),
        (Kind.PAUSE_IN_ALLOCATION, 200, 1),
        (Kind.KILL_ALLOCATION_LOST, 0, 0),
        (Kind.KILL_ALLOCATION_WRITTEN, 0, 1),
    ],
)
def test_one_claim_suffers_and_the_next_does_not(kind: Kind, status: int, num_written: int) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.change(ALLOCATION, "/status") == status
        assert len(rig.upstream.written) == num_written
        assert await rig.change(ALLOCATION, "/status") == 200

    rig = run(scenario, Fault(kind, 0.0, 0.2))
    assert rig.board.counts == {kind: 1}
    assert (signal.SIGKILL in rig.process.signals) == kind.startswith("kill-")


def test_devices_are_taken_back_as_soon_as_they_are_written() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.change(b'{"metadata":{"finalizers":["f"]}}') == 200
        assert await rig.change(ALLOCATION, "/status") == 200
        assert b'"allocation":null' in rig.upstream.written[-1]

    rig = run(scenario, Fault(Kind.ALLOCATION_TAKEN, 0.0))
    assert (len(rig.upstream.written), rig.board.touched) == (3, {"c"})


def test_kills_wait_for_the_write_that_they_are_for() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.change(b'{"status":{"allocation":null}}', "/status") == 200
        assert not rig.process.signals
        assert await rig.change(b'{"metadata":{"finalizers":["f"]}}') == 0
        assert await rig.change(ALLOCATION, "/status") == 0
        await until(lambda: len(rig.upstream.written) == 3)

    kinds = (Kind.KILL_PROTECTION_WRITTEN, Kind.KILL_ALLOCATION_ASKED)
    rig = run(scenario, *(Fault(kind, 0.0, 0.1) for kind in kinds))
    assert rig.board.counts == dict.fromkeys(kinds, 1)


def test_a_lapse_begins_with_devices_too() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.change(ALLOCATION, "/status") == 0
        assert await rig.change(ALLOCATION, "/status") == 0
        assert await rig.change(b'{"metadata":{"finalizers":["f"]}}') == 0
        assert rig.board.is_cut_off
        await until(lambda: not rig.board.num_pending and len(rig.upstream.written) == 2)

    run(scenario, Fault(Kind.LAPSE_LATE_BINDING, 0.0, 0.2))
