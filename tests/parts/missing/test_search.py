"""Which nodes are missing, worked out now and then: when it is asked, and what is kept of the answer."""

import asyncio
import json
import math
from functools import partial
from typing import Any

import pytest
from prometheus_client.core import Metric

from extender.explain.processes import BusyError, QuestionError
from extender.kube.client import ClusterError
from extender.parts.missing.part import _metrics
from extender.parts.missing.search import MissingNodes
from tests.api.bodies import CLUSTER
from tests.api.services import running
from tests.ledger.builders import until
from tests.parts.pages import assert_its_metrics_are_on_its_page

FOUND = {
    "pods": 9,
    "missing": {
        "nodes": [
            {"like": "a", "count": 2, "gpus": 8, "model": "h100"},
            {"like": "b", "count": 1, "gpus": 8, "model": "h100"},
            {"like": "c", "count": 1, "gpus": 0, "model": ""},
        ],
        "sentence": "x" * 501,
        "stillUnplaced": [{"pod": "x", "reason": "y"}],
    },
}


class Asked:
    """What-if, and a cluster in which a pod has waited since 1,000."""

    def __init__(self, every_s: float = 300.0) -> None:
        self.now, self.oldest, self.standby = 1_500.0, 1_000.0, ""
        self.answer: Any = FOUND
        self.questions: list[Any] = []
        self.missing = MissingNodes(
            self.ask,
            *(lambda: self.oldest, lambda: self.standby),
            after_s=600.0,
            every_s=every_s,
            clock=lambda: self.now - 1_000.0,
            wall_clock=lambda: self.now,
        )

    async def ask(self, body: bytes) -> bytes:
        self.questions.append(json.loads(body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()

    def look(self, now: float) -> None:
        self.now = now
        asyncio.run(self.missing.look())

    def has_asked(self, number: int) -> bool:
        return len(self.questions) == number

    def metric(self, name: str) -> Metric:
        return {metric.name: metric for metric in _metrics(self.missing)}[name]


def test_it_is_asked_once_a_pod_has_waited_for_long_and_seldom_then() -> None:
    asked = Asked()
    asked.standby = "another replica leads"
    asked.look(2_000)
    asked.standby, asked.oldest = "", math.inf
    asked.look(2_000)
    asked.oldest = 1_000.0
    asked.look(1_599)
    assert not asked.questions
    for now in (1_600, 1_610, 1_899):
        asked.look(now)
    assert asked.questions == [{"waiting": True, "findNodes": True}]
    asked.look(1_900)
    assert len(asked.questions) == 2


def test_what_is_missing_is_told_by_shape_until_nobody_waits_any_more() -> None:
    """Shapes that have the same GPUs are one, and a long sentence is cut."""
    asked = Asked()
    asked.look(1_700.6)
    samples = {(s.labels["gpu_model"], s.labels["gpus"]): s.value for s in asked.metric("kerf_missing_nodes").samples}
    assert samples == {("h100", "8"): 3, ("", "0"): 1}
    assert asked.metric("kerf_missing_nodes_unplaced").samples[0].value == 1
    assert asked.missing.to_json() == {"at": 1_701, "pods": 9, "unplaced": 1, "sentence": "x" * 500}
    asked.oldest = math.inf
    asked.look(1_701)
    assert asked.missing.to_json() == {}
    assert not asked.metric("kerf_missing_nodes").samples


def test_it_looks_again_and_again_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever happens meanwhile."""
    asked = Asked(every_s=0.001)
    assert asked.missing.standing is None
    asked.answer = RuntimeError("out of cheese")

    async def look_often() -> None:
        asked.missing.start()
        assert list(asked.missing.tasks.names) == ["missing nodes"]
        asked.now = 2_000.0
        await until(lambda: "working out the missing nodes failed" in caplog.messages)
        asked.answer = FOUND
        for number in range(2, 4):
            asked.now += 1.0
            await until(partial(asked.has_asked, number))
        await asked.missing.stop()

    asyncio.run(look_often())
    assert asked.missing.standing is not None


def test_after_a_fault_what_was_known_is_not_told_any_more(caplog: pytest.LogCaptureFixture) -> None:
    for fault in (QuestionError("no such node"), BusyError("busy"), ClusterError("gone"), {"pods": 3}):
        asked = Asked()
        asked.look(1_700)
        asked.answer = fault
        asked.look(2_100)
        assert asked.missing.standing is None
        asked.look(2_110)
        assert len(asked.questions) == 2, "a fault is no reason to ask more often"
    assert "the search for missing nodes failed: no such node" in caplog.text


def test_a_kerf_that_works_them_out_has_their_metrics_and_tells_the_page() -> None:
    with running(CLUSTER) as without, running(CLUSTER, missing__after_s=600) as kerf:
        assert_its_metrics_are_on_its_page("missing", without, kerf)
        assert kerf.service.contributions["missing"].shown["missing"]() == {}
