"""Plans: equal seeds give equal plans, and every plan is as hard as promised."""

from collections import Counter

import pytest

from tests.chaos import plans
from tests.chaos.plans import Kind

MANY = [plans.draw(seed) for seed in range(300)]


def test_equal_seeds_give_equal_plans() -> None:
    assert plans.draw(7) == plans.draw(7)
    assert plans.draw(7) != plans.draw(8)


def test_at_least_200_pods_stay_and_ask_for_80_percent_or_more() -> None:
    for plan in MANY:
        deleted = {fault.target for fault in plan.faults if fault.kind in (Kind.POD_DELETED, Kind.POD_TERMINATING)}
        assert len({pod.name for pod in plan.pods} - deleted) >= 200
        assert plan.load_frac >= 0.8


def test_every_kind_is_drawn() -> None:
    drawn = Counter(fault.kind for plan in MANY for fault in plan.faults)
    drawn[Kind.TWO_SCHEDULERS] = sum(len({pod.scheduler for pod in plan.pods}) == 2 for plan in MANY)
    drawn[Kind.FAILOVER] = sum(plan.replicas == 2 for plan in MANY)
    assert set(Kind) == {kind for kind, number in drawn.items() if number}


def test_faults_begin_while_pods_come_and_name_what_exists() -> None:
    for plan in MANY:
        names = {""} | {node.name for node in plan.nodes} | {pod.name for pod in plan.pods}
        assert {fault.target for fault in plan.faults} <= names
        assert all(0 <= fault.at_s <= plans.WINDOW_S + 0.5 for fault in plan.faults)


@pytest.mark.parametrize("asked", [1, 2, 4, 8])
def test_pods_of_every_size_are_drawn(asked: int) -> None:
    assert any(pod.gpus == asked and not pod.milli for pod in MANY[0].pods)
    assert any(pod.milli for pod in MANY[0].pods)
