"""What the watch tells of waiting pods, who opts in and out, nodes' facts, runs, and gangs."""

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from extender.cluster.ledger import Ledger
from extender.cluster.transports import ApiError, Query
from extender.queueing.backlogs import Backlog, Entry
from extender.queueing.durations import Durations
from extender.queueing.gangs import Gangs, units_of
from extender.queueing.manifests import Node, Pod, decode_node, decode_pod
from extender.queueing.nodebooks import Booked, NodeBook
from extender.queueing.optins import Namespaces, opted_out
from extender.queueing.plans import PlanPod
from extender.queueing.realisations import Realiser
from extender.queueing.restrictions import Kinds
from extender.queueing.runs import Runs, owners_of

GATES = {"schedulingGates": [{"name": "kerf.dev/queue"}]}


def pod(name: str = "p", *, gated: bool = True, spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:10Z"}
    return decode_pod({"metadata": {**meta, **metadata}, "spec": {**(GATES if gated else {}), **(spec or {})}})


class Watched:
    """A backlog, and what it told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changes = 0
        self.gone: list[str] = []
        self.backlog = Backlog(lambda: self.now, self._changed, self._left)

    def _changed(self) -> None:
        self.changes += 1

    def _left(self, entry: Entry) -> None:
        self.gone.append(entry.pod.metadata.name)


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


def test_pods_being_deleted_or_gone_from_a_list_leave() -> None:
    watched = Watched()
    for name in ("a", "b", "c"):
        watched.backlog.upsert(pod(name))
    watched.backlog.upsert(pod("a", deletionTimestamp="2026-01-01T00:01:00Z"))
    watched.backlog.keep({"uid-b"}, 0.0)
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
    assert "not a quantity" in entry.fault
    watched.backlog.upsert(pod(labels={"genius/gpu-number": "1"}))
    assert entry.planned is not None


def test_a_gate_that_was_opened_by_kerf_and_is_still_told_of_stays_opened() -> None:
    watched = Watched()
    watched.backlog.upsert(pod())
    [entry] = watched.backlog.waiting()
    entry.opened = 101.0
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
    namespaces.upsert(namespace("ns", enabled))
    found = pod(labels={"kerf.dev/queue": label} if label else {}, annotations={"kerf.dev/queued-by": by} if by else {})
    assert (why in opted_out(found, namespaces)) if why else opted_out(found, namespaces) == ""


def test_namespaces_come_and_go() -> None:
    changes: list[int] = []
    namespaces = Namespaces(lambda: changes.append(1))
    namespaces.upsert(namespace("a", True))
    namespaces.upsert(namespace("b", True))
    assert namespaces.enabled("a")
    namespaces.upsert(namespace("a", False))
    assert not namespaces.enabled("a")
    assert len(changes) == 3
    namespaces.keep(set(), 0.0)
    assert not namespaces.enabled("b")


def node(name: str, cpu: str = "8", **metadata: Any) -> Node:
    return decode_node(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
            "status": {"allocatable": {"cpu": cpu, "memory": "16Gi"}},
        }
    )


def test_a_view_has_what_is_on_its_way_taken_off_and_heartbeats_change_nothing() -> None:
    changes: list[int] = []
    book, ledger, kinds = NodeBook(lambda: changes.append(1)), Ledger(reservation_ttl_s=1), Kinds()
    for name in ("a", "b"):
        ledger.upsert_node(node(name))
        book.upsert(node(name))
        book.upsert(node(name, resourceVersion="2"))
    assert len(changes) == 2
    booked = [Booked(PlanPod("ns/p", 1000, 1024), "b"), Booked(PlanPod("ns/q", 1000, 1024), "gone")]
    view = book.view(ledger.snapshot(0), kinds, (), booked, 0.25)
    assert view.cpu_free_milli.tolist() == [6000, 5000]  # a quarter of 8 is kept
    assert view.memory_free_mib.tolist() == [12288, 11264]
    assert view.pods_free.tolist() == [110, 109]
    again = book.view(ledger.snapshot(0), kinds, (), (), 0.25)
    assert again.cpu_free_milli.tolist() == [6000, 6000]
    book.upsert(node("a", cpu="4"))
    kinds.kind_of(pod(spec={"nodeSelector": {"x": "y"}}).spec)
    changed = book.view(ledger.snapshot(0), kinds, ("rack",), (), 0.0)
    assert changed.cpu_allocatable_milli.tolist() == [4000, 8000]
    assert np.array_equal(changed.allowed, [[True, True], [False, False]])
    assert changed.domains["rack"].tolist() == [-1, -1]
    book.keep({"uid-b"}, 0.0)
    assert book.view(ledger.snapshot(0), kinds, (), (), 0.0).allowed[0].tolist() == [False, True]


def running(name: str, gpus: int, **metadata: Any) -> Pod:
    return decode_pod(
        {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata},
            "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:10Z"},
        }
    )


def test_runs_count_gpus_and_teach_durations() -> None:
    durations = Durations()
    runs = Runs(durations, lambda: 1767225610.0 + 40)
    job = {"ownerReferences": [{"kind": "Job", "name": "train-20260101-7", "controller": True}]}
    runs.upsert(running("a", 2, **job))
    runs.upsert(running("a", 2, **job))
    runs.upsert(running("b", 1))
    assert runs.gpus == {"ns": 3.0}
    runs.remove(running("a", 2, **job))
    assert runs.gpus == {"ns": 1.0}
    assert owners_of(running("a", 2, **job)) == ("ns/Job/train", "ns")
    assert durations.expected_s(("ns/Job/train",)) == 40.0
    runs.upsert(running("b", 1, deletionTimestamp="2026-01-01T00:00:20Z"))
    runs.remove(running("b", 1))
    assert durations.expected_s(("ns/Pod/b",)) == float("inf")  # deleted while it ran: nothing is learned
    assert runs.gpus == {"ns": 0.0}


class Answers:
    """An API server of a few paths; what was written to it, and what it refuses."""

    def __init__(self, answers: dict[str, Any] | None = None, refuse: list[ApiError] | None = None) -> None:
        self._answers = answers or {}
        self._refuse = refuse or []
        self.asked: list[str] = []
        self.written: list[tuple[str, Any]] = []

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.asked.append(path)
        if path not in self._answers:
            raise ApiError(404, "NotFound", path)
        return msgspec.json.encode(self._answers[path])

    async def patch(self, path: str, body: bytes) -> bytes:
        self.written.append((path, msgspec.json.decode(body)))
        if self._refuse:
            raise self._refuse.pop(0)
        return b"{}"


def entries(*pods: Pod) -> list[Entry]:
    watched = Watched()
    for item in pods:
        watched.backlog.upsert(item)
    return watched.backlog.waiting()


GROUP = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"
PODS = "/api/v1/namespaces/ns/pods"


def test_an_incomplete_gang_waits_and_members_that_run_count() -> None:
    async def run() -> None:
        gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
        now = [0.0]
        api = Answers({PODS: {"items": []}})
        gangs = Gangs(api, lambda: now[0])  # type: ignore[arg-type]
        waiting = entries(pod("a", annotations=gang), pod("b", annotations=gang), pod("single"))
        units = await units_of(waiting, gangs)
        assert [(unit.key, len(unit.entries), unit.missing) for unit in units] == [
            ("ns/single", 1, ""),
            ("ns/g", 2, "gang ns/g waits for its pods: 2 of 3 are here"),
        ]
        runs = {"metadata": {"namespace": "ns", "annotations": gang}, "spec": {"nodeName": "n"}}
        api._answers[PODS] = {"items": [runs, {"metadata": {"namespace": "ns"}}]}
        await units_of(waiting, gangs)
        assert len(api.asked) == 1  # remembered for a while
        now[0] = 6.0
        assert [unit.missing for unit in await units_of(waiting, gangs)] == ["", ""]

    asyncio.run(run())


def test_a_pod_group_says_the_size() -> None:
    async def run() -> None:
        label = {"scheduling.x-k8s.io/pod-group": "g"}
        waiting = entries(pod("a", labels=label), pod("b", labels=label))
        [unit] = await units_of(waiting, Gangs(Answers(), lambda: 0.0))  # type: ignore[arg-type]
        assert unit.missing == "gang ns/g: its PodGroup is not there, or says no minMember"
        [unit] = await units_of(waiting, Gangs(Answers({GROUP: {"spec": {"minMember": 2}}}), lambda: 0.0))  # type: ignore[arg-type]
        assert unit.missing == ""

    asyncio.run(run())


def test_opening_keeps_the_gates_of_others_and_takes_a_refusal_for_what_it_is() -> None:
    async def run() -> None:
        two = pod(spec={"schedulingGates": [{"name": "kerf.dev/queue"}, {"name": "other"}]})
        api = Answers()
        assert await Realiser(api).open(two, "n", "greedy")  # type: ignore[arg-type]
        [(path, body)] = api.written
        assert path == "/api/v1/namespaces/ns/pods/p"
        assert body["spec"] == {"schedulingGates": [{"name": "other"}]}
        assert body["metadata"]["uid"] == "uid-p"
        # Somebody opened the other gate meanwhile: to write it again is refused, so the pod is read afresh.
        alone = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}, "spec": GATES}
        api = Answers({path: alone}, [ApiError(422, "Invalid", "only deletion is allowed")])
        assert await Realiser(api).open(two, "n", "greedy")  # type: ignore[arg-type]
        assert api.written[-1][1]["spec"] == {"schedulingGates": None}
        for status in (404, 409):
            gone = Answers(refuse=[ApiError(status, "", "")])
            assert not await Realiser(gone).place(two, "n", "greedy")  # type: ignore[arg-type]
        # Deleted and created again: to the API server, a UID that can't be changed.
        another = {path: {"metadata": {"name": "p", "namespace": "ns", "uid": "another"}, "spec": GATES}}
        for write in (Realiser.open, Realiser.place):
            api = Answers(another, [ApiError(422, "Invalid", "field is immutable")])
            assert not await write(Realiser(api), two, "n", "greedy")  # type: ignore[arg-type]
            assert len(api.written) == 1
        with pytest.raises(ApiError):
            await Realiser(Answers(refuse=[ApiError(500, "", "")])).nominate(two, "n")  # type: ignore[arg-type]

    asyncio.run(run())
