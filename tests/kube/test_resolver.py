"""What became of unknown writes is found out in rounds: namespaces in turn, so many at a time, ever later."""

import asyncio
import random
from typing import cast

import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, Term
from extender.kube.objects import Metadata, Named


class Standing:
    """A process that leads, unless it is told otherwise."""

    def __init__(self) -> None:
        self.why = ""

    def standby(self) -> str:
        return self.why


class Unknown(Target[Named]):
    """A write of which is known, once the API server answers, that nothing came of it."""

    def __init__(self, namespace: str, number: int = 0, error: Exception | None = None) -> None:
        super().__init__(namespace, f"{namespace}-{number}", "a write")
        self.error, self.outcomes, self.num_asked = error, list[Outcome](), 0
        self.version = "1"
        self.now: Named | None = Named(metadata=Metadata(resource_version="2"))
        self.told = False
        self.results, self.sealed = list[Result[Named]](), list[bool]()

    async def send(self, version: str) -> Named | None:
        raise NotImplementedError

    def is_told(self) -> bool:
        return self.told or super().is_told()

    async def read(self) -> Named | None:
        return self.now

    async def seal(self) -> Named | None:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        return self.now

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        assert found is self.now
        self.sealed.append(sealed)
        return Outcome.UNKNOWN if self.error is not None else None

    def settle(self, result: Result[Named]) -> None:
        self.outcomes.append(result.outcome)
        self.results.append(result)


class Kept(Unknown):
    """One that is found out about whoever leads."""

    kept_on_standby = True


class Rig:
    def __init__(self) -> None:
        self.now, self.standing = 0.0, Standing()
        self.resolver = Resolver(cast(Term, self.standing), lambda: self.now)

    def add(self, *targets: Unknown) -> None:
        for target in targets:
            self.resolver.add(target)

    def round(self, later_s: float = 0.25) -> None:
        self.now += later_s
        asyncio.run(self.resolver.resolve_round())


def test_one_namespaces_thousands_keep_nobody_else_waiting() -> None:
    rig, other = Rig(), Unknown("other")
    many = [Unknown("many", number) for number in range(600)]
    rig.add(*many, other)
    rig.round()
    assert other.outcomes == [Outcome.REFUSED]
    assert sum(target.num_asked for target in many) < 300
    for _ in range(2):
        rig.round()
    assert all(target.outcomes == [Outcome.REFUSED] for target in many)


def test_what_can_not_be_found_out_is_asked_about_ever_later() -> None:
    random.seed(1)  # pauses are drawn: of a hundred draws a few come to more tries than are usual
    rig = Rig()
    unreachable, refused = Unknown("a", error=UnreachableError("cut")), Unknown("b", error=ApiError(422, "", "denied"))
    rig.add(unreachable, refused)
    for _ in range(100):
        rig.round(1.0)
    assert 4 <= refused.num_asked <= 12, "it is read where it can't be changed, and that tells nothing either"
    assert 4 <= unreachable.num_asked <= 25, "an API server may be back at any time"
    unreachable.error = refused.error = None
    for _ in range(100):
        rig.round(1.0)
    assert (unreachable.outcomes, refused.outcomes) == ([Outcome.REFUSED], [Outcome.REFUSED])


def test_what_takes_a_term_waits_for_the_next_one() -> None:
    rig, target = Rig(), Unknown("a", error=FencedError("not renewed in time"))
    rig.add(target)
    rig.round()
    rig.round()
    assert (target.num_asked, target.outcomes) == (2, [])
    target.error = None
    rig.round()
    assert target.outcomes == [Outcome.REFUSED]


def test_whoever_leads_next_finds_out_what_is_not_kept_on_standby() -> None:
    rig, target = Rig(), Unknown("a")
    rig.add(target)
    rig.standing.why = "another one leads"
    rig.round()
    assert (target.num_asked, target.outcomes) == (0, [Outcome.FENCED])
    assert target.results[0].why == "another one leads"


