"""What the queue tells others: why it plans nothing, who leaves it, what it has lost, and who needs whom."""

import asyncio

import pytest

from extender.core.orders import Order
from extender.kube.objects import Node
from extender.kube.watches import PODS
from extender.plugins.holdings import Holding
from extender.queueing.controller import _NAMESPACES
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.queueing.rigs import Manifest, Rig, lost

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


def why(rig: Rig, name: str) -> str:
    return str(rig.queue.backlog.entries[name].skips.reason or "")


def namespace(name: str, **labels: str) -> Node:
    return decode_node({"metadata": {"name": name, "uid": name, "labels": labels}})


# Why nothing is planned


@pytest.mark.parametrize("what", ["nodes", "namespaces"])
def test_what_is_not_known_yet_is_said_with_why(what: str) -> None:
    rig = Rig()
    assert rig.queue.fault() == ""
    reflector = rig.queue.reflectors[what]
    reflector.num_lists = 0
    assert rig.queue.fault() == f"{what} of the queue are not synced yet"
    reflector.last_error = "refused"
    assert rig.queue.fault() == f"{what} of the queue are not synced yet: refused"


def test_a_queue_whose_watches_are_silent_says_so_after_a_while_and_each_time_anew() -> None:
    said = "the queue plans nothing: Kerf has heard nothing from the API server for too long"
    rig = Rig()
    rig.pod("a", 1)
    for _ in range(2):
        rig.mirror_fault = "nodes were last current 60 s ago"
        rig.round(1.0)
        rig.round(4.0)
        assert why(rig, "a") != said, "it may be over in a moment"
        rig.round(1.0)
        assert why(rig, "a") == said
        rig.pod("b", 1)
        rig.round(4.0)
        assert why(rig, "b") == ""
        rig.round(1.0)
        assert why(rig, "b") == said
        rig.mirror_fault = ""
        rig.round(0.5)
        assert "no node" in why(rig, "a")
        rig.hub.cache(PODS).remove(decode_pod(rig.api.pods.pop("b")))


def test_rounds_that_plan_are_counted() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.round()
    assert rig.queue.counts.rounds == 0, "nobody waits"
    rig.pod("a", 2)
    for _ in range(3):
        rig.round()
    assert rig.queue.counts.rounds == 3


# Who goes, and who waits


def test_a_gang_of_which_some_are_missing_waits_whatever_room_there_is() -> None:
    rig = Rig()
    rig.node("n", 8)
    for name in "ab":
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.round(2.0)
    assert rig.api.order == []
    assert rig.note("a") == rig.note("b") == "gang ns/g waits for its pods: 2 of 3 exist"


def test_where_shares_are_fair_whose_namespace_has_less_goes_first() -> None:
    rig = Rig(fair_share=True, order=Order.FIFO)
    rig.node("n", 3)
    rig.pod("has", 2)
    rig.round()
    rig.bind("has")
    rig.told("has")
    for name, space in (("a", "ns"), ("b", "other")):
        rig.pod(name, 1, created=f"2026-01-0{1 + (space == 'other')}T00:00:00Z")
        rig.api.pods[name]["metadata"] |= {"namespace": space}
        rig.hub.cache(PODS).remove(decode_pod(rig.api.pods[name]))
        rig.told(name)
    rig.round()
    assert (rig.node_of("a"), rig.node_of("b")) == ("", "n")


def test_a_pod_lacks_room_since_what_else_kept_it_was_over() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2, created="1970-01-01T00:00:01Z", gang="g", gang_size="2")
    rig.round()
    assert rig.queue.backlog.entries["a"].lacks_room_since == 1.0
    rig.pod("b", 2, created="1970-01-01T00:00:01Z", gang="g", gang_size="2")
    rig.round(5.0)
    assert rig.queue.backlog.entries["a"].lacks_room_since == rig.now


