"""A write is sent on the version that it was decided on, by whoever leads, as long as what it rests on stands; what
became of it is told once it is known."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import FencedError, Outcome, Result, Target, commit, refused
from extender.kube.decoding import Decoder
from extender.kube.memory import MemoryCluster
from extender.kube.objects import Named
from extender.kube.patches import Patch

PLAN = "/api/v1/namespaces/default/configmaps/plan"
LOST = UnreachableError("timed out")
UNAVAILABLE = ApiError(503, "ServiceUnavailable", "starting")
DENIED = ApiError(422, "Invalid", "denied by a webhook")


class Server(MemoryCluster):
    """A ConfigMap, and an API server that fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.keep_config_map("default", "plan")
        self.instead: list[Exception | None] = []
        """What comes of the next patches in place of what they ask for, None for that."""
        self.lost: list[Exception] = []
        """What their answers are, once they have taken effect."""
        self.unreadable: Exception | None = None
        self.gone = False
        self.bodies: list[Any] = []
        """Of the patches that have come."""

    @property
    def num_patches(self) -> int:
        return len(self.bodies)

    @property
    def version(self) -> str:
        return str(self.held["metadata"]["resourceVersion"])

    @property
    def by(self) -> str | None:
        """Who has written on it last."""
        annotations: dict[str, str] = self.held["metadata"].get("annotations", {})
        return annotations.get("by")

    async def touch(self) -> None:
        """Somebody else writes on it."""
        await super().patch(PLAN, b"{}")

    def change(self) -> None:
        asyncio.run(self.touch())

    async def get(self, path: str, query: Any = None) -> bytes:
        if self.unreadable is not None:
            raise self.unreadable
        if self.gone:
            raise ApiError(404, "NotFound", "no plan")
        return await super().get(path, query)

    async def patch(self, path: str, body: bytes) -> bytes:
        self.bodies.append(msgspec.json.decode(body))
        if (error := self.instead.pop(0) if self.instead else None) is not None:
            raise error
        answer = await super().patch(path, body)
        if self.lost:
            raise self.lost.pop(0)
        return answer


