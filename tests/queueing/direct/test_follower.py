"""Following pods to their nodes: those bound elsewhere hold what is there, and those that are gone hold nothing."""

import asyncio

import pytest

from extender.kube.client import ApiError
from extender.plugins.nvidia.gpushare import INDEX
from extender.queueing.direct.writer import DirectAssignments
from extender.queueing.pods.objects import decode_pod
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.direct.test_dispatch import DENIED, let_go


def counts(rig: DirectRig) -> tuple[int, int, int, int]:
    found = rig.queue.counts
    return found.honoured, found.fallbacks, found.reassigned, found.unassigned


def elsewhere(*names: str) -> DirectRig:
    """Pods that were nominated for `n` and bound to `m`."""
    rig = let_go(*names, n=len(names), m=4)
    for name in names:
        assert rig.node_of(name) == "n"
        rig.bind_to(name, "m")
    return rig


def gpushare_rig(*names: str) -> DirectRig:
    """Pods of 8 GiB that were released to node n, whose GPU has room for two."""
    rig = DirectRig()
    rig.gpushare_node("n", 1)
    for name in names:
        rig.gpushare_pod(name, 8)
    rig.round()
    return rig


def test_pods_that_were_bound_elsewhere_hold_gpus_of_unknown_index_there() -> None:
    rig = elsewhere("a", "b")
    cluster = rig.ledger.snapshot(rig.now)
    assert (cluster.gpu_idle.sum(), cluster.untracked_units[cluster.row_of["m"]]) == (6, 2)
    rig.follow()
    for name in "ab":
        assert rig.written(name) == ("", "")  # its plugin chooses
        assert rig.note(name, "nomination-lost") == "n: bound to m, by kube-scheduler"
        rig.tell_bound(name)
    assert rig.ledger.num_edits_ignored == 0
    rig.follow()
    assert rig.events == [("GPUsReassigned", "Bound to node m, whose device plugin chooses its GPUs")] * 2
    assert rig.told_of == [("ns", "a", "a"), ("ns", "b", "b")]
    assert counts(rig) == (0, 2, 0, 0)


def test_a_correction_of_a_pod_that_has_changed_is_written_again_and_one_that_is_gone_is_forgotten() -> None:
    rig = elsewhere("a")
    rig.versions.touch("a")  # a newer version, which no watch has reported
    rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.follow()
    assert rig.written("a") == ("", "")
    rig = elsewhere("a")
    del rig.api.pods["a"]
    rig.follow()
    rig.api.fail = lambda name, where: pytest.fail("it is gone")
    rig.follow()


def test_pods_that_are_gone_without_a_node_hold_nothing_and_have_missed_it_if_they_were_nominated() -> None:
    rig = let_go("a", "b", n=2)
    for name in "ab":
        rig.gone(name)
    assert (rig.free(), counts(rig)) == (2, (0, 2, 0, 0))
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.round(10.0)
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    rig.gone("a")
    assert counts(rig) == (0, 0, 0, 0)


def test_where_the_plugin_follows_the_assignment_pods_get_gpus_that_are_free_there() -> None:
    rig = gpushare_rig("a", "b")
    assert rig.written("a") == ("n", "0")
    assert rig.note("a", "assigned-gpus") == rig.api.pods["a"]["metadata"]["annotations"][INDEX] == "0"
    rig.gpushare_node("m", 2)
    rig.gpushare_pod("other", 12)
    rig.round()
    rig.bind_to("other", "m")
    for name in "ab":
        rig.bind_to(name, "m")
        rig.follow()
        assert rig.written(name) == ("m", "1")  # the first has 4 GiB left
        assert rig.api.pods[name]["metadata"]["annotations"][INDEX] == "1"
        rig.tell_bound(name)
    assert counts(rig) == (1, 2, 2, 0)
    assert rig.ledger.num_edits_ignored == 0
    claim = rig.ledger.allocation("a")
    assert claim is not None
    assert [(part.gpu, part.mib) for part in claim.holding.parts] == [(1, 8 * 1024)]


def test_where_kerf_finds_no_free_gpus_each_pod_is_counted_and_reported_once() -> None:
    rig = gpushare_rig("a", "b")
    rig.gpushare_node("m", 1)
    rig.gpushare_pod("all", 16)
    rig.round()
    for name in ("all", "a", "b"):
        rig.bind_to(name, "m")
    for _ in range(3):
        rig.follow()
        for name in "ab":
            rig.tell_bound(name)
    assert counts(rig) == (1, 2, 0, 2)
    assert rig.events[1:] == [("GPUsReassigned", "Bound to node m, where Kerf finds no free GPUs for it")] * 2
    assert rig.written("a") == ("", "")


def test_a_pod_on_its_node_that_lacks_an_assignment_gets_one_where_that_takes_effect() -> None:
    """It was taken back while kube-scheduler bound it."""
    rig = gpushare_rig("a")
    annotations = rig.api.pods["a"]["metadata"]["annotations"]
    for key in [key for key in annotations if "assigned" in key or "ALIYUN" in key]:
        del annotations[key]
    rig.bind_to("a", "n")
    rig.follow()
    assert rig.written("a") == ("n", "0")


def test_a_pod_that_needs_no_correction_is_left_alone() -> None:
    rig = elsewhere("a")
    for key in ("assigned-node", "assigned-gpus"):  # somebody else has put it right
        rig.api.pods["a"]["metadata"]["annotations"].pop(f"kerf.dev/{key}")
    rig.versions.touch("a")
    rig.tell_bound("a")
    rig.gpushare_node("s", 1)
    rig.gpushare_pod("not-released", 8)
    rig.bind_to("not-released", "s")
    versions = [rig.api.pods[name]["metadata"]["resourceVersion"] for name in ("a", "not-released")]
    for _ in range(3):
        rig.follow()
    assert [rig.api.pods[name]["metadata"]["resourceVersion"] for name in ("a", "not-released")] == versions
    assert rig.written("not-released") == ("", "")


def test_a_correction_that_is_refused_backs_off_and_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    rig, tries = elsewhere("bad", "good"), list[float]()

    def fail(name: str, part: str) -> ApiError | None:
        if name == "good":
            return None
        tries.append(rig.now)
        return DENIED

    rig.api.fail = fail
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
    assert len(tries) == 2, "the success has ended the back-off"


def test_a_standby_corrects_nothing_and_a_process_that_was_not_sure_does_not_back_off() -> None:
    rig = elsewhere("a")
    rig.fence.shut(lambda: "another one leads")
    rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.lead()
    rig.election.sure = False
    for _ in range(20):
        rig.follow()
    assert rig.written("a") == ("n", "0")
    rig.election.sure = True
    rig.follow()
    assert rig.written("a") == ("", "")


def test_pods_are_followed_in_the_background() -> None:
    rig = elsewhere("a")

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


def test_a_bound_pod_gets_what_it_requests_of_its_node_and_nothing_once_that_is_gone() -> None:
    rig = gpushare_rig("a")
    rig.bind_to("a", "n")
    assignments = DirectAssignments(rig.ledger, rig.placer, lambda: rig.now, lambda: rig.now)
    pod, claim = decode_pod(rig.api.pods["a"]), rig.ledger.allocation("a")
    assert claim is not None
    found = assignments.on_its_node(pod, claim)
    assert found is not None
    assert (found.node, found.gpus, found.mib_each) == ("n", (0,), (8 * 1024,))
    assert assignments.on_its_node(decode_pod({"metadata": {"name": "plain", "uid": "plain"}}), claim) is None
    rig.remove_node("n")
    assert assignments.on_its_node(pod, claim) is None
