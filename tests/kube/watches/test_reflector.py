"""List and watch against a server that pages, ends, expires, breaks off and talks nonsense."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.kube import objects
from extender.kube.client import ApiError, Query, UnreachableError
from extender.kube.decoding import Outline
from extender.kube.watches import Reflector, ReflectorTimes
from tests.ledger.builders import Clock, until

PATH = "/api/v1/pods"
GONE = ApiError(410, "Expired", "too old resource version")
RESET = UnreachableError("connection reset")
# Quick, and with room for some doublings.
TIMES = ReflectorTimes(watch_timeout_s=300.0, first_backoff_s=0.0005, max_backoff_s=0.004)


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listing(version: int, *pods: dict[str, Any], more: str = "") -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": str(version), "continue": more}, "items": pods})


def event(kind: str, manifest: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": manifest})


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def error_event(code: int, reason: str) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "as it happens"})


@dataclass
class Sink:
    """Remembers what it was told, and what that amounts to."""

    told: list[tuple[str, str]] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    """Version of each object by uid."""
    poison: str = ""
    """Name of an object that this sink can't take."""
    version: str = ""
    """Of the last list."""

    def upsert(self, item: objects.Pod) -> None:
        if item.metadata.name == self.poison:
            raise KeyError("poison")
        self.told.append(("upsert", item.metadata.name))
        self.state[item.metadata.uid] = item.metadata.resource_version

    def remove(self, item: objects.Pod) -> None:
        self.told.append(("remove", item.metadata.name))
        self.state.pop(item.metadata.uid, None)

    def keep(self, items: set[str], list_began: float, version: str) -> None:
        self.version = version
        self.told.append(("keep", ",".join(sorted(items))))
        self.state = {uid: version for uid, version in self.state.items() if uid in items}


Step = list[bytes] | Exception | Callable[[], None]


class ReadOnly:
    """An API server to which nothing is written."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def post(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError


class Script(ReadOnly):
    """Answers in the order written: lists as bytes, watches as batches, errors and deeds. Then it is silent."""

    def __init__(self, lists: Iterable[bytes | Exception], watches: Iterable[Iterable[Step]] = ()) -> None:
        self.lists = deque(lists)
        self.watches = deque(watches)
        self.queries: list[dict[str, str]] = []
        self.version = 1_000_000
        """Of the API server, to those who ask for that alone; it is not counted among the queries."""
        self.num_waiting = 0
        """Calls that wait for an answer that never comes: the script is over."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if query and query["limit"] == "1" and self.versions()[-1:] not in ([], ["list"]):
            return listing(self.version)
        self.queries.append(dict(query or {}))
        if not self.lists:
            await self.silence()
        answer = self.lists.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        self.queries.append(dict(query))
        if not self.watches:
            yield []
            await self.silence()
        for step in self.watches.popleft():
            if isinstance(step, Exception):
                raise step
            if callable(step):
                step()
            else:
                yield step

    async def silence(self) -> None:
        self.num_waiting += 1
        await asyncio.Event().wait()

    def versions(self) -> list[str]:
        """What was asked: "list", or the version that a watch was to resume from."""
        return [query.get("resourceVersion", "list") for query in self.queries]


@dataclass
class Played:
    """A reflector after its script was played to the end."""

    reflector: Reflector[objects.Pod]
    script: Script
    sink: Sink
    clock: Clock


def play(
    script: Script,
    *,
    clock: Clock | None = None,
    sink: Sink | None = None,
    page_size: int = 500,
    set_aside: Callable[[Outline], None] = lambda item: None,
) -> Played:
    clock, sink = clock or Clock(), sink or Sink()
    reflector = Reflector(script, PATH, objects.Pod, sink, clock, page_size=page_size, times=TIMES, set_aside=set_aside)

    async def run() -> None:
        task = asyncio.create_task(reflector.run())
        await until(lambda: script.num_waiting or task.done())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    return Played(reflector, script, sink, clock)


# Lists.


def test_a_list_is_taken_in_page_by_page() -> None:
    pages = [listing(7, pod("a", 1), pod("b", 2), more="next"), listing(7, pod("c", 3))]
    played = play(Script(pages), page_size=2)
    assert played.sink.told == [("upsert", "a"), ("upsert", "b"), ("upsert", "c"), ("keep", "uid-a,uid-b,uid-c")]
    assert played.sink.version == "7"
    assert played.script.queries[:2] == [{"limit": "2"}, {"limit": "2", "continue": "next"}]
    assert (played.reflector.synced, played.reflector.num_lists) == (True, 1)


