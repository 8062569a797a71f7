"""Leader election: at no moment are two processes certain that they lead."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.kube.leadership import Election, FollowedLease, HeldLease, LeaseName, LeaseTimes, Spectator, Unelected
from extender.kube.memory import MemoryCluster
from tests.ledger.builders import Clock, until

LEASE = LeaseName("kube-system", "kerf")
TIMES = LeaseTimes(duration_s=2, renew_deadline_s=1.5, retry_s=0.5)


class Server(MemoryCluster):
    """An API server that can be cut off, and loses answers."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.answers_lost = False
        self.latency_s = 0.0
        self.clock = Clock()
        self.calls: list[str] = []

    async def get(self, path: str, query: Any = None) -> bytes:
        self.calls.append(f"GET {path}")
        self._cut()
        return await super().get(path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        self._cut()
        return self._answer(await super().post(path, body))

    async def patch(self, path: str, body: bytes) -> bytes:
        self.calls.append(f"PATCH {path}")
        self._cut()
        return self._answer(await super().patch(path, body))

    def _cut(self) -> None:
        self.clock.now += self.latency_s
        if not self.reachable:
            raise UnreachableError("refused")

    def _answer(self, body: bytes) -> bytes:
        self.clock.now += self.latency_s
        if self.answers_lost:
            raise UnreachableError("reset")
        return body

    def spec(self) -> dict[str, Any]:
        """The lease as it is."""
        spec: dict[str, Any] = msgspec.json.decode(asyncio.run(MemoryCluster.get(self, LEASE.path)))["spec"]
        return spec

    def write(self, holder: str, duration_s: int = 15) -> None:
        """What a kube-scheduler does to renew."""
        asyncio.run(self.renew(holder, duration_s))

    async def renew(self, holder: str, duration_s: int = 15) -> None:
        """The same, in an event loop."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s}
        try:
            lease = msgspec.json.decode(await MemoryCluster.get(self, LEASE.path))
            body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
            await MemoryCluster.patch(self, LEASE.path, msgspec.json.encode(body))
        except ApiError:
            body = {"metadata": {"name": LEASE.name}, "spec": spec}
            await MemoryCluster.post(self, LEASE.collection, msgspec.json.encode(body))


def held(server: Server, identity: str) -> HeldLease:
    return HeldLease(server, LEASE, identity, TIMES, server.clock)


def look(election: HeldLease | FollowedLease) -> None:
    """One attempt, as `run` makes them."""
    asyncio.run(election.attempt())
    assert "see the log" not in election.standing(), "what nobody has foreseen"


def certain(election: HeldLease | FollowedLease, clock: Clock) -> bool:
    return clock() < election.deadline()


def test_the_first_creates_the_lease_and_the_second_stands_by() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    assert (bool(first.term), second.term) == (True, "")
    assert certain(first, server.clock)
    assert not certain(second, server.clock)
    spec = server.spec()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 2, 0)
    assert second.standing() == "lease kube-system/kerf is held by a"


def test_a_renewal_is_one_call_and_prolongs_the_term() -> None:
    server = Server()
    first = held(server, "a")
    look(first)
    term, tenure, acquired = first.term, first.tenure, server.spec()["acquireTime"]
    server.clock.now += 1.0
    look(first)
    assert (first.term, server.spec()["acquireTime"], server.spec()["leaseTransitions"]) == (term, acquired, 0)
    assert first.deadline() == server.clock() + TIMES.renew_deadline_s
    server.clock.now += 1.5
    look(first)
    assert (first.tenure, first.term != term) == (tenure, True), "it ran out, and was nobody else's"


def test_a_lease_is_taken_when_no_renewal_was_seen_for_its_duration() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    server.clock.now += 1.99
    look(second)
    assert not second.term
    assert not certain(first, server.clock)  # 1.5 s were over before
    server.clock.now += 0.01
    look(second)
    assert second.term
    assert (server.spec()["holderIdentity"], server.spec()["leaseTransitions"]) == ("b", 1)
    tenure = first.tenure
    look(first)
    assert not first.term
    assert first.standing() == "lease kube-system/kerf is held by b"
    server.clock.now += 2.0
    look(first)
    assert first.term
    assert first.tenure != tenure, "it was another's in between"


def test_time_counts_from_before_the_renewal_was_asked_for() -> None:
    server = Server()
    first = held(server, "a")
    server.latency_s = 0.4
    look(first)  # asked at 0.4 after a GET that found nothing; created at 0.8, answered at 1.2
    assert first.deadline() == pytest.approx(1000.4 + 1.5)


def test_a_holder_that_is_cut_off_is_not_certain_any_more() -> None:
    server = Server()
    first = held(server, "a")
    look(first)
    server.reachable = False
    server.clock.now += 1.5
    look(first)
    assert not certain(first, server.clock)
    assert first.standing() == "lease kube-system/kerf was not renewed in time: refused"
    server.reachable = True
    term = first.term
    look(first)
    assert certain(first, server.clock)
    assert server.spec()["leaseTransitions"] == 0, "nobody has led meanwhile"
    assert first.term != term, "but what was decided before is to be decided again"


def test_a_term_that_ran_out_before_its_renewal_was_answered_is_over() -> None:
    server = Server()
    first = held(server, "a")
    look(first)
    term = first.term
    server.clock.now += 1.3
    server.latency_s = 0.15  # asked at 1.3 of 1.5 s, answered at 1.6
    look(first)
    assert certain(first, server.clock)
    assert first.term != term


def test_an_answer_that_comes_when_its_time_is_over_begins_no_term() -> None:
    server = Server()
    first = held(server, "a")
    server.latency_s = 0.8
    look(first)
    assert (first.term, certain(first, server.clock)) == ("", False)
    server.latency_s = 0.0
    look(first)
    assert certain(first, server.clock)


def test_a_lease_acquired_without_an_answer_is_found_to_be_held() -> None:
    server = Server()
    first = held(server, "a")
    server.answers_lost = True
    look(first)
    assert not first.term
    server.answers_lost = False
    look(first)
    assert certain(first, server.clock)
    assert server.spec()["leaseTransitions"] == 0


def test_a_released_lease_is_taken_at_once() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    asyncio.run(first.resign())
    assert (first.term, certain(first, server.clock), server.spec()["holderIdentity"]) == ("", False, "")
    look(second)
    assert certain(second, server.clock)
    assert server.spec()["leaseTransitions"] == 1


def test_a_standby_releases_nothing() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    asyncio.run(second.resign())
    assert server.spec()["holderIdentity"] == "a"


def test_a_standby_tries_at_the_very_moment_the_lease_runs_out() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    server.clock.now += 1.9
    assert second.pause_s() == pytest.approx(0.1)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 20))])
def test_never_are_two_certain_whatever_happens(seed: int) -> None:
    """Random steps of three replicas on one clock: attempts, cuts, lost answers, pauses."""
    rng = random.Random(seed)
    server = Server()
    identities = {held(server, name): name for name in "abc"}
    replicas = list(identities)
    terms: set[tuple[str, str]] = set()
    ended: set[str] = set()
    for _ in range(400):
        server.clock.now += rng.choice([0.0, 0.05, 0.3, 0.3, 1.0, 3.0])
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


# A kube-scheduler's lease.


def followed(server: Server, scheduler: str = "host") -> FollowedLease:
    return FollowedLease(server, LEASE, scheduler, TIMES, server.clock)


@pytest.mark.parametrize(
    ("holder", "mine"), [("host_1f6e", True), ("host", True), ("host2_1f6e", False), ("other_1f6e", False), ("", False)]
)
def test_a_sidecar_leads_while_its_scheduler_holds_the_lease(holder: str, mine: bool) -> None:
    server = Server()
    sidecar = followed(server)
    look(sidecar)
    assert sidecar.standing() == "lease kube-system/kerf is held by nobody"
    asked = server.clock()
    server.clock.now += 0.5
    server.write(holder)
    look(sidecar)
    assert certain(sidecar, server.clock) is mine
    assert sidecar.term.startswith(f"{holder}-0.") is mine
    if mine:
        assert sidecar.deadline() == asked + 15, "it was renewed after the look before"


def test_a_sidecar_that_starts_late_waits_for_a_renewal() -> None:
    server = Server()
    server.write("host_1")
    sidecar = followed(server)
    look(sidecar)
    look(sidecar)
    assert not certain(sidecar, server.clock), "how old the lease is, nobody knows"
    server.write("host_1")
    look(sidecar)
    assert certain(sidecar, server.clock)


def test_a_sidecar_ends_with_its_scheduler() -> None:
    server = Server()
    sidecar = followed(server)
    look(sidecar)
    server.write("host_1")
    look(sidecar)
    server.clock.now += 15.1
    look(sidecar)
    assert not certain(sidecar, server.clock), "not renewed"
    server.write("other_1")
    look(sidecar)
    assert sidecar.term == ""
    server.write("host_2")
    look(sidecar)
    assert sidecar.term.startswith("host_2-"), "a restarted scheduler begins another term"


def test_a_sidecar_cut_off_for_longer_than_the_term_begins_another_one() -> None:
    server = Server()
    sidecar = followed(server)
    look(sidecar)
    server.write("host_1")
    look(sidecar)
    term = sidecar.term
    server.reachable = False
    for _ in range(40):
        server.clock.now += 0.5
        server.write("host_1")
        look(sidecar)
    assert not certain(sidecar, server.clock)
    server.reachable = True
    look(sidecar)
    assert not certain(sidecar, server.clock), (
        "the look before this one was 20 s ago: that is all that is known of when"
    )
    server.clock.now += 0.5
    server.write("host_1")
    look(sidecar)
    assert certain(sidecar, server.clock)
    assert sidecar.term != term, "whoever has been the leader meanwhile"


def test_without_election_the_only_process_leads() -> None:
    election = Unelected()
    assert (bool(election.term), election.deadline()) == (True, float("inf"))


# Confirmations: for clocks that stop.


def short_lived(server: Server, identity: str, clock: Clock) -> HeldLease:
    """A replica with a clock of its own, whose calls have little time."""
    return HeldLease(server, LEASE, identity, LeaseTimes(2, 0.2, 0.1), clock)


def ask(election: Election, *, before: Callable[[], Awaitable[None]] | None = None) -> bool:
    """Run an election and ask for one confirmation, after it has won and something else has happened."""

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


def test_a_term_that_goes_on_is_confirmed_by_a_look_that_changes_nothing() -> None:
    server = Server()
    assert ask(short_lived(server, "a", server.clock))
    assert server.calls[-1] == f"GET {LEASE.path}"


def test_a_term_is_not_confirmed_once_another_has_the_lease_whatever_the_clock_says() -> None:
    """Paused with its clock: the other replica has seen no renewal for two seconds, this one no second pass."""
    server, paused, other = Server(), Clock(), Clock()
    first, second = short_lived(server, "a", paused), short_lived(server, "b", other)

    async def replaced() -> None:
        await second.attempt()
        other.now += 2.1
        await second.attempt()
        assert second.term
        assert certain(first, paused), "so it looks"

    assert not ask(first, before=replaced)


def test_a_term_is_not_confirmed_by_an_earlier_request() -> None:
    """A renewal that was sent before is answered after: at that time another one may lead."""
    server = Server()

    async def cut_off() -> None:
        server.reachable = False

    assert not ask(short_lived(server, "a", server.clock), before=cut_off)


def test_many_who_wait_share_a_confirmation() -> None:
    server = Server()
    election = short_lived(server, "a", server.clock)

    async def scenario() -> None:
        running = asyncio.create_task(election.run())
        await until(lambda: election.term)
        server.calls.clear()
        assert all(await asyncio.gather(*(election.confirm(election.num_asked) for _ in range(200))))
        running.cancel()

    asyncio.run(scenario())
    assert len(server.calls) <= 2


@pytest.mark.parametrize(("holder", "confirmed"), [("host_1", True), ("other_1", False), ("host_2", False)])
def test_a_sidecar_is_confirmed_by_the_same_holder_alone(holder: str, confirmed: bool) -> None:
    server = Server()
    sidecar = FollowedLease(server, LEASE, "host", LeaseTimes(2, 0.2, 0.1), server.clock)

    async def scenario() -> bool:
        await sidecar.attempt()
        await server.renew("host_1")
        await sidecar.attempt()
        assert sidecar.term
        since = sidecar.num_asked
        if holder != "host_1":
            await server.renew(holder)
        server.clock.now += 20.0 if holder == "host_2" else 0.0  # too old for a term of its own
        await sidecar.attempt()
        return await sidecar.confirm(since)

    assert asyncio.run(scenario()) is confirmed


def test_without_election_nobody_is_asked() -> None:
    assert asyncio.run(Unelected().confirm(0))


# For how long nobody else has led


def test_a_leader_claims_the_time_up_to_the_renewal_before_it_was_asked_for() -> None:
    server = Server()
    first = held(server, "a")
    began = server.clock()
    look(first)
    server.latency_s = 0.1
    server.clock.now += 0.5
    asked = server.clock()
    look(first)
    assert (first.led().since, first.led().until) == (began, asked)
    server.reachable = False
    server.clock.now += 0.5
    look(first)
    assert first.led().until == asked


def test_a_successor_claims_the_time_from_the_last_renewal_that_it_saw_and_no_time_twice() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    seen = 0.0
    for _ in range(3):
        look(first)
        server.clock.now += 0.3
        look(second)
        seen = server.clock()
        server.clock.now += 0.3
    server.clock.now += 3.0
    look(second)
    assert second.term
    assert second.led().since == seen
    assert first.led().until == seen - 0.3


def test_after_a_release_the_successor_claims_what_comes_after_it() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    server.clock.now += 1.0
    look(first)
    server.clock.now += 0.2
    asyncio.run(first.resign())
    server.clock.now += 0.2
    look(second)
    assert second.led().since == server.clock() > first.led().until


def test_a_tenure_that_ran_out_and_was_nobody_elses_is_one_time() -> None:
    server = Server()
    first = held(server, "a")
    look(first)
    tenure, since = first.led().tenure, first.led().since
    server.clock.now += 100.0
    look(first)
    assert first.led() == (tenure, since, server.clock())


def test_a_sidecar_claims_time_up_to_the_look_before_a_renewal_was_seen() -> None:
    server = Server()
    sidecar = followed(server)
    server.write("other_1")
    look(sidecar)
    changed = server.clock()
    server.clock.now += 10.0
    look(sidecar)
    server.clock.now += 10.0
    server.write("host_1")
    asked = server.clock() - 10.0
    look(sidecar)
    assert sidecar.led()[1:] == (changed, asked), "the lease of the other had expired"


def test_a_sidecar_whose_scheduler_was_given_the_lease_claims_no_time_before() -> None:
    server = Server()
    sidecar = followed(server)
    server.write("other_1")
    look(sidecar)
    server.clock.now += 2.0
    server.write("host_1")
    look(sidecar)
    assert sidecar.led().since == server.clock()
    assert sidecar.led().until < sidecar.led().since, "nothing yet"


def test_who_never_led_claims_nothing() -> None:
    server = Server()
    first, second = held(server, "a"), held(server, "b")
    look(first)
    look(second)
    assert second.led().until == float("-inf")
    assert Unelected().led()[1:] == (float("-inf"), float("inf"))
    assert Spectator().led().until == float("-inf")
