"""Who waits for room: those of the queue as gangs, those past it one by one, nobody who waits for something else."""

import asyncio
from typing import Any

import msgspec

from extender.kube.objects import Pod, unix_time
from extender.parts.defrag.policy import Wait, _waits_of
from extender.planning.wait_reasons import Code
from extender.plugins.pods import read_pod_request
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import pod_manifest
from tests.parts.defrag.rigs import Defrag
from tests.queueing.rigs import GATES

CREATED = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T01:00:00Z"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available."}


def queue_of(*pods: tuple[str, dict[str, Any]]) -> Defrag:
    """A queue in which these wait, and no node."""
    defrag = Defrag()
    for name, metadata in pods:
        defrag.waits(name, 2, controller="", **metadata)
    return defrag


def found(defrag: Defrag, *unbound: Pod) -> dict[str, Wait]:
    pods = UnboundPods(read_pod_request, lambda: 0.0)
    for pod in unbound:
        pods.changed(None, pod)
    return {wait.name: wait for wait in asyncio.run(_waits_of(defrag.rig.queue.backlog, pods))}


def past_the_queue(name: str, *, refused: bool = True, gate: str = "", priority: str = "") -> Pod:
    manifest = pod_manifest(name, 1)
    if priority:
        manifest["metadata"]["labels"] = {"genius/priority": priority}
    manifest["metadata"]["creationTimestamp"] = CREATED
    if refused:
        manifest["status"]["conditions"] = [REFUSED]
    if gate:
        manifest["spec"]["schedulingGates"] = [{"name": gate}]
    return msgspec.convert(manifest, Pod)


def gang(size: int, **metadata: Any) -> dict[str, Any]:
    return {"annotations": {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(size)}, **metadata}


def test_a_gang_is_one_and_has_waited_for_as_long_as_its_last_pod() -> None:
    told = found(queue_of(("a", gang(2)), ("b", gang(2, creationTimestamp=LATER)), ("c", {})))
    assert told.keys() == {"ns/g", "ns/c"}
    assert told["ns/g"] == Wait("ns/g", "ns", 0, unix_time(LATER), ("a", "b"), queued=True)
    assert told["ns/c"].since == unix_time(CREATED)


def test_the_highest_priority_comes_first_then_who_has_waited_for_longest() -> None:
    defrag = queue_of(
        ("late", {"creationTimestamp": LATER}),
        ("early", {}),
        ("high", {"creationTimestamp": LATER, "spec": {"priority": 5}}),
    )
    assert list(found(defrag)) == ["ns/high", "ns/early", "ns/late"]


def test_a_label_makes_nobody_matter_more() -> None:
    told = found(queue_of(("a", {"labels": {"genius/priority": "9"}})), past_the_queue("b", priority="9"))
    assert {wait.priority for wait in told.values()} == {0}
    assert found(queue_of(), past_the_queue("c", priority="-9"))["default/c"].priority == -9


def test_who_waits_for_something_else_than_room_is_left_out() -> None:
    defrag = queue_of(("quota", {}), ("room", {}), ("new", {}), ("broken", {"annotations": {"kerf.dev/gang": "g"}}))
    entries = defrag.rig.queue.backlog.entries
    entries["quota"].pass_over(Code.OVER_QUOTA.reason(namespace="ns", limit=1, used=1, asked=2), 0.0)
    entries["room"].pass_over(Code.NO_GPU_ROOM.reason(text="no room"), 0.0)
    assert found(defrag).keys() == {"ns/room", "ns/new"}


def test_who_has_waited_for_something_else_waits_for_room_only_since_then() -> None:
    defrag = queue_of(("quota", {}), ("room", {}))
    later, room = unix_time(LATER), Code.NO_GPU_ROOM.reason(text="no room")
    entries = defrag.rig.queue.backlog.entries
    entries["quota"].pass_over(Code.OVER_QUOTA.reason(namespace="ns", limit=1, used=1, asked=2), later - 100)
    for name, entry in entries.items():
        for now in (later, later + 100):
            entry.pass_over(room, now)
        assert found(defrag)[f"ns/{name}"].since == (later if name == "quota" else unix_time(CREATED))


def test_behind_a_gate_of_its_own_nobody_waits_for_room() -> None:
    defrag = queue_of()
    defrag.rig.now = unix_time(CREATED)
    defrag.waits("a", 2, controller="", spec={"schedulingGates": [*GATES, {"name": "example.com/mine"}]})
    defrag.tick(86_400.0)
    assert not found(defrag)
    defrag.waits("a", 2, controller="")
    defrag.tick(0.3)
    assert found(defrag)["ns/a"].since == defrag.rig.now


def test_past_the_queue_too() -> None:
    pods = UnboundPods(read_pod_request, lambda: unix_time(LATER))
    for pod in (past_the_queue("a", gate="example.com/theirs"), past_the_queue("a"), past_the_queue("b")):
        pods.changed(None, pod)
    told = {wait.name: wait.since for wait in asyncio.run(_waits_of(None, pods))}
    assert told == {"default/a": unix_time(LATER), "default/b": unix_time(CREATED)}


def test_a_gang_of_which_one_waits_for_something_else_is_left_out() -> None:
    defrag = queue_of(("a", gang(2)), ("b", gang(2)))
    over = Code.OVER_QUOTA.reason(namespace="ns", limit=1, used=1, asked=2)
    defrag.rig.queue.backlog.entries["b"].pass_over(over, 0.0)
    assert not found(defrag)


def test_past_the_queue_those_count_whom_kube_scheduler_has_refused() -> None:
    pods = [
        past_the_queue("refused"),
        past_the_queue("new", refused=False),
        past_the_queue("gated", gate="example.com/theirs"),
    ]
    told = found(queue_of(), *pods)
    assert told.keys() == {"default/refused"}
    assert not told["default/refused"].queued


def test_who_is_on_the_way_to_a_node_waits_no_more() -> None:
    defrag = queue_of(("a", {}))
    defrag.node("n", 2)
    defrag.tick()
    assert defrag.node_of("a") == "n"
    assert not found(defrag)
