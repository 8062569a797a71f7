"""The process that answers: its search has its time, whatever was to be done before, within what the caller waits."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from extender.core.policies.registry import POLICIES
from extender.kube.objects import Node
from extender.ledger.ledger import Ledger
from extender.parts.defrag import process
from extender.parts.defrag.facts import Costs, Facts
from extender.parts.defrag.process import _answer, _Listed
from extender.parts.defrag.questions import RoomQuestion
from extender.planning.moves.problems import MovePlan, Problem
from extender.planning.quotas import Quotas
from extender.queueing import node_view
from extender.queueing.pods.objects import decode_node
from tests.api.bodies import node


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def facts(node: Node) -> Facts:
    ledger = Ledger(reservation_ttl_s=1.0)
    ledger.upsert_node(node)
    return Facts(
        *(ledger.snapshot(0.0), {}, "tightest", POLICIES, Quotas(), {}, {}, None, Costs()),
        now=time.time(),
        max_s=60.0,
        id="1",
    )


@pytest.mark.parametrize(
    ("before_s", "search_s"), [(0.0, 30.0), (10.0, 30.0), (40.0, 8.0), (50.0, 0.0)], ids=lambda value: f"{value:g}s"
)
def test_a_search_has_half_of_the_time_from_when_it_starts_as_long_as_the_caller_waits(
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
