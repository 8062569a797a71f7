"""Following pods to their nodes: those that went elsewhere have what is there, and those that are gone nothing."""

import asyncio

import pytest

from extender.kube.client import ApiError
from extender.kube.watches import PODS
from extender.plugins.nvidia.gpushare import INDEX
from extender.queueing.direct.writer import DirectAssignments
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
        "Bound to node m, where Kerf finds no free GPUs for it",
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


def denied(name: str, part: str) -> ApiError | None:
    return ApiError(422, "Invalid", "denied by a webhook")


def test_all_that_went_elsewhere_are_counted_and_told_of() -> None:
    rig = let_go("a", "b", n=2, m=4)
    for name in ("a", "b"):
        rig.bind_to(name, "m")
    for _ in range(3):
        rig.follow()
    assert (rig.queue.counts.fallbacks, rig.queue.counts.reassigned, rig.queue.counts.unassigned) == (2, 0, 0)
    assert rig.told_of == [("ns", "a", "a"), ("ns", "b", "b")]
    assert rig.note("b", "nomination-lost") == "n: bound to m, by kube-scheduler"


def test_all_that_have_what_is_written_on_them_are_counted_and_told_of() -> None:
    rig = let_go("a", "b", n=2)
    for name in ("a", "b"):
        rig.bind_to(name, "n")
    rig.follow()
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)
    assert rig.told_of == [("ns", "a", "a"), ("ns", "b", "b")]


def test_all_that_were_let_go_and_are_gone_without_a_node_are_counted() -> None:
    rig = let_go("a", "b", n=2)
    for name in ("a", "b"):
        rig.hub.cache(PODS).remove(decode_pod(rig.api.pods[name]))
    assert rig.queue.counts.fallbacks == 2


def test_a_pod_that_was_let_go_without_a_node_has_missed_none() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.round(10.0)
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    assert rig.queue.counts.fallbacks == 0


def gpushare_rig(*names: str, nodes: int = 1) -> DirectRig:
    """Pods of 8 GiB that were let go for node n, which has room for two on each GPU."""
    rig = DirectRig()
    rig.gpushare_node("n", nodes)
    for name in names:
        rig.gpushare_pod(name, 8)
    rig.round()
    return rig


def test_where_gpus_are_free_there_all_that_get_some_are_counted() -> None:
    rig = gpushare_rig("a", "b")
    rig.gpushare_node("m", 2)
    for name in ("a", "b"):
        rig.bind_to(name, "m")
    rig.follow()
    assert [rig.written(name)[0] for name in ("a", "b")] == ["m", "m"]
    assert (rig.queue.counts.reassigned, rig.queue.counts.unassigned) == (2, 0)


def test_where_nothing_is_free_all_that_lack_it_are_counted_once() -> None:
    rig = gpushare_rig("a", "b")
    rig.gpushare_node("m", 1)
    rig.gpushare_pod("all", 16)
    rig.round()
    rig.bind_to("all", "m")
    for name in ("a", "b"):
        rig.bind_to(name, "m")
    for _ in range(3):
        rig.follow()
        for name in ("a", "b"):
            rig.tell_bound(name)
    assert (rig.queue.counts.reassigned, rig.queue.counts.unassigned) == (0, 2)
    assert len(rig.events) == 3, "of the one that has its node, and once of each other"


def test_a_pod_that_somebody_else_has_put_right_is_left_alone() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")
    for key in ("assigned-node", "assigned-gpus"):
        rig.api.pods["a"]["metadata"]["annotations"].pop(f"kerf.dev/{key}")
    rig.versions.touch("a")
    rig.tell_bound("a")
    version = rig.api.pods["a"]["metadata"]["resourceVersion"]
    for _ in range(3):
        rig.follow()
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == version


def test_a_pod_that_the_queue_has_not_let_go_is_given_nothing() -> None:
    rig = DirectRig()
    rig.gpushare_node("n", 1)
    rig.gpushare_pod("a", 8)
    rig.bind_to("a", "n")
    version = rig.api.pods["a"]["metadata"]["resourceVersion"]
    rig.follow()
    assert rig.written("a") == ("", "")
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == version


def test_a_correction_that_is_refused_is_tried_ever_later_and_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, tries = let_go("bad", "good", n=2, m=4), list[float]()

    def fail(name: str, part: str) -> ApiError | None:
        if name == "good":
            return None
        tries.append(rig.now)
        return denied(name, part)

    rig.api.fail = fail
    for name in ("bad", "good"):
        rig.bind_to(name, "m")
    for _ in range(400):
        rig.follow()
    assert 4 <= len(tries) <= 12
    assert tries[1] - tries[0] == pytest.approx(0.1), "most of what fails does so once"
    assert rig.written("good") == ("", "")
    assert caplog.messages[-1] == (
        "pod ns/bad was bound to node m, and its assignment there was not written: 422 Invalid: denied by a webhook"
    )
    rig.api.fail = lambda name, part: None
    rig.follow(120.0)
    assert rig.written("bad") == ("", "")
    rig.api.pods["bad"]["metadata"]["annotations"] |= {"kerf.dev/assigned-node": "n", "kerf.dev/assigned-gpus": "0"}
    rig.versions.touch("bad")
    rig.tell_bound("bad")
    rig.api.fail = fail
    tries.clear()
    for _ in range(2):
        rig.follow()
    assert len(tries) == 2, "it was well again"


def test_who_is_not_sure_to_lead_corrects_nothing_and_does_not_wait_once_it_is() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")
    rig.election.sure = False
    for _ in range(20):
        rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.election.sure = True
    rig.follow()
    assert rig.written("a") == ("", "")


def test_pods_are_followed_in_the_background() -> None:
    rig = let_go("a", n=1, m=2)
    rig.bind_to("a", "m")

    async def run() -> None:
        (work,) = rig.direct.works().values()
        follower = asyncio.create_task(work())
        async with asyncio.timeout(5.0):
            await written.wait()
        follower.cancel()

    def fail(name: str, part: str) -> None:
        written.set()

    rig.api.fail, written = fail, asyncio.Event()
    asyncio.run(run())
    assert list(rig.direct.works()) == ["queue's follower"]


def assignments_of(rig: DirectRig) -> DirectAssignments:
    return DirectAssignments(rig.ledger, rig.placer, lambda: rig.now, lambda: rig.now)


def test_of_a_node_that_is_gone_a_pod_gets_nothing_and_of_one_that_is_there_what_it_asks() -> None:
    rig = gpushare_rig("a")
    rig.bind_to("a", "n")
    pod, claim, assignments = decode_pod(rig.api.pods["a"]), rig.ledger.claim("a"), assignments_of(rig)
    assert claim is not None
    found = assignments.on_its_node(pod, claim)
    assert found is not None
    assert (found.node, found.gpus, found.mib_each) == ("n", (0,), (8 * 1024,))
    assert assignments.on_its_node(decode_pod({"metadata": {"name": "plain", "uid": "plain"}}), claim) is None
    rig.remove_node("n")
    assert assignments.on_its_node(pod, claim) is None
