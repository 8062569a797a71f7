"""UNKNOWN outcomes are resolved in rounds: namespaces in turn, a bounded number at a time, with backoff."""

import asyncio
import random
from typing import cast

import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, Term
from extender.kube.objects import Metadata, Named
from tests.kube.loops import in_loop
from tests.ledger.builders import until

CUT = UnreachableError("cut")
DENIED = ApiError(422, "Invalid", "denied by a webhook")


class Unknown(Target[Named]):
    """A write that has had no effect, as its object shows once the API server answers."""

    def __init__(self, namespace: str, number: int = 0, error: Exception | None = None) -> None:
        super().__init__(namespace, f"{namespace}-{number}", f"write {namespace}-{number}")
        self.error, self.num_sealed = error, 0
        self.version = "1"
        self.now: Named | None = Named(metadata=Metadata(resource_version="2"))
        self.told = self.shows = False
        """Whether the outcome is known from elsewhere; whether the object shows it although it can't be sealed."""
        self.results, self.sealed = list[Result[Named]](), list[bool]()

    @property
    def outcomes(self) -> list[Outcome]:
        return [result.outcome for result in self.results]

    async def send(self, version: str) -> Named | None:
        raise NotImplementedError

    def is_settled(self) -> bool:
        return self.told or super().is_settled()

    async def read(self) -> Named | None:
        return self.now

    async def seal(self) -> Named | None:
        self.num_sealed += 1
        if self.error is not None:
            raise self.error
        return self.now

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        assert found is self.now
        self.sealed.append(sealed)
        if found is None:
            return Outcome.GONE
        return Outcome.UNKNOWN if self.error is not None and not self.shows else None

    def settle(self, result: Result[Named]) -> None:
        self.results.append(result)


class Rig:
    """A resolver; `standby` says why another process leads."""

    def __init__(self, *targets: Unknown) -> None:
        self.now, self.why = 0.0, ""
        self.resolver = Resolver(cast(Term, self), lambda: self.now)
        self.add(*targets)

    def standby(self) -> str:
        return self.why

    def add(self, *targets: Unknown) -> None:
        for target in targets:
            self.resolver.add(target)

    def rounds(self, num: int = 1, every_s: float = 0.25) -> None:
        for _ in range(num):
            self.now += every_s
            asyncio.run(self.resolver.resolve_round())

    def num_tries(self, target: Unknown, num_rounds: int) -> int:
        """How often it tries to seal a target."""
        before = target.num_sealed
        self.rounds(num_rounds)
        return target.num_sealed - before


def test_thousands_of_one_namespace_do_not_hold_up_another() -> None:
    other, many = Unknown("other"), [Unknown("many", number) for number in range(600)]
    rig = Rig(*many, other)
    rig.rounds()
    assert other.outcomes == [Outcome.REFUSED]
    assert sum(target.num_sealed for target in many) < 300
    rig.rounds(2)
    assert all(target.outcomes == [Outcome.REFUSED] for target in many)


def test_tries_back_off_and_begin_anew_after_a_success() -> None:
    random.seed(1)  # of a hundred drawn pauses a few come to more tries than usual
    unreachable, refused = Unknown("a", error=CUT), Unknown("b", error=ApiError(422, "", "denied"))
    rig = Rig(unreachable, refused)
    rig.rounds(100, every_s=1.0)
    assert 4 <= refused.num_sealed <= 12
    assert 4 <= unreachable.num_sealed <= 25, "an API server may be back at any time"
    unreachable.error = refused.error = None
    rig.rounds(100, every_s=1.0)
    assert unreachable.outcomes == refused.outcomes == [Outcome.REFUSED]
    for error, num_rounds, least, most in ((CUT, 20, 3, 8), (DENIED, 8, 3, 8)):
        target = Unknown("a", 1)
        for number in range(1, 4):
            target.error = error
            rig.add(target)
            assert least <= rig.num_tries(target, num_rounds) <= most, "twice at once, and soon after"
            target.error = None
            rig.rounds(60)
            assert target.outcomes == [Outcome.REFUSED] * number


def test_a_seal_that_needs_a_term_waits_for_the_next_one() -> None:
    target = Unknown("a", error=FencedError("not renewed in time"))
    rig = Rig(target)
    rig.rounds(2)
    assert (target.num_sealed, target.outcomes) == (2, [])
    target.error = None
    rig.rounds()
    assert target.outcomes == [Outcome.REFUSED]


def test_a_standby_reads_what_it_has_to_resolve_and_leaves_the_rest_to_the_leader() -> None:
    class Kept(Unknown):
        kept_on_standby = True

    target, kept = Unknown("a"), Kept("a", 1)
    rig = Rig(target, kept)
    rig.why = "another one leads"
    kept.now = Named(metadata=Metadata(resource_version="1"))
    rig.rounds()
    assert [(result.outcome, result.why) for result in target.results] == [(Outcome.FENCED, "another one leads")]
    assert (kept.outcomes, kept.sealed) == ([], [False]), "it may still take effect"
    kept.now = Named(metadata=Metadata(resource_version="2"))
    rig.rounds(2)
    assert [(result.outcome, result.found) for result in kept.results] == [(Outcome.REFUSED, kept.now)]
    assert (kept.sealed, kept.num_sealed, target.num_sealed) == ([False, True], 0, 0)


def test_an_object_that_is_gone_or_can_not_be_sealed_may_show_the_outcome() -> None:
    gone, refused, passing = Unknown("a"), Unknown("a", 1, DENIED), Unknown("a", 2, ApiError(503, "", "no"))
    gone.now, refused.shows, passing.shows = None, True, True
    Rig(gone, refused, passing).rounds()
    assert (gone.outcomes, gone.sealed) == ([Outcome.GONE], [True])
    assert (refused.outcomes, refused.sealed) == ([Outcome.REFUSED], [True]), "it has changed since"
    assert (passing.outcomes, passing.sealed) == ([], [])


def test_an_outcome_known_from_elsewhere_is_dropped() -> None:
    class Told(Unknown):
        async def seal(self) -> Named | None:
            self.told = True
            return await super().seal()

    before, meanwhile = Unknown("a"), Told("b")
    before.told = True
    rig = Rig(before, meanwhile)
    rig.rounds()
    before.told = meanwhile.told = False
    rig.rounds()
    assert (before.outcomes, meanwhile.outcomes) == ([], [])
    assert (before.num_sealed, meanwhile.num_sealed) == (0, 1)


def test_a_failure_is_logged_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    other = Unknown("a", 2)
    Rig(Unknown("a", 0, ValueError("broken")), Unknown("b", 1, CUT), other).rounds()
    assert other.outcomes == [Outcome.REFUSED]
    logged = sorted((record.message.partition(":")[0], record.levelname) for record in caplog.records)
    assert logged == [("write a-0", "ERROR"), ("write b-1", "WARNING")]


@in_loop
async def test_it_runs_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.kube.commit._INTERVAL_S", 0.01)
    rig, target = Rig(), Unknown("a")
    rig.resolver.start()
    rig.add(target)
    await until(lambda: target.outcomes == [Outcome.REFUSED])
    await rig.resolver.stop()
    assert list(rig.resolver.tasks.names) == ["resolver"]
