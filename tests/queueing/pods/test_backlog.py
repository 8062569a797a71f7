"""The queue's pods as a watch reports them: which enter, leave, are lost, wait again, and opt in or out."""

import pytest

from extender.kube.cache import Cache
from extender.kube.objects import Node, Pod
from extender.planning.wait_reasons import Code
from extender.queueing.pods.backlog import ON_ITS_WAY_S
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.objects import Namespaces, decode_node, opted_out
from tests.queueing.watches import Watched, nominated, pod, refused

DELETED = "2026-01-01T00:01:00Z"
PLANNED = {"kerf.dev/planned-node": "n"}


def opened(watched: Watched) -> Entry:
    """An entry that Kerf has released to node "n" at the clock's time; the watch hasn't reported it."""
    watched.backlog.upsert(pod())
    [entry] = watched.backlog.waiting()
    entry.reserve("n")
    entry.open(watched.now)
    entry.was_opened()
    return entry


def let_go() -> Pod:
    return nominated(pod(gated=False, annotations=PLANNED), "n")


def test_gated_pods_enter_open_and_leave() -> None:
    watched = Watched()
    backlog = watched.backlog
    backlog.upsert(pod("never", gated=False))
    backlog.upsert(pod("deleted", deletionTimestamp=DELETED))
    assert not backlog.entries
    backlog.upsert(pod())
    [entry] = backlog.waiting()
    assert (entry.created, entry.seen) == (1767225610.0, 100.0)
    watched.now = 103.0
    backlog.upsert(pod(gated=False))
    assert not backlog.waiting()
    assert (backlog.opened(), entry.opened) == ([entry], 103.0)
    changes = watched.changes
    backlog.remove(pod(gated=False))
    assert (watched.gone, dict(backlog.entries), watched.changes) == (["p"], {}, changes + 1)


def test_pods_that_are_being_deleted_or_gone_leave_and_that_is_a_change() -> None:
    watched = Watched()
    for name in "abc":
        watched.backlog.upsert(pod(name))
    changes = watched.changes
    watched.backlog.upsert(pod("a", deletionTimestamp=DELETED))
    watched.backlog.changed(pod("c"), None)
    watched.backlog.remove(pod("unknown"))
    assert (set(watched.backlog.entries), watched.gone, watched.changes) == ({"uid-b"}, ["a", "c"], changes + 2)


def test_what_the_author_changes_is_read_again_and_kerfs_own_notes_are_not() -> None:
    watched = Watched()
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "1"}))
    changes = watched.changes
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "1", "kerf.dev/skipped": "no room"}))
    assert watched.changes == changes
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "2"}))
    [entry] = watched.backlog.waiting()
    assert (entry.num_gpus, watched.changes) == (2, changes + 1)
    watched.backlog.upsert(pod(annotations={"kerf.dev/gpu-count": "many"}))
    assert entry.planned is None
    assert "not a quantity" in str(entry.fault)
    watched.backlog.upsert(pod(labels={"genius/gpu-number": "1"}))
    assert entry.planned is not None


def test_a_gate_that_kerf_opened_and_the_watch_still_reports_stays_opened() -> None:
    watched = Watched()
    entry = opened(watched)
    watched.backlog.upsert(pod(annotations={"late": "event"}))  # from before the write
    assert watched.backlog.opened() == [entry]


def test_a_pod_waits_again_when_the_watch_does_not_report_it_open_for_15_s() -> None:
    watched = Watched()
    entry = opened(watched)
    assert watched.backlog.on_their_way(100.0 + ON_ITS_WAY_S - 0.1) == [entry]
    assert watched.backlog.on_their_way(100.0 + ON_ITS_WAY_S) == []
    assert watched.backlog.recall(114.9) == []
    assert watched.backlog.recall(115.0) == [entry]
    assert (watched.backlog.waiting(), entry.node) == ([entry], "")
    assert watched.backlog.recall(200.0) == []
    watched = Watched()
    entry = opened(watched)
    watched.backlog.upsert(let_go())
    assert watched.backlog.recall(500.0) == []
    assert watched.backlog.opened() == [entry]


def test_a_refusal_counts_at_once_and_after_a_second_nomination_once_it_may_be_new() -> None:
    watched = Watched()
    entry = opened(watched)
    watched.backlog.upsert(let_go())
    assert watched.backlog.notice_lost(100.0) == []  # it is not refused
    watched.backlog.upsert(refused(let_go()))
    assert watched.backlog.notice_lost(100.0) == [entry]
    assert watched.backlog.notice_lost(100.0) == []
    assert (watched.backlog.lost(), entry.lost, entry.num_lost) == ([entry], "n: no room", 1)
    entry.reserve("m")
    assert entry.stage is Stage.RENOMINATING
    entry.renominated(200.0)
    assert watched.backlog.notice_lost(200.0 + ON_ITS_WAY_S - 0.1) == []
    assert watched.backlog.notice_lost(200.0 + ON_ITS_WAY_S) == [entry]
    assert (entry.lost, entry.num_lost) == ("m: no room", 2)


