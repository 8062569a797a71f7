"""GET /usage and the metrics of GPU-hours, of a running service."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extender.core.gauges import Gauge
from extender.parts.usage.answers import UsageReport
from tests.api.bodies import node, pod
from tests.api.services import Clock, Kerf, running
from tests.parts.usage.prometheuses import Told, answering
from tests.parts.usage.rigs import meter_of, passes, placed
from tests.telemetry.feeds import FakeFeed


def shown(kerf: Kerf) -> Any:
    """What the page's panel is told."""
    return kerf.service.contributions["usage"].shown["usage"]()


def usage(kerf: Kerf, query: str = "") -> Any:
    answer = kerf.get(f"/usage?{query}")
    assert answer.status == 200, answer.content
    return answer.json()


@pytest.fixture(scope="module")
def still() -> Iterator[Kerf]:
    """A Kerf in which nothing happens, for all questions."""
    with running() as kerf:
        yield kerf


def test_what_was_booked_is_told_in_gpu_hours(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 1800.0)
    told = usage(kerf)
    assert told["source"] == "kerf"
    (row,) = told["rows"]
    nothing = {f"{name}GpuHours": 0.0 for name in ("used", "idle", "measured")}
    assert row == {"namespace": "default", "bookedGpuHours": 1.0} | nothing
    totals = told["totals"]
    parts = sum(totals[f"{part}GpuHours"] for part in ("booked", "free", "stranded", "sick"))
    assert parts == pytest.approx(totals["capacityGpuHours"], abs=1e-3)
    assert totals["capacityGpuHours"] == 12.5  # 25 GPUs


def test_the_parts_on_the_page_add_up_from_the_first_seconds_on(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 20.0)
    totals = shown(kerf)["totals"]
    parts = sum(totals[f"{part}GpuHours"] for part in ("booked", "free", "stranded", "sick"))
    assert 100 * parts / totals["capacityGpuHours"] == pytest.approx(100.0, abs=0.5)


def test_rows_are_by_namespace_owner_or_model(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    placed(kerf, "q", 1, "t4-0")
    passes(kerf, 3600.0)
    assert [row["bookedGpuHours"] for row in usage(kerf, "by=namespace")["rows"]] == [3.0]
    owners = [(row["namespace"], row["owner"]) for row in usage(kerf, "by=owner")["rows"]]
    assert owners == [("default", "Pod/p"), ("default", "Pod/q")]
    assert [row["model"] for row in usage(kerf, "by=model")["rows"]] == ["a100-sxm4-80gb", "t4"]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("since=7", 400, "since: '7' is not a duration from 1m to 366d: write 7d, 36h or 90m"),
        ("since=9d9d", 400, "write 7d"),
        ("by=pod", 422, "by"),
        ("source=prometheus", 503, "no Prometheus is configured (setting telemetry.url)"),
        ("since=7d&source=prometheus", 503, "no Prometheus is configured"),
    ],
)
def test_what_can_not_be_answered_says_why(still: Kerf, query: str, status: int, said: str) -> None:
    answer = still.get(f"/usage?{query}")
    assert answer.status == status
    assert said in str(answer.json()["detail"])


@pytest.mark.usefixtures("asks_here")
def test_a_prometheus_that_does_not_answer_is_no_reason_not_to_tell() -> None:
    with running(feed=FakeFeed(Clock()), telemetry__url="http://127.0.0.1:1") as kerf:
        told = usage(kerf, "since=7d")
        assert told["source"] == "kerf"
        assert told["note"].startswith("http://127.0.0.1:1: no connection")
        answer = kerf.get("/usage?since=7d&source=prometheus")
        assert answer.status == 503


