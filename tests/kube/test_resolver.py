"""What became of unknown writes is found out in rounds: namespaces in turn, so many at a time, ever later."""

import asyncio
from typing import cast

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
        self.version, self.now = "1", Named(metadata=Metadata(resource_version="2"))

    async def send(self, version: str) -> Named | None:
        raise NotImplementedError

    async def read(self) -> Named | None:
        return self.now

    async def seal(self) -> Named | None:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        return self.now

    def judge(self, found: Named | None, *, sealed: bool) -> Outcome | None:
        return Outcome.UNKNOWN if self.error is not None else None

    def settle(self, result: Result[Named]) -> None:
        self.outcomes.append(result.outcome)


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
    many = [Unknown("many", number) for number in range(2000)]
    rig.add(*many, other)
    rig.round()
    assert other.outcomes == [Outcome.REFUSED]
    assert sum(target.num_asked for target in many) < 300
    for _ in range(8):
        rig.round()
    assert all(target.outcomes == [Outcome.REFUSED] for target in many)


def test_what_can_not_be_found_out_is_asked_about_ever_later() -> None:
    rig = Rig()
    unreachable, refused = Unknown("a", error=UnreachableError("cut")), Unknown("b", error=ApiError(422, "", "denied"))
    rig.add(unreachable, refused)
    for _ in range(400):
        rig.round()
    assert 4 <= refused.num_asked <= 12, "it is read where it can't be changed, and that tells nothing either"
    assert 4 <= unreachable.num_asked <= 25, "an API server may be back at any time"
    unreachable.error = refused.error = None
    for _ in range(400):
        rig.round()
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
