"""Pods that no node has room for, let go one unit at a time so that autoscalers see them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError, ClusterError
from extender.kube.watches import PODS
from extender.parts.autoscaling.releases import AutoscalerReleases
from extender.planning.quotas import Quotas
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.nominations import FOR_AUTOSCALERS
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.queueing.rigs import Api, Rig


def letting(rig: Rig, *, after_s: float = 60.0, limit_s: float = 900.0) -> Rig:
    """A rig whose pods without room are let go."""
    queue = rig.queue
    rig.lets_roomless_go = AutoscalerReleases(
        queue.backlog, queue.dispatcher, lambda: rig.now, after_s=after_s, limit_s=limit_s
    )
    return rig


def num_let_go(rig: Rig) -> int:
    releases = rig.lets_roomless_go
    assert isinstance(releases, AutoscalerReleases)
    return releases.num


def rig_with(*, after_s: float = 60.0, limit_s: float = 900.0, **options: Any) -> Rig:
    """A node with 2 GPUs, both in use."""
    rig = letting(Rig(**{"order": Order.FIFO} | options), after_s=after_s, limit_s=limit_s)
    rig.node("n", 2)
    rig.pod("runs", 2)
    rig.round()
    rig.bind("runs")
    return rig


def is_open(rig: Rig, name: str) -> bool:
    return not rig.api.pods[name]["spec"]["schedulingGates"]


def opened(rig: Rig) -> list[str]:
    return [name for name in rig.api.order if name != "runs"]


def asked(rig: Rig, name: str) -> str:
    """What filter is told of a pod."""
    return rig.queue.over_quota(PodIdentity("ns", name, name), GpuRequest(1))


def test_the_first_that_has_no_room_is_let_go_after_a_while_without_a_node() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.pod("q", 1)
    rig.round()
    assert not is_open(rig, "p"), "it has not waited for long"
    rig.round(60)
    assert opened(rig) == ["p"]
    assert "nominatedNodeName" not in rig.api.pods["p"]["status"], "autoscalers pass over pods with a nomination"
    assert rig.note("p", "planned-by") == FOR_AUTOSCALERS
    assert rig.note("p", "planned-node") == ""
    assert num_let_go(rig) == 1
    rig.refuse("p")
    rig.round(60)
    assert opened(rig) == ["p"], "one at a time"


def test_nobody_is_let_go_unless_that_is_wanted() -> None:
    rig = rig_with()
    rig.lets_roomless_go = None
    rig.pod("p", 2)
    rig.round()
    rig.round(10_000)
    assert not is_open(rig, "p")


def test_it_is_nominated_when_a_node_comes_and_the_next_is_let_go() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.pod("q", 1)
    rig.round()
    rig.round(60)
    rig.refuse("p")
    rig.round()
    assert rig.queue.backlog.entries["p"].stage is Stage.LOST, "it waits for a plan"
    rig.node("new", 2)
    rig.round()
    assert rig.node_of("p") == "new"
    assert rig.note("p", "planned-node") == "new"
    assert opened(rig) == ["p", "q"], "p has a node in view"


def test_kube_scheduler_may_find_a_node_for_it_by_itself() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.pod("q", 1)
    rig.round()
    rig.round(60)
    rig.api.pods["p"]["spec"]["nodeName"] = "n"
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["p"]))
    rig.round()
    assert opened(rig) == ["p", "q"]


def test_after_the_limit_the_next_is_let_go_unless_it_asks_for_the_same() -> None:
    rig = rig_with()
    rig.pod("p", 2, created="2026-01-01T00:00:00Z")
    rig.pod("same", 2, created="2026-01-02T00:00:00Z")
    rig.pod("other", 1, created="2026-01-03T00:00:00Z")
    rig.round()
    rig.round(60)
    rig.refuse("p")
    rig.round(890)
    assert opened(rig) == ["p"]
    rig.round(20)
    assert opened(rig) == ["p", "other"]
    rig.round(2000)
    assert opened(rig) == ["p", "other"], "an autoscaler knows of all that is asked"
    rig.round(2000)
    assert opened(rig) == ["p", "other", "same"], "no node came: what the first asks besides may be what nobody has"
    assert is_open(rig, "p"), "a gate can't be closed again"


def test_what_another_node_would_not_help_stays_behind_its_gate() -> None:
    rig = rig_with(quotas=Quotas({"ns": 2, "else": 9}))
    rig.pod("over", 3)
    rig.pod("half", 1, gang="g", gang_size="2")
    rig.pod("odd", 1, gpu_memory_each="lots")
    rig.pod("cpu", 0)
    rig.api.pods["cpu"]["spec"]["containers"] = [{"resources": {"limits": {"cpu": 1000}}}]
    rig.told("cpu")
    rig.pod("held", 2)
    rig.api.pods["held"]["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}, {"name": "other"}]
    rig.told("held")
    rig.round()
    rig.round(10_000)
    assert opened(rig) == []


def gang(rig: Rig) -> None:
    for name in ("g0", "g1"):
        rig.pod(name, 2, gang="g", gang_size="2")


def test_a_gang_is_let_go_whole_and_starts_whole() -> None:
    rig = rig_with()
    gang(rig)
    rig.round()
    rig.round(60)
    assert opened(rig) == ["g0", "g1"]
    for name in ("g0", "g1"):
        assert "gang" in asked(rig, name)
        rig.refuse(name)
    rig.node("new-0", 2)
    rig.round()
    assert not rig.node_of("g0")
    assert "gang" in asked(rig, "g0"), "there is room for one of them, and the other would wait"
    rig.node("new-1", 2)
    rig.round()
    assert {rig.node_of("g0"), rig.node_of("g1")} == {"new-0", "new-1"}
    assert asked(rig, "g0") == asked(rig, "g1") == ""


def test_a_pod_on_its_own_may_go_wherever_there_is_room() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    assert asked(rig, "p") == ""


def test_what_was_let_go_for_a_new_node_evicts_nobody() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    assert rig.queue.evicts_nobody("p")
    assert rig.queue.evicts_nobody("runs") == ""
    rig.refuse("p")
    rig.round()
    assert rig.queue.evicts_nobody("p")
    rig.node("new", 2)
    rig.round()
    assert rig.queue.evicts_nobody("p") == ""


def test_a_gang_of_which_some_are_let_go_is_completed_first() -> None:
    rig = rig_with()
    gang(rig)
    rig.pod("p", 2)
    rig.api.fail = lambda name, part: ApiError(500, "InternalError", "no") if name == "g1" and not part else None
    rig.round()
    rig.round(60)
    assert opened(rig) == ["g0"]
    rig.refuse("g0")
    rig.api.fail = lambda name, part: None
    rig.round()
    assert opened(rig) == ["g0", "g1"], "the limit is for the gang"
    assert "gang" in asked(rig, "g0")


def test_a_kerf_that_starts_knows_what_was_let_go() -> None:
    rig = rig_with()
    gang(rig)
    rig.pod("p", 1)
    rig.round()
    rig.round(60)
    for name in ("g0", "g1"):
        rig.refuse(name)
    again = rig_with()
    again.api.pods |= {name: rig.api.pods[name] for name in ("g0", "g1", "p")}
    for name in ("g0", "g1", "p"):
        again.told(name)
    again.round()
    assert all(again.queue.backlog.entries[name].stage is Stage.LOST for name in ("g0", "g1"))
    assert "gang" in asked(again, "g0")
    again.round(60)
    assert not is_open(again, "p"), "one at a time"
    for name in ("new-0", "new-1"):
        again.node(name, 2)
    again.round()
    assert {again.node_of("g0"), again.node_of("g1")} == {"new-0", "new-1"}


def test_until_the_queue_is_known_nobody_gets_a_node() -> None:
    rig = rig_with()
    for reflector in rig.queue.reflectors.values():
        reflector.num_lists = 0
    assert asked(rig, "g0") == "the queue is not synced yet"
    assert asked(Rig(), "g0") == ""


def test_who_opts_out_meanwhile_is_kube_schedulers() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    rig.refuse("p")
    rig.round()
    rig.api.pods["p"]["metadata"]["labels"] = {"kerf.dev/queue": "disabled"}
    rig.told("p")
    for _ in range(3):
        rig.round()
        assert rig.queue.backlog.entries["p"].stage is Stage.OPENED


def test_a_gate_that_could_not_be_opened_is_tried_again() -> None:
    api = Api()
    api.fail = lambda name, part: ClusterError("gone") if name == "p" and not part else None
    rig = rig_with(api=api)
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    assert num_let_go(rig) == 0
    api.fail = lambda name, part: None
    rig.round()
    assert is_open(rig, "p")


@pytest.mark.parametrize(("annotations", "goes"), [({}, True), ({"gpu_model": "a100"}, False), ({"gang": "g"}, False)])
def test_where_kube_scheduler_asks_nobody_those_stay_that_it_would_place_wrongly(
    annotations: dict[str, str], goes: bool
) -> None:
    rig = rig_with()
    rig.queue.mode.is_asked = False  # type: ignore[misc]
    rig.pod("p", 2, **annotations, **({"gang_size": "1"} if "gang" in annotations else {}))
    rig.round()
    rig.round(60)
    assert is_open(rig, "p") is goes


def test_a_pod_that_names_its_products_goes_there_too() -> None:
    rig = rig_with()
    rig.queue.mode.is_asked = False  # type: ignore[misc]
    rig.pod("p", 2, gpu_model="a100")
    rig.api.pods["p"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    rig.told("p")
    rig.round()
    rig.round(60)
    assert is_open(rig, "p")


def test_the_queue_goes_on_meanwhile() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    rig.refuse("p")
    rig.node("small", 1)
    rig.pod("q", 1)
    rig.round()
    assert rig.node_of("q") == "small"
    asyncio.run(rig.queue.dispatcher.finish())


def test_no_namespace_takes_all_turns() -> None:
    rig = rig_with()
    for number in range(3):
        rig.pod(f"a{number}", 3 + number)
    rig.pod("b", 2)
    rig.api.pods["b"]["metadata"]["namespace"] = "other"
    rig.told("b")
    rig.round()
    rig.round(60)
    rig.refuse("a0")
    rig.round(900)
    assert opened(rig) == ["a0", "b"]


def of_another(rig: Rig, name: str) -> None:
    """A pod of another namespace than all others."""
    rig.pod(name, 1)
    rig.api.pods[name]["metadata"]["namespace"] = "other"
    rig.told(name)


def test_a_gang_that_grows_takes_no_more_turns_than_others_do() -> None:
    rig = rig_with()
    gang(rig)
    of_another(rig, "b")
    rig.round()
    rig.round(60)
    for number in range(2, 5):
        rig.refuse(opened(rig)[-1])
        rig.round(100)
        rig.pod(f"g{number}", 2, gang="g", gang_size="2")
        rig.round()
        assert not is_open(rig, f"g{number}"), "it was not there when the others went"
        rig.round(400)
    assert opened(rig)[:3] == ["g0", "g1", "b"]


def test_who_deletes_what_was_let_go_has_had_its_turn() -> None:
    rig = rig_with()
    for number in range(3):
        rig.pod(f"a{number}", 3 + number)
    of_another(rig, "b")
    rig.round()
    rig.round(60)
    assert opened(rig) == ["a0"]
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a0"]))
    rig.round()
    assert opened(rig) == ["a0", "b"]


def test_one_that_is_let_go_is_held_to_its_quota_and_is_as_any_other_once_it_was_nominated() -> None:
    rig = rig_with()
    rig.pod("p", 2)
    rig.round()
    rig.round(60)
    assert not rig.queue.backlog.entries["p"].by_kerf, "others may have used up the quota when a node comes"
    rig.refuse("p")
    rig.round()
    rig.node("new", 2)
    rig.round()
    assert rig.node_of("p") == "new"
    rig.remove_node("new")
    rig.refuse("p")
    rig.round(60)
    assert rig.queue.backlog.entries["p"].stage is Stage.LOST
    assert rig.queue.evicts_nobody("p") == ""


TICK = 0.125
"""A time that adds up without rounding."""


def waiting(rig: Rig, *names: str, gpus: int = 2) -> None:
    """Pods that no node has room for, seen just now."""
    for name in names:
        rig.pod(name, gpus)
    rig.round(TICK)


def test_a_pod_is_let_go_once_it_has_waited_for_as_long_as_is_wanted() -> None:
    rig = rig_with(after_s=64.0)
    rig.now = 2000.0
    rig.pod("p", 2)
    rig.round(63.875)
    assert opened(rig) == []
    rig.round(TICK)
    assert opened(rig) == ["p"]


def test_a_gang_has_waited_for_as_long_as_its_first_pod() -> None:
    rig = rig_with(after_s=64.0)
    rig.now = 2000.0
    rig.pod("g0", 2, gang="g", gang_size="2")
    rig.now += 60.0
    rig.pod("g1", 2, gang="g", gang_size="2")
    rig.round(4.0)
    assert sorted(opened(rig)) == ["g0", "g1"]


@pytest.mark.parametrize(("gpus", "limit_s"), [(1, 1024.0), (2, 4096.0)], ids=["asks for less", "asks for the same"])
def test_the_next_is_let_go_when_the_first_has_had_its_time(gpus: int, limit_s: float) -> None:
    rig = rig_with(after_s=0.0, limit_s=1024.0)
    rig.now = 2000.0
    waiting(rig, "p")
    assert opened(rig) == ["p"]
    rig.refuse("p")
    waiting(rig, "q", gpus=gpus)
    rig.round(limit_s - 2 * TICK)
    assert opened(rig) == ["p"]
    rig.round(TICK)
    assert opened(rig) == ["p", "q"]
    assert num_let_go(rig) == 2


@pytest.mark.parametrize(("later_s", "whole"), [(60.0, True), (60.0 + TICK, False)])
def test_who_comes_within_a_minute_belongs_to_the_gang_that_is_being_let_go(later_s: float, whole: bool) -> None:
    rig = rig_with(after_s=0.0)
    rig.now = 2000.0
    for name in ("g0", "g1"):
        rig.pod(name, 2, gang="g", gang_size="2")
    rig.round(TICK)
    assert sorted(opened(rig)) == ["g0", "g1"]
    rig.now += later_s
    rig.pod("g2", 2, gang="g", gang_size="2")
    rig.round(0.0)
    assert is_open(rig, "g2") is whole


def test_a_kerf_that_starts_gives_those_their_turn_of_whom_nobody_is_out() -> None:
    before = rig_with(after_s=0.0)
    waiting(before, "a0")
    before.refuse("a0")
    rig = letting(Rig(before.api, order=Order.FIFO), after_s=0.0, limit_s=64.0)
    rig.node("n", 1)
    rig.told("a0")
    rig.pod("a1", 3)
    rig.pod("b", 4)
    rig.api.pods["b"]["metadata"]["namespace"] = "other"
    rig.told("b")
    rig.round(TICK)
    assert opened(rig) == ["a0"]
    rig.round(64.0)
    assert opened(rig) == ["a0", "b"]


def test_of_pods_without_gpus_and_of_those_with_claims_kerf_is_not_asked_by_kube_scheduler() -> None:
    rig = rig_with(after_s=0.0)
    rig.pod("claims", 2)
    rig.pod("cpu", 0, gang="g", gang_size="2")
    rig.pod("gpu", 2, gang="g", gang_size="2")
    entry = rig.queue.backlog.entries["claims"]
    assert entry.planned is not None
    entry.planned = replace(entry.planned, claims=("u",))
    rig.round()
    rig.round(60.0)
    assert opened(rig) == []


PRODUCT, OTHER = ({"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu.product", "zone"))


@pytest.mark.parametrize(
    ("terms", "goes"),
    [
        pytest.param([{"matchExpressions": [OTHER, PRODUCT]}], True, id="by affinity"),
        pytest.param([{"matchExpressions": [PRODUCT]}, {"matchExpressions": [PRODUCT]}], True, id="in each term"),
        pytest.param([{"matchExpressions": [PRODUCT]}, {"matchExpressions": [OTHER]}], False, id="in one term of two"),
        pytest.param([{"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}], False, id="by name alone"),
        pytest.param([], False, id="no term"),
        pytest.param(None, False, id="no terms"),
    ],
)
def test_a_pod_names_its_products_by_affinity_where_each_way_to_choose_nodes_does(terms: Any, goes: bool) -> None:
    rig = rig_with(after_s=0.0)
    rig.queue.mode.is_asked = False  # type: ignore[misc]
    rig.pod("p", 2, gpu_model="a100")
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    rig.api.pods["p"]["spec"]["affinity"] = {"nodeAffinity": required}
    rig.told("p")
    rig.round()
    assert is_open(rig, "p") is goes


def test_a_pod_of_which_nobody_says_anything_about_nodes_names_no_products() -> None:
    rig = rig_with(after_s=0.0)
    rig.queue.mode.is_asked = False  # type: ignore[misc]
    rig.pod("p", 2, gpu_model="a100")
    rig.api.pods["p"]["spec"]["affinity"] = {"nodeAffinity": {}}
    rig.api.pods["p"]["spec"]["nodeSelector"] = {}
    rig.told("p")
    rig.round()
    assert not is_open(rig, "p")


def test_only_those_are_out_that_have_neither_a_node_nor_a_nomination() -> None:
    rig = rig_with(after_s=0.0)
    waiting(rig, "p")
    assert rig.queue.evicts_nobody("p") == "it was released for a new node only"
    assert rig.queue.evicts_nobody("unknown") == ""
    entry = rig.queue.backlog.entries["p"]
    entry.node = "n"
    assert rig.queue.evicts_nobody("p") == ""
    entry.node = ""
    for stage, out in ((Stage.LOST, True), (Stage.RENOMINATING, False), (Stage.GATED, False), (Stage.OPENED, True)):
        entry.stage = stage
        assert bool(rig.queue.evicts_nobody("p")) is out
    rig.api.pods["p"]["metadata"]["annotations"]["kerf.dev/planned-node"] = "n"
    rig.told("p")
    assert rig.queue.evicts_nobody("p") == ""


def test_a_gang_that_was_let_go_starts_whole_and_a_pod_on_its_own_wherever_there_is_room() -> None:
    rig = rig_with(after_s=0.0)
    gang(rig)
    rig.round()
    assert asked(rig, "g0") == "its gang waits until all its pods have room"
    assert asked(rig, "unknown") == ""
    entry = rig.queue.backlog.entries["g0"]
    entry.planned = None
    assert asked(rig, "g0") == ""
