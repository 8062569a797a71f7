"""Stages of a pod in the queue: each transition from each stage, and its effects."""

from collections.abc import Callable

import pytest

from extender.core.resources.requests import GpuRequest
from extender.kube.objects import Pod
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import NOT_REACHED, Code
from extender.queueing.pods.entries import Entry, Stage, StageError
from tests.queueing.watches import nominated, pod, refused

GATED, NOMINATING, OPENING, WITHDRAWING, OPENED, LOST, RENOMINATING, UNSETTLED = Stage
TRANSITIONS: dict[str, tuple[Callable[[Entry], None], dict[Stage, Stage]]] = {
    "reserve": (lambda entry: entry.reserve("n"), {GATED: NOMINATING, LOST: RENOMINATING}),
    "open": (lambda entry: entry.open(1.0), {GATED: OPENING, NOMINATING: OPENING}),
    "was_opened": (lambda entry: entry.was_opened(), {OPENING: OPENED}),
    "withdraw": (lambda entry: entry.withdraw(), {GATED: WITHDRAWING}),
    "put_back": (lambda entry: entry.put_back(1.0), {NOMINATING: GATED, OPENING: GATED, WITHDRAWING: GATED}),
    "find_open": (lambda entry: entry.find_open(1.0), {GATED: OPENED}),
    "lose": (lambda entry: entry.lose("n"), {OPENED: LOST}),
    "renominated": (lambda entry: entry.renominated(1.0), {RENOMINATING: OPENED}),
    "stay_lost": (lambda entry: entry.stay_lost(), {RENOMINATING: LOST}),
    "recall": (lambda entry: entry.recall(), {OPENED: GATED}),
    "doubt": (
        lambda entry: entry.doubt(),
        dict.fromkeys((GATED, NOMINATING, OPENING, OPENED, LOST, RENOMINATING), UNSETTLED),
    ),
    "settle_open": (lambda entry: entry.settle_open(entry.pod, 1.0), {UNSETTLED: OPENED}),
    "settle_shut": (lambda entry: entry.settle_shut(entry.pod), {UNSETTLED: GATED}),
    "settle_lost": (lambda entry: entry.settle_lost(entry.pod), {UNSETTLED: LOST}),
    "give_up": (lambda entry: entry.give_up(), {LOST: OPENED}),
}


def entry(stage: Stage = GATED, *, gated: bool = True) -> Entry:
    return Entry(pod(gated=gated), created=0.0, seen=0.0, stage=stage)


@pytest.mark.parametrize("name", list(TRANSITIONS))
def test_every_other_transition_is_refused_and_changes_nothing(name: str) -> None:
    make, allowed = TRANSITIONS[name]
    for stage in Stage:
        found = entry(stage)
        if stage in allowed:
            make(found)
            assert found.stage is allowed[stage]
        else:
            with pytest.raises(StageError, match=stage.value):
                make(found)
            assert (found.stage, found.node, found.num_lost) == (stage, "", 0)


def test_a_pod_is_put_back_behind_its_gate_without_a_node_unless_another_client_has_opened_it() -> None:
    found = entry()
    found.reserve("n")
    found.open(1.0)
    found.put_back(2.0)
    assert (found.stage, found.node, found.by_kerf) == (GATED, "", False)
    for stage in (NOMINATING, OPENING, WITHDRAWING):
        found = entry(stage, gated=False)
        found.put_back(5.0)
        assert (found.stage, found.opened, found.node, found.by_kerf) == (OPENED, 5.0, "", False)


def test_a_pod_found_open_is_known_by_what_is_written_on_it() -> None:
    planned = pod(gated=False, annotations={"kerf.dev/planned-node": "n"})
    for manifest, stage, node, by_kerf in (
        (nominated(planned, "n"), OPENED, "n", True),
        (nominated(planned, "m"), OPENED, "", False),
        (refused(planned), LOST, "", False),
    ):
        found = Entry(manifest, created=0.0, seen=0.0)
        found.find_open(1.0)
        assert (found.stage, found.node, found.by_kerf) == (stage, node, by_kerf)


