"""Pods on trial, as kube-scheduler refused others: how many are tried at a time, and until when."""

from dataclasses import replace
from typing import Any

import pytest

from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec, RequestSpec
from extender.core.orders import Order
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.planning.quotas import Quotas
from extender.planning.wait_reasons import Code
from extender.plugins.holdings import Holding
from extender.queueing.gangs import Unit
from extender.queueing.pods.entries import Stage
from tests.queueing.rigs import Rig, turns_beside
from tests.queueing.test_refusals import TRIED_FIRST, WORDS, Picky, cpu, excess, nodes, put_back, two_refused

TICK = 0.125
"""Seconds that add up without rounding."""


def delete(rig: Rig, name: str) -> None:
    rig.gone(name)
    del rig.api.pods[name]


def refused(rig: Rig, name: str, node: str) -> None:
    """A pod is released to a node, and refused."""
    rig.round(TICK)
    assert rig.node_of(name) == node
    rig.refuse(name, WORDS)


def refusing(rig: Rig, *namespaces: str, number: int) -> Rig:
    """kube-scheduler refuses this number of distinct pods of each namespace, which are then deleted."""
    for at in range(number):
        for namespace in namespaces:
            rig.pod(f"bad-{namespace}-{at}", 8, namespace=namespace, limits=cpu(1000 + at))
    Picky(rig).go(TICK)
    rig.round(TICK)
    for name in list(rig.api.pods):
        if name.startswith("bad"):
            delete(rig, name)
    return rig


def rig_of(num_nodes: int, **options: Any) -> Rig:
    rig = Rig(order=Order.FIFO, **options)
    nodes(rig, num_nodes)
    return rig


def one_refused(num_nodes: int = 1, **options: Any) -> Rig:
    """A pod of an owner was refused its node just now."""
    rig = rig_of(num_nodes, **options)
    rig.pod("bad-0", 8, owner="careless")
    refused(rig, "bad-0", "n0")
    rig.round(0.0)
    return rig


def new_pods(rig: Rig, number: int) -> None:
    """Pods unlike any before."""
    for at in range(number):
        rig.pod(f"new-{at}", 8, limits=cpu(2000 + at))


def test_of_a_namespace_with_three_refused_one_is_tried_at_a_time_until_kube_scheduler_takes_one() -> None:
    rig = refusing(rig_of(10), "ns", number=3)
    new_pods(rig, 3)
    rig.pod("of-another", 8, namespace="another")
    rig.round(0.375)
    assert rig.placed() == ["of-another"]
    assert rig.why("new-0") == str(Code.ON_TRIAL.reason(namespace="ns"))
    rig.round(TICK)
    assert rig.placed() == ["new-0", "of-another"], "half a second after the last refusal"
    rig.round(1.0)
    assert rig.placed() == ["new-0", "of-another"], "kube-scheduler has not answered yet"
    rig.bind("new-0")
    rig.round()
    assert len(rig.placed()) == 4
    two = refusing(rig_of(10), "ns", number=2)
    new_pods(two, 3)
    two.round(TICK)
    assert len(two.placed()) == 3


def test_the_pause_until_the_next_of_them_is_tried_doubles_up_to_ten_seconds() -> None:
    rig = refusing(rig_of(10), "ns", number=3)
    for number, pause_s in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0)):
        name = f"new-{number}"
        rig.pod(name, 8, limits=cpu(2000 + number))
        rig.round(pause_s - TICK)
        assert rig.placed() == []
        rig.round(TICK)
        assert rig.placed() == [name]
        rig.refuse(name, WORDS)
        rig.round(0.0)
        delete(rig, name)


def test_one_pod_that_is_refused_again_and_again_delays_no_other() -> None:
    rig = rig_of(10)
    rig.pod("bad-0", 8)
    for number in range(5):
        refused(rig, "bad-0", f"n{number}")
    rig.round(TICK)
    new_pods(rig, 2)
    rig.round(TICK)
    assert len(rig.placed()) == 3