def test_a_watch_begins_where_the_list_ended() -> None:
    query = play(Script([listing(7)])).script.queries[1]
    timeout_s = float(query.pop("timeoutSeconds"))
    assert query == {"watch": "true", "resourceVersion": "7", "allowWatchBookmarks": "true"}
    assert TIMES.watch_timeout_s <= timeout_s <= 2 * TIMES.watch_timeout_s


@pytest.mark.parametrize("answer", [b'{"metadata":{"resourceVersion":"7"},"items":null}', listing(7)])
def test_an_empty_list_is_a_list(answer: bytes) -> None:
    played = play(Script([answer]))
    assert (played.sink.told, played.reflector.synced) == ([("keep", "")], True)


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(RESET, id="unreachable"),
        pytest.param(ApiError(403, "Forbidden", "no"), id="forbidden"),
        pytest.param(ApiError(500, "", ""), id="server error"),
        pytest.param(GONE, id="expired"),
        pytest.param(b"<html>a proxy</html>", id="not JSON"),
        pytest.param(b'{"metadata":{},"items":[{"metadata":{"labels":3}}]}', id="not a list of pods"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_list_that_fails_is_made_again_from_its_first_page(failure: bytes | Exception) -> None:
    pages = [listing(7, pod("a", 1), more="next"), failure, listing(8, pod("b", 2))]
    played = play(Script(pages))
    assert played.sink.told == [("upsert", "a"), ("upsert", "b"), ("keep", "uid-b")]
    assert [query.get("continue") for query in played.script.queries[:3]] == [None, "next", None]
    assert played.script.versions()[3] == "8"


def deep(name: str, version: int, levels: int = 1_100) -> bytes:
    """A pod whose managedFields are as deep as their author likes; of its node and GPUs everything can be read."""
    managed = b'{"f:a":' * levels + b"{}" + b"}" * levels
    text = msgspec.json.encode(pod(name, version))
    return text.replace(b'{"metadata":{', b'{"metadata":{"managedFields":[{"fieldsV1":%b}],' % managed)


def listing_of(version: int, *items: bytes) -> bytes:
    return listing(version).replace(b'"items":[]', b'"items":[%b]' % b",".join(items))


def event_of(kind: str, item: bytes) -> bytes:
    return b'{"type":"%b","object":%b}' % (kind.encode(), item)


UNREADABLE = b'{"metadata":{"name":"x","uid":"uid-x","resourceVersion":"6","labels":3}}'


@pytest.mark.parametrize("levels", [1_100, 9_000])
def test_a_deep_object_is_listed_like_any_other(levels: int) -> None:
    items = [msgspec.json.encode(pod("a", 1)), deep("b", 2, levels), msgspec.json.encode(pod("c", 3))]
    played = play(Script([listing_of(7, *items)]))
    assert played.sink.state == {"uid-a": "1", "uid-b": "2", "uid-c": "3"}
    assert played.reflector.num_unread == 0


@pytest.mark.parametrize("levels", [1_100, 9_000])
def test_a_deep_object_is_watched_like_any_other(levels: int) -> None:
    lines = [event_of("ADDED", deep("a", 8, levels)), event_of("DELETED", deep("b", 9, levels)), bookmark(20)]
    played = play(Script([listing(7, pod("b", 1))], [[[], lines, RESET]]))
    assert (played.sink.state, played.script.versions()) == ({"uid-a": "8"}, ["list", "7", "20"])


def test_an_object_that_can_not_be_read_costs_that_object_only(caplog: pytest.LogCaptureFixture) -> None:
    items = [msgspec.json.encode(pod("a", 1)), UNREADABLE, deep("b", 2)]
    lines = [event_of("MODIFIED", UNREADABLE.replace(b'"6"', b'"8"')), event("ADDED", pod("c", 9))]
    aside: list[str] = []
    script, sink = Script([listing_of(7, *items)], [[[], lines, RESET]]), Sink(state={"uid-x": "5", "uid-y": "5"})
    played = play(script, sink=sink, set_aside=lambda item: aside.append(item.uid))
    assert played.sink.state == {"uid-a": "1", "uid-b": "2", "uid-c": "9", "uid-x": "5"}  # x as it was known, y is gone
    assert (aside, played.reflector.num_unread, script.versions()) == (["uid-x"] * 2, 2, ["list", "7", "9"])
    assert sum("x can't be read" in record.getMessage() for record in caplog.records) == 1


def test_an_object_that_can_not_be_read_and_is_deleted_is_gone() -> None:
    played = play(
        Script([listing(7, pod("x", 1))], [[[], [event_of("DELETED", UNREADABLE.replace(b'"6"', b'"8"'))], RESET]])
    )
    assert (played.sink.state, played.script.versions()) == ({}, ["list", "7", "8"])


# Watches.


def test_events_reach_the_sink() -> None:
    lines = [event("ADDED", pod("a", 8)), event("MODIFIED", pod("a", 9)), event("DELETED", pod("a", 10))]
    played = play(Script([listing(7)], [[[], lines, RESET]]))
    assert played.sink.told == [("keep", ""), ("upsert", "a"), ("upsert", "a"), ("remove", "a")]


def advance(clock: Clock, seconds: float) -> Callable[[], None]:
    def step() -> None:
        clock.now += seconds

    return step


@pytest.mark.parametrize(
    ("steps", "version"),
    [
        pytest.param([[]], "7", id="nothing happened"),
        pytest.param([[event("ADDED", pod("a", 8))]], "8", id="an object"),
        pytest.param([[event("DELETED", pod("a", 12))]], "12", id="a deletion"),
        pytest.param([[event("ADDED", pod("a", 8)), bookmark(20)]], "20", id="a bookmark"),
        pytest.param([[bookmark(20)], [event("ADDED", pod("a", 21))]], "21", id="after a bookmark"),
        pytest.param([[event("ADDED", pod("a", 8))], RESET], "8", id="cut off"),
        pytest.param([[event("ADDED", pod("a", 8)), error_event(500, "Internal")]], "8", id="an error in the stream"),
        pytest.param([[event("SOMETHING", pod("a", 9))]], "9", id="an event of a kind to come"),
        pytest.param([ApiError(500, "", "")], "7", id="an error in the answer"),
        pytest.param([[b"", event("ADDED", pod("a", 8)), b""]], "8", id="empty lines"),
    ],
)
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_watch_is_resumed_after_the_last_event_taken_in(steps: list[Step], version: str, seconds: float) -> None:
    clock = Clock()
    played = play(Script([listing(7)], [[advance(clock, seconds), *steps]]), clock=clock)
    assert played.script.versions() == ["list", "7", version]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([GONE], id="410 in the answer"),
        pytest.param([[], [event("ADDED", pod("a", 8)), error_event(410, "Expired")]], id="410 in the stream"),
        pytest.param([[error_event(410, "Gone")]], id="410 at once"),
        pytest.param([[event("ADDED", pod("a", 8)), b"{garb"]], id="garbage after an object"),
        pytest.param([[event("ADDED", pod("a", 8)), event("ADDED", {"metadata": 3})]], id="no pod at all"),
    ],
)
def test_what_has_expired_or_cannot_be_read_is_listed_again(steps: list[Step]) -> None:
    played = play(Script([listing(7, pod("old", 1)), listing(30, pod("new", 29))], [steps]))
    assert played.script.versions() == ["list", "7", "list", "30"]
    assert played.sink.state == {"uid-new": "29"}
    assert played.reflector.num_lists == 2