def test_a_pod_is_on_its_way_for_a_while_after_it_was_opened_and_late_then() -> None:
    found = entry()
    found.reserve("n")
    assert (found.on_its_way(5000.0, within_s=30.0), found.is_late(5000.0, within_s=30.0)) == (True, False)
    found.open(1000.0)
    found.was_opened()
    for now, on_way in ((1029.9, True), (1030.0, False)):
        assert (found.on_its_way(now, within_s=30.0), found.is_late(now, within_s=30.0)) == (on_way, not on_way)
    found.lose("n")
    assert (found.on_its_way(1000.0, within_s=30.0), found.is_late(5000.0, within_s=30.0)) == (False, False)
    left = entry()
    left.open(1000.0)
    left.was_opened()
    assert not left.is_late(5000.0, within_s=30.0), "it was released without a node"


PLANNED = {"kerf.dev/planned-node": "n"}


@pytest.mark.parametrize(
    ("manifest", "said"),
    [(refused(pod(gated=False)), "n: no room"), (pod(gated=False), "n: kube-scheduler did not take it")],
    ids=["refused", ""],
)
def test_what_kube_scheduler_says_of_a_lost_node_is_kept_until_it_says_something_else(manifest: Pod, said: str) -> None:
    found = Entry(manifest, created=0.0, seen=0.0, stage=OPENED, node="n")
    found.lose("n")
    assert (found.lost, found.num_lost, found.unjudged, found.suspect) == (said, 1, "n", False)
    assert found.may_be_refused
    found.judge(had_room=False)
    assert (found.num_refused, found.refused, found.suspect, found.may_be_refused) == (0, "", False, False)
    found.reserve("m")
    found.renominated(5.0)
    assert (found.stage, found.node, found.opened, found.by_kerf, found.lost) == (OPENED, "m", 5.0, True, "")
    found.pod = refused(pod(gated=False))
    found.lose("m")
    found.judge(had_room=True)
    assert (found.num_lost, found.num_refused, found.refused, found.suspect) == (2, 1, "m: no room", True)
    assert found.unjudged == ""
    found.reserve("k")
    found.renominated(6.0)
    found.pod = pod(gated=False)  # which takes back what was said
    found.lose("k")
    found.judge(had_room=True)
    assert (found.lost, found.num_refused, found.refused, found.suspect) == ("k: no room", 2, "k: no room", True)
    found.unjudged = "k"
    found.forgive()
    assert (found.num_refused, found.refused, found.may_be_refused, found.unjudged) == (0, "", False, "")


def test_a_pod_is_suspect_that_a_kerf_before_this_one_let_go_and_that_was_refused() -> None:
    before = Entry(refused(pod(gated=False, annotations=PLANNED)), created=0.0, seen=0.0)
    before.find_open(1.0)
    assert (before.stage, before.lost, before.found, before.suspect) == (LOST, "n: no room", True, True)
    before.reserve("m")
    before.renominated(2.0)
    assert (before.found, before.suspect) == (False, True)
    before.lose("m")
    assert before.suspect
    own = Entry(refused(pod(gated=False, annotations=PLANNED)), created=0.0, seen=0.0, stage=OPENED, node="n")
    own.lose("n")
    assert not own.suspect
    by_hand = Entry(refused(pod(gated=False)), created=0.0, seen=0.0)
    by_hand.find_open(1.0)
    by_hand.lose("kube-scheduler")
    assert not by_hand.suspect
    long = Entry(refused(pod(gated=False, annotations={"kerf.dev/planned-node": "x" * 300})), created=0.0, seen=0.0)
    long.find_open(1.0)
    assert long.lost == f"{'x' * 253}: no room"


def test_a_pod_in_doubt_ends_open_gated_or_lost() -> None:
    for node, by_kerf in (("n", True), ("", False)):
        found = Entry(pod(), created=0.0, seen=0.0, stage=LOST, lost="m: no room", node=node, by_kerf=not by_kerf)
        found.doubt()
        assert not found.take_back
        settled = pod(gated=False)
        found.settle_open(settled, 7.0)
        assert (found.pod, found.opened, found.node, found.by_kerf, found.lost) == (settled, 7.0, node, by_kerf, "")
    found = entry()
    found.reserve("n")
    found.by_kerf = True
    found.doubt(take_back=True)
    assert found.take_back is True
    settled = pod()
    found.settle_shut(settled)
    assert (found.pod, found.node, found.by_kerf, found.opened) == (settled, "", False, float("-inf"))
    for lost, said in (("", "n: kube-scheduler did not take it"), ("m: no room", "m: no room")):
        found = Entry(pod(gated=False), created=0.0, seen=0.0, stage=OPENED, node="n", lost=lost)
        found.doubt(take_back=True)
        settled = pod(gated=False)
        found.settle_lost(settled)
        assert (found.stage, found.pod, found.lost, found.num_lost) == (LOST, settled, said, 0 if lost else 1)
        found.give_up()
        assert (found.stage, found.node, found.lost) == (OPENED, "", "")


