"""The process that asks Prometheus, against a server that answers as a test says."""

import asyncio
import json
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from extender.parts.usage.asking import _ask
from extender.parts.usage.lines import OTHER
from extender.parts.usage.past import Past
from extender.parts.usage.questions import PrometheusAnswer, PrometheusQuery
from extender.telemetry.sources.source import Access
from tests.ledger.builders import Clock
from tests.parts.usage.prometheuses import Told, answering


def answered(told: Mapping[str, Sequence[Told]], by: str = "namespace", **more: object) -> PrometheusAnswer:
    with answering(told) as server:
        question = PrometheusQuery(server.url, Access(), 3600, by)
        for name, value in more.items():
            setattr(question, name, value)
        return _ask(question)


def test_what_is_no_number_costs_its_own_row_alone() -> None:
    """One sample of a stranger's series must not take the report of all others."""
    told: dict[str, Sequence[Told]] = {
        "booked": [({"namespace": "a"}, 5), ({"namespace": "b"}, "NaN"), ({"namespace": "c"}, "+Inf")],
        "used": [({"namespace": "a"}, "-Inf")],
        "capacity": [({}, 99)],
        "sick": [({}, "NaN")],
    }
    found = answered(told)
    assert (found.rows, found.totals) == ({"a": [5, 0, 0, 0]}, [99, 0, 0, 0])
    assert json.loads(msgspec.json.encode(found))["rows"] == found.rows
    (step,) = answered(told, step_s=60, first=600, last=660).steps
    assert (step.booked, step.amounts) == ({"a": 5}, [99, 0, 0, 0, 5, 0, 0, 0])
    assert answered({"capacity": [({}, "NaN")]}).fault != ""


@pytest.mark.usefixtures("asks_here")
def test_answers_are_kept_for_half_a_minute_and_no_longer() -> None:
    clock = Clock()
    with answering({"capacity": [({}, 99)]}) as server:
        past = Past(server.url, Access(), "", clock)
        for window_s in (3600, 7200, 3600):
            asyncio.run(past.answer(window_s, "namespace"))
        assert len(past._kept) == 2  # noqa: SLF001 - what holds memory
        clock.now += 31.0
        asyncio.run(past.answer(3600, "namespace"))
        assert len(past._kept) == 1  # noqa: SLF001


def owner(namespace: str, name: str) -> dict[str, str]:
    return {"namespace": namespace, "owner": name}


def test_the_owners_who_booked_most_are_told_apart_and_all_others_are_one() -> None:
    told: dict[str, Sequence[Told]] = {
        "booked": [
            *((owner("a", "Job/small"), 1), (owner("a", "Job/large"), 9), (owner("b", "Job/x"), 2)),
            *((owner("b", OTHER), 4), (owner(OTHER, OTHER), 7)),
        ],
        "used": [(owner("a", "Job/small"), 0.5), (owner("a", "Job/large"), 8)],
        "capacity": [({}, 99)],
    }
    assert answered(told, "owner", most=2).rows == {
        "a/Job/large": [9, 8, 0, 0],
        f"{OTHER}/{OTHER}": [7 + 1 + 2 + 4, 0.5, 0, 0],
    }
    assert answered(told, "owner").rows.keys() == {
        "a/Job/small",
        "a/Job/large",
        "b/Job/x",
        "b/(other)",
        "(other)/(other)",
    }


def test_thousands_of_owners_are_a_thousand_rows() -> None:
    many = [(owner("a", f"Job/{number}"), 1) for number in range(5000)]
    found = answered({"booked": many, "capacity": [({}, 99)]}, "owner")
    assert len(found.rows) == 1001
    assert sum(row[0] for row in found.rows.values()) == 5000


def test_a_namespace_with_a_budget_has_its_row_however_little_it_booked() -> None:
    booked = [({"namespace": name}, amount) for name, amount in [("a", 5), ("b", 4), ("c", 3), ("paid", 1)]]
    found = answered({"booked": booked, "capacity": [({}, 99)]}, most=1, always=["paid", "absent"])
    assert {name: row[0] for name, row in found.rows.items()} == {"a": 5, "paid": 1, OTHER: 7}


def test_step_by_step_the_namespaces_who_booked_most_are_told_apart() -> None:
    booked = [({"namespace": name}, amount) for name, amount in [("a", 5), ("b", 4), ("c", 3)]]
    found = answered({"booked": booked, "capacity": [({}, 99)]}, most=1, step_s=60, first=600, last=720)
    assert [(step.at, step.booked) for step in found.steps] == [(600, {"a": 5, OTHER: 7}), (660, {"a": 5, OTHER: 7})]
