"""Scheduling cycles of gangs: which reservations other gangs' pods may take, and when they are released."""

from collections.abc import Iterable

import pytest

from extender.ledger.bookings import _Cycles


class Gangs:
    """Cycles, and the reservations that they released."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.cycles = _Cycles(self.released.append)

    def reserve(self, gang: str, members: Iterable[str], now: float = 0.0, *, counted: bool = True) -> None:
        """kube-scheduler asks about members, and something is reserved for each."""
        for uid in members:
            self.cycles.ask(gang, uid, now)
            self.cycles.reserve(gang, uid, counted=counted)

    def make_way(self, uid: str = "other", gang: str = "", *, counted: bool = True) -> list[str]:
        """What is released for a pod that would be rejected."""
        num_before = len(self.released)
        made_way = self.cycles.release_stale_gangs(gang, uid, counted=counted)
        released = self.released[num_before:]
        assert made_way is bool(released)
        return released


@pytest.fixture
def gangs() -> Gangs:
    return Gangs()


def test_when_a_gangs_reservations_are_released() -> None:
    for ours, theirs, failed, given in (
        (True, True, False, True),
        (True, False, False, False),  # kube-scheduler does not count their GPUs
        (False, True, False, False),
        (False, False, True, True),
    ):
        gangs = Gangs()
        gangs.reserve("g", ["m0", "m1"], counted=theirs)
        if failed:
            gangs.cycles.turn_away("g", "m2")
        assert gangs.make_way(counted=ours) == (["m0", "m1"] if given else [])
        assert gangs.make_way(counted=ours) == [], "once"


def test_only_reservations_that_kube_scheduler_counts_are_released(gangs: Gangs) -> None:
    gangs.reserve("g", ["whole"], counted=True)
    gangs.reserve("g", ["share"], counted=False)
    assert gangs.make_way() == ["whole"]


@pytest.mark.parametrize("kept", ["own", "bound"])
def test_a_gang_that_keeps_its_room_does_not_spare_the_others(kept: str, gangs: Gangs) -> None:
    for gang, member in (("first", "a"), ("second", "b"), ("third", "c")):
        gangs.reserve(gang, [member])
    if kept == "bound":
        gangs.cycles.begin_binding("a")
    assert gangs.make_way(gang="first" if kept == "own" else "") == ["b", "c"]
    gangs.cycles.expire(2.0)
    assert gangs.cycles.num_given_back == (3 if kept == "own" else 2), "of a gang being bound nothing expires"
    assert len(gangs.cycles) == 0


def test_a_member_that_is_bound_after_all_takes_its_room_back_once(gangs: Gangs) -> None:
    gangs.reserve("g", ["m0", "m1"])
    assert not gangs.cycles.claim_back("m0"), "nobody has it"
    gangs.make_way("x")
    gangs.reserve("g", ["m2"])
    gangs.make_way("y")
    assert not gangs.cycles.claim_back("stranger")
    del gangs.released[:]
    assert gangs.cycles.claim_back("m1")
    assert gangs.released == ["x", "y"]
    assert not gangs.cycles.claim_back("m1")


def test_a_cycle_expires_two_seconds_after_its_last_question(gangs: Gangs) -> None:
    gangs.reserve("g", ["m0"], 5.0)
    gangs.reserve("later", ["n0"], 9.0)
    gangs.reserve("g", ["m1"], 10.0)
    for now, released, left in ((10.5, [], 2), (11.0, ["n0"], 1), (11.999, ["n0"], 1), (12.0, ["n0", "m0", "m1"], 0)):
        gangs.cycles.expire(now)
        assert (gangs.released, len(gangs.cycles)) == (released, left)
    assert gangs.cycles.num_given_back == 3


def test_a_member_of_a_cycle_that_is_over_says_nothing_about_the_next_one(gangs: Gangs) -> None:
    gangs.reserve("g", ["m0"])
    gangs.cycles.expire(2.0)
    gangs.reserve("g", ["m1"], 3.0)
    gangs.cycles.begin_binding("m0")
    assert gangs.make_way() == ["m1"]


def test_a_pod_asked_about_for_another_gang_is_a_member_of_that_one(gangs: Gangs) -> None:
    gangs.reserve("g", ["u"], 0.0)
    gangs.reserve("h", ["u", "v"], 1.0)
    gangs.cycles.expire(2.0)
    assert len(gangs.cycles) == 1
    gangs.cycles.begin_binding("u")
    assert gangs.make_way() == [], "its gang was placed"