@pytest.mark.parametrize(("num_gone", "left"), [(0, 2), (64, 66), (65, 2)])
def test_kinds_are_forgotten_when_there_are_more_than_two_for_each_pod_and_64(num_gone: int, left: int) -> None:
    """One is that of pods without restrictions, one that of the pod that stays."""
    backlog, stays = Watched().backlog, pod("stays", spec={"nodeSelector": {"zone": "a"}})
    for number in range(num_gone):
        backlog.upsert(pod(f"gone-{number}", spec={"nodeSelector": {"n": str(number)}}))
    backlog.upsert(stays)
    for entry in list(backlog.entries.values()):
        if entry.uid != "uid-stays":
            backlog.remove(entry.pod)
    [entry] = backlog.waiting()
    backlog.forget_kinds()
    assert entry.planned is not None
    assert backlog.kinds.count == left
    assert entry.planned.kind == backlog.kinds.kind_of(stays.spec) == (1 if left == 2 else 65)


def test_forged_annotations_of_a_plan_book_nothing() -> None:
    watched, now = Watched(), 100.0
    for number in range(300):
        watched.backlog.upsert(pod(f"forged-{number}", gated=False, annotations=PLANNED))
    watched.backlog.upsert(nominated(pod("elsewhere", gated=False, annotations=PLANNED), "m"))
    assert not watched.backlog.entries
    watched.backlog.upsert(refused(pod("refused", gated=False, annotations={"kerf.dev/planned-node": "x" * 100_000})))
    assert watched.backlog.on_their_way(now) == []
    [entry] = watched.backlog.lost()  # it waits for a plan as a gated pod does
    assert (entry.node, entry.by_kerf, len(entry.lost) < 300) == ("", False, True)
    watched.backlog.upsert(nominated(pod("real", gated=False, annotations=PLANNED), "n"))
    [real] = watched.backlog.on_their_way(now)
    assert (real.uid, real.node, real.by_kerf) == ("uid-real", "n", True)


def test_a_gate_that_another_client_opened_is_the_leaders_release_only_with_its_nomination() -> None:
    for item, node, by_kerf in ((pod(gated=False, annotations=PLANNED), "", False), (let_go(), "n", True)):
        watched = Watched()
        watched.backlog.upsert(pod())
        watched.backlog.upsert(item)
        [entry] = watched.backlog.opened()
        assert (entry.node, entry.by_kerf) == (node, by_kerf)


def gated_by(*names: str) -> Entry:
    watched = Watched()
    watched.backlog.upsert(pod(spec={"schedulingGates": [{"name": name} for name in ("kerf.dev/queue", *names)]}))
    [entry] = watched.backlog.waiting()
    return entry


def test_the_gates_that_others_keep_shut_are_named() -> None:
    entry = gated_by("example.com/quota", "example.com/image")
    assert entry.planned is None
    assert entry.fault == Code.OTHER_GATE.reason(gates="example.com/quota, example.com/image")
    assert gated_by("g" * 2000).fault == Code.OTHER_GATE.reason(gates="g" * 500)
    assert gated_by().fault is None
    assert gated_by().planned is not None


def namespace(name: str, enabled: bool) -> Node:
    labels = {"kerf.dev/queue": "enabled"} if enabled else {}
    return decode_node({"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}})


def test_opting_out() -> None:
    for label, by, enabled, why in (
        (None, None, False, ""),
        ("enabled", "label", False, ""),
        ("disabled", None, True, "disabled on the pod"),
        (None, "namespace", True, ""),
        (None, "namespace", False, "removed from the namespace"),
        ("enabled", "namespace", False, ""),
        (None, "label", True, "removed from the pod"),
        (None, "priority", False, ""),
    ):
        namespaces = Namespaces(lambda: None)
        namespaces.changed(None, namespace("ns", enabled))
        labels, notes = {"kerf.dev/queue": label} if label else {}, {"kerf.dev/queued-by": by} if by else {}
        found = opted_out(pod(labels=labels, annotations=notes), namespaces)
        assert (why in found) if why else found == ""


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
    seen.retain_only(set(), 0.0)
    assert not namespaces.enabled("b")
