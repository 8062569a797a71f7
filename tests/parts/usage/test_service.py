"""GET /usage and the metrics of GPU-hours of a running service; the figures are held in test_conservation.py."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import schemathesis
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from extender.core.gauges import Gauge
from extender.parts.usage.answers import UsageReport
from tests.api.bodies import node, pod
from tests.api.services import Clock, Kerf, running
from tests.api.test_openapi import VALID, answers_as_described, description_of_kerf
from tests.docs.test_http_api import keys_of, section
from tests.explain.test_waiting_pods import made
from tests.explain.test_workloads import NODES, bound, by_pod, seen, told
from tests.parts.pages import assert_its_metrics_are_on_its_page
from tests.parts.usage.prometheuses import Told, answering
from tests.parts.usage.rigs import meter_of, passes, placed, slept
from tests.telemetry.feeds import FakeFeed


def shown(kerf: Kerf) -> Any:
    """What the page's panel is told."""
    return kerf.service.contributions["usage"].shown["usage"]()


def usage(kerf: Kerf, query: str = "") -> Any:
    answer = kerf.get(f"/usage?{query}")
    assert answer.status == 200, answer.content
    return answer.json()


PARTS = ("booked", "free", "stranded", "sick")


def test_what_was_booked_is_told_in_gpu_hours(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 20.0)
    totals = shown(kerf)["totals"]
    parts = sum(totals[f"{part}GpuHours"] for part in PARTS)
    assert 100 * parts / totals["capacityGpuHours"] == pytest.approx(100.0, abs=0.5), "from the first seconds on"
    passes(kerf, 1780.0)
    told = usage(kerf)
    assert told["source"] == "kerf"
    nothing = {f"{name}GpuHours": 0.0 for name in ("used", "idle", "measured")}
    assert told["rows"] == [{"namespace": "default", "bookedGpuHours": 1.0} | nothing]
    assert told["totals"]["capacityGpuHours"] == 12.5  # 25 GPUs


