"""The meter: who has booked what for how long, whoever leads."""

import asyncio
from typing import Any

import numpy as np
import pytest

from extender.core.annotations import MEMORY_EACH, SHARE
from extender.explain.overview import Figures
from extender.kube.leadership import LeadTime
from extender.kube.objects import PodClaim
from extender.parts.usage.budgets import DAY_S, Budgets
from extender.parts.usage.lines import Key
from extender.parts.usage.questions import PastError, PrometheusAnswer
from extender.parts.usage.report import IdleRecall, Usage
from extender.parts.usage.settings import UsageSettings
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE
from tests.ledger.builders import Clock
from tests.nvidia import MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from tests.parts.usage.rigs import Rig
from tests.plugins.claims import resource_claim, slice_of

A100 = "NVIDIA-A100-SXM4-80GB"


def one_node(**kinds: object) -> Rig:
    rig = Rig(**kinds)  # type: ignore[arg-type]
    rig.node("n", 4)
    rig.tick()
    return rig


def with_a_pod(**kinds: object) -> Rig:
    """It has one GPU of the node."""
    rig = one_node(**kinds)
    rig.pod("p", 1, "n")
    return rig


def test_gpu_seconds_are_gpus_times_seconds_by_namespace_owner_and_model() -> None:
    rig = Rig()
    rig.node("t", 4)
    rig.node("a", 8, product=A100)
    rig.pod("train-1", 2, "t", "x", owner="Job/train")
    rig.pod("web-7d4b9-x", 1, "a", "y", owner="ReplicaSet/web-7d4b9", labels={"pod-template-hash": "7d4b9"})
    rig.tick()
    rig.tick(10.0)
    assert {key: row[0] / 1e6 for key, row in rig.meter.accounts.rows().items()} == {
        Key("x", "Job/train", "t4"): 20.0,
        Key("y", "Deployment/web", "a100-sxm4-80gb"): 10.0,
    }


POD_HASH = "pod-template-hash"
OWNERS: tuple[tuple[str, str | None, dict[str, str], str], ...] = (
    # Pod, controller, labels, name of the line
    ("notebook", None, {}, "Pod/notebook"),
    ("train-1", None, {}, "Pod/train"),
    ("llama-7b", None, {}, "Pod/llama-7b"),
    ("a-1-x", None, {}, "Pod/a-1-x"),
    ("p", "Job/sweep-29011560", {}, "Job/sweep"),
    ("p", "Job/sweep-29011560", {"jobset.sigs.k8s.io/jobset-name": "big"}, "JobSet/big"),
    ("p", "Job/sweep-29011560", {"ray.io/cluster": "rays"}, "RayCluster/rays"),
    ("p", "Job/resnet-50", {}, "Job/resnet-50"),
    ("p", "Job/train-20261126", {}, "Job/train-20261126"),  # a date, no CronJob's minute
    ("p", "PyTorchJob/bert-29728805", {}, "PyTorchJob/bert-29728805"),
    ("p", "StatefulSet/llama-7b", {}, "StatefulSet/llama-7b"),
    ("p", "ReplicaSet/gpt-4-7d4b9", {POD_HASH: "7d4b9"}, "Deployment/gpt-4"),
    ("p", "ReplicaSet/gpt-4", {POD_HASH: "7d4b9"}, "ReplicaSet/gpt-4"),
    ("p", "ReplicaSet/gpt-4", {POD_HASH: ""}, "ReplicaSet/gpt-4"),
    ("p", "ReplicaSet/gpt-4-7d4b9", {"rollouts-pod-template-hash": "7d4b9"}, "Rollout/gpt-4"),
    ("p", "Job/\x1b[2J\nx", {}, "Job/\\x1b[2J\\nx"),
    ("p", "Job/" + 200 * "\x07", {}, "Job/" + 31 * "\\x07"),
)


def test_the_owner_is_the_topmost_known_controller_under_the_name_that_people_chose() -> None:
    for name, owner, labels, line in OWNERS:
        rig = one_node()
        rig.pod(name, 1, "n", owner=owner, labels=labels)
        rig.passes(1.0)
        assert rig.booked("owner") == {line: 1.0}


