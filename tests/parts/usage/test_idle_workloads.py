"""For how long pods have been idle, as `GET /workloads` tells it."""

from extender.core.gauges import Gauge
from tests.api.services import Clock, Kerf, running
from tests.explain.test_waiting_pods import made
from tests.explain.test_workloads import NODES, bound, by_pod, seen, told
from tests.parts.usage.rigs import meter_of
from tests.telemetry.feeds import FakeFeed


def slept(kerf: Kerf, feed: FakeFeed, seconds: float) -> None:
    """Some time passes, and the meter looks before and after."""
    assert kerf.parts.telemetry is not None
    for _ in range(3):
        feed.clock.now = kerf.clock.now
        kerf.run(kerf.parts.telemetry.observer.round())
        kerf.run(meter_of(kerf).tick())
        kerf.clock.now += seconds / 2
    kerf.run(meter_of(kerf).tick())


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


def test_a_pod_that_gets_the_number_of_another_is_not_idle_for_as_long() -> None:
    feed = FakeFeed(Clock(), {"n": {Gauge.LOAD: [0.0] * 8}})
    with running(NODES, feed=feed, telemetry__url="http://p", usage__idle_after_s=60) as kerf:
        seen(kerf, bound("sleeps", "0,1"))
        slept(kerf, feed, 60.0)
        kerf.cluster.delete(bound("sleeps", "0,1"))
        kerf.settle()
        seen(kerf, bound("fresh", "0,1"))
        pods = by_pod(told(kerf))
        listed = kerf.get("/usage").json()["idle"]
    assert (list(pods), pods["fresh"]["idleSeconds"]) == (["fresh"], None)
    assert listed["pods"] == 0


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