def test_rows_are_by_namespace_owner_or_model(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    placed(kerf, "q", 1, "t4-0")
    passes(kerf, 3600.0)
    assert [row["bookedGpuHours"] for row in usage(kerf, "by=namespace")["rows"]] == [3.0]
    owners = [(row["namespace"], row["owner"]) for row in usage(kerf, "by=owner")["rows"]]
    assert owners == [("default", "Pod/p"), ("default", "Pod/q")]
    assert [row["model"] for row in usage(kerf, "by=model")["rows"]] == ["a100-sxm4-80gb", "t4"]


def test_what_can_not_be_answered_says_why(kerf: Kerf) -> None:
    for path, status, said in (
        ("/usage?since=7", 400, "since: '7' is not a duration"),
        ("/usage?by=pod", 422, "by"),
        ("/usage?source=prometheus", 503, "telemetry.url"),
        ("/usage?since=7d&source=prometheus", 503, "telemetry.url"),
        ("/usage/over-time?since=", 400, "since: '' is not a duration"),
        ("/usage/over-time?step=1s", 400, "step: '1s' is not a duration"),
        ("/usage/over-time?step=" + "1" * 17, 422, "step"),
        ("/usage/over-time?source=me", 422, "source"),
        ("/usage/over-time?source=prometheus", 503, "telemetry.url"),
    ):
        answer = kerf.get(path)
        assert answer.status == status
        assert said in str(answer.json()["detail"])


def over_time(kerf: Kerf, query: str) -> Any:
    answer = kerf.get(f"/usage/over-time?{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def test_usage_over_time(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 3600.0)
    told = over_time(kerf, "since=2h&step=10m")
    assert (told["source"], told["stepSeconds"], told["namespaces"]) == ("kerf", 600, ["default"])
    assert "telemetry.url" in told["note"], "an hour of two is not all"
    steps = told["steps"]
    assert [step["at"] % 600 for step in steps] == [0] * len(steps)
    assert sum(step["seconds"] for step in steps) == pytest.approx(3600.0)
    for step in steps:
        hours = step["seconds"] / 3600
        assert step["capacityGpuHours"] == pytest.approx(25 * hours, abs=1e-5)
        assert step["bookedByNamespace"] == [step["bookedGpuHours"]] == pytest.approx([2 * hours], abs=1e-5)


@pytest.mark.usefixtures("asks_here")
def test_prometheus_is_asked_for_what_kerf_has_not_counted_and_its_fault_is_a_note() -> None:
    with running(feed=FakeFeed(Clock()), telemetry__url="http://127.0.0.1:1") as kerf:
        passes(kerf, 3700.0)
        assert "note" not in over_time(kerf, "since=1h")
        assert "note" not in over_time(kerf, "since=6h&source=kerf")
        longer = over_time(kerf, "since=6h")
        assert longer["knownSince"] == round(meter_of(kerf).since or 0, 1)
        for told in (longer, usage(kerf, "since=7d")):
            assert told["source"] == "kerf"
            assert told["note"].startswith("http://127.0.0.1:1: no connection")
        for path in ("/usage?since=7d", "/usage/over-time?since=1h"):
            assert kerf.get(f"{path}&source=prometheus").status == 503


def test_a_standby_has_nothing_to_tell() -> None:
    with running(leader_election__mode="never") as kerf:
        answer = kerf.get("/usage")
        assert answer.status == 503
        assert answer.json()["detail"].startswith("standby: ")
        assert kerf.metric("kerf_booked_gpu_seconds_total") == 0
        assert kerf.get("/usage/over-time").json()["detail"].startswith("standby: ")


@pytest.mark.usefixtures("asks_here")
def test_a_standby_tells_of_the_past_and_not_what_the_leader_alone_knows() -> None:
    told: dict[str, Sequence[Told]] = {"booked": [({"namespace": "default"}, 7200)], "capacity": [({}, 9000)]}
    with answering(told) as prometheus:
        settings: dict[str, Any] = {"telemetry__url": prometheus.url, "usage__budgets": {"default": 1.0}}
        with running(feed=FakeFeed(Clock()), leader_election__mode="never", **settings) as standby:
            found = usage(standby, "since=7d")
            assert (found["source"], found["budgets"], found["idle"]) == ("prometheus", None, None)
            assert found["rows"][0]["bookedGpuHours"] == 2.0
            assert "budgetSpentGpuHours" not in found["rows"][0]
            msgspec.convert(found, UsageReport)
        with running(feed=FakeFeed(Clock()), **settings) as leader:
            found = usage(leader, "since=7d")
            assert (found["idle"]["pods"], found["budgets"].keys()) == (0, {"default"})


def test_what_is_not_of_the_time_asked_for_says_why_and_nothing_else_does(kerf: Kerf) -> None:
    for query, note in (
        ("", ""),
        ("source=kerf", ""),
        ("since=7d&source=kerf", "source=kerf"),
        ("since=7d", "telemetry.url"),
    ):
        told = usage(kerf, query)
        assert (told["source"], "note" in told) == ("kerf", bool(note))
        assert note in told.get("note", "")


def test_the_counters_are_what_prometheus_reads(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 0.0)
    labels = {"namespace": "default", "owner": "Pod/p", "gpu_model": "a100-sxm4-80gb"}
    assert kerf.metric("kerf_booked_gpu_seconds_total", **labels) == 0
    passes(kerf, 59.0)
    assert kerf.metric("kerf_counted_seconds_total") == 0, "as the others, that it be seen to begin"
    passes(kerf, 41.0)
    assert kerf.metric("kerf_booked_gpu_seconds_total", **labels) == 200.0
    families = {f.name: f for f in text_string_to_metric_families(kerf.get("/metrics").content.decode())}

    def total(what: str) -> float:
        return sum(sample.value for sample in families[f"kerf_{what}_gpu_seconds"].samples if "_total" in sample.name)

    assert total("capacity") == pytest.approx(sum(map(total, PARTS)), rel=1e-12) == 2500.0
    assert kerf.metric("kerf_counted_seconds_total") == 100.0
    assert kerf.metric("kerf_node_gpus", node="a100-0", state="booked") == 2
    assert kerf.metric("kerf_node_gpus", node="a100-0", state="free") > 0


def test_many_nodes_have_no_metrics_of_their_own() -> None:
    with running([node(f"n-{number:03}", 1) for number in range(101)]) as kerf:
        passes(kerf, 0.0)
        text = kerf.get("/metrics").content.decode()
        told = {line.split('"')[1] for line in text.splitlines() if line.startswith("kerf_node_gpus{")}
        assert told == {f"n-{number:03}" for number in range(100)}


def test_idle_pods_are_listed_counted_and_told_on_the_page() -> None:
    feed = FakeFeed(Clock(), {"a100-0": {Gauge.LOAD: [0.0] * 8, Gauge.MEMORY_USED: [500.0] * 8}})
    with running(feed=feed, telemetry__url="http://p", usage__idle_after_s=60) as kerf:
        placed(kerf, "sleeps", 2)
        slept(kerf, feed, 60.0)
        idle = usage(kerf, "source=kerf")["idle"]
        assert (idle["pods"], idle["gpus"], idle["afterSeconds"]) == (1, 2.0, 60)
        assert idle["items"][0].items() >= {"pod": "default/sleeps", "node": "a100-0", "owner": "Pod/sleeps"}.items()
        assert kerf.metric("kerf_idle_pods", namespace="default") == 1
        assert kerf.metric("kerf_idle_gpus", namespace="default") == 2
        assert shown(kerf)["idle"] == {"afterSeconds": 60, "pods": 1, "gpus": 2.0}


def test_a_budget_is_told_in_an_event_by_metrics_and_in_the_rows() -> None:
    with running(usage__budgets={"default": 2.0, "other": 0.0}) as kerf:
        watch = next(part for part in kerf.parts.in_background if type(part).__name__ == "BudgetWatch")
        placed(kerf, "p", 2)
        passes(kerf, 3600.0)
        kerf.run(watch.round())  # type: ignore[attr-defined]
        (row,) = usage(kerf)["rows"]
        assert (row["budgetGpuHours"], row["budgetSpentGpuHours"]) == (2.0, 2.0)
        assert kerf.metric("kerf_budget_gpu_hours", namespace="default") == 2
        ratios = [kerf.metric("kerf_budget_spent_ratio", namespace=name) for name in ("default", "other")]
        assert ratios == [1, 0]
        event = kerf.events()[-1]
        about = {"kind": "Namespace", "namespace": "default", "name": "default"}
        assert event["involvedObject"].items() >= about.items()
        assert (event["type"], event["reason"]) == ("Warning", "GPUBudget")
        assert "2.0 of 2 GPU-hours" in event["message"]


def test_the_age_of_the_oldest_pending_pod_is_told_by_namespace(kerf: Kerf) -> None:
    asked = kerf.create(pod("waits", 9))
    kerf.filter(asked, ["a100-0"])
    assert kerf.metric("kerf_pending_longest_seconds", namespace="default") >= 0
    assert 'kerf_pending_longest_seconds{namespace="default"}' in kerf.get("/metrics").content.decode()


def test_where_it_is_off_it_is_not_there_and_its_routes_say_how_to_turn_it_on() -> None:
    with running(usage__enabled=False) as kerf:
        for path in ("/usage", "/usage/over-time"):
            answer = kerf.get(path)
            assert answer.status == 404
            assert answer.json() == {"detail": "no GPU-hours are counted (setting usage.enabled)"}
        assert "kerf_booked_gpu_seconds" not in kerf.get("/metrics").content.decode()
        assert b"usage" not in kerf.get("/page/parts.js").content
    with running() as kerf:
        assert b"import of_usage from './parts/usage/panel.js';" in kerf.get("/page/parts.js").content
        assert kerf.get("/page/parts/usage/panel.js").status == 200


def test_idle_pods_come_first_then_those_with_most_gpus() -> None:
    feed = FakeFeed(Clock(), {"n": {Gauge.LOAD: [0.0] * 2 + [0.5, 1.0] * 3}})
    with running(NODES, feed=feed, telemetry__url="http://p", usage__idle_after_s=60) as kerf:
        seen(kerf, bound("sleeps", "0,1"), bound("works", "2,3,4,5"), bound("unknown", "0,1,2", "m"))
        slept(kerf, feed, 60.0)
        answer, only = told(kerf), told(kerf, "idle=true")
        (group,) = told(kerf, "by=namespace")["groups"]
    pods = by_pod(answer)
    assert list(pods) == ["sleeps", "works", "unknown"]
    assert pods["sleeps"]["idleSeconds"] >= 60 and pods["sleeps"]["load"] == 0.0
    assert (pods["works"]["load"], pods["works"]["idleSeconds"]) == (0.75, None)
    assert (pods["unknown"]["load"], pods["unknown"]["idleSeconds"]) == (None, None)
    assert [item["pod"] for item in only["pods"]] == ["default/sleeps"]
    assert (answer["states"]["idle"], only["states"]["running"], only["total"]) == (1, 3, 1)
    assert (group["idlePods"], group["idleGpus"], group["load"]) == (1, 2.0, 0.5)  # 2 x 0 and 4 x 0.75 of 6 GPUs
    assert group["idleSeconds"] >= 60
    assert answer["idleAfterSeconds"] == 60


def test_without_a_meter_pods_are_listed_and_nobody_knows_who_is_idle() -> None:
    with running(NODES, usage__enabled=False) as kerf:
        seen(kerf, bound("a", "0,1"), made("waits", 9, 60), waiting=1)
        answer = told(kerf)
        kerf.cluster.delete(bound("a", "0,1"))
        kerf.settle()
        seen(kerf, bound("b", "0,1,2"), waiting=1)
        after = told(kerf)
        assert kerf.service.workloads.occupants.holders.fresh == []
    assert {name: item["gpus"] for name, item in by_pod(answer).items()} == {"a": 2.0, "waits": 9.0}
    assert {name: item["gpus"] for name, item in by_pod(after).items()} == {"b": 3.0, "waits": 9.0}
    assert (answer["idleAfterSeconds"], answer["states"]["idle"]) == (None, 0)


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
def test_answers_are_as_described(description: schemathesis.BaseSchema) -> None:
    # 503 without the Prometheus that is asked for is an answer.
    answers_as_described(description, "GET /usage", VALID, (positive_data_acceptance, not_a_server_error))


def test_each_status_is_described(description: schemathesis.BaseSchema) -> None:
    for path in ("/usage", "/usage/over-time"):
        known = description.raw_schema["paths"][path]["get"]["responses"]
        assert known.keys() - {"401", "403", "429"} == {"200", "400", "422", "503"}


def test_the_keys_of_answers_are_on_the_page_and_in_the_description(description: schemathesis.BaseSchema) -> None:
    with running() as kerf:
        passes(kerf, 60.0)
        for path, kind in (("/usage", "UsageReport"), ("/usage/over-time", "UsageOverTime")):
            answer = json.loads(kerf.get(path).content)
            assert answer.keys() <= description.raw_schema["components"]["schemas"][kind]["properties"].keys()
            assert not {key for key in keys_of(answer) if f"`{key}`" not in section(f"GET {path}")}


def test_metrics_are_on_the_page() -> None:
    with running(usage__enabled=False) as without, running(usage__budgets={"a": 1.0}) as kerf:
        assert_its_metrics_are_on_its_page("usage", without, kerf)