@pytest.mark.parametrize(("later_s", "num"), [(600.0, 1), (600.0 + TICK, 2)])
def test_refusals_are_forgotten_after_ten_minutes(later_s: float, num: int) -> None:
    rig = rig_of(10)
    rig.pod("bad", 8, namespace="others", owner="careless")
    refusing(rig, "ns", number=3)
    rig.round(later_s - TICK)
    new_pods(rig, 2)
    for number in range(2):
        rig.pod(f"like-{number}", 8, namespace="others", owner="careless")
    rig.round(TICK)
    for kind in ("new", "like"):
        assert sum(name.startswith(kind) for name in rig.placed()) == num


def test_each_namespace_is_forgotten_ten_minutes_after_its_last_refusal() -> None:
    rig = refusing(rig_of(10), "a", "b", number=3)
    rig.round(500.0)
    refusing(rig, "a", number=1)
    rig.round(150.0)
    for namespace in ("a", "b"):
        for number in range(2):
            rig.pod(f"{namespace}-{number}", 8, namespace=namespace, limits=cpu(2000 + number))
    rig.round(TICK)
    assert rig.placed() == ["a-0", "b-0", "b-1"]


def test_pods_like_one_that_was_refused_are_tried_one_at_a_time_until_kube_scheduler_takes_one() -> None:
    rig = one_refused(num_nodes=10)
    delete(rig, "bad-0")
    for number in range(3):
        rig.pod(f"like-{number}", 8, owner="careless")
    rig.pod("other", 8, owner="another")
    rig.round(TICK)
    assert rig.placed() == ["like-0", "other"]
    assert rig.why("like-1") == f"kube-scheduler refused pods like it n0: {WORDS}"
    rig.bind("like-0")
    rig.round(TICK)
    assert rig.placed() == ["like-0", "like-1", "like-2", "other"]


def test_a_node_that_one_of_them_gets_after_all_is_not_ruled_out_any_more() -> None:
    rig = Rig()
    nodes(rig, 1, gpus=16)
    rig.pod("bad-0", 8, owner="careless")
    refused(rig, "bad-0", "n0")
    rig.pod("like-0", 8, owner="careless")
    rig.round(TICK)
    assert rig.placed() == []
    rig.api.pods["bad-0"]["status"]["nominatedNodeName"] = "n0"
    rig.bind("bad-0")
    rig.round(TICK)
    assert rig.placed() == ["bad-0", "like-0"]


def test_a_node_is_ruled_out_for_a_second_and_for_twice_as_long_each_time_up_to_a_minute() -> None:
    rig = one_refused()
    for out_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        rig.round(out_s - TICK)
        assert rig.placed() == []
        rig.round(TICK)
        assert rig.node_of("bad-0") == "n0"
        rig.refuse("bad-0", WORDS)
        rig.round(0.0)


@pytest.mark.parametrize(
    ("owner", "spec", "like"),
    [
        ("careless", {"nodeSelector": {"zone": "a"}}, True),  # kept to a domain by Kerf
        ("careless", {"tolerations": [{"key": "a", "operator": "Exists"}]}, False),
        ("another", {}, False),
        ("", {"nodeSelector": {"zone": "a"}}, False),  # no owner, other nodes
        ("", {"nodeSelector": {}, "tolerations": []}, True),
    ],
)
def test_which_pods_count_as_like_one_that_was_refused(owner: str, spec: dict[str, Any], like: bool) -> None:
    rig = Rig()
    rig.node("n0", 8, zone="a")
    rig.pod("bad-0", 8, owner=owner and "careless")
    refused(rig, "bad-0", "n0")
    rig.round(0.0)
    rig.pod("p", 8, owner=owner, spec=spec)
    rig.round(TICK)
    assert rig.placed() == ([] if like else ["p"])


