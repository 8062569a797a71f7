"""Pods that no node has room for, let go one unit at a time so that autoscalers see them."""

import asyncio
from dataclasses import replace
from typing import Any

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

TICK = 0.125
"""A time that adds up without rounding."""
LIMIT_S = 1024.0


def letting(rig: Rig, *, after_s: float = 0.0) -> Rig:
    """A rig whose pods without room are let go."""
    queue = rig.queue
    rig.now = 2000.0
    rig.lets_roomless_go = AutoscalerReleases(
        queue.backlog, queue.dispatcher, lambda: rig.now, after_s=after_s, limit_s=LIMIT_S
    )
    return rig


def rig_with(*, after_s: float = 0.0, **options: Any) -> Rig:
    """A node with 2 GPUs, both in use."""
    rig = letting(Rig(**{"order": Order.FIFO} | options), after_s=after_s)
    rig.node("n", 2)
    rig.pod("runs", 2)
    rig.round()
    rig.bind("runs")
    return rig


def comes(rig: Rig, name: str, gpus: int = 2, namespace: str = "ns", **annotations: str) -> None:
    """A pod is created, and the queue has not looked at it yet."""
    rig.pod(name, gpus, **annotations)
    rig.api.pods[name]["metadata"]["namespace"] = namespace
    rig.told(name)


def waiting(rig: Rig, *names: str, gpus: int = 2) -> Rig:
    """Pods that no node has room for; the first is let go where nothing else is out."""
    for name in names:
        rig.pod(name, gpus)
    rig.round(TICK)
    return rig


def gang(rig: Rig, *names: str) -> Rig:
    for name in names or ("g0", "g1"):
        rig.pod(name, 2, gang="g", gang_size="2")
    rig.round(TICK)
    return rig


def num_let_go(rig: Rig) -> int:
    releases = rig.lets_roomless_go
    assert isinstance(releases, AutoscalerReleases)
    return releases.num


def is_open(rig: Rig, name: str) -> bool:
    return not rig.api.pods[name]["spec"]["schedulingGates"]


def opened(rig: Rig) -> list[str]:
    return [name for name in rig.api.order if name != "runs"]


def asked(rig: Rig, name: str) -> str:
    """What filter is told of a pod."""
    return rig.queue.over_quota(PodIdentity("ns", name, name), GpuRequest(1))


def stage(rig: Rig, name: str) -> Stage:
    return rig.queue.backlog.entries[name].stage


def test_the_first_that_has_no_room_is_let_go_after_a_while_without_a_node() -> None:
    rig = rig_with(after_s=64.0)
    rig.pod("p", 2)
    rig.pod("q", 1)
    rig.round(64.0 - TICK)
    assert opened(rig) == [], "it has not waited for long"
    rig.round(TICK)
    assert opened(rig) == ["p"]
    assert "nominatedNodeName" not in rig.api.pods["p"]["status"], "autoscalers pass over pods with a nomination"
    assert (rig.note("p", "planned-by"), rig.note("p", "planned-node")) == (FOR_AUTOSCALERS, "")
    rig.refuse("p")
    rig.round(60)
    assert (opened(rig), num_let_go(rig)) == (["p"], 1), "one at a time"


def test_a_gang_has_waited_for_as_long_as_its_first_pod() -> None:
    rig = rig_with(after_s=64.0)
    rig.pod("g0", 2, gang="g", gang_size="2")
    rig.now += 60.0
    rig.pod("g1", 2, gang="g", gang_size="2")
    rig.round(4.0)
    assert sorted(opened(rig)) == ["g0", "g1"]


def test_nobody_is_let_go_unless_that_is_wanted() -> None:
    rig = rig_with()
    rig.lets_roomless_go = None
    waiting(rig, "p")
    rig.round(10_000)
    assert not is_open(rig, "p")


def test_it_is_nominated_when_a_node_comes_and_the_next_is_let_go() -> None:
    """Until then it evicts nobody, and is held to its quota, which others may have used up by then."""
    rig = waiting(rig_with(), "p", "q")
    entry = rig.queue.backlog.entries["p"]
    assert (asked(rig, "p"), rig.queue.preemption_refusal("runs"), entry.by_kerf) == ("", "", False)
    assert rig.queue.preemption_refusal("p")
    rig.refuse("p")
    rig.round()
    assert (stage(rig, "p"), bool(rig.queue.preemption_refusal("p"))) == (Stage.LOST, True), "it waits for a plan"
    rig.node("new", 2)
    rig.round()
    assert rig.node_of("p") == rig.note("p", "planned-node") == "new"
    assert rig.queue.preemption_refusal("p") == ""
    assert opened(rig) == ["p", "q"], "p has a node in view"
    rig.remove_node("new")
    rig.refuse("p")
    rig.round(60)
    assert (stage(rig, "p"), rig.queue.preemption_refusal("p")) == (Stage.LOST, ""), "as any other that was nominated"


