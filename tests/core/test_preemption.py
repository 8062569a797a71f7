"""Whom to evict: only those who are needed, where the least is lost."""

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.preemption import Candidate, Gang, Member, Victim, least_lost, needed


def victims_of(**priorities: int) -> tuple[Victim, ...]:
    """One GPU each, used for 100 s."""
    return tuple(Victim(uid, priority, 1, 100.0) for uid, priority in priorities.items())


def spared(candidate: Candidate, num_gpus: float, *, all_fits: bool = True) -> Candidate | None:
    """`needed` for a pod that needs so many of the victims' GPUs."""
    gpus = {victim.uid: victim.gpus for victim in candidate.victims}
    return needed(candidate, lambda gone: sum(map(gpus.__getitem__, gone)) >= num_gpus, lambda _: all_fits)


def uids(candidate: Candidate | None) -> str:
    assert candidate is not None
    return "".join(victim.uid for victim in candidate.victims)


def test_a_node_where_the_victims_are_not_enough_is_no_candidate() -> None:
    assert spared(Candidate("n", victims_of(a=0, b=0)), 3) is None


def test_the_most_important_are_spared_first() -> None:
    assert uids(spared(Candidate("n", victims_of(a=5, b=1, c=9, d=3)), 2)) == "bd"


def test_among_equals_who_has_worked_longest_is_spared() -> None:
    victims = tuple(Victim(uid, 0, 1, lost) for uid, lost in (("a", 10.0), ("b", 500.0), ("c", 20.0)))
    assert uids(spared(Candidate("n", victims), 2)) == "ac"  # 10 + 20 GPU-seconds lost


def test_one_who_holds_much_goes_before_many_who_hold_as_much_together() -> None:
    # In order of worth a would be spared and 60 + 60 be lost; in order of size it is a's 100.
    victims = (Victim("a", 0, 2, 100.0), Victim("b", 0, 1, 60.0), Victim("c", 0, 1, 60.0))
    assert uids(spared(Candidate("n", victims), 2)) == "a"


@pytest.mark.parametrize(
    ("num_gpus", "victims", "lost"),
    [
        pytest.param(1, [("a", 1, 1, 10.0), ("b", 1, 3, 50.0)], "a", id="10 GPU-seconds rather than 50"),
        pytest.param(
            1,
            [("a", 0, 2, 50.0), ("b", 0, 1, 20.0), ("c", 1, 3, 50.0)],
            "b",
            id="20 rather than 50 with c spared for its priority",
        ),
        pytest.param(
            3,
            [("a", 0, 1, 20.0), ("b", 0, 3, 50.0), ("c", 0, 2, 50.0), ("d", 1, 3, 10.0)],
            "b",
            id="50 of one rather than 70 of two with d spared for its priority",
        ),
        pytest.param(
            2,
            [("a", 1, 1, 10.0), ("b", 1, 3, 100.0), ("c", 1, 3, 30.0), ("d", 0, 1, 20.0)],
            "c",
            id="30 of one pod rather than of two",
        ),
    ],
)
def test_neither_order_alone_finds_the_least_loss(
    num_gpus: int, victims: list[tuple[str, int, int, float]], lost: str
) -> None:
    assert uids(spared(Candidate("n", tuple(Victim(*victim) for victim in victims)), num_gpus)) == lost


def test_who_leaves_anyway_is_evicted_before_others() -> None:
    victims = (Victim("a", 0, 1, 1.0), Victim("b", 9, 1, 1000.0, leaving=True))
    assert uids(spared(Candidate("n", victims), 1)) == "b"


def test_nobody_is_spared_whose_cpu_may_be_needed() -> None:
    candidate = Candidate("n", victims_of(a=0, b=0, c=0), 2)
    assert spared(candidate, 1, all_fits=False) == candidate


def test_where_nobody_seems_needed_kube_scheduler_knows_why_they_are() -> None:
    candidate = Candidate("n", victims_of(a=0, b=0), 1)
    assert spared(candidate, 0) == candidate


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_broken_budgets_are_counted_as_high_as_they_may_be(before: int, after: int) -> None:
    chosen = spared(Candidate("n", victims_of(a=0, b=0, c=0), before), 2)
    assert chosen is not None
    assert (len(chosen.victims), chosen.num_pdb_violations) == (2, after)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(
            Candidate("a", victims_of(x=9, y=9, z=9)), Candidate("b", victims_of(x=0), 1), id="budgets before all"
        ),
        pytest.param(Candidate("a", victims_of(x=1, y=1)), Candidate("b", victims_of(x=2)), id="then priority"),
        pytest.param(
            Candidate("a", (Victim("x", 1, 1, 10.0), Victim("y", 0, 1, 10.0))),
            Candidate("b", (Victim("x", 1, 1, 21.0),)),
            id="then GPU-seconds",
        ),
        pytest.param(
            Candidate("a", (Victim("x", 1, 1, 20.0),)),
            Candidate("b", (Victim("x", 1, 1, 10.0), Victim("y", 0, 1, 10.0))),
            id="then pods",
        ),
        pytest.param(Candidate("a", ()), Candidate("b", victims_of(x=-(2**31))), id="nobody before anybody"),
    ],
)
def test_the_candidate_that_costs_less_is_left(better: Candidate, worse: Candidate) -> None:
    assert better.loss < worse.loss
    assert least_lost([worse, better]) == [better]