class Term:
    """Of a process that leads, unless it is told otherwise."""

    def __init__(self) -> None:
        self.others = self.ended = ""
        self.confirmed: list[tuple[str, str]] = []
        self.epochs: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens as it asks who leads."""

    async def confirm(self, uid: str, version: str) -> None:
        self.confirmed.append((uid, version))
        if self.others:
            raise FencedError(self.others)
        self.meanwhile()

    async def confirm_now(self) -> None:
        await self.confirm("", "now")

    def check(self, epoch: str) -> None:
        self.epochs.append(epoch)
        if self.ended:
            raise FencedError(self.ended)

    def standby(self) -> str:
        return self.others


class Signature(Patch[Named]):
    """Writes on the ConfigMap who has written on it."""

    def __init__(self, server: Server, name: str = "kerf") -> None:
        super().__init__(server, PLAN, Decoder(Named), metadata={"annotations": {"by": name}})
        self.name, self.epoch = name, "epoch-1"
        self.results = list[Result[Named]]()
        self.undone = 0
        self.why = self.refuses = ""
        self.asked: list[str] = []
        """Versions of the object of which it was asked whether it is to be written on them."""

    async def undo(self) -> None:
        self.undone += 1

    def stands(self) -> str:
        return self.why or super().stands()

    def accepts(self, found: Named) -> str:
        self.asked.append(found.metadata.resource_version)
        return self.refuses or super().accepts(found)

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        return Outcome.DONE if (found.metadata.annotations or {}).get("by") == self.name else None

    def settle(self, result: Result[Named]) -> None:
        self.results.append(result)

    @property
    def result(self) -> Result[Named]:
        """What became of it, told once."""
        (result,) = self.results
        return result


class Certain(Signature):
    """One that is made to fail where its answer is lost."""

    seals = True

    def __init__(self, server: Server, name: str = "kerf") -> None:
        super().__init__(server, name)
        self.server = server
        self.sealed: list[bool] = []
        """Of each look at the object: whether it had been changed by then."""
        self.num_seals = 0

    async def seal(self) -> Named | None:
        self.num_seals += 1
        await self.server.touch()
        return await self.read()

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        self.sealed.append(sealed)
        return super().judge(found, sealed=sealed)


class Patient(Signature):
    """One that is sent three times where the object changes under its hands."""

    tries = 3


class Persistent(Patient):
    """One whose conflicts may be of something else than the object."""

    conflicts_pass = True


def write(target: Target[Named], term: Term | None = None, version: str = "") -> Result[Named]:
    return asyncio.run(commit(target, term, version=version))


def test_a_write_is_sent_on_the_version_that_it_was_decided_on() -> None:
    server, term = Server(), Term()
    target, known = Signature(server), server.version
    result = write(target, term, known)
    assert (result.outcome, target.result, target.undone) == (Outcome.DONE, result, 0)
    assert result.found is not None
    assert (result.found.metadata.resource_version, server.by) == (server.version, "kerf")
    assert (term.confirmed, term.epochs) == ([(PLAN, known)], ["epoch-1"])
    late = write(Signature(server, "late"), term, known)
    assert (late.outcome, server.by, server.num_patches) == (Outcome.CONFLICT, "kerf", 2)


def test_where_no_version_is_known_it_is_sent_on_the_one_that_is_read() -> None:
    server, term = Server(), Term()
    target, read = Signature(server), server.version
    assert write(target, term).outcome is Outcome.DONE
    assert (term.confirmed, target.asked) == ([("", "now")], [read]), "the term is older than what was read"


def test_what_makes_ready_tells_the_version_that_there_is_by_that() -> None:
    class Locking(Signature):
        async def prepare(self) -> str:
            await server.touch()
            return server.version

    server, term = Server(), Term()
    target = Locking(server)
    assert write(target, term, server.version).outcome is Outcome.DONE
    assert (target.version, term.confirmed) == ("2", [("", "now")]), "the term is older than that version"


def test_what_can_not_be_made_ready_is_not_sent() -> None:
    class Locked(Signature):
        async def prepare(self) -> str:
            raise UNAVAILABLE

    server = Server()
    target = Locked(server)
    with pytest.raises(ApiError, match="starting"):
        write(target, version=server.version)
    assert (target.result.outcome, target.result.why, server.num_patches) == (Outcome.REFUSED, "cancelled", 0)


def test_an_object_that_can_not_be_read_is_not_written_on() -> None:
    server = Server()
    server.unreadable = UNAVAILABLE
    target = Signature(server)
    result = write(target)
    assert (result.outcome, result.error, server.num_patches) == (Outcome.REFUSED, UNAVAILABLE, 0)
    assert target.undone == 1
    server.unreadable, server.gone = None, True
    assert write(Signature(server)).outcome is Outcome.GONE


def test_what_an_object_does_not_accept_is_not_sent() -> None:
    server = Server()
    target = Signature(server)
    target.refuses = "it is going already"
    result = write(target)
    assert (result.outcome, result.why, server.num_patches) == (Outcome.REFUSED, "it is going already", 0)
    assert result.found is not None


def test_where_another_one_leads_nothing_is_sent() -> None:
    server, term = Server(), Term()
    term.others = "another one leads"
    target = Signature(server)
    result = write(target, term, server.version)
    assert (result.outcome, str(result.error), server.num_patches) == (Outcome.FENCED, "another one leads", 0)
    assert target.undone == 1
    term.others, term.ended = "", "that term has ended"
    result = write(Signature(server), term, server.version)
    assert (result.outcome, str(result.error), server.num_patches) == (Outcome.FENCED, "that term has ended", 0)


def test_what_a_write_rests_on_is_looked_at_last() -> None:
    server, term = Server(), Term()
    target = Signature(server)

    def fall() -> None:
        target.why = "its node is gone"

    term.meanwhile = fall
    result = write(target, term, server.version)
    assert (result.outcome, result.why, server.num_patches) == (Outcome.REFUSED, "its node is gone", 0)
    assert (target.version, target.undone) == ("", 1)


def test_a_write_is_sent_again_on_the_object_as_it_is_now() -> None:
    server = Server()
    target, known = Patient(server), server.version
    server.change()
    assert write(target, version=known).outcome is Outcome.DONE
    assert (server.by, server.num_patches) == ("kerf", 2)


def test_a_write_is_sent_so_many_times_at_most() -> None:
    server = Server()

    class Outrun(Patient):
        async def send(self, version: str) -> Named | None:
            await server.touch()
            return await super().send(version)

    target = Outrun(server)
    result = write(target, version=server.version)
    assert (result.outcome, server.num_patches, target.asked) == (Outcome.CONFLICT, 3, ["2", "3"])


def test_a_write_that_an_object_does_not_accept_any_more_is_not_sent_again() -> None:
    server = Server()
    target, known = Patient(server), server.version
    target.refuses = "it is going already"
    server.change()
    result = write(target, version=known)
    assert (result.outcome, result.why, server.num_patches) == (Outcome.REFUSED, "it is going already", 1)
    assert result.found is not None
    assert result.found.metadata.resource_version == server.version


@pytest.mark.parametrize(("kind", "tried", "outcome"), [(Patient, 1, Outcome.CONFLICT), (Persistent, 2, Outcome.DONE)])
def test_a_conflict_of_an_object_that_is_as_it_was_may_be_of_something_else(
    kind: type[Patient], tried: int, outcome: Outcome
) -> None:
    server = Server()
    server.instead = [ApiError(409, "Conflict", "a disruption budget has changed")]
    assert write(kind(server), version=server.version).outcome is outcome
    assert server.num_patches == tried


def test_a_conflict_is_no_loss_of_what_has_taken_effect() -> None:
    """The request came twice, and the second one was late."""
    server = Server()
    known = server.version
    assert write(Signature(server), version=known).outcome is Outcome.DONE
    target = Certain(server)
    result = write(target, version=known)
    assert (result.outcome, target.sealed, server.by) == (Outcome.DONE, [False], "kerf")
    assert target.num_seals == 0, "what comes late is refused by itself"
    server.gone = True
    assert write(Patient(server), version=known).outcome is Outcome.GONE


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(DENIED, Outcome.REFUSED), (ApiError(429, "TooManyRequests", "a disruption budget"), Outcome.NOT_NOW)],
)
def test_what_the_api_server_refuses_has_no_effect_now_or_later(error: ApiError, outcome: Outcome) -> None:
    server = Server()
    server.instead = [error]
    target = Certain(server)
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.sealed, target.undone) == (outcome, error, [], 1)


@pytest.mark.parametrize("error", [LOST, UNAVAILABLE, ApiError(500, "InternalError", "etcd")])
def test_where_an_answer_is_lost_the_object_tells_after_a_change(error: Exception) -> None:
    server = Server()
    server.lost = [error]
    target = Certain(server)
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.sealed) == (Outcome.DONE, error, [True])
    server.instead = [error]
    target = Certain(server, "never arrived")
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.sealed, target.undone) == (Outcome.REFUSED, error, [True], 1)
    assert target.num_seals == 1


@pytest.mark.parametrize(("seals", "outcome"), [(False, Outcome.UNKNOWN), (True, Outcome.REFUSED)])
def test_a_write_whose_answer_is_lost_is_not_sent_again(seals: bool, outcome: Outcome) -> None:
    class Lost(Certain):
        tries = 3

    server = Server()
    server.instead = [LOST]
    target = Lost(server)
    target.seals = seals
    assert (write(target, version=server.version).outcome, server.num_patches) == (outcome, 1)


def test_what_is_not_made_to_fail_is_unknown_where_the_object_does_not_tell() -> None:
    server = Server()
    server.instead = [LOST]
    target = Signature(server)
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.version) == (Outcome.UNKNOWN, LOST, server.version)
    assert target.undone == 0, "it may take effect yet"


def test_where_the_object_can_not_be_asked_either_it_is_unknown_and_why() -> None:
    server = Server()
    server.instead, server.unreadable = [LOST], UNAVAILABLE
    result = write(Certain(server), version=server.version)
    assert (result.outcome, result.error, result.why) == (Outcome.UNKNOWN, LOST, str(UNAVAILABLE))


def test_a_write_that_is_given_up_is_unknown_once_it_was_sent() -> None:
    async def give_up(target: Signature, term: Term) -> None:
        work = asyncio.create_task(commit(target, term, version=server.version))
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    class Slow(Signature):
        async def send(self, version: str) -> Named | None:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    class SlowTerm(Term):
        async def confirm(self, uid: str, version: str) -> None:
            await asyncio.Event().wait()

    server = Server()
    sent, asked = Slow(server), Slow(server)
    asyncio.run(give_up(sent, Term()))
    asyncio.run(give_up(asked, SlowTerm()))
    assert [(one.result.outcome, one.result.why) for one in (sent, asked)] == [
        (Outcome.UNKNOWN, "cancelled"),
        (Outcome.REFUSED, "cancelled"),
    ]


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (DENIED, True),
        (ApiError(403, "Forbidden", "an admission policy says no"), True),
        (ApiError(403, "Forbidden", 'User "kerf" cannot patch resource "pods"'), False),
        *((ApiError(status, "", "passing"), False) for status in (401, 404, 408, 409, 429, 500, 503)),
        (ApiError(500, "InternalError", "etcdserver: request is too large"), True),
        (ApiError(400, "BadRequest", "it can't be read"), True),
        (LOST, False),
    ],
)
def test_an_object_can_not_be_changed_where_to_try_again_would_end_in_the_same_way(
    error: Exception, is_refused: bool
) -> None:
    assert refused(error) is is_refused