def test_kube_scheduler_may_find_a_node_for_it_by_itself() -> None:
    rig = waiting(rig_with(), "p", "q")
    rig.api.pods["p"]["spec"]["nodeName"] = "n"
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["p"]))
    rig.round()
    assert opened(rig) == ["p", "q"]


def test_the_next_is_let_go_when_the_first_has_had_its_time() -> None:
    """Later if it asks for the same, of which an autoscaler knows."""
    for gpus, limit_s in ((1, LIMIT_S), (2, 4 * LIMIT_S)):
        rig = waiting(rig_with(), "p")
        rig.refuse("p")
        waiting(rig, "q", gpus=gpus)
        rig.round(limit_s - 2 * TICK)
        assert opened(rig) == ["p"]
        rig.round(TICK)
        assert opened(rig) == ["p", "q"]
        assert num_let_go(rig) == 2
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


def test_a_gang_is_let_go_whole_and_starts_whole() -> None:
    rig = gang(rig_with())
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
    assert asked(rig, "g0") == asked(rig, "g1") == asked(rig, "unknown") == ""


def test_a_gang_of_which_some_are_let_go_is_completed_first() -> None:
    rig = rig_with()
    rig.api.fail = lambda name, part: ApiError(500, "InternalError", "no") if name == "g1" and not part else None
    gang(rig)
    rig.pod("p", 2)
    assert opened(rig) == ["g0"]
    rig.refuse("g0")
    rig.api.fail = lambda name, part: None
    rig.round()
    assert opened(rig) == ["g0", "g1"], "the limit is for the gang"
    assert "gang" in asked(rig, "g0")


def test_who_comes_within_a_minute_belongs_to_the_gang_that_is_being_let_go() -> None:
    for later_s, whole in ((60.0, True), (60.0 + TICK, False)):
        rig = gang(rig_with())
        assert sorted(opened(rig)) == ["g0", "g1"]
        rig.now += later_s
        rig.pod("g2", 2, gang="g", gang_size="2")
        rig.round()
        assert is_open(rig, "g2") is whole


def test_a_kerf_that_starts_knows_what_was_let_go() -> None:
    rig = gang(rig_with())
    rig.pod("p", 1)
    for name in ("g0", "g1"):
        rig.refuse(name)
    again = rig_with()
    again.api.pods |= {name: rig.api.pods[name] for name in ("g0", "g1", "p")}
    for name in ("g0", "g1", "p"):
        again.told(name)
    again.round()
    assert stage(again, "g0") is stage(again, "g1") is Stage.LOST
    assert "gang" in asked(again, "g0")
    again.round(60)
    assert not is_open(again, "p"), "one at a time"
    for name in ("new-0", "new-1"):
        again.node(name, 2)
    again.round()
    assert {again.node_of("g0"), again.node_of("g1")} == {"new-0", "new-1"}


def test_a_kerf_that_starts_gives_those_their_turn_of_whom_nobody_is_out() -> None:
    before = waiting(rig_with(), "a0")
    before.refuse("a0")
    rig = letting(Rig(before.api, order=Order.FIFO))
    rig.node("n", 1)
    rig.told("a0")
    comes(rig, "a1", 3)
    comes(rig, "b", 4, "other")
    rig.round(TICK)
    assert opened(rig) == ["a0"]
    rig.round(LIMIT_S)
    assert opened(rig) == ["a0", "b"]


def test_until_the_queue_is_known_nobody_gets_a_node() -> None:
    rig = rig_with()
    for reflector in rig.queue.reflectors.values():
        reflector.num_lists = 0
    assert "not synced" in asked(rig, "g0")
    assert asked(Rig(), "g0") == ""


def test_who_opts_out_meanwhile_is_kube_schedulers() -> None:
    rig = waiting(rig_with(), "p")
    rig.refuse("p")
    rig.round()
    rig.api.pods["p"]["metadata"]["labels"] = {"kerf.dev/queue": "disabled"}
    rig.told("p")
    for _ in range(3):
        rig.round()
        assert stage(rig, "p") is Stage.OPENED


def test_a_gate_that_could_not_be_opened_is_tried_again() -> None:
    api = Api()
    api.fail = lambda name, part: ClusterError("gone") if name == "p" and not part else None
    rig = waiting(rig_with(api=api), "p")
    assert num_let_go(rig) == 0
    api.fail = lambda name, part: None
    rig.round()
    assert is_open(rig, "p")


