"""Leader election: at no moment are two processes certain that they lead."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.leadership import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes, Spectator, Unelected
from extender.kube.memory import MemoryCluster
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, until

LEASE = LeaseName("kube-system", "kerf")
TIMES = LeaseTimes(duration_s=2, renew_deadline_s=1.5, retry_s=0.5)
QUICK = LeaseTimes(duration_s=2, renew_deadline_s=0.2, retry_s=0.1)


class Server(MemoryCluster):
    """An API server that can be cut off, and loses responses; its clock is that of all processes."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.answers_lost = False
        self.latency_s = 0.0
        self.clock = Clock()
        self.calls: list[str] = []

    async def get(self, path: str, query: Any = None) -> bytes:
        self._arrive("GET", path)
        return await super().get(path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        self._arrive("POST", path)
        return self._answer(await super().post(path, body))

    async def patch(self, path: str, body: bytes) -> bytes:
        self._arrive("PATCH", path)
        return self._answer(await super().patch(path, body))

    def _arrive(self, method: str, path: str) -> None:
        self.calls.append(f"{method} {path}")
        self.clock.now += self.latency_s
        if not self.reachable:
            raise UnreachableError("refused")

    def _answer(self, body: bytes) -> bytes:
        self.clock.now += self.latency_s
        if self.answers_lost:
            raise UnreachableError("reset")
        return body

    def wait(self, seconds: float) -> float:
        """Let time pass, and return the new time."""
        self.clock.now += seconds
        return self.clock.now

    def spec(self) -> dict[str, Any]:
        """The lease as it is."""
        spec: dict[str, Any] = msgspec.json.decode(asyncio.run(MemoryCluster.get(self, LEASE.path)))["spec"]
        return spec

    def write(self, holder: str) -> None:
        """Renew as a kube-scheduler does."""
        asyncio.run(self.renew(holder))

    async def renew(self, holder: str) -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
        try:
            lease = msgspec.json.decode(await MemoryCluster.get(self, LEASE.path))
            body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
            await MemoryCluster.patch(self, LEASE.path, msgspec.json.encode(body))
        except ApiError:
            body = {"metadata": {"name": LEASE.name}, "spec": spec}
            await MemoryCluster.post(self, LEASE.collection, msgspec.json.encode(body))

    def replica(self, identity: str, times: LeaseTimes = TIMES, clock: Clock | None = None) -> HeldLease:
        return HeldLease(self, LEASE, identity, times, clock or self.clock)

    def sidecar(self, times: LeaseTimes = TIMES) -> FollowedLease:
        return FollowedLease(self, LEASE, "host", times, self.clock)


def look(*elections: HeldLease | FollowedLease) -> None:
    """One attempt of each, as `run` makes them."""
    for election in elections:
        asyncio.run(election.attempt())
        assert "see the log" not in election.standing(), "an unexpected exception"


def certain(election: Election, clock: Clock) -> bool:
    return clock() < election.deadline()


def pair() -> tuple[Server, HeldLease, HeldLease]:
    """Two replicas, of which the first leads."""
    server = Server()
    first, second = server.replica("a"), server.replica("b")
    look(first, second)
    return server, first, second


def test_the_first_creates_the_lease_and_the_second_stands_by() -> None:
    server, first, second = pair()
    assert (bool(first.term), second.term) == (True, "")
    assert certain(first, server.clock)
    assert not certain(second, server.clock)
    spec = server.spec()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 2, 0)
    assert second.standing() == "lease kube-system/kerf is held by a"
    asyncio.run(second.resign())
    assert server.spec()["holderIdentity"] == "a", "a standby releases nothing"
    server.wait(1.9)
    assert second.pause_s() == pytest.approx(0.1), "it tries when the lease expires"


def test_a_renewal_prolongs_the_term_and_a_late_one_begins_another() -> None:
    server, first, _ = pair()
    term, tenure, acquired = first.term, first.tenure, server.spec()["acquireTime"]
    now = server.wait(1.0)
    look(first)
    assert (first.term, server.spec()["acquireTime"], server.spec()["leaseTransitions"]) == (term, acquired, 0)
    assert first.deadline() == now + TIMES.renew_deadline_s
    server.wait(1.5)
    look(first)
    assert (first.tenure, first.term != term) == (tenure, True), "it expired, and no other process led"


def test_a_lease_is_taken_when_no_renewal_was_seen_for_its_duration() -> None:
    server, first, second = pair()
    server.wait(1.99)
    look(second)
    assert not second.term
    assert not certain(first, server.clock)  # 1.5 s have passed
    server.wait(0.01)
    look(second)
    assert second.term
    assert (server.spec()["holderIdentity"], server.spec()["leaseTransitions"]) == ("b", 1)
    tenure = first.tenure
    look(first)
    assert (first.term, first.standing()) == ("", "lease kube-system/kerf is held by b")
    server.wait(2.0)
    look(first)
    assert first.term
    assert first.tenure != tenure, "another process led in between"


