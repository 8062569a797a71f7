"""Following pods to their nodes: those that went elsewhere have what is there, and those that are gone nothing."""

import pytest

from extender.queueing.pods.objects import decode_pod
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.direct.test_dispatch import let_go


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_pod_that_was_bound_elsewhere_holds_gpus_of_unknown_index_there(leaves_first: bool) -> None:
    rig = let_go("a", n=1, m=2)
    assert rig.node_of("a") == "n"
    rig.bind_to("a", "m", leaves_first=leaves_first)
    cluster = rig.ledger.snapshot(rig.now)
    assert cluster.gpu_idle.sum() == 3
    assert cluster.untracked_units[cluster.row_of["m"]] == 1
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (0, 1)
    rig.follow()
    assert rig.written("a") == ("", "")  # its plugin chooses
    assert rig.note("a", "nomination-lost") == "n: bound to m, by kube-scheduler"
    assert rig.events == [("GPUsReassigned", "Bound to node m, whose device plugin chooses its GPUs")]
    rig.tell_bound("a")
    assert rig.ledger.num_edits_ignored == 0
    rig.follow()
    assert len(rig.events) == 1


def test_a_correction_that_fails_is_written_again() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")
    rig.versions.touch("a")  # a newer version, of which the watch tells later
    rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.tell_bound("a")
    rig.follow()
    assert rig.written("a") == ("", "")


def test_a_pod_of_which_no_watch_tells_is_asked_for() -> None:
    rig = let_go("a", n=1)
    pod = decode_pod(rig.api.pods["a"])
    rig.queue.backlog.remove(pod)
    rig.follow(0.5)
    assert rig.free() == 0
    del rig.api.pods["a"]
    rig.follow(1.0)
    assert rig.free() == 1
    assert rig.queue.counts.fallbacks == 1


def test_a_pod_that_has_its_node_before_the_watch_tells_keeps_its_gpus() -> None:
    rig = let_go("a", n=1)
    rig.queue.backlog.remove(decode_pod(rig.api.pods["a"]))
    rig.api.pods["a"]["spec"]["nodeName"] = "n"
    rig.follow(2.0)
    assert rig.free() == 0
    rig.tell_bound("a")
    assert rig.free() == 0
    assert rig.queue.counts.honoured == 1
    rig.ledger.remove_pod("a")
    assert rig.free() == 1


def test_a_pod_found_elsewhere_before_the_watch_tells_holds_what_is_there() -> None:
    rig = let_go("a", n=1, m=2)
    rig.queue.backlog.remove(decode_pod(rig.api.pods["a"]))
    rig.api.pods["a"]["spec"]["nodeName"] = "m"
    rig.follow(2.0)
    cluster = rig.ledger.snapshot(rig.now)
    assert cluster.untracked_units[cluster.row_of["m"]] == 1
    assert rig.free() == 2


def test_a_pod_that_has_ended_before_any_watch_told_of_it_leaks_nothing() -> None:
    rig = let_go("a", n=1)
    rig.queue.backlog.remove(decode_pod(rig.api.pods["a"]))
    rig.api.pods["a"]["spec"]["nodeName"] = "n"
    rig.api.pods["a"]["status"]["phase"] = "Succeeded"
    rig.follow(2.0)
    assert rig.free() == 1
    assert rig.queue.counts.honoured == 1


def test_a_pod_deleted_behind_the_gate_holds_nothing() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.round()
    rig.queue.backlog.remove(decode_pod(rig.api.pods["a"]))
    assert rig.free() == 1


def test_a_standby_corrects_nothing() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")
    rig.fence.shut(lambda: "another one leads")
    rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.lead()
    rig.follow()
    assert rig.written("a") == ("", "")