def test_what_is_reserved_is_not_booked() -> None:
    rig = one_node()
    rig.ledger.reserve("uid-p", "n", whole_gpus(2), rig.clock())
    rig.passes(1.0)
    assert rig.sums()["booked"] == 0


def test_used_is_weighted_by_load_and_idle_is_what_has_hardly_any() -> None:
    rig = one_node()
    rig.pod("p", 2, "n", assigned="0,1")
    rig.passes(1.0)
    assert {rig.sums()[name] for name in ("used", "measured", "idle")} == {0}, "there is no telemetry yet"
    before = rig.sums()["booked"]
    rig.loads("n", 0.5, 0.01)
    rig.passes(10.0)
    sums = rig.sums()
    assert sums["booked"] - before == sums["measured"] == 20_000_000
    assert sums["used"] == pytest.approx(5_100_000, abs=20_000)  # 10 s of 0.5 and 0.01, in whole thousandths
    assert sums["idle"] == 10_000_000


def test_gpus_of_unknown_index_have_the_load_of_those_that_nobody_names() -> None:
    rig = one_node()
    rig.pod("known", 1, "n", assigned="0")
    rig.pod("unknown", 2, "n")
    rig.loads("n", 0.1, 0.9, 0.7, 0.0)
    rig.passes(10.0)
    used = {key.owner: row[1] / 1e6 for key, row in rig.meter.accounts.rows().items()}
    assert used == {"Pod/known": pytest.approx(1.0, abs=0.02), "Pod/unknown": pytest.approx(16.0, abs=0.02)}


def test_idle_gpus_beside_too_little_cpu_are_stranded() -> None:
    rig = Rig()
    rig.node("n", 4)
    rig.pod("p", 2, "n")
    rig.ledger.rows.request("uid-q", "n", 64_000, 0)  # all the CPU that there is
    rig.passes(10.0)
    assert (rig.sums()["stranded"], rig.sums()["free"]) == (20_000_000, 0)


READY, PRESSURE = "node.kubernetes.io/not-ready", "node.kubernetes.io/memory-pressure"
NODES: tuple[tuple[dict[str, Any], str, float], ...] = (
    # What a node of four GPUs has, of which one is booked; what its others are, and how many
    ({"cordoned": True}, "cordoned", 3.0),
    ({"taints": [(READY, "NoExecute")]}, "sick", 3.0),
    ({"taints": [(PRESSURE, "NoSchedule")]}, "sick", 3.0),
    ({"taints": [("nvidia.com/gpu", "NoSchedule")]}, "free", 3.0),
    ({"taints": [(READY, "PreferNoSchedule")]}, "free", 3.0),
    ({"installed": 5}, "sick", 1.0),  # one of its GPUs is not allocatable
)


def test_what_is_free_on_a_node_that_takes_no_pods_is_of_use_to_nobody() -> None:
    for kinds, state, gpus in NODES:
        rig = one_node()
        rig.pod("p", 1, "n")
        rig.tick()
        rig.node("n", 4, **kinds)
        rig.passes(10.0)
        sums = rig.sums()
        assert (sums["booked"], sums["sick"]) == (10e6, 0 if state == "free" else gpus * 10e6)
        assert sums["free"] + sums["stranded"] == (0 if sums["sick"] == 30e6 else 30e6)
        ((_, states),) = rig.meter.nodes(5)
        assert states["booked"] == 1.0
        assert (states["sick"], states["cordoned"]) == (gpus * (state == "sick"), gpus * (state == "cordoned"))
        rig.node("n", 4)
        rig.passes(10.0)
        assert rig.sums()["sick"] == sums["sick"], "it takes pods again"


def test_a_node_that_is_gone_is_not_closed_when_another_has_its_name() -> None:
    rig = one_node()
    rig.node("n", 4, cordoned=True)
    rig.tick()
    rig.ledger.remove_node("n")
    rig.tick()
    rig.node("n", 4)
    rig.passes(10.0)
    assert rig.sums()["sick"] == 0


# Who leads


