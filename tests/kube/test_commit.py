"""A write is sent on the version that its decision is based on, by the leader, while its preconditions hold; its
outcome is settled once it is known. tests/queueing/test_commits.py checks the same in random schedules."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import FencedError, Outcome, Result, Target, commit, is_permanent_refusal
from extender.kube.decoding import Decoder
from extender.kube.memory import MemoryCluster
from extender.kube.objects import Named
from extender.kube.patches import Patch
from tests.kube.loops import in_loop

PLAN = "/api/v1/namespaces/default/configmaps/plan"
LOST = UnreachableError("timed out")
UNAVAILABLE = ApiError(503, "ServiceUnavailable", "starting")
DENIED = ApiError(422, "Invalid", "denied by a webhook")
BUSY = ApiError(429, "TooManyRequests", "a disruption budget")


class Server(MemoryCluster):
    """A ConfigMap, and an API server that fails as configured."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.keep_config_map("default", "plan")
        self.instead: list[Exception | None] = []
        """Errors of the next patches, which then have no effect; None for no error."""
        self.lost: list[Exception] = []
        """Errors of the next patches that do have an effect."""
        self.unreadable: Exception | None = None
        self.gone = False
        self.bodies: list[Any] = []
        """Of the patches received."""

    @property
    def num_patches(self) -> int:
        return len(self.bodies)

    @property
    def version(self) -> str:
        return str(self.held["metadata"]["resourceVersion"])

    @property
    def by(self) -> str | None:
        """Who wrote last."""
        annotations: dict[str, str] = self.held["metadata"].get("annotations", {})
        return annotations.get("by")

    async def touch(self) -> None:
        """Another process writes."""
        await super().patch(PLAN, b"{}")

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
    """The term of a process that leads, unless `others` or `ended` say why not."""

    def __init__(self) -> None:
        self.others = self.ended = ""
        self.confirmed: list[tuple[str, str]] = []
        self.epochs: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called during a confirmation."""

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
    """Writes its name on the ConfigMap."""

    def __init__(self, server: Server, name: str = "kerf") -> None:
        super().__init__(server, PLAN, Decoder(Named), metadata={"annotations": {"by": name}})
        self.server, self.name, self.epoch = server, name, "epoch-1"
        self.results = list[Result[Named]]()
        self.undone = 0
        self.why = self.refuses = ""
        self.asked: list[str] = []
        """Versions for which `accepts` was called."""

    async def undo(self) -> None:
        self.undone += 1

    def failed_precondition(self) -> str:
        return self.why or super().failed_precondition()

    def refusal(self, found: Named) -> str:
        self.asked.append(found.metadata.resource_version)
        return self.refuses or super().refusal(found)

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        return Outcome.DONE if (found.metadata.annotations or {}).get("by") == self.name else None

    def settle(self, result: Result[Named]) -> None:
        self.results.append(result)


class Certain(Signature):
    """Sealed if its response is lost."""

    seals = True

    def __init__(self, server: Server, name: str = "kerf") -> None:
        super().__init__(server, name)
        self.sealed: list[bool] = []
        """Of each call of `judge`."""
        self.num_seals = 0

    async def seal(self) -> Named | None:
        self.num_seals += 1
        await self.server.touch()
        return await self.read()

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        self.sealed.append(sealed)
        return super().judge(found, sealed=sealed)


class Patient(Signature):
    """Sent three times if the object changes."""

    tries = 3


def write(target: Target[Named], term: Term | None = None, version: str = "") -> Result[Named]:
    return asyncio.run(commit(target, term, version=version))


def test_a_write_is_sent_on_the_version_of_its_decision() -> None:
    server, term = Server(), Term()
    target, known = Signature(server), server.version
    result = write(target, term, known)
    assert (result.outcome, target.results, target.undone) == (Outcome.DONE, [result], 0)
    assert result.found is not None
    assert (result.found.metadata.resource_version, server.by) == (server.version, "kerf")
    assert (term.confirmed, term.epochs) == ([(PLAN, known)], ["epoch-1"])
    late = write(Signature(server, "late"), term, known)
    assert (late.outcome, server.by, server.num_patches) == (Outcome.CONFLICT, "kerf", 2)


def test_a_version_that_becomes_known_only_now_is_newer_than_the_term() -> None:
    class Locking(Signature):
        async def prepare(self) -> str:
            await server.touch()
            return server.version

    server, read, prepared = Server(), Term(), Term()
    target, known = Signature(server), server.version
    assert write(target, read).outcome is Outcome.DONE
    locking = Locking(server)
    assert write(locking, prepared, server.version).outcome is Outcome.DONE
    assert (target.asked, locking.version) == ([known], "3")
    assert read.confirmed == prepared.confirmed == [("", "now")]


def test_what_can_not_be_prepared_or_read_is_not_sent() -> None:
    class Locked(Signature):
        async def prepare(self) -> str:
            raise UNAVAILABLE

    server = Server()
    locked, target = Locked(server), Signature(server)
    with pytest.raises(ApiError, match="starting"):
        write(locked, version=server.version)
    assert [(result.outcome, result.why) for result in locked.results] == [(Outcome.REFUSED, "cancelled")]
    server.unreadable = UNAVAILABLE
    result = write(target)
    assert (result.outcome, result.error, target.undone) == (Outcome.REFUSED, UNAVAILABLE, 1)
    server.unreadable, server.gone = None, True
    assert write(Signature(server)).outcome is Outcome.GONE
    assert server.num_patches == 0


def test_while_another_process_leads_nothing_is_sent() -> None:
    server = Server()
    for field, why in (("others", "another one leads"), ("ended", "that term has ended")):
        target, term = Signature(server), Term()
        setattr(term, field, why)
        result = write(target, term, server.version)
        assert (result.outcome, str(result.error), server.num_patches) == (Outcome.FENCED, why, 0)
        assert target.undone == 1


def test_preconditions_are_checked_last() -> None:
    server, term = Server(), Term()
    target, refusing = Signature(server), Signature(server)

    def fall() -> None:
        target.why = "its node is gone"

    term.meanwhile = fall
    result = write(target, term, server.version)
    assert (result.outcome, result.why, target.version, target.undone) == (Outcome.REFUSED, "its node is gone", "", 1)
    refusing.refuses = "it is going already"
    result = write(refusing)
    assert (result.outcome, result.why, result.found is None) == (Outcome.REFUSED, "it is going already", False)
    assert server.num_patches == 0


def test_a_conflict_is_retried_on_the_object_as_it_is_now() -> None:
    class Outrun(Patient):
        async def send(self, version: str) -> Named | None:
            await server.touch()
            return await super().send(version)

    server = Server()
    known = server.version
    asyncio.run(server.touch())
    refusing = Patient(server)
    refusing.refuses = "it is going already"
    result = write(refusing, version=known)
    assert (result.outcome, result.why, server.num_patches) == (Outcome.REFUSED, "it is going already", 1)
    assert result.found is not None
    assert result.found.metadata.resource_version == server.version
    assert write(Patient(server), version=known).outcome is Outcome.DONE
    assert (server.by, server.num_patches) == ("kerf", 3)
    outrun = Outrun(server, "outrun")
    assert write(outrun, version=server.version).outcome is Outcome.CONFLICT
    assert (server.num_patches, len(outrun.asked)) == (6, 2), "three times at most"


@pytest.mark.parametrize(("passes", "sent", "outcome"), [(False, 1, Outcome.CONFLICT), (True, 2, Outcome.DONE)])
def test_a_conflict_of_an_unchanged_object_may_concern_another(passes: bool, sent: int, outcome: Outcome) -> None:
    class Persistent(Patient):
        conflicts_pass = passes

    server = Server()
    server.instead = [ApiError(409, "Conflict", "a disruption budget has changed")]
    assert write(Persistent(server), version=server.version).outcome is outcome
    assert server.num_patches == sent


def test_a_conflict_does_not_undo_what_has_taken_effect() -> None:
    """The request arrived twice, and the second one was late."""
    server = Server()
    known = server.version
    assert write(Signature(server), version=known).outcome is Outcome.DONE
    target = Certain(server)
    assert write(target, version=known).outcome is Outcome.DONE
    assert (target.sealed, target.num_seals, server.by) == ([False], 0, "kerf")
    server.gone = True
    assert write(Patient(server), version=known).outcome is Outcome.GONE


def test_what_the_api_server_refuses_has_no_effect_now_or_later() -> None:
    for error, outcome in ((DENIED, Outcome.REFUSED), (BUSY, Outcome.NOT_NOW)):
        server = Server()
        server.instead = [error]
        target = Certain(server)
        result = write(target, version=server.version)
        assert (result.outcome, result.error, target.sealed, target.undone) == (outcome, error, [], 1)


@pytest.mark.parametrize("error", [LOST, UNAVAILABLE, ApiError(500, "InternalError", "etcd")])
def test_if_a_response_is_lost_the_sealed_object_shows_the_outcome(error: Exception) -> None:
    class Lost(Certain):
        tries = 3

    server = Server()
    server.lost = [error]
    target = Lost(server)
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.sealed) == (Outcome.DONE, error, [True])
    server.instead = [error]
    target = Lost(server, "never arrived")
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.sealed, target.undone) == (Outcome.REFUSED, error, [True], 1)
    assert (target.num_seals, server.num_patches) == (1, 2), "it is not sent again"


def test_an_outcome_that_the_object_does_not_show_is_unknown() -> None:
    server = Server()
    server.instead = [LOST, LOST]
    target = Signature(server)
    result = write(target, version=server.version)
    assert (result.outcome, result.error, target.version) == (Outcome.UNKNOWN, LOST, server.version)
    assert (target.undone, server.num_patches) == (0, 1), "it may still take effect"
    server.unreadable = UNAVAILABLE
    result = write(Certain(server), version=server.version)
    assert (result.outcome, result.error, result.why) == (Outcome.UNKNOWN, LOST, str(UNAVAILABLE))


@in_loop
async def test_a_write_that_is_cancelled_is_unknown_once_it_was_sent() -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    class Slow(Signature):
        async def send(self, version: str) -> Named | None:
            await hang()
            return None

    class SlowTerm(Term):
        async def confirm(self, uid: str, version: str) -> None:
            await hang()

    server = Server()
    for term, outcome in ((Term(), Outcome.UNKNOWN), (SlowTerm(), Outcome.REFUSED)):
        reached.clear()
        target = Slow(server)
        work = asyncio.create_task(commit(target, term, version=server.version))
        await reached.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert [(result.outcome, result.why) for result in target.results] == [(outcome, "cancelled")]


def test_which_errors_a_retry_would_meet_again() -> None:
    no_right = ApiError(403, "Forbidden", 'User "kerf" cannot patch resource "pods"')
    passing = [no_right, LOST, *(ApiError(status, "", "passing") for status in (401, 404, 408, 409, 429, 500, 503))]
    lasting = [
        *(DENIED, ApiError(403, "Forbidden", "an admission policy says no"), ApiError(400, "BadRequest", "unreadable")),
        ApiError(500, "InternalError", "etcdserver: request is too large"),
    ]
    assert [is_permanent_refusal(error) for error in (*passing, *lasting)] == [False] * len(passing) + [True] * len(
        lasting
    )
