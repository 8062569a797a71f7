"""Gangs' cycles, deleted mirrors of static pods, and GPUs that were given: what is kept of each, and forgotten."""

from collections.abc import Iterable

import pytest

from extender.ledger.bookings import _Cycles
from extender.ledger.ledger import _WITHIN_S, _Orphans
from extender.ledger.rows import _GivenGpus
from extender.plugins.kerf import Given


class Gangs:
    """Cycles, and what they gave back."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.cycles = _Cycles(self.released.append)

    def reserve(self, gang: str, members: Iterable[str], now: float = 0.0, *, counted: bool = True) -> None:
        """kube-scheduler asks about members, and something is reserved for each."""
        for uid in members:
            self.cycles.ask(gang, uid, now)
            self.cycles.reserve(gang, uid, counted=counted)

    def make_way(self, uid: str = "other", gang: str = "", *, counted: bool = True) -> list[str]:
        """What is given back for a pod that would be turned away."""
        num_before = len(self.released)
        gave = self.cycles.make_way(gang, uid, counted=counted)
        released = self.released[num_before:]
        assert gave is bool(released)
        return released


@pytest.mark.parametrize(
    ("ours", "theirs", "failed", "given"),
    [
        pytest.param(True, True, False, True, id="kube-scheduler counts both"),
        pytest.param(True, False, False, False, id="it doesn't count theirs"),
        pytest.param(False, True, False, False, id="it doesn't count ours"),
        pytest.param(False, False, False, False, id="it counts neither"),
        pytest.param(False, False, True, True, id="their cycle has failed"),
    ],
)
def test_whose_room_is_given_up(ours: bool, theirs: bool, failed: bool, given: bool) -> None:
    gangs = Gangs()
    gangs.reserve("g", ["m0", "m1"], counted=theirs)
    if failed:
        gangs.cycles.turn_away("g", "m2")
    assert gangs.make_way(counted=ours) == (["m0", "m1"] if given else [])
    assert gangs.make_way(counted=ours) == [], "once"


def test_of_one_gang_only_what_kube_scheduler_counts_is_given_up() -> None:
    gangs = Gangs()
    gangs.reserve("g", ["whole"], counted=True)
    gangs.reserve("g", ["share"], counted=False)
    assert gangs.make_way() == ["whole"]


@pytest.mark.parametrize("kept", ["own", "bound"])
def test_a_gang_that_keeps_its_room_does_not_spare_the_others(kept: str) -> None:
    gangs = Gangs()
    gangs.reserve("first", ["a"])
    gangs.reserve("second", ["b"])
    gangs.reserve("third", ["c"])
    if kept == "bound":
        gangs.cycles.begin_binding("a")
    assert gangs.make_way(gang="first" if kept == "own" else "") == ["b", "c"]
    assert gangs.cycles.num_given_back == 2


def test_all_that_was_ever_given_back_is_counted() -> None:
    gangs = Gangs()
    gangs.reserve("g", ["m0", "m1"])
    gangs.make_way()
    gangs.reserve("h", ["m2"])
    gangs.make_way()
    gangs.reserve("i", ["m3"], now=10.0)
    gangs.cycles.expire(12.0)
    assert (gangs.cycles.num_given_back, gangs.released) == (4, ["m0", "m1", "m2", "m3"])


def test_a_member_that_is_bound_after_all_takes_its_room_back_once() -> None:
    gangs = Gangs()
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


@pytest.mark.parametrize(("now", "given"), [(11.999, []), (12.0, ["m0", "m1"])])
def test_what_nobody_comes_for_is_given_back_two_seconds_after_the_last_question(now: float, given: list[str]) -> None:
    gangs = Gangs()
    gangs.reserve("g", ["m0"], 5.0)
    gangs.reserve("later", ["n0"], 9.0)
    gangs.reserve("g", ["m1"], 10.0)
    gangs.cycles.expire(10.5)
    assert (gangs.released, len(gangs.cycles)) == ([], 2)
    gangs.cycles.expire(11.0)
    assert (gangs.released, len(gangs.cycles)) == (["n0"], 1)
    gangs.cycles.expire(now)
    assert gangs.released == ["n0", *given]


def test_what_a_gang_being_bound_has_reserved_is_not_given_back_when_its_time_is_over() -> None:
    gangs = Gangs()
    gangs.reserve("g", ["m0", "m1"])
    gangs.cycles.begin_binding("m0")
    gangs.cycles.expire(2.0)
    assert (len(gangs.cycles), gangs.released, gangs.cycles.num_given_back) == (0, [], 0)


def test_a_member_of_a_cycle_that_is_over_says_nothing_about_the_next_one() -> None:
    gangs = Gangs()
    gangs.reserve("g", ["m0"])
    gangs.cycles.expire(2.0)
    gangs.reserve("g", ["m1"], 3.0)
    gangs.cycles.begin_binding("m0")
    assert gangs.make_way() == ["m1"]


def test_a_pod_asked_about_for_another_gang_is_a_member_of_that_one() -> None:
    gangs = Gangs()
    gangs.reserve("g", ["u"], 0.0)
    gangs.reserve("h", ["u", "v"], 1.0)
    gangs.cycles.expire(2.0)
    assert len(gangs.cycles) == 1
    gangs.cycles.begin_binding("u")
    assert gangs.make_way() == [], "its gang was placed"


# Mirrors of static pods.


def test_of_a_mirror_that_is_forgotten_nothing_is_kept() -> None:
    orphans = _Orphans()
    orphans.note("u")
    assert orphans.is_mirror("u")
    orphans.forget("u")
    assert not orphans.is_mirror("u")
    assert not orphans.adopt("u", "n", "default/p")
    orphans.note("v")
    assert orphans.adopt("v", "n", "default/p")
    assert (orphans.is_mirror("v"), orphans.of("n", "default/p")) == (False, ["v"])
    assert (orphans.expired(0.0), orphans.expired(_WITHIN_S)) == ([], ["v"])
    orphans.forget("v")
    assert (orphans.of("n", "default/p"), orphans.expired(2 * _WITHIN_S)) == ([], [])


# What kubelets gave.


def test_a_node_that_is_gone_is_told_of_anew_with_all_its_faults() -> None:
    given = _GivenGpus()
    entries: Given = {"u": ("GPU-0",), "default/p": ("GPU-1",)}
    faults = ("unreadable",)
    assert given.set("n", entries, {"default/p": "v"}, faults)
    assert not given.set("n", entries, {"default/p": "v"}, faults)
    assert (given.of("n", "default/q", "u"), given.of("n", "default/p", "v")) == (("GPU-0",), ("GPU-1",))
    given.forget("n")
    assert (given.of("n", "default/q", "u"), given.of("n", "default/p", "v")) == (None, None)
    assert given.set("n", {}, {}, faults)
    assert given.set("n", entries, {"default/p": "w"}, faults)
    assert (given.of("n", "default/p", "v"), given.of("n", "default/p", "w")) == (None, ("GPU-1",))
    given.forget("unknown")