@pytest.mark.parametrize("steps", [pytest.param([[]], id="in order"), pytest.param([RESET], id="cut off")])
def test_a_cluster_restored_from_a_backup_is_listed_again(steps: list[Step]) -> None:
    """The API server takes a watch from a version to come, is silent, and ends it in order."""
    script = Script([listing(500, pod("gone", 490)), listing(300, pod("back", 200))], [steps])
    script.version = 300
    played = play(script)
    assert script.versions() == ["list", "500", "list", "300"]
    assert played.sink.state == {"uid-back": "200"}


def test_an_object_that_the_sink_cannot_take_does_not_stop_the_mirror(caplog: pytest.LogCaptureFixture) -> None:
    lines = [event("ADDED", pod("bad", 8)), event("ADDED", pod("b", 9))]
    played = play(Script([listing(7, pod("bad", 1), pod("a", 2))], [[lines, RESET]]), sink=Sink(poison="bad"))
    assert played.sink.state == {"uid-a": "2", "uid-b": "9"}
    assert ("keep", "uid-a,uid-bad") in played.sink.told, "it exists, though it could not be taken in"
    assert played.script.versions() == ["list", "7", "9"]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        f"{PATH} bad could not be processed"
    ] * 2


def test_a_bug_is_not_hidden() -> None:
    reflector = Reflector(Script([RuntimeError("a bug")]), PATH, objects.Pod, Sink(), Clock(), times=TIMES)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(reflector.run())


