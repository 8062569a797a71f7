"""List and watch against a server that pages, ends, expires, breaks off and sends garbage.

That a mirror catches up whatever breaks is tested with all its consumers: tests/kube/consumers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from extender.kube import objects
from extender.kube.client import ApiError, Query, UnreachableError
from extender.kube.decoding import Outline
from extender.kube.watches import Reflector, ReflectorTimes
from tests.kube.loops import in_loop
from tests.kube.transports import ReadOnly
from tests.ledger.builders import Clock, until

PATH = "/api/v1/pods"
GONE = ApiError(410, "Expired", "too old resource version")
FAILED = ApiError(500, "", "")
RESET = UnreachableError("connection reset")
# Quick, and with room for some doublings.
TIMES = ReflectorTimes(watch_timeout_s=300.0, first_backoff_s=0.0005, max_backoff_s=0.004)
Step = list[bytes] | Exception | Callable[[], None]


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listing(version: int, *pods: dict[str, Any], more: str = "") -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": str(version), "continue": more}, "items": pods})


def event(kind: str, manifest: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": manifest})


def added(name: str, version: int) -> bytes:
    return event("ADDED", pod(name, version))


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def error_event(code: int) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "reason": "", "message": "as it happens"})


@dataclass
class Sink:
    """Records its calls, and what they amount to."""

    told: list[tuple[str, str]] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    """Version of each object by UID."""
    poison: str = ""
    """Name of an object on which this sink fails."""
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

    def retain_only(self, items: set[str], list_began: float, version: str) -> None:
        self.version = version
        self.told.append(("keep", ",".join(sorted(items))))
        self.state = {uid: version for uid, version in self.state.items() if uid in items}


class Script(ReadOnly):
    """Responds in the order written: lists as bytes, watches as batches, errors and calls. Then it is silent."""

    def __init__(self, lists: Iterable[bytes | Exception], watches: Iterable[Iterable[Step]] = ()) -> None:
        self.lists = deque(lists)
        self.watches = deque(watches)
        self.queries: list[dict[str, str]] = []
        self.version = 1_000_000
        """Of the API server, for requests of that alone, which are not in `queries`."""
        self.is_over = False

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
        self.is_over = True
        await asyncio.Event().wait()

    def versions(self) -> list[str]:
        """What was requested: "list", or the version from which a watch was to resume."""
        return [query.get("resourceVersion", "list") for query in self.queries]


class Rig:
    """A reflector, its server and its sink."""

    def __init__(
        self,
        lists: Iterable[bytes | Exception],
        *watches: Iterable[Step],
        sink: Sink | None = None,
        page_size: int = 500,
    ) -> None:
        self.script, self.sink, self.clock = Script(lists, watches), sink or Sink(), Clock()
        self.unread: list[str] = []
        self.ages: list[float] = []
        self.reflector = Reflector(
            self.script,
            PATH,
            objects.Pod,
            self.sink,
            self.clock,
            page_size=page_size,
            times=TIMES,
            on_unreadable=self._set_aside,
        )

    def _set_aside(self, item: Outline) -> None:
        self.unread.append(item.uid)

    def advance(self, seconds: float) -> Callable[[], None]:
        """A step: time passes."""

        def step() -> None:
            self.clock.now += seconds

        return step

    def look(self) -> None:
        """A step: note the age of the mirror."""
        self.ages.append(self.reflector.age_s())

    def play(self) -> "Rig":
        """Run the script to its end."""

        async def run() -> None:
            task = asyncio.create_task(self.reflector.run())
            await until(lambda: self.script.is_over or task.done())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
        return self


# Lists


def test_a_list_is_taken_in_page_by_page_and_a_watch_begins_where_it_ended() -> None:
    rig = Rig([listing(7, pod("a", 1), pod("b", 2), more="next"), listing(7, pod("c", 3))], page_size=2).play()
    assert rig.sink.told == [("upsert", "a"), ("upsert", "b"), ("upsert", "c"), ("keep", "uid-a,uid-b,uid-c")]
    assert (rig.sink.version, rig.reflector.synced, rig.reflector.num_lists) == ("7", True, 1)
    *lists, watch = rig.script.queries
    assert lists == [{"limit": "2"}, {"limit": "2", "continue": "next"}]
    assert TIMES.watch_timeout_s <= float(watch.pop("timeoutSeconds")) <= 2 * TIMES.watch_timeout_s
    assert watch == {"watch": "true", "resourceVersion": "7", "allowWatchBookmarks": "true"}


def test_an_empty_list_is_a_list() -> None:
    for answer in (b'{"metadata":{"resourceVersion":"7"},"items":null}', listing(7)):
        rig = Rig([answer]).play()
        assert (rig.sink.told, rig.reflector.synced) == ([("keep", "")], True)


def test_a_list_that_fails_starts_over() -> None:
    no_pods = b'{"metadata":{},"items":[{"metadata":{"labels":3}}]}'
    failures: list[bytes | Exception] = [RESET, FAILED, GONE, b"<html>a proxy</html>", no_pods]
    for failure in failures:
        rig = Rig([listing(7, pod("a", 1), more="next"), failure, listing(8, pod("b", 2))]).play()
        assert rig.sink.told == [("upsert", "a"), ("upsert", "b"), ("keep", "uid-b")]
        assert [query.get("continue") for query in rig.script.queries[:3]] == [None, "next", None]
        assert rig.script.versions()[3] == "8"


def deep(name: str, version: int, levels: int = 1_100) -> bytes:
    """A pod whose managedFields are deep, as their author chooses."""
    managed = b'{"f:a":' * levels + b"{}" + b"}" * levels
    text = msgspec.json.encode(pod(name, version))
    return text.replace(b'{"metadata":{', b'{"metadata":{"managedFields":[{"fieldsV1":%b}],' % managed)


def listing_of(version: int, *items: bytes) -> bytes:
    return listing(version).replace(b'"items":[]', b'"items":[%b]' % b",".join(items))


def event_of(kind: str, item: bytes) -> bytes:
    return b'{"type":"%b","object":%b}' % (kind.encode(), item)


UNREADABLE = b'{"metadata":{"name":"x","uid":"uid-x","resourceVersion":"8","labels":3}}'


def test_deep_objects_are_like_any_other() -> None:
    for levels in (1_100, 9_000):
        items = [msgspec.json.encode(pod("a", 1)), deep("b", 2, levels), msgspec.json.encode(pod("c", 3))]
        lines = [event_of("ADDED", deep("d", 8, levels)), event_of("DELETED", deep("b", 9, levels)), bookmark(20)]
        rig = Rig([listing_of(7, *items)], [[], lines, RESET]).play()
        assert rig.sink.state == {"uid-a": "1", "uid-c": "3", "uid-d": "8"}
        assert (rig.reflector.num_unread, rig.script.versions()) == (0, ["list", "7", "20"])


def test_an_object_that_can_not_be_decoded_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    items = [msgspec.json.encode(pod("a", 1)), UNREADABLE, deep("b", 2)]
    lines = [event_of("MODIFIED", UNREADABLE), added("c", 9)]
    rig = Rig([listing_of(7, *items)], [[], lines, RESET], sink=Sink(state={"uid-x": "5", "uid-y": "5"})).play()
    # x keeps its last known version, y is gone.
    assert rig.sink.state == {"uid-a": "1", "uid-b": "2", "uid-c": "9", "uid-x": "5"}
    assert (rig.unread, rig.reflector.num_unread, rig.script.versions()) == (["uid-x"] * 2, 2, ["list", "7", "9"])
    assert sum("x can't be read" in message for message in caplog.messages) == 1
    rig = Rig([listing(7, pod("x", 1))], [[], [event_of("DELETED", UNREADABLE)], RESET]).play()
    assert (rig.sink.state, rig.script.versions()) == ({}, ["list", "7", "8"])


# Watches


def test_a_watch_resumes_after_the_last_event() -> None:
    rows: list[tuple[list[Step], str]] = [
        ([[]], "7"),
        ([[event("DELETED", pod("a", 12))]], "12"),
        ([[added("a", 8), bookmark(20)]], "20"),
        ([[bookmark(20)], [added("a", 21)]], "21"),
        ([[added("a", 8)], RESET], "8"),
        ([[added("a", 8), error_event(500)]], "8"),
        ([[event("SOMETHING", pod("a", 9))]], "9"),
        ([FAILED], "7"),
        ([[b"", added("a", 8), b""]], "8"),
    ]
    for steps, version in rows:
        for seconds in (0.0, 60.0):
            rig = Rig([listing(7)])
            rig.script.watches.append([rig.advance(seconds), *steps])
            assert rig.play().script.versions() == ["list", "7", version]


def test_an_expired_or_garbled_watch_relists() -> None:
    rows: list[list[Step]] = [
        [GONE],
        [[], [added("a", 8), error_event(410)]],
        [[added("a", 8), b"{garb"]],
        [[added("a", 8), event("ADDED", {"metadata": 3})]],
    ]
    for steps in rows:
        rig = Rig([listing(7, pod("old", 1)), listing(30, pod("new", 29))], steps).play()
        assert rig.script.versions() == ["list", "7", "list", "30"]
        assert (rig.sink.state, rig.reflector.num_lists) == ({"uid-new": "29"}, 2)


@pytest.mark.parametrize("step", [[], RESET])
def test_a_cluster_restored_from_a_backup_is_listed_again(step: Step) -> None:
    """The API server accepts a watch from a future version, is silent, and ends it normally or by a reset."""
    rig = Rig([listing(500, pod("gone", 490)), listing(300, pod("back", 200))], [step])
    rig.script.version = 300
    rig.play()
    assert rig.script.versions() == ["list", "500", "list", "300"]
    assert rig.sink.state == {"uid-back": "200"}


def test_an_object_on_which_the_sink_fails_does_not_stop_the_mirror(caplog: pytest.LogCaptureFixture) -> None:
    lines = [added("bad", 8), added("b", 9)]
    rig = Rig([listing(7, pod("bad", 1), pod("a", 2))], [lines, RESET], sink=Sink(poison="bad")).play()
    assert rig.sink.state == {"uid-a": "2", "uid-b": "9"}
    assert ("keep", "uid-a,uid-bad") in rig.sink.told, "it exists, though the sink failed"
    assert rig.script.versions() == ["list", "7", "9"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error.startswith(f"{PATH} bad ") for error in errors] == [True, True]


def test_a_bug_ends_the_task() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(Rig([RuntimeError("a bug")]).reflector.run())


@in_loop
async def test_the_last_error_is_reported_until_the_watch_works() -> None:
    errors: list[str] = []
    rig = Rig([RESET, listing(7)], [RESET])
    rig.script.watches.append([[added("a", 8)], lambda: errors.append(rig.reflector.last_error), RESET])
    task = asyncio.create_task(rig.reflector.run())
    await until(lambda: rig.reflector.last_error == "connection reset")
    await until(lambda: rig.script.is_over)
    task.cancel()
    assert (errors, rig.reflector.last_error) == ([""], "")


@in_loop
async def test_cancelling_closes_the_watch() -> None:
    closed = asyncio.Event()

    class Closing(Script):
        async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
            try:
                yield []
                await self.silence()
            finally:
                closed.set()

    script = Closing([listing(7)])
    task = asyncio.create_task(Reflector(script, PATH, objects.Pod, Sink(), Clock(), times=TIMES).run())
    await until(lambda: script.is_over)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert closed.is_set()


# Backoff


def test_pauses_double_until_a_watch_has_lasted(caplog: pytest.LogCaptureFixture) -> None:
    one: list[bytes | Exception] = [RESET, RESET, listing(7)]
    rows: list[tuple[Sequence[bytes | Exception], Sequence[Sequence[Step | float]], list[int]]] = [
        ([RESET] * 6, [], [0, 1, 2, 3, 4, 5]),
        (one, [[RESET], [[], 60.0], [RESET], [RESET]], [0, 1, 2, 0, 1]),  # it lasts a minute and ends normally
        (one, [[[], 60.0, RESET], [RESET]], [0, 1, 0, 1]),  # it lasts a minute and breaks off
        ([listing(7)], [[[]], [[]], [[]]], [0, 1, 2]),  # a server that ends every watch at once
        ([listing(7)] * 4, [[GONE]] * 3, [0, 1, 2]),  # one whose versions are always expired
    ]
    for lists, watches, doublings in rows:
        caplog.clear()
        rig = Rig(lists)
        for watch in watches:
            steps = [rig.advance(step) if isinstance(step, float) else step for step in watch]
            rig.script.watches.append(steps)
        rig.play()
        args: list[Any] = [record.args for record in caplog.records]
        chosen = [words[1] for words in args if len(words) == 3]
        assert len(chosen) == len(doublings)
        for pause_s, number in zip(chosen, doublings, strict=True):
            backoff_s = min(TIMES.first_backoff_s * 2**number, TIMES.max_backoff_s)
            assert 0.5 * backoff_s <= pause_s <= 1.5 * backoff_s


# Age


def test_age_counts_from_the_last_line_of_the_server() -> None:
    assert Rig([RESET]).play().reflector.age_s() == float("inf")
    rig = Rig([listing(7)])
    rig.script.watches.append([[], rig.advance(200), rig.look, rig.advance(5)])
    rig.script.watches.append([rig.advance(30), rig.look, [], rig.advance(50), RESET])
    rig.script.watches.append([rig.look])
    # The silence of an open watch counts, since it may be dead; one that ends normally has missed nothing.
    assert rig.play().ages == [200, 30, 50]
    assert rig.reflector.age_s() == 0
    rig.clock.now += 9
    assert rig.reflector.age_s() == 9


def test_opening_a_watch_in_vain_does_not_make_the_mirror_current() -> None:
    rig = Rig([listing(7)])
    in_vain: list[Step] = [rig.advance(40), [], [error_event(500)]]
    rig.script.watches.extend([in_vain, in_vain, in_vain, [rig.look]])
    assert rig.play().ages == [3 * 40]