def test_a_standby_counts_nothing_and_begins_where_its_predecessor_is_known_to_have_ended() -> None:
    rig = with_a_pod(standby="standby", led=LeadTime("", float("-inf"), float("-inf")))
    rig.tick(100.0)
    assert rig.sums()["booked"] == 0
    now = rig.clock()
    rig.standby, rig.led = "", LeadTime("2", now - 15.0, now)
    rig.tick()
    rig.led = LeadTime("2", now - 15.0, now + 4.0)
    rig.tick(5.0)
    assert rig.booked() == {"default": 19.0}


def test_nothing_is_counted_beyond_the_last_renewal() -> None:
    rig = with_a_pod(led=LeadTime("1", 1000.0, 1000.0))
    rig.passes(60.0)
    assert rig.booked() == {"default": 0.0}
    rig.led = LeadTime("1", 1000.0, 1059.0)
    rig.tick()
    assert rig.booked() == {"default": 59.0}


def test_what_ends_before_the_renewal_is_counted_to_its_end() -> None:
    rig = with_a_pod(led=LeadTime("1", 1000.0, 1000.0))
    rig.tick()
    rig.clock.now += 10.0
    rig.gone("p")
    rig.tick()
    rig.led = LeadTime("1", 1000.0, 1018.0)
    rig.tick(10.0)
    assert rig.booked() == {"default": 10.0}


def test_a_term_that_nobody_interrupted_goes_on() -> None:
    """The API server was away for a minute, and what was held was held."""
    rig = with_a_pod(led=LeadTime("1", 1000.0, 1000.0))
    rig.tick()
    rig.fault = "pods were last current 130 s ago"
    rig.tick(60.0)
    rig.fault, rig.led = "", LeadTime("1", 1000.0, 1061.0)
    rig.tick(1.0)
    assert rig.booked() == {"default": 61.0}


def test_a_second_term_begins_with_what_is_booked_by_then() -> None:
    rig = one_node(led=LeadTime("1", 1000.0, 1010.0))
    rig.pod("p", 3, "n")
    rig.passes(10.0)
    rig.standby = "standby: the lease is held by another"
    rig.gone("p")
    rig.pod("q", 1, "n")
    rig.tick(100.0)
    assert rig.booked("owner") == {"Pod/p": 30.0}, "a standby keeps what it has counted and adds nothing"
    rig.standby, rig.led = "", LeadTime("2", 1105.0, 1110.0)  # another led from 1010 to 1105
    rig.tick()
    rig.led = LeadTime("2", 1105.0, 1115.0)
    rig.tick(5.0)
    assert rig.booked("owner") == {"Pod/p": 30.0, "Pod/q": 10.0}


def test_gpus_whose_model_is_known_late_count_as_that_from_then_on() -> None:
    """As when a pod is bound before the feature discovery's labels arrive; its idle time goes on."""
    rig = Rig()
    rig.node("n", 2, product="")
    rig.pod("p", 1, "n", assigned="0")
    rig.loads("n", 0.0, 0.0)
    rig.tick()
    rig.loads("n", 0.0, 0.0)
    rig.tick(400.0)
    rig.node("n", 2, product=A100)
    rig.tick()
    rig.loads("n", 0.0, 0.0)
    rig.tick(200.0)
    assert rig.booked("gpu_model") == {"unknown": 400.0, "a100-sxm4-80gb": 200.0}
    assert idle(rig) == [("default/p", 600.0)]


# Series


def shown(rig: Rig) -> dict[str, float]:
    """Booked GPU-seconds of each series, as they are exported."""
    return {key.owner: sums[0] / 1e6 for key, sums in rig.meter.accounts.shown(rig.meter.now_ms)}


def test_a_new_series_is_0_for_a_minute_and_then_all_that_it_had() -> None:
    rig = with_a_pod()
    rig.passes(59.0)
    assert shown(rig) == {"Pod/p": 0.0}
    rig.tick(1.0)
    assert shown(rig) == {"Pod/p": 60.0}