def test_the_last_error_is_told_and_forgotten_when_all_is_well() -> None:
    errors: list[str] = []
    script = Script([RESET, listing(7)], [[RESET]])
    reflector = Reflector(script, PATH, objects.Pod, Sink(), Clock(), times=TIMES)
    script.watches.append([[event("ADDED", pod("a", 8))], lambda: errors.append(reflector.last_error), RESET])

    async def run() -> None:
        task = asyncio.create_task(reflector.run())
        await until(lambda: reflector.last_error == "connection reset")
        await until(lambda: script.num_waiting)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert errors == [""]
    assert reflector.last_error == ""


# Back-off.


def waits(caplog: pytest.LogCaptureFixture) -> list[float]:
    """Seconds that the reflector chose to wait, as it logs them."""
    return [record.args[1] for record in caplog.records if isinstance(record.args, tuple) and len(record.args) == 3]  # type: ignore[misc]


def assert_waits(chosen: list[float], doublings: list[int]) -> None:
    """Each wait is the first back-off doubled so often, 4 ms at most, give or take the jitter of a half."""
    assert len(chosen) == len(doublings)
    for wait_s, number in zip(chosen, doublings, strict=True):
        backoff_s = min(TIMES.first_backoff_s * 2**number, TIMES.max_backoff_s)
        assert 0.5 * backoff_s <= wait_s <= 1.5 * backoff_s


def test_waits_double_up_to_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    play(Script([RESET] * 6))
    assert_waits(waits(caplog), [0, 1, 2, 3, 4, 5])


def test_waits_are_jittered(caplog: pytest.LogCaptureFixture) -> None:
    play(Script([RESET] * 12))
    assert len(set(waits(caplog)[4:])) > 1  # all of the longest back-off


def test_waits_begin_again_after_a_watch_that_lasted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    play(Script([RESET, RESET, listing(7)], [[RESET], [[], advance(clock, 60)], [RESET], [RESET]]), clock=clock)
    # Two lists fail, a watch fails; one lasts a minute and ends in order; two more fail.
    assert_waits(waits(caplog), [0, 1, 2, 0, 1])