def test_a_pod_that_is_opened_by_its_author_is_not_out_by_kerf() -> None:
    found = entry()
    found.found = True
    found.open(1.0, by_kerf=False)
    found.was_opened()
    assert (found.opened, found.by_kerf, found.found, found.is_out) == (1.0, False, False, False)
    for_kerf = entry()
    for_kerf.open(1.0)
    assert not for_kerf.is_out, "it has no node, and is not open yet"
    for_kerf.was_opened()
    assert (for_kerf.by_kerf, for_kerf.is_out) == (True, True)
    for_kerf.recall()
    assert (for_kerf.stage, for_kerf.node, for_kerf.is_out) == (GATED, "", False)


ROOM, QUOTA = Code.LEFT_OUT.reason(), Code.OVER_QUOTA.reason(namespace="ns", limit=1, used=1, asked=1)
WRITES, PLANNED_POD = Code.NOT_WRITTEN.reason(error="denied"), PlanPod("ns/p")


def test_since_when_a_pod_waits_for_room_alone() -> None:
    found = Entry(pod(), created=100.0, seen=0.0, planned=PLANNED_POD)
    assert (found.lacks_room_since, found.lacks_only_room) == (100.0, True)
    found.pass_over(ROOM, 150.0)
    assert (found.lacks_room_since, found.lacks_only_room) == (100.0, True)
    found.pass_over(WRITES, 160.0)
    assert not found.lacks_only_room
    found.pass_over(ROOM, 170.0)
    assert found.lacks_room_since == 100.0, "a write that fails is no wish of its own"
    found.pass_over(QUOTA, 180.0)
    assert (found.lacks_room_since, found.lacks_only_room) == (100.0, False)
    found.pass_over(ROOM, 190.0)
    assert (found.lacks_room_since, found.lacks_only_room) == (190.0, True)
    found.pass_over(QUOTA, 200.0)
    found.pass_over(ROOM, 50.0)
    assert found.lacks_room_since == 100.0, "not since before it was made, whatever the clock says"
    assert (found.skips.reason, found.skips.count) == (ROOM, 7)
    found.planned = None
    assert not found.lacks_only_room


def test_being_passed_over_counts_where_it_is_news_and_while_a_pod_waits() -> None:
    found = entry()
    for why in (None, NOT_REACHED, ROOM, Code.LEFT_OUT.reason(), None):
        found.pass_over(why, 1.0)
    assert (found.skips.reason, found.skips.count) == (ROOM, 1)
    found.reserve("n")
    assert found.skips.written is None
    found.pass_over(QUOTA, 2.0)
    assert (found.skips.reason, found.skips.count) == (ROOM, 1)
    lost = entry(LOST)
    lost.pass_over(ROOM, 1.0)
    lost.skips.written = ROOM
    lost.reserve("n")
    assert lost.skips.written is None
    lost.renominated(2.0)
    assert (lost.skips.reason, lost.skips.written, lost.skips.count) == (None, None, 1)


def test_which_pods_may_have_a_node_at_any_time() -> None:
    with_node = {GATED: False, NOMINATING: True, OPENING: True, OPENED: True, LOST: False, RENOMINATING: True}
    for stage, out in (with_node | {UNSETTLED: True}).items():
        for node, expected in (("n", out), ("", False)):
            found = Entry(pod(), created=0.0, seen=0.0, stage=stage, node=node, opened=1.0)
            assert (found.is_out, found.on_its_way(2.0, 30.0)) == (expected, expected)
    found = entry()
    assert found.num_gpus == 0
    found.planned = PlanPod("ns/p", gpus=GpuRequest(2))
    assert found.num_gpus == 2