@pytest.mark.parametrize("limit_s", [0.5, 60.0])
def test_a_pod_that_has_waited_for_as_long_as_is_set_is_let_go_without_a_node_and_says_so(limit_s: float) -> None:
    rig = Rig(fail_open_s=limit_s)
    rig.pod("a", 1)
    rig.round(limit_s - 0.25)
    assert (rig.api.order, rig.queue.counts.failed_open) == ([], 0)
    rig.round(0.25)
    assert (rig.api.order, rig.queue.counts.failed_open) == (["a"], 1)
    assert f"fail-open after {limit_s:g} s" in str(rig.api.pods["a"]["metadata"]["annotations"])


def test_pods_of_a_namespace_that_opts_out_leave_and_say_why() -> None:
    rig = Rig()
    rig.hub.cache(_NAMESPACES).upsert(namespace("ns", **{"kerf.dev/queue": "enabled"}))
    rig.pod("a", 1, queued_by="namespace")
    rig.round()
    assert rig.api.order == []
    rig.hub.cache(_NAMESPACES).upsert(namespace("ns"))
    rig.round()
    assert rig.api.order == ["a"]
    told = rig.api.pods["a"]["metadata"]["annotations"]
    assert "kerf.dev/queue was removed from the namespace" in str(told)


@pytest.mark.parametrize("opts_in", [True, False])
def test_a_pod_that_lost_its_node_is_planned_anew_as_long_as_its_namespace_takes_part(opts_in: bool) -> None:
    rig = lost()
    label = {"kerf.dev/queue": "enabled"} if opts_in else {}
    rig.hub.cache(_NAMESPACES).upsert(namespace("ns", **label))
    rig.api.pods["p"]["metadata"]["annotations"]["kerf.dev/queued-by"] = "namespace"
    rig.told("p")
    rig.round(3.0)
    assert rig.queue.will_nominate("p") is opts_in


# What became of pods


def test_a_pod_that_is_refused_a_node_with_room_says_so_by_an_event() -> None:
    rig = Rig()
    for name in "nm":
        rig.node(name, 8)
    rig.pod("a", 8)
    rig.round()
    node = rig.node_of("a")
    rig.refuse("a", "0/2 nodes are available: 2 Insufficient rdma/hca.")
    rig.round(3.0)
    [(*whose, reason, message)] = rig.emitted
    assert (*whose, reason) == ("ns", "a", "a", "NominationRefused")
    assert message.startswith(f"kube-scheduler refused node {node}")
    assert "Insufficient rdma/hca" in message


def test_a_pod_that_holds_nothing_or_is_none_of_the_queue_has_lost_no_node() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 1)
    rig.round()
    rig.ledger.release("a")
    rig.ledger.reserve("past the queue", "n", Holding(1), rig.now)
    assert rig.queue.notes("a") == rig.queue.notes("past the queue") == {}


# Gangs that run


def running(name: str, **metadata: object) -> Manifest:
    meta = {"name": name, "namespace": "ns", "uid": name, **metadata}
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}


def test_how_many_pods_each_of_a_gang_needs_to_go_on_is_known_where_gangs_end_whole() -> None:
    said = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    pods = [running(name, annotations=said) for name in "ab"]
    pods += [running("leaves", annotations=said, deletionTimestamp="2026-01-01T00:00:00Z"), running("single")]
    unread = [running(name, labels={GROUP_LABEL: "unread"}) for name in "xyz"]
    groups = [running(f"p-{number}", labels={GROUP_LABEL: f"g-{number:02}"}) for number in range(16)]
    for whole, expected in (
        (False, []),
        (True, [*[{f"p-{number}": 0} for number in range(16)], {"x": 3, "y": 3, "z": 3}, {"a": 2, "b": 2}]),
    ):
        rig = Rig(gangs_end_whole=whole)
        for pod in (*pods, *unread, *groups):
            rig.hub.cache(PODS).upsert(decode_pod(pod))
        uids = [*(pod["metadata"]["uid"] for pod in groups), "x", "a", "b", "single", "unheard of"]
        assert asyncio.run(rig.queue.running_gangs(uids)) == expected