def test_waits_begin_again_after_a_watch_that_lasted_and_broke_off(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    play(Script([RESET, RESET, listing(7)], [[[], advance(clock, 60), RESET], [RESET]]), clock=clock)
    assert_waits(waits(caplog), [0, 1, 0, 1])


def test_a_server_that_ends_every_watch_at_once_is_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    played = play(Script([listing(7)], [[[]], [[]], [[]]]))
    assert_waits(waits(caplog), [0, 1, 2])
    assert played.script.versions() == ["list", "7", "7", "7", "7"]


def test_a_server_that_is_always_expired_is_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    play(Script([listing(7)] * 4, [[GONE]] * 3))
    assert_waits(waits(caplog), [0, 1, 2])


# Age.


@dataclass
class Ages:
    """Ages of a mirror seen while its script is played."""

    clock: Clock = field(default_factory=Clock)
    seen: list[float] = field(default_factory=list)
    reflector: Reflector[objects.Pod] | None = None

    def look(self) -> None:
        assert self.reflector is not None
        self.seen.append(self.reflector.age_s())

    def play(self, script: Script) -> list[float]:
        self.reflector = Reflector(script, PATH, objects.Pod, Sink(), self.clock, times=TIMES)

        async def run() -> None:
            assert self.reflector is not None
            task = asyncio.create_task(self.reflector.run())
            await until(lambda: script.num_waiting)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.clock.now += 1000
            self.look()

        asyncio.run(run())
        return self.seen


def test_age_is_infinite_before_the_first_list() -> None:
    assert Ages().play(Script([RESET, RESET])) == [float("inf")]


def test_age_counts_from_the_last_word_of_the_server_be_the_watch_open_or_not() -> None:
    ages = Ages()
    script = Script([listing(7)], [[[], advance(ages.clock, 200), ages.look, advance(ages.clock, 5)]])
    script.watches.append([advance(ages.clock, 30), ages.look, RESET])
    # 200 s of silence of an open watch count: it may be dead. It ends in order 5 s later: nothing was missed. After
    # 30 s more the next one is being opened.
    # What opens last stays open until it is cancelled: 1000 s since.
    assert ages.play(script) == [200, 30, 1000]


def test_age_counts_from_the_last_line_of_a_watch_that_broke_off() -> None:
    ages = Ages()
    script = Script([listing(7)], [[[], [event("ADDED", pod("a", 8))], advance(ages.clock, 50), RESET], [ages.look]])
    assert ages.play(script)[0] == 50


def test_a_watch_that_is_opened_again_and_again_in_vain_does_not_look_fresh() -> None:
    ages = Ages()
    in_vain: list[Step] = [advance(ages.clock, 40), [], [error_event(500, "Internal")]]
    script = Script([listing(7)], [in_vain, in_vain, in_vain, [ages.look]])
    assert ages.play(script)[0] == 3 * 40


def test_cancelling_closes_the_watch() -> None:
    closed: list[bool] = []

    class Closing(Script):
        async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
            try:
                yield []
                await self.silence()
            finally:
                closed.append(True)

    played = play(Closing([listing(7)]))
    assert closed == [True]
    assert played.reflector.age_s() == 0
    played.clock.now += 9
    assert played.reflector.age_s() == 9


# Any history, any faults: nothing is lost in the end.


class Server(ReadOnly):
    """Pods with their history; watches replay it from a version on, and suffer the faults given."""

    def __init__(self, changes: list[tuple[str, bool]], faults: list[str]) -> None:
        self.history: list[tuple[int, bytes]] = []
        self.state: dict[str, str] = {}
        self.changes = deque(changes)
        self.faults = deque(faults)
        self.version = 100
        self.oldest = 100
        self.done = asyncio.Event()

    def change(self, most: int) -> None:
        """Let the next few things happen."""
        for _ in range(min(most, len(self.changes))):
            name, exists = self.changes.popleft()
            uid = f"uid-{name}"
            if not exists and uid not in self.state:
                continue
            self.version += 1
            kind = ("MODIFIED" if uid in self.state else "ADDED") if exists else "DELETED"
            self.history.append((self.version, event(kind, pod(name, self.version))))
            if exists:
                self.state[uid] = str(self.version)
            else:
                del self.state[uid]

    async def get(self, path: str, query: Query | None = None) -> bytes:
        items = [pod(uid.removeprefix("uid-"), int(version)) for uid, version in self.state.items()]
        answer = listing(self.version, *items)
        if query and query["limit"] == "1":
            return answer
        self.change(2)
        if self.faults and self.faults[0] == "list":
            self.faults.popleft()
            raise RESET
        return answer

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        asked = int(query["resourceVersion"])
        fault = self.faults.popleft() if self.faults else ""
        if asked < self.oldest or fault == "gone":
            raise GONE
        yield []
        self.change(len(self.changes) if not fault else 3)
        lines = [line for version, line in self.history if version > asked]
        if fault == "compacted":
            self.oldest = self.version
            yield [*lines[:1], error_event(410, "Expired")]
        elif fault == "garbage":
            yield [*lines[:2], b'{"type":"ADDED","obj']
        elif fault == "cut":
            for line in lines[:2]:
                yield [line]
            raise RESET
        elif fault == "end":
            yield [*lines, bookmark(self.version)]
        elif fault:
            yield [*lines[:1], error_event(500, "Internal")]
        else:
            yield lines
            self.done.set()
            await asyncio.Event().wait()


@settings(max_examples=settings().max_examples * 3 // 5)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=25),
    st.lists(st.sampled_from(["list", "gone", "compacted", "garbage", "cut", "end", "error"]), max_size=6),
)
def test_whatever_breaks_the_mirror_catches_up(changes: list[tuple[str, bool]], faults: list[str]) -> None:
    sink = Sink()

    async def run() -> Server:
        server = Server(changes, faults)
        times = ReflectorTimes(first_backoff_s=0.0, max_backoff_s=0.0)
        task = asyncio.create_task(Reflector(server, PATH, objects.Pod, sink, Clock(), times=times).run())
        async with asyncio.timeout(30):
            await server.done.wait()
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return server

    server = asyncio.run(run())
    assert sink.state == server.state
