"""What the queue reports: why it plans nothing, which pods leave it, and how many pods a gang needs."""

import asyncio

import pytest

from extender.kube.objects import Node
from extender.kube.watches import PODS
from extender.queueing.controller import _NAMESPACES
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.queueing.rigs import Manifest, Rig, lost


def namespace(**labels: str) -> Node:
    return decode_node({"metadata": {"name": "ns", "uid": "ns", "labels": labels}})


OPTS_IN = namespace(**{"kerf.dev/queue": "enabled"})


def test_a_queue_says_which_watch_is_not_synced_and_why() -> None:
    for what in ("nodes", "namespaces"):
        rig = Rig()
        assert rig.queue.fault() == ""
        reflector = rig.queue.reflectors[what]
        reflector.num_lists = 0
        assert rig.queue.fault() == f"{what} of the queue are not synced yet"
        reflector.last_error = "refused"
        assert rig.queue.fault() == f"{what} of the queue are not synced yet: refused"


def test_a_queue_whose_watches_are_silent_says_so_after_a_while_and_each_time_again() -> None:
    said = "the queue plans nothing: Kerf has heard nothing from the API server for too long"
    rig = Rig()
    rig.pod("a", 1)
    for _ in range(2):
        rig.mirror_fault = "nodes were last current 60 s ago"
        rig.round(1.0)
        rig.round(4.0)
        assert rig.why("a") != said, "a short fault is not reported"
        rig.round(1.0)
        assert rig.why("a") == said
        rig.pod("b", 1)
        rig.round(4.0)
        assert rig.why("b") == ""
        rig.round(1.0)
        assert rig.why("b") == said
        rig.mirror_fault = ""
        rig.round(0.5)
        assert "no node" in rig.why("a")
        rig.gone("b")


def test_rounds_that_plan_are_counted() -> None:
    rig = Rig()
    rig.round()
    assert rig.queue.counts.rounds == 0, "no pod waits"
    rig.pod("a", 2)
    for _ in range(3):
        rig.round()
    assert rig.queue.counts.rounds == 3


def test_a_pod_lacks_room_since_what_else_it_waited_for_was_over() -> None:
    rig = Rig()
    for name, later_s, since in (("a", 0.1, 1.0), ("b", 5.0, 1005.1)):
        rig.pod(name, 2, created="1970-01-01T00:00:01Z", gang="g", gang_size="2")
        rig.round(later_s)
        assert rig.entry("a").lacks_room_since == pytest.approx(since)


def test_a_pod_that_has_waited_for_as_long_as_is_set_is_released_by_the_leader_and_says_so() -> None:
    rig = Rig(fail_open_s=0.5)
    rig.pod("a", 1)
    rig.round(0.25)
    assert (rig.api.order, rig.queue.counts.failed_open) == ([], 0)
    rig.standby = "another one leads"
    rig.round(0.25)
    assert rig.api.order == []
    rig.standby = ""
    rig.round(0.0)
    assert (rig.api.order, rig.queue.counts.failed_open) == (["a"], 1)
    assert rig.note("a", "planned-by") == "fail-open after 0.5 s"


def test_pods_of_a_namespace_that_opts_out_leave_and_say_why() -> None:
    rig = Rig()
    rig.hub.cache(_NAMESPACES).upsert(OPTS_IN)
    rig.pod("a", 1, queued_by="namespace")
    rig.round()
    assert rig.api.order == []
    rig.hub.cache(_NAMESPACES).upsert(namespace())
    rig.round()
    assert rig.api.order == ["a"]
    assert rig.note("a", "planned-by") == "kerf.dev/queue was removed from the namespace"


@pytest.mark.parametrize("opts_in", [True, False])
def test_a_pod_that_lost_its_node_is_planned_again_as_long_as_its_namespace_opts_in(opts_in: bool) -> None:
    rig = lost()
    rig.hub.cache(_NAMESPACES).upsert(OPTS_IN if opts_in else namespace())
    rig.api.pods["p"]["metadata"]["annotations"]["kerf.dev/queued-by"] = "namespace"
    rig.told("p")
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.queue.counts.nominated_anew == opts_in
    rig.refuse("p")
    rig.round(31.0)
    assert rig.queue.will_nominate("p") is opts_in


def test_a_refused_node_with_room_is_reported_by_an_event() -> None:
    rig = Rig()
    for name in "nm":
        rig.node(name, 8)
    rig.pod("a", 8)
    rig.round()
    node, words = rig.node_of("a"), "0/2 nodes are available: 2 Insufficient rdma/hca."
    rig.refuse("a", words)
    rig.round(3.0)
    message = f"kube-scheduler refused node {node}, which is ruled out for 1 s: {words}"
    assert rig.emitted == [("ns", "a", "a", "NominationRefused", message)]


def running(name: str, **metadata: object) -> Manifest:
    meta = {"name": name, "namespace": "ns", "uid": name, **metadata}
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}


def test_how_many_pods_each_of_a_gang_needs_to_continue_is_known_where_gangs_end_whole() -> None:
    label, said = "scheduling.x-k8s.io/pod-group", {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    pods = [running(name, annotations=said) for name in "ab"]
    pods += [running("leaves", annotations=said, deletionTimestamp="2026-01-01T00:00:00Z"), running("single")]
    pods += [running(name, labels={label: "unread"}) for name in "xyz"]
    groups = [running(f"p-{number}", labels={label: f"g-{number:02}"}) for number in range(16)]
    for whole, expected in (
        (False, []),
        (True, [*[{f"p-{number}": 0} for number in range(16)], {"x": 3, "y": 3, "z": 3}, {"a": 2, "b": 2}]),
    ):
        rig = Rig(gangs_end_whole=whole)
        for pod in (*pods, *groups):
            rig.hub.cache(PODS).upsert(decode_pod(pod))
        uids = [*(pod["metadata"]["uid"] for pod in groups), "x", "a", "b", "single", "unheard of"]
        assert asyncio.run(rig.queue.running_gangs(uids)) == expected