def test_one_whose_request_has_changed_is_tried_at_once() -> None:
    rig = one_refused()
    rig.api.pods["bad-0"]["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    rig.told("bad-0")
    rig.round(TICK)
    assert rig.placed() == ["bad-0"]


def test_of_each_kind_of_pods_other_nodes_are_ruled_out() -> None:
    rig = rig_of(4)
    for owner, refusing_nodes in (("b", ("n0", "n1")), ("a", ("n0",))):
        rig.pod(f"bad-{owner}", 8, namespace=owner, owner=owner)
        for node in refusing_nodes:
            refused(rig, f"bad-{owner}", node)
        rig.round(0.0)
        delete(rig, f"bad-{owner}")
    rig.pod("1-plain", 0)
    rig.pod("2-like-b", 8, namespace="b", owner="b")
    rig.pod("3-like-a", 8, namespace="a", owner="a")
    rig.round(TICK)
    assert (rig.node_of("2-like-b"), rig.node_of("3-like-a")) == ("n2", "n1")
    assert rig.node_of("1-plain")


@pytest.mark.parametrize("limits", [{"cpu": 33}, {"memory": "129Gi"}], ids=["cpu", "memory"])
def test_pods_that_take_more_than_5_percent_of_cpu_or_memory_are_tried_one_at_a_time_too(
    limits: dict[str, object],
) -> None:
    rig = rig_of(10)  # with 640 CPU and 2560 GiB
    for number in range(2):
        rig.pod(f"bad-{number}", 0, owner=f"rs-{number}", limits=limits)
    Picky(rig).go(TICK)
    for _ in range(2):
        rig.round(TICK)
        assert rig.placed() == ["bad-0"]


def test_namespaces_of_refused_pods_take_turns_with_the_least_refused_first() -> None:
    rig = rig_of(10)
    for number, namespace in enumerate("aab"):
        rig.pod(f"bad-{namespace}{number}", 8, namespace=namespace, limits=cpu(1000 + number))
    Picky(rig).go(TICK)
    tried = list[str]()
    while len(tried) < 6:
        rig.round(2.0)
        tried += rig.placed()
        for name in rig.placed():
            rig.refuse(name, WORDS)
    assert tried == ["bad-a0", "bad-b2", "bad-a1", "bad-b2", "bad-a0", "bad-b2"]


def test_a_refused_pod_waits_with_kube_schedulers_words_unless_something_else_keeps_it() -> None:
    rig = two_refused(Stage.LOST)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    rig.round(TICK)
    assert rig.why("bad-1") == f"kube-scheduler refused it n1: {WORDS}"
    assert not rig.entry("bad-1").lacks_only_room
    rig.refuse("bad-1", "0/10 nodes are available: 10 node(s) had a volume conflict.")
    rig.round(TICK)
    assert rig.why("bad-1").endswith("10 node(s) had a volume conflict.")
    limited = one_refused(quotas=Quotas({"ns": 8.0}))
    limited.queue.running.gpus["ns"] = 1.0
    limited.round(TICK)
    assert limited.why("bad-0").startswith("quota of namespace ns")


def test_a_pod_that_kube_scheduler_has_not_answered_about_was_not_refused() -> None:
    rig = Rig()
    nodes(rig, 2)
    rig.pod("p", 8)
    rig.round(TICK)
    rig.remove_node("n0")
    rig.refuse("p", WORDS)
    rig.round(TICK)
    assert rig.node_of("p") == "n1"
    rig.round(15.0)
    rig.round(TICK)
    assert rig.note("p", "nomination-lost").startswith("2. n1")
    assert rig.entry("p").num_refused == 0


def test_thousands_of_refused_pods_leave_other_tasks_their_turns() -> None:
    rig = Rig()
    nodes(rig, 10)
    for number in range(64):
        rig.pod(f"bad-{number}", 1, limits=cpu(100 + number))
    rig.round(TICK)
    for name in rig.api.pods:
        rig.refuse(name, WORDS)
    rig.queue.backlog.notice_lost(rig.now)

    async def judge() -> None:
        units = [Unit(entry.uid, (entry,)) for entry in rig.queue.backlog.lost()]
        view = await rig.queue.nodes.view(rig.ledger.snapshot(rig.now), rig.queue.backlog.kinds, (), (), 0.0)
        await rig.queue.refusals.judge(view, units)

    assert turns_beside(judge()) >= 8
    assert all(entry.num_refused == 1 for entry in rig.queue.backlog.entries.values())


def test_before_its_first_plan_a_process_bounds_refused_pods_by_the_gpus_of_the_cluster() -> None:
    before = Rig()
    nodes(before, 10)
    for number in range(3):
        before.pod(f"bad-{number}", 1, limits=cpu(1000 + number))
    Picky(before).go()
    rig = Rig(before.api)
    nodes(rig, 10)
    for name in before.api.pods:
        rig.told(name)
    assert excess(rig, "bad-1", 1) == ""
    assert rig.queue.refusals.may_hold([rig.entry("bad-1")])
    rig.ledger.reserve("bad-0", "n0", Holding(3), rig.now)
    assert excess(rig, "bad-1", 1) == "", "4 of 80 GPUs are 5 %"
    rig.ledger.release("bad-0")
    rig.ledger.reserve("bad-0", "n0", Holding(2), rig.now)
    rig.ledger.reserve("bad-2", "n1", Holding(2), rig.now)
    assert excess(rig, "bad-1", 1) == f"kube-scheduler refused it n0: {WORDS}; {TRIED_FIRST}"
    rig.ledger.release("bad-2")
    assert excess(rig, "bad-0", 4) == "", "its own reservation does not count"
    assert excess(rig, "unknown", 8) == ""


def test_what_refused_pods_take_of_cpu_counts_when_kube_scheduler_asks_about_them_too() -> None:
    rig = two_refused(Stage.LOST, cpu(40_000), 1)  # of 640
    assert excess(rig, "bad-1", 1) == ""
    rig.ledger.reserve("bad-0", "n0", Holding(1), rig.now)
    assert excess(rig, "bad-1", 1)


def test_what_a_unit_would_hold_itself_counts_too_when_a_plan_is_carried_out() -> None:
    rig = two_refused(Stage.LOST, gpus=1)
    for gpus, may in ((3, True), (4, False)):
        rig.ledger.reserve("bad-0", "n0", Holding(gpus), rig.now)
        assert rig.queue.refusals.may_hold([rig.entry("bad-1")]) is may
        rig.ledger.release("bad-0")


def test_whether_devices_could_have_been_found_is_not_searched_for_again() -> None:
    rig = Rig()
    nodes(rig, 1)
    rig.pod("p", 8)
    rig.round(TICK)
    rig.ledger.release("p")
    rig.ledger.reserve("other", "n0", Holding(8), rig.now)
    rig.refuse("p", WORDS)
    entry = rig.entry("p")
    assert entry.planned is not None
    asked = DeviceClaims((ClaimSpec((RequestSpec("r", (DeviceSpec("r"),)),)),))
    rig.queue.backlog.notice_lost(rig.now)
    entry.planned = replace(entry.planned, gpus=GpuRequest(1, AskedUnit.CLAIM, devices=asked))
    rig.round(TICK)
    assert entry.num_refused == 1


def test_refused_pods_of_other_namespaces_count_too() -> None:
    rig = two_refused(Stage.LOST)
    rig.entry("bad-0").pod.metadata.namespace = "another"
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert excess(rig, "bad-1") == f"kube-scheduler refused it n1: {WORDS}; {TRIED_FIRST}"
    assert not rig.queue.refusals.may_hold([rig.entry("bad-1")])


def test_pods_on_trial_count_against_a_refused_pod_of_their_namespace_alone() -> None:
    rig = refusing(rig_of(10), "ns", "another", number=3)
    rig.pod("bad-0", 8)
    rig.round(1.0)
    rig.refuse("bad-0", WORDS)
    rig.round(0.0)
    rig.entry("bad-0").stage = Stage.LOST
    rig.ledger.release("bad-0")
    for namespace in ("another", "ns"):
        rig.pod(namespace, 8, namespace=namespace, limits=cpu(2000))
        assert excess(rig, "bad-0") == ""
        rig.ledger.reserve(namespace, "n5", Holding(8), rig.now)
    assert excess(rig, "bad-0")


def test_a_pod_that_lost_its_node_to_others_is_not_held_to_the_bound() -> None:
    rig = two_refused(Stage.LOST)
    rig.pod("p", 8, limits=cpu(2000))
    rig.round(TICK)
    rig.remove_node(rig.node_of("p"))
    rig.refuse("p", WORDS)
    put_back(rig, Stage.LOST)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    rig.queue.backlog.notice_lost(rig.now)
    rig.entry("p").judge(had_room=False)
    assert excess(rig, "p") == ""


def test_the_queue_goes_on_after_the_cluster_had_no_node() -> None:
    rig = refusing(rig_of(10), "ns", number=3)
    for number in range(10):
        rig.remove_node(f"n{number}")
    rig.pod("new", 8)
    rig.round(1.0)
    assert rig.placed() == []
    rig.node("m", 8)
    rig.round(1.0)
    assert rig.placed() == ["new"]