def test_equals_are_all_left_in_their_order() -> None:
    equals = [Candidate(node, victims_of(x=1)) for node in "cab"]
    assert least_lost([*equals, Candidate("d", victims_of(x=2))]) == equals
    assert least_lost([]) == []


def gang_of(needs: int, *others: tuple[int, float], victims: int = 1) -> Gang:
    """A gang with victims "v0", "v1", ... and others of these priorities and GPU-seconds."""
    members = {f"v{number}": Member(needs) for number in range(victims)}
    return Gang(members | {f"o{number}": Member(needs, *other) for number, other in enumerate(others)})


def test_a_gang_that_can_not_go_on_counts_as_a_whole() -> None:
    gang = gang_of(3, (5, 100.0), (1, 40.0))
    candidate = Candidate("n", (Victim("v0", 0, 1, 7.0, gang=gang), Victim("x", 0, 1, 1.0)))
    assert candidate.loss == (0, 5, 7.0 + 1.0 + 100.0 + 40.0, 4)
    assert [member.priority for member in candidate.ending] == [5, 1]


def test_a_gang_that_has_enough_left_counts_as_its_victims() -> None:
    gang = gang_of(2, (5, 100.0), (1, 40.0), victims=2)
    victims = tuple(Victim(f"v{number}", 0, 1, 7.0, gang=gang) for number in range(2))
    assert Candidate("n", victims).loss == (0, 0, 14.0, 2)
    gang = gang_of(3, (5, 100.0), (1, 40.0), victims=2)
    victims = tuple(Victim(f"v{number}", 0, 1, 7.0, gang=gang) for number in range(2))
    assert Candidate("n", victims[:1]).loss == (0, 0, 7.0, 1), "one may go"
    assert Candidate("n", victims).loss == (0, 5, 154.0, 4), "two are one too many, and the others count once"


def test_one_that_leaves_anyway_takes_nobody_with_it() -> None:
    victim = Victim("v0", 0, 1, 7.0, leaving=True, gang=gang_of(2, (5, 100.0)))
    assert Candidate("n", (victim,)).ending == []


def test_each_goes_on_by_its_own_word_for_how_many_it_needs() -> None:
    gang = Gang({"v0": Member(100), "a": Member(2, 9), "b": Member(2, 9), "y": Member(100, 1)})
    assert [member.priority for member in Candidate("n", (Victim("v0", gang=gang),)).ending] == [1]


def test_one_without_whom_a_gang_ends_is_spared_for_one_who_is_alone() -> None:
    """It has done less itself; its gang has done more."""
    gang = gang_of(2, (0, 100.0))
    victims = (Victim("v0", 0, 1, 1.0, gang=gang), Victim("alone", 0, 1, 50.0))
    assert uids(spared(Candidate("n", victims), 1)) == "alone"
    higher = gang_of(2, (9, 0.0))
    victims = (Victim("v0", 0, 1, 1.0, gang=higher), Victim("alone", 3, 1, 50.0))
    assert uids(spared(Candidate("n", victims), 1)) == "alone"


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


@given(victims=VICTIMS, num_gpus=st.integers(1, 6), violations=st.integers(0, 6))
def test_what_is_left_is_enough_and_nobody_of_it_could_be_spared(
    victims: tuple[Victim, ...], num_gpus: int, violations: int
) -> None:
    candidate = Candidate("n", victims, violations)
    chosen = spared(candidate, num_gpus)
    # The oracle: all subsets.
    enough = [
        chosen_ones
        for chosen_ones in chain.from_iterable(combinations(victims, count) for count in range(len(victims) + 1))
        if sum(victim.gpus for victim in chosen_ones) >= num_gpus
    ]
    if not enough:
        assert chosen is None
        return
    assert chosen is not None
    assert chosen.victims in enough
    assert not any(set(fewer) < set(chosen.victims) for fewer in enough)
    highest = min(
        max(victim.priority for victim in fewer if not victim.leaving)
        if not all(victim.leaving for victim in fewer)
        else -(2**31) - 1
        for fewer in enough
    )
    assert chosen.loss[1] == highest, "nobody of a higher priority goes than has to"
    assert chosen.loss <= candidate.loss


@given(victims=VICTIMS, num_gpus=st.integers(1, 6), data=st.data())
def test_the_order_of_the_proposal_changes_nothing(
    victims: tuple[Victim, ...], num_gpus: int, data: st.DataObject
) -> None:
    shuffled = tuple(data.draw(st.permutations(victims)))
    first, second = (spared(Candidate("n", order), num_gpus) for order in (victims, shuffled))
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert {victim.uid for victim in first.victims} == {victim.uid for victim in second.victims}
