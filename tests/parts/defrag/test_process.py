"""The planning process: its search's time limit, its end, and what it imports."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from extender.core.policies.registry import POLICIES
from extender.kube.objects import Node
from extender.ledger.ledger import Ledger
from extender.parts.defrag import process
from extender.parts.defrag.facts import Costs, PlanInputs
from extender.parts.defrag.process import _answer, _Listed
from extender.parts.defrag.questions import RoomQuestion
from extender.planning.moves.problems import MovePlan, Problem
from extender.planning.quotas import Quotas
from extender.queueing import node_view
from extender.queueing.pods.objects import decode_node
from tests.api.bodies import node
from tests.explain.killed import ends_when_kerf_was_killed
from tests.test_weights import loaded_by


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def facts(node: Node) -> PlanInputs:
    ledger = Ledger(reservation_ttl_s=1.0)
    ledger.upsert_node(node)
    return PlanInputs(
        *(ledger.snapshot(0.0), {}, "tightest", POLICIES, Quotas(), {}, {}, None, Costs()),
        now=time.time(),
        max_s=60.0,
        id="1",
    )


@pytest.mark.parametrize(
    ("before_s", "search_s"), [(0.0, 30.0), (10.0, 30.0), (40.0, 8.0), (50.0, 0.0)], ids=lambda value: f"{value:g}s"
)
def test_a_search_has_half_of_the_time_limit_and_ends_before_the_caller_gives_up(
    before_s: float, search_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, found = Clock(), decode_node(node("n", 4))
    listed, began = _Listed(), clock.now
    listed.nodes = [found]
    looked = list[bool]()

    def view_of(*args: Any, **kwargs: Any) -> Any:
        clock.now += before_s
        return node_view.view_of(*args, **kwargs)

    def make(problem: Problem, seed: int, expired: Callable[[], bool]) -> MovePlan:
        started = clock.now
        for later_s in (search_s - 0.1, search_s + 0.1):
            clock.now = started + later_s
            looked.append(expired())
        return MovePlan(problem.view.cluster.version, fits=False)

    monkeypatch.setattr(process, "view_of", view_of)
    monkeypatch.setattr(process, "time", clock)
    _answer(RoomQuestion(gpus=1), listed, facts(found), make, began)
    assert looked == [before_s + search_s > 48.0, True]


@pytest.mark.slow
def test_it_ends_when_its_kerf_was_killed() -> None:
    ends_when_kerf_was_killed("extender.parts.defrag.process", b'{"gpus": 1}')


@pytest.mark.slow
def test_it_loads_what_it_needs() -> None:
    assert loaded_by("extender.parts.defrag.process", ["fastapi", "pydantic", "rich"]) == []
