"""Which pods and gangs wait for nothing but room, in the queue and outside it."""

import asyncio
from typing import Any

import msgspec

from extender.kube.objects import Pod, unix_time
from extender.parts.defrag.policy import Wait, _waits_of
from extender.planning.wait_reasons import Code
from extender.plugins.pods import read_pod_request
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import pod_manifest
from tests.parts.defrag.rigs import Defrag, gang
from tests.queueing.rigs import GATES

CREATED = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T01:00:00Z"
OVER_QUOTA = Code.OVER_QUOTA.reason(namespace="ns", limit=1, used=1, asked=2)
NO_ROOM = Code.NO_GPU_ROOM.reason(text="no room")
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available."}


def queue_of(*pods: tuple[str, dict[str, Any]]) -> Defrag:
    """A queue with these pods, and no node."""
    defrag = Defrag()
    for name, metadata in pods:
        defrag.waits(name, 2, controller="", **metadata)
    return defrag


def found(defrag: Defrag | None, *unbound: Pod) -> dict[str, Wait]:
    """By name; `defrag` None: without a queue."""
    pods = UnboundPods(read_pod_request, lambda: unix_time(LATER))
    for pod in unbound:
        pods.changed(None, pod)
    backlog = None if defrag is None else defrag.rig.queue.backlog
    return {wait.name: wait for wait in asyncio.run(_waits_of(backlog, pods))}


def unqueued(name: str, *, refused: bool = True, gate: str = "", priority: str = "0") -> Pod:
    manifest = pod_manifest(name, 1)
    manifest["metadata"] |= {"labels": {"genius/priority": priority}, "creationTimestamp": CREATED}
    if refused:
        manifest["status"]["conditions"] = [REFUSED]
    if gate:
        manifest["spec"]["schedulingGates"] = [{"name": gate}]
    return msgspec.convert(manifest, Pod)


def in_gang(**metadata: Any) -> dict[str, Any]:
    return {"annotations": gang(2), **metadata}


def test_a_gang_is_one_and_has_waited_as_long_as_its_last_pod() -> None:
    waits = found(queue_of(("a", in_gang()), ("b", in_gang(creationTimestamp=LATER)), ("c", {})))
    assert waits.keys() == {"ns/g", "ns/c"}
    assert waits["ns/g"] == Wait("ns/g", "ns", 0, unix_time(LATER), ("a", "b"), queued=True)
    assert waits["ns/c"].since == unix_time(CREATED)


def test_they_are_sorted_by_priority_then_waiting_time_and_labels_raise_no_priority() -> None:
    defrag = queue_of(
        ("late", {"creationTimestamp": LATER, "labels": {"genius/priority": "9"}}),
        ("early", {}),
        ("high", {"creationTimestamp": LATER, "spec": {"priority": 5}}),
    )
    waits = found(defrag, unqueued("raised", priority="9"), unqueued("low", priority="-9"))
    assert [(name, wait.priority) for name, wait in waits.items()] == [
        ("ns/high", 5),
        ("default/raised", 0),
        ("ns/early", 0),
        ("ns/late", 0),
        ("default/low", -9),
    ]


def test_pods_and_gangs_that_wait_for_something_else_are_left_out() -> None:
    incomplete = ("incomplete", {"annotations": {"kerf.dev/gang": "h"}})
    defrag = queue_of(("quota", {}), ("room", {}), ("new", {}), incomplete, ("a", in_gang()), ("b", in_gang()))
    entries = defrag.rig.queue.backlog.entries
    for name in ("quota", "b"):
        entries[name].pass_over(OVER_QUOTA, 0.0)
    entries["room"].pass_over(NO_ROOM, 0.0)
    assert found(defrag).keys() == {"ns/room", "ns/new"}


def test_a_pod_that_waited_for_something_else_waits_for_room_only_since_then() -> None:
    defrag = queue_of(("quota", {}), ("room", {}))
    later = unix_time(LATER)
    entries = defrag.rig.queue.backlog.entries
    entries["quota"].pass_over(OVER_QUOTA, later - 100)
    for name, entry in entries.items():
        for now in (later, later + 100):
            entry.pass_over(NO_ROOM, now)
        assert found(defrag)[f"ns/{name}"].since == (later if name == "quota" else unix_time(CREATED))


def test_a_pod_behind_another_gate_waits_for_room_only_since_that_was_opened() -> None:
    defrag = queue_of()
    defrag.rig.now = unix_time(CREATED)
    defrag.waits("a", 2, controller="", spec={"schedulingGates": [*GATES, {"name": "example.com/mine"}]})
    defrag.tick(86_400.0)
    assert not found(defrag)
    defrag.waits("a", 2, controller="")
    defrag.tick(0.3)
    assert found(defrag)["ns/a"].since == defrag.rig.now
    waits = found(None, unqueued("a", gate="example.com/theirs"), unqueued("a"), unqueued("b"))
    assert {name: wait.since for name, wait in waits.items()} == {
        "default/a": unix_time(LATER),
        "default/b": unix_time(CREATED),
    }


def test_outside_the_queue_pods_count_once_kube_scheduler_has_refused_them() -> None:
    pods = [unqueued("refused"), unqueued("new", refused=False), unqueued("gated", gate="example.com/theirs")]
    waits = found(None, *pods)
    assert {name: wait.queued for name, wait in waits.items()} == {"default/refused": False}


def test_a_released_pod_waits_no_more() -> None:
    defrag = queue_of(("a", {}))
    defrag.node("n", 2)
    defrag.tick()
    assert defrag.node_of("a") == "n"
    assert not found(defrag)