PRODUCT, OTHER = ({"key": key, "operator": "Exists"} for key in ("nvidia.com/gpu.product", "zone"))
BY_PRODUCT, BY_OTHER = {"matchExpressions": [PRODUCT]}, {"matchExpressions": [OTHER]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}


def by_terms(terms: Any) -> dict[str, Any]:
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


def test_where_kube_scheduler_asks_nobody_those_stay_that_it_would_place_wrongly() -> None:
    """A pod that asks for a model goes where it names its products itself, in each way to choose nodes."""
    model, one_gang = {"gpu_model": "a100"}, {"gang": "g", "gang_size": "1"}
    for annotations, spec, goes in (
        ({}, {}, True),
        (one_gang, {}, False),
        (model, {}, False),
        (model, {"affinity": {"nodeAffinity": {}}, "nodeSelector": {}}, False),
        (model, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}, True),
        (model, by_terms([{"matchExpressions": [OTHER, PRODUCT]}]), True),
        (model, by_terms([BY_PRODUCT, BY_PRODUCT]), True),
        (model, by_terms([BY_PRODUCT, BY_OTHER]), False),
        (model, by_terms([BY_NAME]), False),
        (model, by_terms([]), False),
        (model, by_terms(None), False),
    ):
        rig = rig_with()
        rig.queue.mode.has_extender = False  # type: ignore[misc]
        rig.pod("p", 2, **annotations)
        rig.api.pods["p"]["spec"] |= spec
        rig.told("p")
        rig.round(TICK)
        assert is_open(rig, "p") is goes, spec


def test_the_queue_goes_on_meanwhile() -> None:
    rig = waiting(rig_with(), "p")
    rig.refuse("p")
    rig.node("small", 1)
    rig.pod("q", 1)
    rig.round()
    assert rig.node_of("q") == "small"
    asyncio.run(rig.queue.dispatcher.finish())


def of_two_namespaces() -> Rig:
    """Three pods of one, of which the first is let go, and one of another."""
    rig = rig_with()
    for number in range(3):
        comes(rig, f"a{number}", 3 + number)
    comes(rig, "b", 2, "other")
    rig.round(TICK)
    assert opened(rig) == ["a0"]
    return rig


def test_no_namespace_takes_all_turns() -> None:
    rig = of_two_namespaces()
    rig.refuse("a0")
    rig.round(LIMIT_S)
    assert opened(rig) == ["a0", "b"]


def test_who_deletes_what_was_let_go_has_had_its_turn() -> None:
    rig = of_two_namespaces()
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a0"]))
    rig.round()
    assert opened(rig) == ["a0", "b"]


def test_a_gang_that_grows_takes_no_more_turns_than_others_do() -> None:
    rig = gang(rig_with())
    comes(rig, "b", 1, "other")
    rig.round(60)
    for number in range(2, 5):
        rig.refuse(opened(rig)[-1])
        rig.round(100)
        rig.pod(f"g{number}", 2, gang="g", gang_size="2")
        rig.round()
        assert not is_open(rig, f"g{number}"), "it was not there when the others went"
        rig.round(400)
    assert opened(rig)[:3] == ["g0", "g1", "b"]


def test_of_pods_without_gpus_and_of_those_with_claims_kerf_is_not_asked_by_kube_scheduler() -> None:
    rig = rig_with()
    rig.pod("claims", 2)
    rig.pod("cpu", 0, gang="g", gang_size="2")
    rig.pod("gpu", 2, gang="g", gang_size="2")
    entry = rig.queue.backlog.entries["claims"]
    assert entry.planned is not None
    entry.planned = replace(entry.planned, claims=("u",))
    rig.round()
    rig.round(60.0)
    assert opened(rig) == []


def test_only_those_are_out_that_have_neither_a_node_nor_a_nomination() -> None:
    rig = waiting(rig_with(), "p")
    entry = rig.queue.backlog.entries["p"]
    assert rig.queue.preemption_refusal("unknown") == ""
    entry.node = "n"
    assert rig.queue.preemption_refusal("p") == ""
    entry.node = ""
    for stage, out in ((Stage.LOST, True), (Stage.RENOMINATING, False), (Stage.GATED, False), (Stage.OPENED, True)):
        entry.stage = stage
        assert bool(rig.queue.preemption_refusal("p")) is out
    rig.api.pods["p"]["metadata"]["annotations"]["kerf.dev/planned-node"] = "n"
    rig.told("p")
    assert rig.queue.preemption_refusal("p") == ""