def test_a_series_goes_an_hour_after_its_last_gpu_and_begins_anew() -> None:
    rig = with_a_pod()
    rig.passes(100.0)
    rig.gone("p")
    rig.passes(3600.0)
    assert shown(rig) == {"Pod/p": 100.0}
    rig.tick(1.0)
    assert shown(rig) == {}
    assert rig.booked("owner") == {"Pod/p": 100.0}, "the report since the start keeps it"
    rig.pod("p", 1, "n", uid="uid-again")
    rig.passes(60.0)
    assert shown(rig) == {"Pod/p": 60.0}


def test_who_has_nothing_for_hours_comes_back_to_its_own_series() -> None:
    """The node's object was gone, and its pod known all the time; others came meanwhile."""
    rig = one_node()
    rig.node("m", 4)
    rig.pod("p", 1, "n", "x")
    rig.passes(60.0)
    rig.ledger.remove_node("n")
    rig.passes(3601.0)
    rig.pod("q", 2, "m", "y")
    rig.passes(60.0)
    rig.node("n", 4)
    rig.passes(60.0)
    assert shown(rig) == {"Pod/p": 120.0, "Pod/q": 240.0}


def test_masses_of_owners_share_a_series() -> None:
    rig = Rig(wanted=UsageSettings(max_series=20))
    rig.node("n", 8)
    for number in range(8):
        rig.pod(f"p{number}", 1, "n")
    rig.passes(60.0)
    assert shown(rig) == {"Pod/p0": 60.0, "Pod/p1": 60.0, "(other)": 360.0}


# Idle pods


def idle(rig: Rig, after_s: float = 600.0) -> list[tuple[str, float]]:
    return [(one.pod, one.idle_s) for one in rig.meter.idle.pods(rig.clock(), after_s)]


def test_pods_whose_gpus_are_all_idle_for_long_are_named() -> None:
    rig = one_node()
    rig.pod("works", 1, "n", assigned="0")
    rig.pod("sleeps", 1, "n", assigned="1")
    rig.pod("half", 2, "n", assigned="2,3")
    for _ in range(11):
        rig.loads("n", 0.9, 0.0, 0.0, 0.8)
        rig.tick(60.0)
    assert idle(rig) == [("default/sleeps", 600.0)]
    rig.loads("n", 0.9, 0.3, 0.0, 0.8)
    rig.tick(5.0)
    assert idle(rig) == []


def test_of_whom_nothing_is_known_for_a_while_nobody_says_that_it_did_nothing() -> None:
    rig = one_node()
    rig.pod("sleeps", 1, "n", assigned="0")
    rig.loads("n", 0.0, 0.0, 0.0, 0.0)
    rig.tick()
    observed = rig.ledger.arrays.observed
    assert observed is not None
    rig.clock.now += 1000.0
    rig.ledger.arrays.touch(observed.age(rig.clock()))
    rig.tick()
    rig.loads("n", 0.0, 0.0, 0.0, 0.0)
    rig.tick()
    assert idle(rig) == []


WINDOW_S = 600.0
ROWS = (
    # GPU-seconds of the owner of two GPUs (booked, used, measured, idle), and whether that was idle
    ([1200.0, 3.0, 1200.0, 1200.0], True),
    ([1150.0, 3.0, 1000.0, 1000.0], True),  # some of it was lost in between
    ([600.0, 3.0, 600.0, 600.0], False),  # half of its GPUs are new
    ([1200.0, 3.0, 1200.0, 1190.0], False),  # one was at work
    ([1200.0, 3.0, 500.0, 500.0], False),  # of most of it nobody knows
)


def test_what_others_saw_who_led_before_is_recalled() -> None:
    for row, recalled in ROWS:
        rig = one_node()
        for number in (0, 1):
            rig.pod(f"job-{number}", 1, "n", assigned=str(number), owner="Job/j")
        rig.pod("works", 1, "n", assigned="2")
        rig.pod("unknown", 1, "n", assigned="3")
        rig.loads("n", 0.0, 0.0, 0.9, 0.0)
        rig.tick()
        rows = {"default/Pod/works": [600.0, 0.0, 600.0, 600.0], "default/Job/j": row}
        rig.meter.idle.recall(rows, WINDOW_S, rig.clock())
        assert idle(rig) == ([("default/job-0", 600.0), ("default/job-1", 600.0)] if recalled else [])
        rig.loads("n", 0.9, 0.0, 0.9, 0.0)
        rig.tick()
        assert [name for name, _ in idle(rig)] == (["default/job-1"] if recalled else []), "at work again"