def test_time_counts_from_before_the_renewal_was_asked_for() -> None:
    server = Server()
    first = server.replica("a")
    server.latency_s = 0.4
    look(first)  # requested at 0.4 after a GET that found nothing; created at 0.8, answered at 1.2
    assert first.deadline() == pytest.approx(1000.4 + 1.5)


def test_a_holder_that_is_cut_off_is_no_longer_certain() -> None:
    server, first, _ = pair()
    term = first.term
    server.reachable = False
    server.wait(1.5)
    look(first)
    assert not certain(first, server.clock)
    assert first.standing() == "lease kube-system/kerf was not renewed in time: refused"
    server.reachable = True
    look(first)
    assert certain(first, server.clock)
    assert server.spec()["leaseTransitions"] == 0, "no other process has led meanwhile"
    assert first.term != term, "but what was decided before is decided again"


def test_late_responses_begin_another_term_or_none() -> None:
    server, first, _ = pair()
    term = first.term
    server.wait(1.3)
    server.latency_s = 0.15  # requested at 1.3 of 1.5 s, answered at 1.6
    look(first)
    assert certain(first, server.clock)
    assert first.term != term
    server = Server()
    first = server.replica("a")
    server.latency_s = 0.8  # answered after the term is over
    look(first)
    assert (first.term, certain(first, server.clock)) == ("", False)
    server.latency_s = 0.0
    look(first)
    assert certain(first, server.clock)


def test_a_lease_acquired_without_a_response_is_found_to_be_held() -> None:
    server = Server()
    first = server.replica("a")
    server.answers_lost = True
    look(first)
    assert not first.term
    server.answers_lost = False
    look(first)
    assert certain(first, server.clock)
    assert server.spec()["leaseTransitions"] == 0


def test_a_released_lease_is_taken_at_once() -> None:
    server, first, second = pair()
    server.wait(0.2)
    asyncio.run(first.resign())
    assert (first.term, certain(first, server.clock), server.spec()["holderIdentity"]) == ("", False, "")
    now = server.wait(0.2)
    look(second)
    assert certain(second, server.clock)
    assert server.spec()["leaseTransitions"] == 1
    assert second.led().since == now > first.led().until, "it claims no time before the release"


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 20), marks=pytest.mark.slow)])
def test_never_are_two_certain_whatever_happens(seeds: Sequence[int]) -> None:
    """Random steps of three replicas on one clock: attempts, cuts, lost responses, pauses."""
    for seed in seeds:
        rng = random.Random(seed)
        server = Server()
        identities = {server.replica(name): name for name in "abc"}
        replicas = list(identities)
        terms: set[tuple[str, str]] = set()
        ended: set[str] = set()
        for _ in range(400):
            server.wait(rng.choice([0.0, 0.05, 0.3, 0.3, 1.0, 3.0]))
            server.reachable = rng.random() > 0.1
            server.answers_lost = rng.random() < 0.1
            server.latency_s = rng.choice([0.0, 0.0, 0.2])
            look(rng.choice(replicas))
            ended |= {replica.term for replica in replicas if not certain(replica, server.clock)}
            leading = [replica for replica in replicas if certain(replica, server.clock)]
            assert not ended & {replica.term for replica in leading}, "a term that has ended does not go on"
            assert len(leading) <= 1
            terms |= {(replica.term, identities[replica]) for replica in leading}
        assert len({term for term, _ in terms}) == len(terms), "a term has one holder"
        assert len(terms) > 3, "the test is to see changes"


# A kube-scheduler's lease


def test_a_sidecar_leads_while_its_scheduler_holds_the_lease() -> None:
    for holder, leads in (("host_1f6e", True), ("host", True), ("host2_1f6e", False), ("", False)):
        server = Server()
        sidecar = server.sidecar()
        look(sidecar)
        assert sidecar.standing() == "lease kube-system/kerf is held by nobody"
        read_at = server.clock()
        server.wait(0.5)
        server.write(holder)
        look(sidecar)
        assert certain(sidecar, server.clock) is leads
        assert sidecar.term.startswith(f"{holder}-0.") is leads
        assert sidecar.deadline() == (read_at + 15 if leads else float("-inf")), "it was renewed after the read before"
        server.wait(15.1)
        look(sidecar)
        assert not certain(sidecar, server.clock), "not renewed"
        server.write("other_1")
        look(sidecar)
        assert sidecar.term == ""
        server.write("host_2")
        look(sidecar)
        assert sidecar.term.startswith("host_2-"), "a restarted scheduler begins another term"


def test_a_sidecar_that_starts_late_waits_for_a_renewal() -> None:
    server = Server()
    server.write("host_1")
    sidecar = server.sidecar()
    look(sidecar, sidecar)
    assert not certain(sidecar, server.clock), "the age of the lease is not known"
    server.write("host_1")
    look(sidecar)
    assert certain(sidecar, server.clock)


def test_a_sidecar_cut_off_for_longer_than_the_term_begins_another_one() -> None:
    server = Server()
    sidecar = server.sidecar()
    look(sidecar)
    server.write("host_1")
    look(sidecar)
    term = sidecar.term
    server.reachable = False
    for _ in range(40):
        server.wait(0.5)
        server.write("host_1")
        look(sidecar)
    assert not certain(sidecar, server.clock)
    server.reachable = True
    look(sidecar)
    assert not certain(sidecar, server.clock), "the read before this one is 20 s old: the renewal may be, too"
    server.wait(0.5)
    server.write("host_1")
    look(sidecar)
    assert certain(sidecar, server.clock)
    assert sidecar.term != term, "another process may have led meanwhile"


