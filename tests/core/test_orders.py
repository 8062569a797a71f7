"""Queue order: priority, ageing, delays, fair share."""

import random

from hypothesis import given
from hypothesis import strategies as st

from extender.core.orders import _PATIENCE, WaitingJob, _effective_priority, hold_s, ordered


def keys(*waiting: WaitingJob, now: float = 1000.0, **options: object) -> str:
    shuffled = list(waiting)
    random.Random(3).shuffle(shuffled)
    return " ".join(item.key for item in ordered(shuffled, now, **options))  # type: ignore[arg-type]


def test_g1_higher_priority_first_and_fifo_among_equals() -> None:
    first, second = WaitingJob("a", 5, 10.0), WaitingJob("b", 5, 20.0)
    assert keys(first, second, WaitingJob("c", 9, 900.0), WaitingJob("d", -1, 0.0)) == "c a b d"
    assert keys(WaitingJob("y", 0, 5.0), WaitingJob("x", 0, 5.0)) == "x y"


def test_ageing_raises_the_priority_by_one_for_each_full_period_past_due() -> None:
    for now, ageing_s, priority in (
        (99.0, 1.0, 5),
        (100.0, 1.0, 5),
        (100.9, 1.0, 5),
        (101.0, 1.0, 6),
        (349.0, 100.0, 7),
        (101.0, 0.5, 7),
        (9e9, 0, 5),
    ):
        assert _effective_priority(WaitingJob("a", 5, 60.0, held_s=40.0), now, ageing_s) == priority
    old, new = WaitingJob("old", 0, 0.0), WaitingJob("new", 3, 990.0)
    assert keys(old, new) == "new old"
    assert keys(old, new, ageing_s=400.0) == "new old"  # 0 + 1000 // 400 = 2 < 3
    assert keys(old, new, ageing_s=250.0) == "old new"  # 0 + 4 > 3


def test_jobs_are_delayed_by_expected_gpu_time_within_bounds() -> None:
    assert hold_s(20.0, 2.0, 1e9) == _PATIENCE * 40.0
    assert hold_s(20.0, 2.0, 100.0) == 100.0
    long = WaitingJob("long", 0, 10.0, held_s=500.0)
    short, late = WaitingJob("short", 0, 400.0, held_s=5.0), WaitingJob("late", 0, 506.0, held_s=5.0)
    assert keys(long, short, late) == "short long late"
    assert keys(long, WaitingJob("urgent", 1, 900.0, held_s=900.0)) == "urgent long"
    held, fresh = WaitingJob("held", 0, 0.0, held_s=1000.0), WaitingJob("fresh", 0, 900.0)
    assert keys(held, fresh, ageing_s=100.0) == "fresh held"  # due at 1000 and 900: 0 + 0 and 0 + 1
    assert keys(held, WaitingJob("urgent", 3, 1500.0), now=1400.0, ageing_s=100.0) == "held urgent"  # 0 + 4 > 3


JOBS = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 20.0, 1e6]), st.integers(1, 64)),
    min_size=2,
    max_size=30,
)


@given(JOBS, st.floats(0, 5e3), st.floats(0, 1e5), st.sampled_from([0.0, 60.0, 3600.0]))
def test_no_job_is_overtaken_by_equals_that_arrive_later_than_the_bound(
    jobs: list[tuple[int, float, int]], most_s: float, now: float, ageing_s: float
) -> None:
    waiting = [
        WaitingJob(str(j), 0, since, hold_s(expected_s, gpus, most_s))
        for j, (since, expected_s, gpus) in enumerate(jobs)
    ]
    in_order = ordered(waiting, now, ageing_s=ageing_s)
    for place, job in enumerate(in_order):
        assert all(job.since <= passed.since + most_s + 1e-6 for passed in in_order[place + 1 :])
        # Among equal delays nobody is overtaken at all.
        assert all(passed.since >= job.since for passed in in_order[place + 1 :] if passed.held_s == job.held_s)


def test_fair_share_alternates_by_gpus_in_use() -> None:
    burst = [WaitingJob(f"a{n}", 0, float(n), owner="a", share=2.0) for n in range(3)]
    late = [WaitingJob(f"b{n}", 0, 50.0 + n, owner="b", share=2.0) for n in range(2)]
    assert keys(*burst, *late, shares={}) == "a0 b0 a1 b1 a2"
    assert keys(*burst, *late, shares={"a": 4.0}) == "b0 b1 a0 a1 a2"
    assert keys(*burst, WaitingJob("urgent", 5, 90.0, owner="a"), *late, shares={"a": 9.0}).startswith("urgent b0")


def by_trying_all(waiting: list[WaitingJob], now: float, shares: dict[str, float]) -> list[str]:
    """The order by its definition: each time the best of all that are left."""
    left, used, result = list(waiting), dict(shares), []
    while left:
        best = max(_effective_priority(item, now, 0.0) for item in left)
        equals = [item for item in left if _effective_priority(item, now, 0.0) == best]
        heads = {
            item.owner: min((o for o in equals if o.owner == item.owner), key=lambda o: (o.due, o.key))
            for item in equals
        }
        first = min(heads.values(), key=lambda item: (used.get(item.owner, 0.0), item.due, item.owner))
        used[first.owner] = used.get(first.owner, 0.0) + max(first.share, 1e-3)
        left.remove(first)
        result.append(first.key)
    return result


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 5), st.sampled_from("abcd"), st.sampled_from([0.0, 0.25, 1.0, 2.0])
        ),
        max_size=25,
    ),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0, 3.0])),
)
def test_fair_share_takes_the_namespace_with_the_smallest_share_each_time(
    jobs: list[tuple[int, int, str, float]], shares: dict[str, float]
) -> None:
    waiting = [
        WaitingJob(f"p{number:02}", priority, float(since), owner=owner, share=share)
        for number, (priority, since, owner, share) in enumerate(jobs)
    ]
    assert [item.key for item in ordered(waiting, 100.0, shares=shares)] == by_trying_all(waiting, 100.0, shares)


def test_ordering_many_namespaces_compares_few_of_them_for_each_pod() -> None:
    compared = 0

    class Name(str):
        """Counts comparisons."""

        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return super().__lt__(other)

    waiting = [WaitingJob(f"p{n}", 0, 0.0, owner=Name(f"ns{n % 500:03}"), share=1.0) for n in range(5000)]
    assert len(ordered(waiting, 1.0, shares={})) == 5000
    assert compared < 5000 * 50  # not 5000 * 500