class Told:
    """A Prometheus, or none for as long as it has faults."""

    def __init__(self, faults: int) -> None:
        self.faults, self.asked = faults, 0

    async def answer(self, window_s: int, by: str) -> PrometheusAnswer:
        self.asked += 1
        if self.asked <= self.faults:
            raise PastError("no connection")
        assert (window_s, by) == (1800, "owner")
        return PrometheusAnswer({"default/Pod/sleeps": [1800.0, 0.0, 1800.0, 1800.0]}, [])


@pytest.mark.parametrize(("faults", "asked"), [(0, 1), (2, 3), (9, 5)])
def test_who_leads_anew_asks_once_or_until_there_is_an_answer(faults: int, asked: int) -> None:
    rig, told = one_node(), Told(faults)
    rig.pod("sleeps", 1, "n", assigned="0")
    usage = Usage(rig.meter, Budgets({}, DAY_S), None, lambda: rig.standby, rig.clock, rig.clock)
    recall = IdleRecall(usage, told)  # type: ignore[arg-type]
    asks = []
    for _ in range(20):
        rig.loads("n", 0.0, 0.0, 0.0, 0.0)
        rig.tick(30.0)
        asyncio.run(recall.round())
        asks.append(told.asked)
    assert asks[:4] == [0, 0, 0, 0], "telemetry is to have told of now"
    assert asks[-1] == asked
    assert [name for name, _ in idle(rig, 1800.0)] == (["default/sleeps"] if faults < 5 else [])
    rig.standby = "standby"
    rig.tick(30.0)
    rig.standby, rig.led = "", LeadTime("2", rig.clock() - 15, float("inf"))
    for _ in range(6):
        rig.tick(30.0)
        asyncio.run(recall.round())
    assert told.asked > asked, "a new term, a new question"


def test_two_meters_of_one_cluster_count_each_moment_once() -> None:
    """The first is paused, the second takes over, the first wakes up: as the Lease tells them."""
    clock = Clock()
    rigs = [Rig(clock=clock), Rig(clock=clock, standby="standby", led=LeadTime("", float("-inf"), float("-inf")))]
    for rig in rigs:
        rig.node("n", 4)
        rig.pod("p", 3, "n")
    first, second = rigs
    for renewed in (1000.0, 1002.0, 1004.0):
        clock.now = renewed + 0.5
        first.led = LeadTime("a", 1000.0, renewed)
        first.tick()
        second.tick()
    clock.now = 1021.0  # 15 s after the second saw the renewal of 1004, at 1006
    second.standby, second.led = "", LeadTime("b", 1006.0, 1021.0)
    second.tick()
    first.tick(1.0)  # wakes up, and takes itself for the leader yet
    first.standby = "standby: the lease is held by b"
    first.tick()
    second.led = LeadTime("b", 1006.0, 1030.0)
    second.tick(8.0)
    total = first.booked()["default"] + second.booked()["default"]
    assert total == 3 * (30.0 - 2.0)  # of the 30 s those between the renewal and its sight are nobody's


def test_pods_that_come_and_go_are_forgotten_and_their_numbers_used_again() -> None:
    rig = one_node()
    for number in range(2500):
        rig.pod(f"p{number}", 1, "n")
        rig.gone(f"p{number}")
    assert len(rig.meter.holders._who) < 2100  # noqa: SLF001 - nobody has looked at any of them
    for number in range(5):
        rig.pod(f"q{number}", 1, "n")
        rig.tick()
        rig.gone(f"q{number}")
    assert rig.meter.holders.num_numbers == 2


