"""The exact planner: gangs whole, nothing taken by those that don't fit, and what it does not take."""

import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from extender.planning.planners import PLANNERS
from extender.planning.plans import PlanError, PlanPod, View, priority_weights
from tests.queueing.builders import check, gpu_pod, gpu_view, plain_view


def placed(view: View, pods: list[PlanPod]) -> list[bool]:
    plan = PLANNERS["exact"].make(view, pods)
    check(view, pods, plan)
    return [row >= 0 for row in plan.rows]


def test_each_gang_that_fits_is_placed_whole() -> None:
    pods = [gpu_pod(f"{gang}{number}", 2, gang=gang) for gang in "ab" for number in range(2)]
    assert placed(gpu_view(2, gpus=4), pods) == [True] * 4
    assert placed(gpu_view(1, gpus=6), pods) in ([True, True, False, False], [False, False, True, True])


def test_a_gang_of_unlike_pods_is_placed_whole_or_not_at_all() -> None:
    pods = [gpu_pod("small", 1, gang="g"), gpu_pod("large", 4, gang="g"), gpu_pod("single", 2)]
    assert placed(gpu_view(1, gpus=4), pods) == [False, False, True]
    assert placed(gpu_view(2, gpus=4), pods) == [True, True, True]


def test_a_gang_that_does_not_fit_takes_no_room_from_others() -> None:
    pods = [*(gpu_pod(f"g{number}", 4, gang="g", priority=9) for number in range(2)), gpu_pod("single", 4)]
    assert placed(gpu_view(1, gpus=4), pods) == [False, False, True]


@pytest.mark.parametrize("seed", range(6))
def test_it_places_as_much_as_every_way_tried_in_turn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = [int(count) for count in rng.integers(1, 5, 6)]
    gangs = ("", "", "", "", "g", "g")
    pods = [
        gpu_pod(f"p{number}", count, priority=int(rng.integers(0, 3)), gang=gang)
        for number, (count, gang) in enumerate(zip(asked, gangs, strict=True))
    ]
    worth = priority_weights(pods).tolist()
    best = max(
        sum(value for value, row in zip(worth, rows, strict=True) if row >= 0)
        for rows in product((-1, 0, 1), repeat=6)
        if all(sum(count for count, row in zip(asked, rows, strict=True) if row == node) <= 4 for node in (0, 1))
        and (rows[4] < 0) == (rows[5] < 0)
    )
    found = placed(gpu_view(2, gpus=4), pods)
    assert sum(value for value, chosen in zip(worth, found, strict=True) if chosen) == pytest.approx(best)


def test_pieces_that_fill_all_nodes_without_a_remainder_are_all_placed() -> None:
    pieces = (2, 3, 5, 1, 3, 1, 3, 4, 3, 1, 2, 1, 3, 5, 5, 1, 5)
    assert sum(pieces) == 6 * 8
    assert all(placed(gpu_view(6), [gpu_pod(f"p{number}", count) for number, count in enumerate(pieces)]))


def test_fewer_nodes_are_used_where_as_many_pods_are_placed() -> None:
    plan = PLANNERS["exact"].make(plain_view(4), [PlanPod(f"p{number}", 2000, 1024) for number in range(4)])
    assert len(set(plan.rows)) == 1


def test_what_it_does_not_take_is_told_with_what_would() -> None:
    exact = PLANNERS["exact"]
    view = replace(gpu_view(2), domains={"rack": np.zeros(2, np.int32)})
    gang = [gpu_pod(f"g{number}", gang="g", topology="rack") for number in range(2)]
    with pytest.raises(PlanError, match=r"^exact does not support gangs with a topology; use greedy or genetic$"):
        exact.make(view, gang)
    many = [PlanPod(f"p{number}", number) for number in range(201)]
    told = "^exact takes up to 100000 pairs of pod class and node, these are 100500; use genetic$"
    with pytest.raises(PlanError, match=told):
        exact.make(plain_view(500), many)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(PlanError, match=r"^the exact planner needs SciPy: pip install kerf\[plan\]$"):
        PLANNERS["exact"].make(gpu_view(1), [gpu_pod("p")])
