"""Following pods to their nodes: those that went elsewhere have what is there, and those that are gone nothing."""

import pytest

from extender.kube.watches.feeds import PODS
from extender.plugins.nvidia.gpushare import INDEX
from extender.queueing.pods.objects import decode_pod
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.direct.test_dispatch import let_go


def test_a_pod_that_was_bound_elsewhere_holds_gpus_of_unknown_index_there() -> None:
    rig = let_go("a", n=1, m=2)
    assert rig.node_of("a") == "n"
    rig.bind_to("a", "m")
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
    rig.versions.touch("a")  # a newer version, of which no watch tells
    rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.follow()
    assert rig.written("a") == ("", "")


def test_a_pod_that_is_gone_before_it_was_corrected_is_forgotten() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")
    del rig.api.pods["a"]
    rig.follow()
    rig.api.fail = lambda name, where: pytest.fail("it is gone")
    rig.follow()


def test_a_pod_that_is_gone_holds_nothing() -> None:
    rig = let_go("a", n=1)
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    assert rig.free() == 1
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (0, 1)


def test_a_pod_that_is_being_deleted_without_a_node_gets_none_and_holds_nothing() -> None:
    """However long a finalizer keeps it: an API server binds no pod that is being deleted."""
    rig = let_go("a", n=1)
    rig.api.pods["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    rig.versions.touch("a")
    rig.told("a")
    assert rig.free() == 1
    assert rig.queue.counts.fallbacks == 1


def test_a_pod_has_its_gpus_without_a_gap_while_it_gets_its_node_and_until_it_is_gone() -> None:
    rig = let_go("a", n=1)
    assert rig.free() == 0
    rig.bind_to("a", "n")
    assert rig.free() == 0
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (1, 0)
    rig.ledger.remove_pod("a")
    assert rig.free() == 1


def test_a_pod_deleted_behind_the_gate_holds_nothing() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.round()
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
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


def test_where_the_plugin_goes_by_what_is_written_gpus_that_are_free_there_are() -> None:
    rig = DirectRig()
    rig.gpushare_node("n", 1)
    rig.gpushare_pod("a", 8)
    rig.round()
    assert rig.written("a") == ("n", "0")
    assert rig.api.pods["a"]["metadata"]["annotations"][INDEX] == "0"
    rig.gpushare_node("m", 2)
    rig.gpushare_pod("other", 12)
    rig.gpushare_pod("b", 8)
    rig.round()
    rig.bind_to("other", "m")
    assert rig.written("other") == ("m", "0")
    rig.bind_to("a", "m")
    rig.follow()
    assert rig.written("a") == ("m", "1")  # the first has 4 GiB left
    assert rig.api.pods["a"]["metadata"]["annotations"][INDEX] == "1"
    assert rig.queue.counts.reassigned == 1
    rig.tell_bound("a")
    assert rig.ledger.num_edits_ignored == 0
    claim = rig.ledger.claim("a")
    assert claim is not None
    assert [(part.gpu, part.mib) for part in claim.holding.parts] == [(1, 8 * 1024)]


def test_where_nothing_is_free_by_kerfs_account_that_is_said_and_counted() -> None:
    rig = DirectRig()
    rig.gpushare_node("n", 1)
    rig.gpushare_pod("a", 8)
    rig.round()
    rig.gpushare_node("m", 2)
    for name in ("x", "y"):
        rig.gpushare_pod(name, 12)
    rig.round()
    for name in ("x", "y"):
        rig.bind_to(name, "m")
    rig.bind_to("a", "m")  # 8 GiB are free, 4 on each: kube-scheduler counts them all together
    rig.follow()
    assert rig.written("a") == ("", "")
    assert rig.queue.counts.unassigned == 1
    assert rig.events[-1] == (
        "GPUsReassigned",
        "Bound to node m, where no GPUs are free for it by Kerf's account",
    )
    rig.tell_bound("a")
    rig.follow()
    assert rig.queue.counts.unassigned == 1, "once is enough"


def test_a_pod_that_was_let_go_without_an_assignment_is_given_one_where_that_counts() -> None:
    """It was taken back while kube-scheduler bound it."""
    rig = DirectRig()
    rig.gpushare_node("n", 1)
    rig.gpushare_pod("a", 8)
    rig.round()
    for key in [key for key in rig.api.pods["a"]["metadata"]["annotations"] if "assigned" in key or "ALIYUN" in key]:
        del rig.api.pods["a"]["metadata"]["annotations"][key]
    rig.bind_to("a", "n")
    rig.follow()
    assert rig.written("a") == ("n", "0")