def test_who_gets_the_number_of_another_is_not_idle_for_as_long() -> None:
    rig = one_node()
    rig.pod("sleeps", 1, "n", assigned="0")
    rig.loads("n", 0.0)
    rig.passes(100.0)
    assert idle(rig, 60.0) == [("default/sleeps", 100.0)]
    rig.gone("sleeps")
    asyncio.run(rig.meter.occupants.catch_up())  # not the meter itself, which looks at times
    rig.pod("fresh", 1, "n", assigned="0")
    asyncio.run(rig.meter.occupants.catch_up())
    (holder,) = [holder for holder in rig.meter.holders.all() if holder is not None]
    assert (holder.name, holder.number) == ("default/fresh", 0)
    assert np.isnan(rig.meter.idle.seconds(rig.clock(), 1)).all()
    assert idle(rig, 60.0) == []
    rig.loads("n", 0.0)
    rig.passes(10.0)
    assert idle(rig, 60.0) == [], "nor once the meter has looked"


def share(milli: int, mib: int, gpu: int) -> dict[str, str]:
    """Of a pod that asks by annotation, and was given a part of a GPU."""
    return {SHARE: str(milli), ASSIGNED_GPUS: str(gpu), ASSIGNED_SHARE: str(milli), ASSIGNED_MEMORY: str(mib)}


SHARED = {"resource": SHARED_GPU_RESOURCE}
PODS: tuple[tuple[dict[str, Any], list[dict[str, Any]]], ...] = (
    # What a node has beside four GPUs, and its pods
    ({}, [{"gpus": 2, "assigned": "0,3"}]),
    ({}, [{"gpus": 2}, {"gpus": 1, "assigned": "1"}]),
    ({}, [{"annotations": share(500, 0, 0)}, {"annotations": share(300, 0, 0)}]),
    (SHARED | {"replicas": 4}, [{"gpus": 3} | SHARED, {"gpus": 1} | SHARED]),
)


def test_the_sum_is_the_ledger_s() -> None:
    for node, pods in PODS:
        rig = Rig()
        rig.node("n", 4, **node)
        for number, kinds in enumerate(pods):
            asked: dict[str, Any] = {"gpus": 0} | kinds
            rig.pod(f"p{number}", asked.pop("gpus"), "n", **asked)
        rig.passes(1.0)
        booked = float(Figures(rig.ledger.snapshot(rig.clock())).booked.sum())
        assert booked > 0
        assert sum(rig.booked().values()) == pytest.approx(booked, abs=1e-9)


def test_a_share_by_memory_counts_as_its_part_of_the_memory() -> None:
    rig = Rig()
    rig.node("n", 4)
    asked = {SHARE: "100", MEMORY_EACH: "7680Mi"} | share(100, 7680, 0)
    rig.pod("p", 0, "n", annotations=asked)
    rig.passes(10.0)
    assert rig.booked() == {"default": 5.0}  # 7680 of 15360 MiB


def test_mig_devices_count_as_sevenths() -> None:
    rig = Rig()
    rig.node("n", 7, resource=f"{MIG_RESOURCE_PREFIX}1g.5gb", product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    rig.pod("p", 2, "n", resource=f"{MIG_RESOURCE_PREFIX}1g.5gb")
    rig.passes(1000.0)
    assert rig.booked("gpu_model") == {"a100-sxm4-40gb": 284.0}  # twice 142 thousandths
    assert rig.sums()["capacity"] == 994_000_000


def test_devices_of_a_claim_count_for_the_pod_that_has_it() -> None:
    rig = Rig()
    rig.node("n", 0)
    rig.ledger.upsert_device(slice_of("n", 4))
    pod = rig.pod("p", 0, "n", "team")
    pod.spec.resource_claims = [PodClaim("gpu")]
    rig.meter.holders.pod_changed(None, pod)
    claim = resource_claim("a", devices=("gpu-1", "gpu-2"), pool="n", pods=("p",))
    claim.metadata.namespace = "team"
    rig.ledger.upsert_device(claim)
    lonely = resource_claim("b", devices=("gpu-3",), pool="n")
    rig.ledger.upsert_device(lonely)
    rig.passes(10.0)
    assert {(key.namespace, key.owner): row[0] / 1e6 for key, row in rig.meter.accounts.rows().items()} == {
        ("team", "Pod/p"): 20.0,
        ("default", "ResourceClaim/b"): 10.0,
    }
    assert rig.sums()["capacity"] == 40_000_000
