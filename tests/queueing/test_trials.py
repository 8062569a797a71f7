"""Pods that kube-scheduler may well refuse, for what it said of others: how few are tried at a time, until when."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked, RequestAsk
from extender.core.orders import Order
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube.watches import PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.gangs import Unit
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.queueing.rigs import Manifest, Rig
from tests.queueing.test_refusals import WORDS, Picky, nodes, put_back, submit, two_refused

TICK = 0.125
"""A time that adds up without rounding."""
ON_TRIAL = "kube-scheduler refuses pods of namespace ns for reasons unknown to the queue: only few are released"


def let_go(rig: Rig) -> list[str]:
    return [name for name in rig.api.pods if rig.node_of(name)]


def reason(rig: Rig, name: str) -> str:
    return str(rig.queue.backlog.entries[name].skips.reason)


def delete(rig: Rig, name: str) -> None:
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods.pop(name)))


def excess(rig: Rig, name: str, gpus: int) -> str:
    """What filter is told when kube-scheduler asks about a pod by itself."""
    return rig.queue.over_quota(PodIdentity("ns", name, name), GpuRequest(gpus))


def refused(rig: Rig, name: str, node: str) -> None:
    """A pod is let go for a node, and refused."""
    rig.round(TICK)
    assert rig.node_of(name) == node
    rig.refuse(name, WORDS)


def refusing(rig: Rig, *namespaces: str, number: int) -> Rig:
    """kube-scheduler refuses pods of these, one after the other, that have nothing in common and are deleted then."""
    for at in range(number):
        for namespace in namespaces:
            submit(rig, f"bad-{namespace}-{at}", 8, namespace=namespace, cpu=f"{1000 + at}m")
    Picky(rig).go(TICK)
    rig.round(TICK)
    for name in list(rig.api.pods):
        if name.startswith("bad"):
            delete(rig, name)
    return rig


def three_refused(*namespaces: str) -> Rig:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)
    return refusing(rig, *(namespaces or ["ns"]), number=3)


def one_refused(num_nodes: int = 1, **options: Any) -> Rig:
    """A pod of an owner was refused its node just now."""
    rig = Rig(order=Order.FIFO, **options)
    nodes(rig, num_nodes)
    submit(rig, "bad-0", 8, owner="careless")
    refused(rig, "bad-0", "n0")
    rig.round(0.0)
    return rig


def test_of_a_namespace_with_three_refused_one_is_tried_at_a_time_until_kube_scheduler_takes_one() -> None:
    rig = three_refused()
    for number in range(3):
        submit(rig, f"new-{number}", 8, cpu=2 + number)
    submit(rig, "of-another", 8, namespace="another")
    rig.round(0.375)
    assert let_go(rig) == ["of-another"]
    assert reason(rig, "new-0") == ON_TRIAL
    rig.round(TICK)
    assert let_go(rig) == ["new-0", "of-another"], "half a second after the last refusal"
    rig.round(1.0)
    assert let_go(rig) == ["new-0", "of-another"], "nothing is known of it yet"
    rig.bind("new-0")
    rig.round()
    assert len(let_go(rig)) == 4


def test_two_refused_make_no_others_of_their_namespace_wait() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)
    refusing(rig, "ns", number=2)
    for number in range(3):
        submit(rig, f"new-{number}", 8, cpu=2 + number)
    rig.round(TICK)
    assert len(let_go(rig)) == 3


def test_the_pause_until_the_next_of_them_is_tried_doubles_up_to_ten_seconds() -> None:
    rig = three_refused()
    for number, pause_s in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0)):
        name = f"new-{number}"
        submit(rig, name, 8, cpu=f"{2000 + number}m")
        rig.round(pause_s - TICK)
        assert let_go(rig) == []
        rig.round(TICK)
        assert let_go(rig) == [name]
        rig.refuse(name, WORDS)
        rig.round(0.0)
        delete(rig, name)


def test_one_that_is_refused_again_and_again_makes_no_others_wait() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)
    submit(rig, "bad-0", 8)
    for number in range(5):
        refused(rig, "bad-0", f"n{number}")
    rig.round(TICK)
    for number in range(2):
        submit(rig, f"new-{number}", 8, cpu=2 + number)
    rig.round(TICK)
    assert len(let_go(rig)) == 3


@pytest.mark.parametrize(("later_s", "num"), [(600.0, 1), (600.0 + TICK, 2)])
def test_what_was_refused_is_forgotten_after_ten_minutes(later_s: float, num: int) -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)
    submit(rig, "bad", 8, namespace="others", owner="careless")
    refusing(rig, "ns", number=3)
    rig.round(later_s - TICK)
    for number in range(2):
        submit(rig, f"new-{number}", 8, cpu=2 + number)
        submit(rig, f"like-{number}", 8, namespace="others", owner="careless")
    rig.round(TICK)
    for kind in ("new", "like"):
        assert sum(name.startswith(kind) for name in let_go(rig)) == num


def test_of_which_namespaces_was_refused_is_forgotten_one_by_one() -> None:
    rig = three_refused("a", "b")
    rig.round(500.0)
    refusing(rig, "a", number=1)
    rig.round(150.0)
    for namespace in ("a", "b"):
        for number in range(2):
            submit(rig, f"{namespace}-{number}", 8, namespace=namespace, cpu=2 + number)
    rig.round(TICK)
    assert let_go(rig) == ["a-0", "b-0", "b-1"]


def test_pods_like_one_that_was_refused_are_tried_one_at_a_time_until_kube_scheduler_takes_one() -> None:
    rig = one_refused(num_nodes=10)
    delete(rig, "bad-0")
    for number in range(3):
        submit(rig, f"like-{number}", 8, owner="careless")
    submit(rig, "other", 8, owner="another")
    rig.round(TICK)
    assert let_go(rig) == ["like-0", "other"]
    assert reason(rig, "like-1") == f"kube-scheduler refused pods like it n0: {WORDS}"
    rig.bind("like-0")
    rig.round(TICK)
    assert let_go(rig) == ["like-0", "like-1", "like-2", "other"]


def test_a_node_that_one_of_them_gets_after_all_is_ruled_out_no_more() -> None:
    rig = Rig()
    nodes(rig, 1, gpus=16)
    submit(rig, "bad-0", 8, owner="careless")
    refused(rig, "bad-0", "n0")
    submit(rig, "like-0", 8, owner="careless")
    rig.round(TICK)
    assert let_go(rig) == []
    rig.api.pods["bad-0"]["status"]["nominatedNodeName"] = "n0"
    rig.bind("bad-0")
    rig.round(TICK)
    assert let_go(rig) == ["bad-0", "like-0"]


def test_a_node_is_ruled_out_for_a_second_and_for_twice_as_long_each_time_up_to_a_minute() -> None:
    rig = one_refused()
    for out_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        rig.round(out_s - TICK)
        assert let_go(rig) == []
        rig.round(TICK)
        assert rig.node_of("bad-0") == "n0"
        rig.refuse("bad-0", WORDS)
        rig.round(0.0)


@pytest.mark.parametrize(
    ("owner", "spec", "like"),
    [
        pytest.param("careless", {}, True, id="the same"),
        pytest.param("careless", {"nodeSelector": {"zone": "a"}}, True, id="kept to a domain by Kerf"),
        pytest.param("careless", {"tolerations": [{"key": "a", "operator": "Exists"}]}, False, id="tolerates more"),
        pytest.param("another", {}, False, id="of another owner"),
        pytest.param("", {}, True, id="of nobody, both"),
        pytest.param("", {"nodeSelector": {"zone": "a"}}, False, id="of nobody, to other nodes"),
        pytest.param("", {"nodeSelector": {}, "tolerations": []}, True, id="of nobody, nothing said"),
    ],
)
def test_who_is_taken_for_a_pod_like_one_that_was_refused(owner: str, spec: dict[str, Any], like: bool) -> None:
    rig = Rig()
    rig.node("n0", 8, zone="a")
    submit(rig, "bad-0", 8, owner=owner and "careless")
    refused(rig, "bad-0", "n0")
    rig.round(0.0)
    submit(rig, "p", 8, owner=owner)
    rig.api.pods["p"]["spec"] |= spec
    rig.told("p")
    rig.round(TICK)
    assert let_go(rig) == ([] if like else ["p"])


def test_one_that_asks_for_something_else_by_now_is_tried_at_once() -> None:
    rig = one_refused()
    rig.api.pods["bad-0"]["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    rig.told("bad-0")
    rig.round(TICK)
    assert let_go(rig) == ["bad-0"]


def test_of_each_kind_of_pods_other_nodes_are_ruled_out() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 4)
    for owner, refusing_nodes in (("b", ("n0", "n1")), ("a", ("n0",))):
        submit(rig, f"bad-{owner}", 8, namespace=owner, owner=owner)
        for node in refusing_nodes:
            refused(rig, f"bad-{owner}", node)
        rig.round(0.0)
        delete(rig, f"bad-{owner}")
    submit(rig, "1-plain", 0)
    submit(rig, "2-like-b", 8, namespace="b", owner="b")
    submit(rig, "3-like-a", 8, namespace="a", owner="a")
    rig.round(TICK)
    assert (rig.node_of("2-like-b"), rig.node_of("3-like-a")) == ("n2", "n1")
    assert rig.node_of("1-plain")


@pytest.mark.parametrize("asked", [{"cpu": 33}, {"memory": "129Gi"}], ids=["cpu", "memory"])
def test_pods_that_take_more_than_5_percent_of_something_else_than_gpus_are_tried_one_at_a_time_too(
    asked: Manifest,
) -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)  # with 640 CPU and 2560 GiB
    for number in range(2):
        submit(rig, f"bad-{number}", 0, owner=f"rs-{number}")
        rig.api.pods[f"bad-{number}"]["spec"]["containers"] = [{"resources": {"requests": asked}}]
        rig.told(f"bad-{number}")
    Picky(rig).go(TICK)
    rig.round(TICK)
    assert let_go(rig) == ["bad-0"]
    rig.round(TICK)
    assert let_go(rig) == ["bad-0"]


def test_of_refused_pods_namespaces_take_turns_and_within_one_who_was_refused_least() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 10)
    for number, namespace in enumerate("aab"):
        submit(rig, f"bad-{namespace}{number}", 8, namespace=namespace, cpu=f"{1000 + number}m")
    scheduler = Picky(rig)
    scheduler.go(TICK)
    tried = list[str]()
    while len(tried) < 6:
        rig.round(2.0)
        tried += let_go(rig)
        for name in let_go(rig):
            rig.refuse(name, WORDS)
    assert tried == ["bad-a0", "bad-b2", "bad-a1", "bad-b2", "bad-a0", "bad-b2"]


def test_what_keeps_a_refused_pod_waiting_is_told_in_kube_schedulers_words_unless_it_is_something_else() -> None:
    rig = two_refused(Stage.LOST)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    rig.round(TICK)
    assert reason(rig, "bad-1") == f"kube-scheduler refused it n1: {WORDS}"
    rig.refuse("bad-1", "0/10 nodes are available: 10 node(s) had a volume conflict.")
    rig.round(TICK)
    assert reason(rig, "bad-1").endswith("10 node(s) had a volume conflict.")
    limited = one_refused(quotas=Quotas({"ns": 8.0}))
    limited.queue.running.gpus["ns"] = 1.0
    limited.round(TICK)
    assert reason(limited, "bad-0").startswith("quota of namespace ns")


def test_a_pod_of_which_kube_scheduler_has_not_said_a_word_was_not_refused() -> None:
    rig = Rig()
    nodes(rig, 2)
    submit(rig, "p", 8)
    rig.round(TICK)
    rig.remove_node("n0")
    rig.refuse("p", WORDS)
    rig.round(TICK)
    assert rig.node_of("p") == "n1"
    rig.round(15.0)
    rig.round(TICK)
    assert rig.note("p", "nomination-lost").startswith("2. n1")
    assert rig.queue.backlog.entries["p"].num_refused == 0


def test_thousands_that_are_refused_leave_others_of_the_event_loop_their_turns() -> None:
    rig = Rig()
    nodes(rig, 10)
    for number in range(64):
        submit(rig, f"bad-{number}", 1, cpu=f"{100 + number}m")
    rig.round(TICK)
    for name in rig.api.pods:
        rig.refuse(name, WORDS)
    rig.queue.backlog.notice_lost(rig.now)
    turns = 0

    async def judge() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        units = [Unit(entry.uid, (entry,)) for entry in rig.queue.backlog.lost()]
        view = await rig.queue.nodes.view(rig.ledger.snapshot(rig.now), rig.queue.backlog.kinds, (), (), 0.0)
        beside = asyncio.create_task(others())
        await rig.queue.refusals.judge(view, units)
        beside.cancel()

    asyncio.run(judge())
    assert all(entry.num_refused == 1 for entry in rig.queue.backlog.entries.values())
    assert turns >= 8


def test_before_its_first_plan_a_kerf_bounds_those_that_were_refused_before_it_by_the_gpus_of_the_cluster() -> None:
    before = Rig()
    nodes(before, 10)
    for number in range(3):
        submit(before, f"bad-{number}", 1, cpu=f"{1000 + number}m")
    Picky(before).go()
    rig = Rig(before.api)
    nodes(rig, 10)
    for name in before.api.pods:
        rig.told(name)
    assert excess(rig, "bad-1", 1) == ""
    assert rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]])
    rig.ledger.reserve("bad-0", "n0", Holding(3), rig.now)
    assert excess(rig, "bad-1", 1) == "", "4 of 80 GPUs are 5 %"
    rig.ledger.release("bad-0")
    rig.ledger.reserve("bad-0", "n0", Holding(2), rig.now)
    rig.ledger.reserve("bad-2", "n1", Holding(2), rig.now)
    why = f"kube-scheduler refused it n0: {WORDS}; others that it refused are tried first"
    assert excess(rig, "bad-1", 1) == why
    rig.ledger.release("bad-2")
    assert excess(rig, "bad-0", 4) == "", "what it has is no other's"
    assert excess(rig, "unknown", 8) == ""


def test_what_a_refused_pod_takes_of_cpu_counts_when_kube_scheduler_asks_about_it_too() -> None:
    rig = Rig()
    nodes(rig, 10)
    for number in range(2):
        submit(rig, f"bad-{number}", 1, cpu=40 + number)  # of 640
    Picky(rig).go()
    rig.round()
    put_back(rig, Stage.LOST)
    assert excess(rig, "bad-1", 1) == ""
    rig.ledger.reserve("bad-0", "n0", Holding(1), rig.now)
    assert excess(rig, "bad-1", 1)


def test_what_a_unit_would_hold_itself_counts_too_when_a_plan_is_carried_out() -> None:
    rig = Rig()
    nodes(rig, 10)
    for number in range(2):
        submit(rig, f"bad-{number}", 1, cpu=f"{1000 + number}m")
    Picky(rig).go()
    rig.round()
    put_back(rig, Stage.LOST)
    for gpus, may in ((3, True), (4, False)):
        rig.ledger.reserve("bad-0", "n0", Holding(gpus), rig.now)
        assert rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]]) is may
        rig.ledger.release("bad-0")


def test_whether_devices_could_have_been_found_is_not_searched_for_again() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "p", 8)
    rig.round(TICK)
    rig.ledger.release("p")
    rig.ledger.reserve("other", "n0", Holding(8), rig.now)
    rig.refuse("p", WORDS)
    entry = rig.queue.backlog.entries["p"]
    assert entry.planned is not None
    asked = DevicesAsked((ClaimAsk((RequestAsk("r", (DeviceAsk("r"),)),)),))
    rig.queue.backlog.notice_lost(rig.now)
    entry.planned = replace(entry.planned, gpus=GpuRequest(1, AskedUnit.CLAIM, devices=asked))
    rig.round(TICK)
    assert entry.num_refused == 1


def test_those_of_other_namespaces_that_were_refused_count_too() -> None:
    rig = two_refused(Stage.LOST)
    entry = rig.queue.backlog.entries["bad-0"]
    entry.pod.metadata.namespace = "another"
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert "others that it refused are tried first" in excess(rig, "bad-1", 8)
    assert excess(rig, "bad-1", 8).startswith(f"kube-scheduler refused it n1: {WORDS};")
    assert not rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]])


def test_those_on_trial_of_its_namespace_count_against_a_refused_pod_and_those_of_others_do_not() -> None:
    rig = three_refused("ns", "another")
    submit(rig, "bad-0", 8)
    rig.round(1.0)
    rig.refuse("bad-0", WORDS)
    rig.round(0.0)
    rig.queue.backlog.entries["bad-0"].stage = Stage.LOST
    rig.ledger.release("bad-0")
    for namespace in ("another", "ns"):
        submit(rig, namespace, 8, namespace=namespace, cpu=2)
        assert excess(rig, "bad-0", 8) == ""
        rig.ledger.reserve(namespace, "n5", Holding(8), rig.now)
    assert excess(rig, "bad-0", 8)


def test_a_pod_that_lost_its_node_to_others_is_not_held_to_the_bound() -> None:
    rig = two_refused(Stage.LOST)
    submit(rig, "p", 8, cpu=2)
    rig.round(TICK)
    node = rig.node_of("p")
    rig.remove_node(node)
    rig.refuse("p", WORDS)
    put_back(rig, Stage.LOST)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    rig.queue.backlog.notice_lost(rig.now)
    rig.queue.backlog.entries["p"].judge(had_room=False)
    assert excess(rig, "p", 8) == ""


def test_where_nothing_is_left_of_the_cluster_its_queue_goes_on() -> None:
    rig = three_refused()
    for number in range(10):
        rig.remove_node(f"n{number}")
    submit(rig, "new", 8)
    rig.round(1.0)
    assert let_go(rig) == []
    rig.node("m", 8)
    rig.round(1.0)
    assert let_go(rig) == ["new"]