# Confirmations: for clocks that stop


def confirmed(election: Election, before: Callable[[], Awaitable[None]] | None = None) -> bool:
    """Run an election, and request one confirmation once it is won and `before` has happened."""

    async def scenario() -> bool:
        running = asyncio.create_task(election.run())
        try:
            await until(lambda: election.term)
            if before is not None:
                await before()
            return await election.confirm(election.num_asked)
        finally:
            running.cancel()

    return asyncio.run(scenario())


def test_a_term_that_goes_on_is_confirmed_by_a_read() -> None:
    server = Server()
    assert confirmed(server.replica("a", QUICK))
    assert server.calls[-1] == f"GET {LEASE.path}"


def test_a_term_is_not_confirmed_once_another_process_leads_whatever_the_clock_says() -> None:
    """Paused with its clock: the other replica has seen no renewal for two seconds, this one no second pass."""
    server, paused, other = Server(), Clock(), Clock()
    first, second = server.replica("a", QUICK, paused), server.replica("b", QUICK, other)

    async def replaced() -> None:
        await second.attempt()
        other.now += 2.1
        await second.attempt()
        assert second.term
        assert certain(first, paused), "so it looks"

    assert not confirmed(first, before=replaced)


def test_a_term_is_not_confirmed_by_an_earlier_request() -> None:
    """A renewal that was sent before may be answered after another process leads."""
    server = Server()

    async def cut_off() -> None:
        server.reachable = False

    assert not confirmed(server.replica("a", QUICK), before=cut_off)


@in_loop
async def test_many_waiters_share_a_confirmation() -> None:
    server = Server()
    election = server.replica("a", QUICK)
    running = asyncio.create_task(election.run())
    await until(lambda: election.term)
    server.calls.clear()
    assert all(await asyncio.gather(*(election.confirm(election.num_asked) for _ in range(200))))
    running.cancel()
    assert len(server.calls) <= 2


@in_loop
async def test_a_sidecar_is_confirmed_by_the_same_holder_only() -> None:
    for holder, waited_s, expected in (("", 0.0, True), ("other_1", 0.0, False), ("host_2", 20.0, False)):
        server = Server()
        sidecar = server.sidecar(QUICK)
        await sidecar.attempt()
        await server.renew("host_1")
        await sidecar.attempt()
        assert sidecar.term
        since = sidecar.num_asked
        if holder:
            await server.renew(holder)
        server.wait(waited_s)  # 20 s: too old for a term of its own
        await sidecar.attempt()
        assert await sidecar.confirm(since) is expected


# For how long no other process has led


def test_a_leader_claims_the_time_up_to_the_request_of_its_last_renewal() -> None:
    server = Server()
    first, began = server.replica("a"), server.clock()
    look(first)
    server.latency_s = 0.1
    requested = server.wait(0.5)
    look(first)
    assert (first.led().since, first.led().until) == (began, requested)
    server.reachable = False
    server.wait(0.5)
    look(first)
    assert first.led().until == requested
    server.reachable, server.latency_s = True, 0.0
    tenure, now = first.tenure, server.wait(100.0)
    look(first)
    assert first.led() == (tenure, began, now), "a tenure that expired and was not taken is one span"


def test_a_successor_claims_the_time_from_the_last_renewal_that_it_saw() -> None:
    server, first, second = pair()
    seen = 0.0
    for _ in range(3):
        look(first)
        seen = server.wait(0.3)
        look(second)
        server.wait(0.3)
    server.wait(3.0)
    look(second)
    assert second.term
    assert (first.led().until, second.led().since) == (seen - 0.3, seen)


def test_a_sidecar_claims_time_from_when_another_lease_expired() -> None:
    server = Server()
    sidecar = server.sidecar()
    server.write("other_1")
    look(sidecar)
    changed = server.clock()
    read_at = server.wait(10.0)
    look(sidecar)
    server.wait(10.0)
    server.write("host_1")
    look(sidecar)
    assert sidecar.led()[1:] == (changed, read_at)


def test_a_sidecar_whose_scheduler_was_given_the_lease_claims_no_time_before() -> None:
    server = Server()
    sidecar = server.sidecar()
    server.write("other_1")
    look(sidecar)
    server.wait(2.0)
    server.write("host_1")
    look(sidecar)
    assert sidecar.led().since == server.clock()
    assert sidecar.led().until < sidecar.led().since, "nothing yet"


def test_a_process_without_rivals_always_leads_and_a_spectator_never() -> None:
    _, _, second = pair()
    only, never = Unelected(), float("-inf")
    assert (bool(only.term), only.deadline(), only.led()[1:]) == (True, float("inf"), (never, float("inf")))
    assert asyncio.run(only.confirm(0))
    assert second.led().until == Spectator().led().until == never