def test_who_stands_by_reads_and_changes_nothing() -> None:
    rig, target = Rig(), Kept("a")
    rig.add(target)
    rig.standing.why = "another one leads"
    target.now = Named(metadata=Metadata(resource_version="1"))
    rig.round()
    assert (target.outcomes, target.sealed) == ([], [False]), "it may take effect yet"
    target.now = Named(metadata=Metadata(resource_version="2"))
    rig.round()
    rig.round()
    assert (target.outcomes, target.sealed, target.num_asked) == ([Outcome.REFUSED], [False, True], 0)
    assert target.results[0].found is target.now


def test_what_is_gone_is_judged_as_such() -> None:
    class Gone(Unknown):
        def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
            super().judge(found, sealed=sealed)
            return Outcome.GONE if found is None else None

    rig, target = Rig(), Gone("a")
    target.now = None
    rig.add(target)
    rig.round()
    assert (target.outcomes, target.sealed) == ([Outcome.GONE], [True])


def test_where_an_object_can_not_be_changed_it_may_tell_what_became_of_the_write_as_it_is() -> None:
    class Telling(Unknown):
        def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
            super().judge(found, sealed=sealed)
            return None

    rig = Rig()
    refused, passing = (Telling("a", status, ApiError(status, "", "no")) for status in (422, 503))
    rig.add(refused, passing)
    rig.round()
    assert (refused.outcomes, refused.sealed) == ([Outcome.REFUSED], [True]), "it has changed since"
    assert (passing.outcomes, passing.sealed) == ([], [])


def test_what_is_told_from_elsewhere_is_asked_about_no_more() -> None:
    class Told(Unknown):
        async def seal(self) -> Named | None:
            self.told = True
            return await super().seal()

    rig, before, meanwhile = Rig(), Unknown("a"), Told("b")
    before.told = True
    rig.add(before, meanwhile)
    rig.round()
    before.told = meanwhile.told = False
    rig.round()
    assert (before.outcomes, meanwhile.outcomes) == ([], [])
    assert (before.num_asked, meanwhile.num_asked) == (0, 1)


def test_what_was_well_again_is_tried_as_soon_as_the_first_time() -> None:
    def num_tries(target: Unknown) -> int:
        before, target.error = target.num_asked, UnreachableError("cut")
        for _ in range(20):
            rig.round()
        return target.num_asked - before

    rig, target, other = Rig(), Unknown("a"), Unknown("a", 1)
    rig.add(target)
    assert 3 <= num_tries(target) <= 8
    target.error = None
    for _ in range(40):
        rig.round()
    assert target.outcomes == [Outcome.REFUSED]
    rig.add(other)
    assert 3 <= num_tries(other) <= 8


def test_an_objects_own_failure_is_over_once_it_is_well_again() -> None:
    rig, target = Rig(), Unknown("a")
    denied = ApiError(422, "Invalid", "denied by a webhook")
    for _ in range(3):
        rig.add(target)
        target.error, before = denied, target.num_asked
        for _ in range(8):
            rig.round()
        assert target.num_asked - before >= 3, "twice at once, and soon after"
        target.error = None
        for _ in range(60):
            rig.round()
    assert target.outcomes == [Outcome.REFUSED] * 3


def test_what_fails_is_told_in_the_log_and_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    rig, other = Rig(), Unknown("a", 2)
    rig.add(Unknown("a", 0, ValueError("broken")), Unknown("b", 1, UnreachableError("cut")), other)
    rig.round()
    assert other.outcomes == [Outcome.REFUSED]
    assert sorted(caplog.messages) == [
        "a write: could not find out what became of it",
        "a write: what became of it is not known yet: cut",
    ]


def test_it_works_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.kube.commit._INTERVAL_S", 0.01)

    class Awaited(Unknown):
        def settle(self, result: Result[Named]) -> None:
            super().settle(result)
            settled.set()

    rig, target, settled = Rig(), Awaited("a"), asyncio.Event()

    async def run() -> None:
        rig.resolver.start()
        rig.add(target)
        async with asyncio.timeout(5.0):
            await settled.wait()
        await rig.resolver.stop()

    asyncio.run(run())
    assert target.outcomes == [Outcome.REFUSED]
    assert list(rig.resolver.tasks.names) == ["resolver"]
