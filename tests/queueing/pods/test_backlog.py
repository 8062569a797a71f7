"""What the watch tells of waiting pods, who opts in and out, nodes' facts, runs, and what is written."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from extender.core.durations import Durations
from extender.kube.cache import Cache
from extender.kube.client import ApiError, Query
from extender.kube.objects import Container, Node, Pod, Resources
from extender.ledger.ledger import Ledger
from extender.planning.plans import PlanPod
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.nominations import PodWriter
from extender.queueing.pods.objects import Namespaces, decode_node, decode_pod, opted_out
from extender.queueing.pods.restrictions import Kinds
from extender.queueing.running_pods import RunningPods, learn_finished, owners_of
from tests.queueing.watches import GATES, Answers, Watched, entries, node, nominated, pod, refused


def test_gated_pods_enter_open_and_leave() -> None:
    watched = Watched()
    backlog = watched.backlog
    backlog.upsert(pod("never", gated=False))
    assert not backlog.entries
    backlog.upsert(pod())
    [entry] = backlog.waiting()
    assert (entry.created, entry.seen) == (1767225610.0, 100.0)
    watched.now = 103.0
    backlog.upsert(pod(gated=False))
    assert not backlog.waiting()
    assert backlog.opened() == [entry]
    assert entry.opened == 103.0
    backlog.remove(pod(gated=False))
    assert watched.gone == ["p"]
    assert not backlog.entries


def test_kinds_of_pods_that_are_gone_are_forgotten() -> None:
    backlog = Watched().backlog
    stays = pod("stays", spec={"nodeSelector": {"zone": "a"}})
    for number in range(300):
        backlog.upsert(pod(f"p-{number}", spec={"nodeSelector": {"n": str(number)}}))
    backlog.upsert(stays)
    backlog.forget_kinds()
    assert backlog.kinds.count == 302  # each is somebody's
    for entry in list(backlog.entries.values()):
        if entry.uid != "uid-stays":
            backlog.remove(entry.pod)
    backlog.forget_kinds()
    [entry] = backlog.waiting()
    assert entry.planned is not None
    assert (backlog.kinds.count, backlog.kinds.kind_of(stays.spec), entry.planned.kind) == (2, 1, 1)


def test_pods_being_deleted_or_gone_from_a_list_leave() -> None:
    watched = Watched()
    for name in ("a", "b", "c"):
        watched.backlog.upsert(pod(name))
    watched.backlog.upsert(pod("a", deletionTimestamp="2026-01-01T00:01:00Z"))
    watched.backlog.changed(pod("c"), None)
    assert sorted(watched.gone) == ["a", "c"]
    watched.backlog.upsert(pod("d", deletionTimestamp="2026-01-01T00:01:00Z"))
    assert set(watched.backlog.entries) == {"uid-b"}


def test_what_the_author_changes_is_read_again_and_kerfs_own_notes_are_not() -> None:
    watched = Watched()
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "1"}))
    changes = watched.changes
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "1", "kerf.dev/skipped": "no room"}))
    assert watched.changes == changes
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "2"}))
    [entry] = watched.backlog.waiting()
    assert entry.planned is not None
    assert entry.planned.gpus is not None
    assert entry.planned.gpus.count == 2
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "many"}))
    assert entry.planned is None
    assert "not a quantity" in str(entry.fault)
    watched.backlog.upsert(pod(labels={"genius/gpu-number": "1"}))
    assert entry.planned is not None


def test_a_gate_that_was_opened_by_kerf_and_is_still_told_of_stays_opened() -> None:
    watched = Watched()
    watched.backlog.upsert(pod())
    [entry] = watched.backlog.waiting()
    entry.open(101.0)
    entry.was_opened()
    watched.backlog.upsert(pod(annotations={"late": "event"}))  # from before the write
    assert watched.backlog.opened() == [entry]


def namespace(name: str, enabled: bool) -> Node:
    labels = {"kerf.dev/queue": "enabled"} if enabled else {}
    return decode_node({"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}})


@pytest.mark.parametrize(
    ("label", "by", "enabled", "why"),
    [
        (None, None, False, ""),
        ("enabled", "label", False, ""),
        ("disabled", None, True, "disabled on the pod"),
        (None, "namespace", True, ""),
        (None, "namespace", False, "removed from the namespace"),
        ("enabled", "namespace", False, ""),
        (None, "label", True, "removed from the pod"),
        (None, "priority", False, ""),
    ],
)
def test_opting_out(label: str | None, by: str | None, enabled: bool, why: str) -> None:
    namespaces = Namespaces(lambda: None)
    namespaces.changed(None, namespace("ns", enabled))
    found = pod(labels={"kerf.dev/queue": label} if label else {}, annotations={"kerf.dev/queued-by": by} if by else {})
    assert (why in opted_out(found, namespaces)) if why else opted_out(found, namespaces) == ""


def test_namespaces_come_and_go() -> None:
    changes: list[int] = []
    namespaces, seen = Namespaces(lambda: changes.append(1)), Cache[Node, Node](lambda item: item)
    seen.subscribe(namespaces.changed)
    seen.upsert(namespace("a", True))
    seen.upsert(namespace("b", True))
    assert namespaces.enabled("a")
    seen.upsert(namespace("a", False))
    assert not namespaces.enabled("a")
    assert len(changes) == 3
    seen.keep(set(), 0.0)
    assert not namespaces.enabled("b")


SMALL = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}


def test_a_view_has_what_is_on_its_way_taken_off_and_heartbeats_change_nothing() -> None:
    changes: list[int] = []
    nodes, ledger, kinds = Cache[Node, Node](lambda item: item), Ledger(reservation_ttl_s=1), Kinds()
    book = NodeBook(nodes, lambda: changes.append(1))
    nodes.subscribe(book.changed)
    for name in ("a", "b"):
        ledger.upsert_node(node(name))
        nodes.upsert(node(name))
        nodes.upsert(node(name, resourceVersion="2"))
    assert len(changes) == 2
    on_way = entries(*(pod(name, spec=SMALL) for name in "pq"))
    for entry, name in zip(on_way, ("b", "gone"), strict=True):
        entry.reserve(name)
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), on_way, 0.25))
    assert view.cpu_free_milli.tolist() == [6000, 5000]  # a quarter of 8 is kept
    assert view.memory_free_mib.tolist() == [12288, 11264]
    assert view.pods_free.tolist() == [110, 109]
    again = asyncio.run(book.view(ledger.snapshot(0), kinds, (), (), 0.25))
    assert again.cpu_free_milli.tolist() == [6000, 6000]
    nodes.upsert(node("a", cpu="4"))
    kinds.kind_of(pod(spec={"nodeSelector": {"x": "y"}}).spec)
    changed = asyncio.run(book.view(ledger.snapshot(0), kinds, [PlanPod("ns/p", topology="rack")], (), 0.0))
    assert changed.cpu_allocatable_milli.tolist() == [4000, 8000]
    assert np.array_equal(changed.allowed, [[True, True], [False, False]])
    assert changed.domains["rack"].tolist() == [-1, -1]
    nodes.keep({"uid-b"}, 0.0)
    assert asyncio.run(book.view(ledger.snapshot(0), kinds, (), (), 0.0)).allowed[0].tolist() == [False, True]


def running(name: str, gpus: int, **metadata: Any) -> Pod:
    return decode_pod(
        {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata},
            "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:10Z"},
        }
    )


def running_pods(durations: Durations, wall_clock: Callable[[], float]) -> tuple[Cache[Pod, Pod], RunningPods]:
    pods = Cache[Pod, Pod](lambda pod: pod)
    runs = RunningPods(pods, durations, wall_clock)
    pods.subscribe(runs.changed)
    return pods, runs


def test_runs_count_gpus_and_teach_durations() -> None:
    durations = Durations()
    pods, runs = running_pods(durations, lambda: 1767225610.0 + 40)
    job = {"ownerReferences": [{"kind": "Job", "name": "train-20260101-7", "controller": True}]}
    pods.upsert(running("a", 2, **job))
    pods.upsert(running("a", 2, **job))
    pods.upsert(running("b", 1))
    assert runs.gpus == {"ns": 3.0}
    pods.remove(running("a", 2, **job))
    assert runs.gpus == {"ns": 1.0}
    owners = owners_of(running("a", 2, **job), 2.0)
    assert owners == ("ns/Job/train/2 GPUs", "ns/2 GPUs", "ns")
    assert durations.num_owners == 3
    assert durations.expected_s(()) == 40.0
    pods.upsert(running("b", 1, deletionTimestamp="2026-01-01T00:00:20Z"))
    pods.remove(running("b", 1))
    assert durations.num_owners == 3  # deleted while it ran: nothing is learned
    assert runs.gpus == {"ns": 0.0}


def test_of_a_run_whose_end_was_missed_nothing_is_learned() -> None:
    durations = Durations()
    pods, runs = running_pods(durations, lambda: 1767225610.0 + 40)
    pods.upsert(running("a", 2))
    pods.keep(set(), 0.0)
    assert (runs.gpus, durations.num_owners) == ({"ns": 0.0}, 0)


def test_pods_that_ended_before_the_start_are_learned_from() -> None:
    def ended(name: str, gpus: int, *ends: str, started: bool = True) -> dict[str, Any]:
        manifest: dict[str, Any] = msgspec.to_builtins(running(name, gpus))
        states = [{"state": {"terminated": {"finishedAt": end}}} for end in ends]
        start = {"startTime": "2026-01-01T00:00:10Z"} if started else {}
        return manifest | {"status": {"phase": "Succeeded", "containerStatuses": states, **start}}

    class Pages:
        async def get(self, path: str, query: dict[str, str]) -> bytes:
            if "continue" not in query:
                items = [ended("b", 1, "2026-01-01T00:00:13Z", "2026-01-01T00:01:10Z"), ended("untold", 1)]
                return msgspec.json.encode({"metadata": {"continue": "more"}, "items": items})
            items = [ended("a", 2, "2026-01-01T00:00:20Z"), ended("odd", 1, "2026-01-01T00:00:20Z", started=False)]
            return msgspec.json.encode({"items": items})

    durations = Durations()
    asyncio.run(learn_finished(Pages(), durations))  # type: ignore[arg-type]
    expected = Durations()
    expected.finished(("ns/Pod/a/2 GPUs", "ns/2 GPUs", "ns"), 10.0)  # ended first
    expected.finished(("ns/Pod/b/1 GPUs", "ns/1 GPUs", "ns"), 60.0)
    assert durations == expected


def test_mig_devices_that_run_count_as_they_did_when_they_were_asked_for() -> None:
    pods, runs = running_pods(Durations(), lambda: 0.0)
    item = running("a", 0)
    limits: dict[str, str | int | float] = {"nvidia.com/mig-1g.10gb": 3}
    item.spec.containers = [Container(resources=Resources(limits=limits))]
    pods.upsert(item)
    assert runs.gpus == {"ns": 3.0}


def test_a_run_seen_from_its_start_is_timed_finer_than_the_api_server_tells() -> None:
    durations, now = Durations(), [1767225610.7]
    pods, _ = running_pods(durations, lambda: now[0])
    pods.upsert(running("a", 1))  # startTime says 10, it is 10.7
    now[0] += 2.0
    pods.remove(running("a", 1))
    assert durations.expected_s(()) == pytest.approx(2.0)


def test_opening_keeps_the_gates_of_others_and_takes_a_refusal_for_what_it_is() -> None:
    async def run() -> None:
        two = pod(spec={"schedulingGates": [{"name": "kerf.dev/queue"}, {"name": "other"}]})
        api = Answers()
        assert await PodWriter(api).open(two, "n", "greedy")  # type: ignore[arg-type]
        [(path, body)] = api.written
        assert path == "/api/v1/namespaces/ns/pods/p"
        assert body["spec"] == {"schedulingGates": [{"name": "other"}]}
        assert body["metadata"]["uid"] == "uid-p"
        assert await PodWriter(api).open(two, "n", "greedy", {"rack": "r1"})  # type: ignore[arg-type]
        assert api.written[-1][1]["spec"] == {"schedulingGates": [{"name": "other"}], "nodeSelector": {"rack": "r1"}}
        # Somebody opened the other gate meanwhile: to write it again is refused, so the pod is read afresh.
        alone = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}, "spec": GATES}
        api = Answers({path: alone}, [ApiError(422, "Invalid", "only deletion is allowed")])
        assert await PodWriter(api).open(two, "n", "greedy")  # type: ignore[arg-type]
        assert api.written[-1][1]["spec"] == {"schedulingGates": None}
        for status in (404, 409):
            gone = Answers(refuse=[ApiError(status, "", "")])
            assert not await PodWriter(gone).place(two, "n", "greedy")  # type: ignore[arg-type]
        # Deleted and created again: to the API server, a UID that can't be changed.
        another = {path: {"metadata": {"name": "p", "namespace": "ns", "uid": "another"}, "spec": GATES}}
        for write in (PodWriter.open, PodWriter.place):
            api = Answers(another, [ApiError(422, "Invalid", "field is immutable")])
            assert not await write(PodWriter(api), two, "n", "greedy")  # type: ignore[arg-type]
            assert len(api.written) == 1
        with pytest.raises(ApiError):
            await PodWriter(Answers(refuse=[ApiError(500, "", "")])).nominate(two, "n")  # type: ignore[arg-type]

    asyncio.run(run())


def test_a_pod_that_is_deleted_while_a_refusal_is_looked_into_is_gone() -> None:
    class Fleeting(Answers):
        async def get(self, path: str, query: Query | None = None) -> bytes:
            found = await super().get(path, query)
            self.answers.clear()
            return found

    there = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}, "spec": GATES}
    api = Fleeting({"/api/v1/namespaces/ns/pods/p": there}, [ApiError(422, "Invalid", "only deletion is allowed")])
    assert not asyncio.run(PodWriter(api).open(pod(), "n", "greedy"))  # type: ignore[arg-type]
    assert len(api.asked) == 2


def test_an_author_who_says_that_his_pods_were_planned_books_nothing() -> None:
    watched, now = Watched(), 100.0
    planned = {"kerf.dev/planned-node": "n"}
    for number in range(300):
        watched.backlog.upsert(pod(f"forged-{number}", gated=False, annotations=planned))
    watched.backlog.upsert(nominated(pod("elsewhere", gated=False, annotations=planned), "m"))
    assert not watched.backlog.entries
    watched.backlog.upsert(refused(pod("refused", gated=False, annotations={"kerf.dev/planned-node": "x" * 100_000})))
    assert watched.backlog.on_their_way(now) == []
    [entry] = watched.backlog.lost()  # it takes its turn as a pod behind the gate does
    assert (entry.node, entry.by_kerf, len(entry.lost) < 300) == ("", False, True)
    watched.backlog.upsert(nominated(pod("real", gated=False, annotations=planned), "n"))
    assert [(entry.pod.metadata.name, entry.node, entry.by_kerf) for entry in watched.backlog.on_their_way(now)] == [
        ("real", "n", True)
    ]


def test_who_takes_the_gate_off_himself_is_nobody_that_kerf_has_let_go() -> None:
    watched = Watched()
    watched.backlog.upsert(pod())
    watched.backlog.upsert(pod(gated=False, annotations={"kerf.dev/planned-node": "n"}))
    [entry] = watched.backlog.opened()
    assert (entry.node, entry.by_kerf) == ("", False)


def test_a_standby_knows_whom_the_leader_has_let_go() -> None:
    watched = Watched()
    watched.backlog.upsert(pod())
    watched.backlog.upsert(nominated(pod(gated=False, annotations={"kerf.dev/planned-node": "n"}), "n"))
    [entry] = watched.backlog.opened()
    assert (entry.node, entry.by_kerf) == ("n", True)
