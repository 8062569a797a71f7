"""The backlog's bounds: from when on a pod is lost or waits again, what is forgotten, what is told of other gates."""

import pytest

from extender.kube.objects import Pod
from extender.queueing.pods.backlog import ON_ITS_WAY_S, Backlog
from extender.queueing.pods.entries import Entry, Stage
from tests.queueing.watches import Watched, nominated, pod, refused


def opened(watched: Watched, name: str = "p") -> Entry:
    """An entry that Kerf has let go for node "n" at the clock's time; the watch hasn't told of it."""
    watched.backlog.upsert(pod(name))
    entry = watched.backlog.entries[f"uid-{name}"]
    entry.reserve("n")
    entry.open(watched.now)
    entry.was_opened()
    return entry


def let_go() -> Pod:
    return nominated(pod(gated=False, annotations={"kerf.dev/planned-node": "n"}), "n")


def test_a_pod_waits_again_when_the_watch_is_silent_for_a_quarter_of_a_minute() -> None:
    watched = Watched()
    entry = opened(watched)
    assert watched.backlog.recall(114.9) == []
    assert watched.backlog.recall(115.0) == [entry]
    assert (watched.backlog.waiting(), entry.node) == ([entry], "")
    assert watched.backlog.recall(200.0) == []


def test_a_pod_that_was_seen_open_is_not_recalled() -> None:
    watched = Watched()
    entry = opened(watched)
    watched.backlog.upsert(let_go())
    assert watched.backlog.recall(500.0) == []
    assert watched.backlog.opened() == [entry]


def test_a_refusal_counts_at_once_the_first_time_and_after_a_second_nomination_once_it_may_be_new() -> None:
    watched = Watched()
    entry = opened(watched)
    watched.backlog.upsert(let_go())
    assert watched.backlog.notice_lost(100.0) == []  # nobody has refused it
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


def test_a_pod_is_on_its_way_for_half_a_minute() -> None:
    watched = Watched()
    entry = opened(watched)
    assert watched.backlog.on_their_way(100.0 + ON_ITS_WAY_S - 0.1) == [entry]
    assert watched.backlog.on_their_way(100.0 + ON_ITS_WAY_S) == []


def kinds_of(num_gone: int) -> Backlog:
    """The backlog of a pod that stays and of some that are gone, each with a node selector of its own."""
    backlog = Watched().backlog
    for number in range(num_gone):
        backlog.upsert(pod(f"gone-{number}", spec={"nodeSelector": {"n": str(number)}}))
    backlog.upsert(pod("stays", spec={"nodeSelector": {"zone": "a"}}))
    for entry in list(backlog.entries.values()):
        if entry.uid != "uid-stays":
            backlog.remove(entry.pod)
    backlog.forget_kinds()
    return backlog


@pytest.mark.parametrize(("num_gone", "left"), [(0, 2), (64, 66), (65, 2)])
def test_kinds_are_forgotten_when_there_are_more_than_two_for_each_pod_and_64(num_gone: int, left: int) -> None:
    """One is that of pods without restrictions, one that of the pod that stays."""
    assert kinds_of(num_gone).kinds.count == left


def test_a_pod_that_is_being_deleted_leaves_and_that_is_told() -> None:
    watched = Watched()
    watched.backlog.upsert(pod("a"))
    watched.backlog.upsert(pod("b"))
    changes = watched.changes
    watched.backlog.upsert(pod("a", deletionTimestamp="2026-01-01T00:01:00Z"))
    assert (set(watched.backlog.entries), watched.gone, watched.changes) == ({"uid-b"}, ["a"], changes + 1)
    watched.backlog.remove(pod("unknown"))
    assert (watched.gone, watched.changes) == (["a"], changes + 1)


def gated_by(*names: str) -> Entry:
    watched = Watched()
    gates = [{"name": name} for name in ("kerf.dev/queue", *names)]
    watched.backlog.upsert(pod(spec={"schedulingGates": gates}))
    [entry] = watched.backlog.waiting()
    return entry


def test_the_gates_that_others_keep_shut_are_named() -> None:
    entry = gated_by("example.com/quota", "example.com/image")
    assert entry.planned is None
    assert str(entry.fault) == "held by another scheduling gate: example.com/quota, example.com/image"
    assert str(gated_by("g" * 2000).fault) == f"held by another scheduling gate: {'g' * 500}"
    assert gated_by().fault is None
    assert gated_by().planned is not None