def over_time(kerf: Kerf, query: str) -> Any:
    answer = kerf.get(f"/usage/over-time?{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def test_usage_over_time_adds_up_in_each_step(kerf: Kerf) -> None:
    placed(kerf, "p", 2)
    passes(kerf, 3600.0)
    told = over_time(kerf, "since=2h&step=10m")
    assert (told["source"], told["stepSeconds"], told["namespaces"]) == ("kerf", 600, ["default"])
    assert told["note"] == "no Prometheus is configured (setting telemetry.url)", "an hour of two is not all"
    steps = told["steps"]
    assert [step["at"] % 600 for step in steps] == [0] * len(steps)
    assert sum(step["seconds"] for step in steps) == pytest.approx(3600.0)
    for step in steps:
        parts = sum(step[f"{part}GpuHours"] for part in ("booked", "free", "stranded", "sick"))
        assert (
            step["capacityGpuHours"]
            == pytest.approx(parts, abs=3e-6)
            == pytest.approx(25 * step["seconds"] / 3600, abs=1e-5)
        )
        assert (
            step["bookedByNamespace"]
            == [step["bookedGpuHours"]]
            == pytest.approx([2 * step["seconds"] / 3600], abs=1e-5)
        )


@pytest.mark.usefixtures("asks_here")
def test_who_has_counted_all_of_it_asks_nobody_else() -> None:
    with running(feed=FakeFeed(Clock()), telemetry__url="http://127.0.0.1:1") as kerf:
        passes(kerf, 3700.0)
        assert "note" not in over_time(kerf, "since=1h")
        told = over_time(kerf, "since=6h")
        assert told["source"] == "kerf"
        assert told["note"].startswith("http://127.0.0.1:1: no connection")
        assert told["knownSince"] == round(meter_of(kerf).since or 0, 1)
        assert kerf.get("/usage/over-time?since=1h&source=prometheus").status == 503
        assert "note" not in over_time(kerf, "since=6h&source=kerf")


def test_beyond_a_day_steps_are_quarters_of_an_hour(kerf: Kerf) -> None:
    for _ in range(30):
        passes(kerf, 3600.0)
    told = over_time(kerf, "since=29h&step=20m")
    assert told["stepSeconds"] == 1800
    assert {step["seconds"] for step in told["steps"][1:-1]} == {1800.0}
    assert over_time(kerf, "since=24h")["stepSeconds"] == 900


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("since=7", 400, "since: '7' is not a duration"),
        ("since=", 400, "since: '' is not a duration"),
        ("step=1s", 400, "step: '1s' is not a duration"),
        ("since=7d&step=1m", 400, "take 15m or more"),
        ("step=" + "1" * 17, 422, "step"),
        ("source=me", 422, "source"),
        ("source=prometheus", 503, "no Prometheus is configured (setting telemetry.url)"),
    ],
)
def test_over_time_what_can_not_be_answered_says_why(still: Kerf, query: str, status: int, said: str) -> None:
    answer = still.get(f"/usage/over-time?{query}")
    assert answer.status == status
    assert said in str(answer.json()["detail"])


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


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("", None),
        ("source=kerf", None),
        ("since=7d&source=kerf", "only Prometheus has figures for a given time, and source=kerf does not query it"),
        ("since=7d", "no Prometheus is configured (setting telemetry.url)"),
    ],
)
def test_what_is_not_of_the_time_asked_for_says_why_and_nothing_else_does(
    still: Kerf, query: str, note: str | None
) -> None:
    told = usage(still, query)
    assert (told["source"], told.get("note")) == ("kerf", note)


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

    parts = sum(map(total, ("booked", "free", "stranded", "sick")))
    assert total("capacity") == pytest.approx(parts, rel=1e-12) == 2500.0
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
    clock = Clock()
    feed = FakeFeed(clock, {"a100-0": {Gauge.LOAD: [0.0] * 8, Gauge.MEMORY_USED: [500.0] * 8}})
    with running(feed=feed, telemetry__url="http://p", usage__idle_after_s=60) as kerf:
        placed(kerf, "sleeps", 2)
        for _ in range(3):
            assert kerf.parts.telemetry is not None
            feed.clock.now = kerf.clock.now
            kerf.run(kerf.parts.telemetry.observer.round())
            passes(kerf, 30.0)
        idle = usage(kerf, "source=kerf")["idle"]
        assert (idle["pods"], idle["gpus"], idle["afterSeconds"]) == (1, 2.0, 60)
        assert idle["items"][0]["pod"] == "default/sleeps"
        assert (idle["items"][0]["node"], idle["items"][0]["owner"]) == ("a100-0", "Pod/sleeps")
        assert kerf.metric("kerf_idle_pods", namespace="default") == 1
        assert kerf.metric("kerf_idle_gpus", namespace="default") == 2
        assert shown(kerf)["idle"] == {"afterSeconds": 60, "pods": 1, "gpus": 2.0}


def test_a_budget_is_told_in_an_event_by_metrics_and_in_the_rows() -> None:
    with running(usage__budgets={"default": 2.0}) as kerf:
        watch = next(part for part in kerf.parts.in_background if type(part).__name__ == "BudgetWatch")
        placed(kerf, "p", 2)
        passes(kerf, 3600.0)
        kerf.run(watch.round())  # type: ignore[attr-defined]
        (row,) = usage(kerf)["rows"]
        assert (row["budgetGpuHours"], row["budgetSpentGpuHours"]) == (2.0, 2.0)
        assert kerf.metric("kerf_budget_gpu_hours", namespace="default") == 2
        assert kerf.metric("kerf_budget_spent_ratio", namespace="default") == 1
        event = kerf.events()[-1]
        assert event["involvedObject"] | {"apiVersion": ""} == {
            "apiVersion": "",
            "kind": "Namespace",
            "namespace": "default",
            "name": "default",
        }
        assert (event["type"], event["reason"]) == ("Warning", "GPUBudget")
        assert event["message"] == "2.0 of 2 GPU-hours for 30 days are booked (100 %)"


def test_whatever_is_booked_on_a_budget_of_nothing_is_more_than_all_of_it() -> None:
    with running(usage__budgets={"default": 0.0, "other": 0.0}) as kerf:
        watch = next(part for part in kerf.parts.in_background if type(part).__name__ == "BudgetWatch")
        placed(kerf, "p", 1)
        passes(kerf, 3600.0)
        kerf.run(watch.round())  # type: ignore[attr-defined]
        assert kerf.metric("kerf_budget_spent_ratio", namespace="default") == float("inf"), "+Inf is above 1"
        assert kerf.metric("kerf_budget_spent_ratio", namespace="other") == 0
        assert kerf.events()[-1]["message"] == "1.0 of 0 GPU-hours for 30 days are booked"
        assert usage(kerf)["rows"][0]["budgetSpentGpuHours"] == 1.0


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
