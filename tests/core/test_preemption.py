"""Preemption evicts only the victims that are needed, where the least is lost."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from extender.core.preemption import Candidate, Gang, Member, Victim, least_lost, needed


def victims_of(**priorities: int) -> tuple[Victim, ...]:
    """Victims with one GPU each, used for 100 s."""
    return tuple(Victim(uid, priority, 1, 100.0) for uid, priority in priorities.items())


def spared(candidate: Candidate, num_gpus: float, *, all_fits: bool = True) -> Candidate | None:
    """`needed` for a pod that needs this many of the victims' GPUs."""
    gpus = {victim.uid: victim.gpus for victim in candidate.victims}
    return needed(candidate, lambda gone: sum(map(gpus.__getitem__, gone)) >= num_gpus, lambda _: all_fits)


def uids(victims: tuple[Victim, ...], num_gpus: float) -> str:
    """UIDs of the victims that remain."""
    candidate = spared(Candidate("n", victims), num_gpus)
    assert candidate is not None
    return "".join(victim.uid for victim in candidate.victims)


def test_the_victims_of_the_least_loss_are_evicted() -> None:
    for num_gpus, victims, evicted in (
        (2, (("a", 5, 1, 100.0), ("b", 1, 1, 100.0), ("c", 9, 1, 100.0), ("d", 3, 1, 100.0)), "bd"),  # by priority
        (2, (("a", 0, 1, 10.0), ("b", 0, 1, 500.0), ("c", 0, 1, 20.0)), "ac"),  # 30 GPU-seconds
        # By worth, a would be spared and 60 + 60 lost; by size it is a's 100.
        (2, (("a", 0, 2, 100.0), ("b", 0, 1, 60.0), ("c", 0, 1, 60.0)), "a"),
        # Neither order alone finds these.
        (1, (("a", 1, 1, 10.0), ("b", 1, 3, 50.0)), "a"),
        (1, (("a", 0, 2, 50.0), ("b", 0, 1, 20.0), ("c", 1, 3, 50.0)), "b"),
        (3, (("a", 0, 1, 20.0), ("b", 0, 3, 50.0), ("c", 0, 2, 50.0), ("d", 1, 3, 10.0)), "b"),
        (2, (("a", 1, 1, 10.0), ("b", 1, 3, 100.0), ("c", 1, 3, 30.0), ("d", 0, 1, 20.0)), "c"),
    ):
        assert uids(tuple(Victim(*victim) for victim in victims), num_gpus) == evicted
    assert uids((Victim("a", 0, 1, 1.0), Victim("leaving", 9, 1, 1000.0, leaving=True)), 1) == "leaving"


def test_all_victims_stay_where_kerf_cannot_tell_which_are_needed() -> None:
    candidate = Candidate("n", victims_of(a=0, b=0, c=0), 2)
    assert spared(candidate, 1, all_fits=False) == candidate  # CPU may be needed
    assert spared(candidate, 0) == candidate  # kube-scheduler has a reason
    assert needed(candidate, lambda _: True, None) == candidate


def test_violated_budgets_are_an_upper_bound() -> None:
    for before, after in ((0, 0), (1, 1), (2, 2), (3, 2)):
        chosen = spared(Candidate("n", victims_of(a=0, b=0, c=0), before), 2)
        assert chosen is not None
        assert (len(chosen.victims), chosen.num_pdb_violations) == (2, after)


def test_the_candidates_with_the_smallest_loss_remain_in_their_order() -> None:
    for better, worse in (
        (Candidate("a", victims_of(x=9, y=9, z=9)), Candidate("b", victims_of(x=0), 1)),  # budgets first
        (Candidate("a", victims_of(x=1, y=1)), Candidate("b", victims_of(x=2))),  # then priority, GPU-seconds, pods
        (
            Candidate("a", (Victim("x", 1, 1, 10.0), Victim("y", 0, 1, 10.0))),
            Candidate("b", (Victim("x", 1, 1, 21.0),)),
        ),
        (
            Candidate("a", (Victim("x", 1, 1, 20.0),)),
            Candidate("b", (Victim("x", 1, 1, 10.0), Victim("y", 0, 1, 10.0))),
        ),
        (Candidate("a", ()), Candidate("b", victims_of(x=-(2**31)))),
    ):
        assert better.loss < worse.loss
        assert least_lost([worse, better]) == [better]
    equals = [Candidate(node, victims_of(x=1)) for node in "cab"]
    assert least_lost([*equals, Candidate("d", victims_of(x=2))]) == equals
    assert least_lost([]) == []


