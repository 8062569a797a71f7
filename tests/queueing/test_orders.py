"""Order, estimates, quotas."""

import math
import random

import pytest

from extender.queueing.durations import Durations
from extender.queueing.orders import Order, Waiting, ordered
from extender.queueing.quotas import Quotas


def keys(*waiting: Waiting, now: float = 1000.0, **options: object) -> str:
    shuffled = list(waiting)
    random.Random(3).shuffle(shuffled)
    return " ".join(item.key for item in ordered(shuffled, now, **options))  # type: ignore[arg-type]


def test_g1_higher_priority_first_and_fifo_among_equals() -> None:
    first, second = Waiting("a", 5, 10.0), Waiting("b", 5, 20.0)
    assert keys(first, second, Waiting("c", 9, 900.0), Waiting("d", -1, 0.0)) == "c a b d"
    assert keys(Waiting("y", 0, 5.0), Waiting("x", 0, 5.0)) == "x y"


def test_ageing_lets_the_old_pass() -> None:
    old, new = Waiting("old", 0, 0.0), Waiting("new", 3, 990.0)
    assert keys(old, new) == "new old"
    assert keys(old, new, ageing_s=400.0) == "new old"  # 0 + 1000 // 400 = 2 < 3
    assert keys(old, new, ageing_s=250.0) == "old new"  # 0 + 4 > 3
    assert keys(Waiting("ahead", 0, 5000.0), Waiting("b", 0, 999.0), ageing_s=1.0) == "b ahead"  # a clock that is ahead


def test_shortest_expected_first_keeps_to_priority() -> None:
    short, long = Waiting("short", 0, 20.0, expected_s=5.0), Waiting("long", 0, 10.0, expected_s=500.0)
    unknown, urgent = Waiting("unknown", 0, 0.0), Waiting("urgent", 1, 30.0, expected_s=900.0)
    assert keys(short, long, unknown, urgent, order=Order.SHORTEST) == "urgent short long unknown"
    assert keys(short, long, unknown, urgent) == "urgent unknown long short"


def test_fair_share_takes_turns_by_what_is_in_use() -> None:
    burst = [Waiting(f"a{n}", 0, float(n), owner="a", share=2.0) for n in range(3)]
    late = [Waiting(f"b{n}", 0, 50.0 + n, owner="b", share=2.0) for n in range(2)]
    assert keys(*burst, *late, shares={}) == "a0 b0 a1 b1 a2"
    assert keys(*burst, *late, shares={"a": 4.0}) == "b0 b1 a0 a1 a2"
    assert keys(*burst, Waiting("urgent", 5, 90.0, owner="a"), *late, shares={"a": 9.0}).startswith("urgent b0")


def test_estimates_are_medians_by_the_narrowest_owner() -> None:
    durations = Durations()
    assert durations.expected_s(("ns/job", "ns")) == math.inf
    for seconds in (10.0, 12.0, 9000.0):
        durations.finished(("ns/job", "ns"), seconds)
    durations.finished(("ns/other", "ns"), 100.0)
    assert durations.expected_s(("ns/job", "ns")) == 12.0
    assert durations.expected_s(("ns/never", "ns")) == (12.0 + 100.0) / 2
    assert durations.expected_s(("else",)) == math.inf
    durations.finished(("ns/job",), -1.0)
    durations.finished(("ns/job",), math.nan)
    assert durations.expected_s(("ns/job",)) == 12.0


def test_estimates_follow_what_is_new_and_stay_bounded() -> None:
    durations = Durations()
    for _ in range(50):
        durations.finished(("job",), 100.0)
    for _ in range(9):
        durations.finished(("job",), 7.0)
    assert durations.expected_s(("job",)) == 7.0  # 9 of the last 16
    for number in range(10_050):
        durations.finished((f"o{number}",), 1.0)
    assert durations.num_owners == 10_000


@pytest.mark.parametrize(
    ("namespace", "used", "asked", "expected"),
    [
        ("team", 6, 2, ""),
        ("team", 7, 2, "quota of namespace team: 8 GPUs, 7 in use, 2 more asked"),
        ("team", 9, 0, ""),
        ("other", 1, 1, "quota of namespace other: 1 GPUs, 1 in use, 1 more asked"),
    ],
)
def test_quotas(namespace: str, used: float, asked: float, expected: str) -> None:
    assert Quotas({"team": 8, "*": 1}).excess(namespace, used, asked) == expected
    assert Quotas().excess(namespace, used, asked) == ""


def test_shares_are_by_weight() -> None:
    assert Quotas(weights={"a": 2.0}).shares({"a": 8.0, "b": 3.0}) == {"a": 4.0, "b": 3.0}