def gang_of(needs: int, *others: tuple[int, float], victims: int = 1) -> Gang:
    """A gang with victims "v0", "v1", ... and others of these priorities and GPU-seconds."""
    members = {f"v{number}": Member(needs) for number in range(victims)}
    return Gang(members | {f"o{number}": Member(needs, *other) for number, other in enumerate(others)})


def test_a_gang_that_cannot_continue_counts_as_a_whole() -> None:
    gang = gang_of(3, (5, 100.0), (1, 40.0))
    candidate = Candidate("n", (Victim("v0", 0, 1, 7.0, gang=gang), Victim("x", 0, 1, 1.0)))
    assert candidate.loss == (0, 5, 7.0 + 1.0 + 100.0 + 40.0, 4)
    assert [member.priority for member in candidate.ending] == [5, 1]
    leaving = Victim("v0", 0, 1, 7.0, leaving=True, gang=gang)
    assert Candidate("n", (leaving,)).ending == []
    # Each member has its own minimum.
    gang = Gang({"v0": Member(100), "a": Member(2, 9), "b": Member(2, 9), "y": Member(100, 1)})
    assert [member.priority for member in Candidate("n", (Victim("v0", gang=gang),)).ending] == [1]


def test_a_gang_with_enough_members_left_counts_as_its_victims() -> None:
    for needs, losses in ((2, [(0, 0, 7.0, 1), (0, 0, 14.0, 2)]), (3, [(0, 0, 7.0, 1), (0, 5, 154.0, 4)])):
        gang = gang_of(needs, (5, 100.0), (1, 40.0), victims=2)
        victims = tuple(Victim(f"v{number}", 0, 1, 7.0, gang=gang) for number in range(2))
        assert [Candidate("n", victims[:count]).loss for count in (1, 2)] == losses


def test_a_victim_that_ends_its_gang_is_worth_the_gang() -> None:
    for other, priority in (((0, 100.0), 0), ((9, 0.0), 3)):
        victims = (Victim("v0", 0, 1, 1.0, gang=gang_of(2, other)), Victim("alone", priority, 1, 50.0))
        assert uids(victims, 1) == "alone"


VICTIMS = st.lists(
    st.builds(
        Victim,
        uid=st.uuids().map(str),
        priority=st.integers(-2, 2),
        gpus=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        lost_gpu_s=st.sampled_from([0.0, 1.0, 50.0]),
        leaving=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda victim: victim.uid,
).map(tuple)


@given(victims=VICTIMS, num_gpus=st.integers(1, 6), violations=st.integers(0, 6), data=st.data())
def test_the_remaining_victims_are_enough_and_none_could_be_spared(
    victims: tuple[Victim, ...], num_gpus: int, violations: int, data: st.DataObject
) -> None:
    candidate = Candidate("n", victims, violations)
    chosen = spared(candidate, num_gpus)
    # The oracle: all subsets.
    subsets = chain.from_iterable(combinations(victims, count) for count in range(len(victims) + 1))
    enough = [subset for subset in subsets if sum(victim.gpus for victim in subset) >= num_gpus]
    shuffled = spared(Candidate("n", tuple(data.draw(st.permutations(victims)))), num_gpus)
    if not enough:
        assert chosen is shuffled is None
        return
    assert chosen is not None and shuffled is not None
    assert set(shuffled.victims) == set(chosen.victims)
    assert chosen.victims in enough
    assert not any(set(fewer) < set(chosen.victims) for fewer in enough)
    least = min(
        max((victim.priority for victim in subset if not victim.leaving), default=-(2**31) - 1) for subset in enough
    )
    assert chosen.loss[1] == least, "no victim has a higher priority than necessary"
    assert chosen.loss <= candidate.loss
