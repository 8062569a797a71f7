"""Letting pods go that kube-scheduler binds by itself: what is written, and what holds GPUs until when."""

import asyncio

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.objects import Node
from extender.kube.watches import NODES, PODS
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from tests.plugins.rigs import hami_node
from tests.queueing.direct.rigs import DirectRig


def let_go(*names: str, gpus: int = 1, **nodes: int) -> DirectRig:
    """Pods of a cluster that were let go, each for so many GPUs."""
    rig = DirectRig()
    for node, count in (nodes or {"n": 2}).items():
        rig.node(node, count)
    for name in names:
        rig.pod(name, gpus)
    rig.round()
    return rig


def stage(rig: DirectRig, name: str) -> Stage:
    return rig.queue.backlog.entries[name].stage


def test_nomination_and_gpus_are_one_write_and_the_opening_another() -> None:
    rig = let_go("a", n=2)
    assert rig.node_of("a") == "n"
    assert rig.written("a") == ("n", "0")
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == "3"
    assert rig.note("a", "planned-by") == "greedy"


def test_what_is_written_on_a_pod_is_held_until_it_has_a_node_however_long_that_takes() -> None:
    rig = let_go("a", n=1)
    rig.now += 3600.0
    assert rig.free() == 0
    rig.node("n", 2)  # it offers something else
    assert rig.free() == 1
    rig.pod("b", 1)
    rig.round()
    assert rig.written("b") == ("n", "1")
    rig.bind_to("a", "n")
    rig.bind_to("b", "n")
    assert rig.free() == 0
    assert rig.queue.counts.honoured == 2
    assert rig.events == [("GPUsAssigned", "Assigned on node n, which it was nominated for")] * 2


@pytest.mark.parametrize("part", ["status", ""])
@pytest.mark.parametrize("error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(409, "", "changed")])
def test_writes_that_fail_are_settled_and_done_again(part: str, error: ClusterError) -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: error if where == part else None
    rig.round()
    assert stage(rig, "a") is Stage.UNSETTLED
    assert rig.free() == 0
    rig.api.fail = lambda name, where: None
    rig.settle()
    assert stage(rig, "a") is Stage.GATED
    assert rig.free() == 1
    assert rig.written("a") == ("", "")
    rig.round()
    assert rig.node_of("a") == "n"


def test_an_opening_whose_answer_is_lost_stands() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.versions.lose = ("a", "")
    rig.round()
    assert stage(rig, "a") is Stage.UNSETTLED
    rig.settle()
    assert stage(rig, "a") is Stage.OPENED
    assert rig.free() == 0
    assert rig.written("a") == ("n", "0")


def test_a_write_that_comes_late_changes_nothing_that_was_taken_back() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: UnreachableError("cut") if where == "" else None
    rig.round()  # nominated, and the opening is on its way
    rig.api.fail = lambda name, where: None
    rig.versions.delay = True
    late = rig.api.pods["a"]["metadata"]["resourceVersion"]
    rig.versions.delay = False
    rig.settle()
    body = f'{{"metadata":{{"uid":"a","resourceVersion":"{late}"}},"spec":{{"schedulingGates":null}}}}'
    rig.versions.late = [("/api/v1/namespaces/ns/pods/a", body.encode())]
    assert asyncio.run(rig.versions.arrive()) == [409]
    assert rig.api.pods["a"]["spec"]["schedulingGates"]


@pytest.mark.parametrize("anew", [False, True], ids=["", "anew"])
def test_an_assignment_that_comes_late_is_not_written_once_its_gpus_are_free(anew: bool) -> None:
    """Nothing is written on the pod meanwhile: there is nothing to take back, and the write may come at any time."""
    rig = let_go("a", n=1) if anew else DirectRig()
    if anew:
        rig.refuse("a")
        rig.round()
        rig.settle()
        rig.round()  # the node is ruled out for a second
    else:
        rig.node("n", 1)
        rig.pod("a", 1)
    rig.versions.delay = True
    rig.round(1.0)
    assert stage(rig, "a") is Stage.UNSETTLED
    assert rig.free() == 0
    late = rig.versions.late[0]
    rig.versions.delay, rig.versions.late = False, []
    rig.settle()
    assert stage(rig, "a") is (Stage.LOST if anew else Stage.GATED)
    assert rig.free() == 1
    rig.versions.late = [late]
    assert asyncio.run(rig.versions.arrive()) == [409]
    assert rig.written("a") == ("", "")


@pytest.mark.parametrize("leads", [True, False])
def test_who_finds_its_assignment_written_opens_the_gate_only_while_it_leads(leads: bool) -> None:
    """Whoever was paused with its clock finds what it has written beside its successor's mark, and is told of a version
    that its own term does not vouch for."""
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.versions.lose = ("a", "status")

    def paused(name: str, part: str) -> None:
        if rig.versions.lose == ("", "") and rig.election.num_sure is None and not leads:
            rig.election.num_asked = rig.election.num_sure = 1  # as it asks what became of its write

    rig.api.fail = paused
    rig.round()
    assert rig.note("a", "planned-node") == "n", "it was written"
    assert rig.note("a", "sealed")
    assert (rig.node_of("a") == "n") is leads


@pytest.mark.parametrize("told", [True, False], ids=["told", "unknown"])
def test_an_assignment_whose_answer_is_lost_stands(told: bool) -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.versions.lose = ("a", "status")
    if not told:
        rig.api.fail = lambda name, where: UnreachableError("cut") if rig.versions.lose == ("", "") else None
    rig.round()
    rig.api.fail = lambda name, where: None
    if told:
        assert (stage(rig, "a"), rig.free()) == (Stage.OPENED, 0)
        assert rig.written("a") == ("n", "0")
        return
    assert (stage(rig, "a"), rig.free()) == (Stage.UNSETTLED, 0)
    rig.settle()
    assert (stage(rig, "a"), rig.free()) == (Stage.GATED, 1)
    assert rig.written("a") == ("", "")


def test_a_pod_that_nobody_may_change_holds_nothing_where_nothing_is_written_on_it() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: UnreachableError("cut")
    rig.round()
    rig.api.fail = lambda name, where: ApiError(422, "Invalid", "denied by a webhook")
    rig.settle()
    assert (stage(rig, "a"), rig.free()) == (Stage.GATED, 1)


def test_nothing_is_taken_back_before_the_api_server_says_so() -> None:
    rig = let_go("a", n=1)
    rig.refuse("a")
    rig.api.fail = lambda name, where: UnreachableError("cut")
    rig.round()
    rig.settle()
    assert stage(rig, "a") is Stage.UNSETTLED
    assert rig.free() == 0
    rig.api.fail = lambda name, where: None
    rig.settle()
    assert stage(rig, "a") is Stage.LOST
    assert rig.free() == 1
    assert rig.written("a") == ("", "")


def test_a_refused_pod_is_nominated_anew_with_its_gpus() -> None:
    rig = let_go("a", n=1)
    rig.refuse("a", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    rig.round()
    rig.settle()
    rig.remove_node("n")
    rig.node("m", 1)
    rig.round()
    assert rig.node_of("a") == "m"
    assert rig.written("a") == ("m", "0")
    assert rig.note("a", "nomination-lost").startswith("1. n: 0/1 nodes are available")
    assert rig.queue.counts.nominated_anew == 1


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_what_kube_scheduler_does_not_look_at_again_is_taken_back(restarted: bool) -> None:
    """It has refused the pod and is told of a nomination; only its being taken back makes it ask once more."""
    rig = let_go("a", n=1)
    rig.refuse("a", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    rig.round()
    rig.settle()
    rig.round()  # the node is ruled out for a second
    rig.round(1.0)
    assert rig.written("a") == ("n", "0")
    if restarted:
        before, rig = rig, DirectRig()
        rig.node("n", 1)
        rig.api.pods["a"] = before.api.pods["a"]
        rig.told("a")
    rig.round(14.5 if restarted else 4.5)  # who was refused a node that had room is waited for less long
    assert stage(rig, "a") is Stage.OPENED
    rig.round(1.0)
    assert stage(rig, "a") is Stage.UNSETTLED
    rig.settle()
    assert not rig.api.pods["a"]["status"].get("nominatedNodeName")
    assert rig.free() == 1
    if not restarted:
        rig.round()  # its node is ruled out again
    rig.round(61.0)
    assert rig.written("a") == ("n", "0")


def test_a_pod_that_is_bound_as_it_is_to_be_taken_back_keeps_what_it_has() -> None:
    rig = let_go("a", n=1)
    rig.refuse("a")
    rig.round()
    rig.api.pods["a"]["spec"]["nodeName"] = "n"  # and no watch has told of it
    rig.now += 5.0
    rig.settle()
    assert rig.written("a") == ("n", "0")
    assert rig.free() == 0
    claim = rig.ledger.claim("a")
    assert claim is not None
    assert claim.since == rig.now
    rig.bind_to("a", "n")
    assert rig.free() == 0


def test_a_kerf_that_starts_holds_what_the_one_before_has_written() -> None:
    before = let_go("a", n=2)
    rig = DirectRig()
    rig.node("n", 2)
    rig.api.pods["a"] = before.api.pods["a"]
    rig.told("a")
    assert rig.free() == 1
    claim = rig.ledger.claim("a")
    assert claim is not None
    assert (claim.since, claim.firm) == (rig.now, True)
    rig.pod("b", 1)
    rig.round()
    assert rig.written("b") == ("n", "1")
    rig.bind_to("a", "n")
    assert rig.free() == 0


def test_what_was_refused_while_no_kerf_looked_is_taken_back() -> None:
    before = let_go("a", n=1)
    before.refuse("a")
    rig = DirectRig()
    rig.node("n", 1)
    rig.api.pods["a"] = before.api.pods["a"]
    rig.told("a")
    assert stage(rig, "a") is Stage.UNSETTLED
    assert rig.free() == 0
    rig.settle()
    assert rig.written("a") == ("", "")
    assert rig.free() == 1
    assert stage(rig, "a") is Stage.LOST


def test_a_gang_is_let_go_whole_or_not() -> None:
    rig = DirectRig()
    rig.node("n", 2)
    for name in ("g0", "g1"):
        rig.pod(name, 1, gang="g", gang_size="2")
    rig.api.fail = lambda name, where: (
        ApiError(409, "Conflict", "changed") if (name, where) == ("g1", "status") else None
    )
    rig.round()
    assert all(rig.api.pods[name]["spec"]["schedulingGates"] for name in ("g0", "g1"))
    rig.api.fail = lambda name, where: None
    rig.settle()
    rig.round()
    assert sorted(rig.written(name) for name in ("g0", "g1")) == [("n", "0"), ("n", "1")]


def test_a_pod_that_asks_by_annotation_alone_waits_and_is_told_why() -> None:
    rig = DirectRig()
    rig.node("n", 2)
    rig.pod("a", 0, gpu_share="500")
    rig.round(2.0)
    assert rig.note("a") == "kube-scheduler counts no GPUs asked by annotation or label alone: ask for nvidia.com/gpu"
    assert rig.api.pods["a"]["spec"]["schedulingGates"]


def test_an_assignment_that_was_copied_from_another_pod_is_gone_where_the_gate_opens_without_a_node() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1, assigned_gpus="0", assigned_node="n")
    rig.round(10.0)
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    assert rig.written("a") == ("", "")
    assert stage(rig, "a") is Stage.OPENED


def test_who_is_not_sure_to_lead_writes_nothing() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)

    rig.election.sure = False
    rig.round()
    assert rig.written("a") == ("", "")
    rig.settle()
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == "1"


def test_who_is_not_sure_to_lead_takes_nothing_back() -> None:
    rig = let_go("a", n=1)
    rig.refuse("a")
    rig.round()
    rig.election.sure = False
    rig.settle()
    assert rig.written("a") == ("n", "0")
    assert rig.free() == 0


def test_what_a_kerf_before_this_one_left_behind_the_gate_is_taken_back() -> None:
    before = DirectRig()
    before.node("n", 1)
    before.pod("a", 1)
    before.api.fail = lambda name, where: UnreachableError("cut") if where == "" else None
    before.round()
    assert before.written("a") == ("n", "0")
    rig = DirectRig()
    rig.api.pods["a"] = before.api.pods["a"]
    rig.told("a")
    rig.round()
    rig.settle()
    assert "nominatedNodeName" not in rig.api.pods["a"]["status"]
    assert rig.written("a") == ("", "")
    assert stage(rig, "a") is Stage.GATED


def test_a_second_refusal_is_noticed_at_once_though_it_is_in_the_same_words() -> None:
    rig = let_go("a", n=1)
    for number in (1, 2):
        rig.refuse("a")
        rig.round()
        rig.settle()
        assert rig.free() == 1
        rig.round(0.5)  # the node is ruled out for 1 s, then for 2
        rig.round(2.0)
        assert rig.node_of("a") == "n"
        assert "conditions" not in rig.api.pods["a"]["status"]
        assert rig.note("a", "nomination-lost").startswith(f"{number}. n: ")


def test_who_is_refused_again_and_again_rests_longer_and_longer() -> None:
    rig = let_go("a", n=1)
    waited = []
    for _ in range(5):
        rig.refuse("a")
        rig.round()
        rig.settle()
        began = rig.now
        while not rig.node_of("a"):
            rig.round(0.25)
        waited.append(rig.now - began)
    assert waited == pytest.approx([1.25, 2.25, 4.25, 8.25, 16.25])


def test_what_was_reserved_and_does_not_stand_any_more_is_not_written() -> None:
    """A pod that nobody nominated takes the GPU between the plan and the write."""
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)

    async def scenario() -> None:
        await rig.queue.begin_round()
        thief = {
            "metadata": {"name": "thief", "namespace": "ns", "uid": "thief"},
            "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        }
        rig.ledger.upsert_pod(decode_pod(thief), rig.now)
        await rig.queue.dispatcher.finish()

    rig.election.slow = True
    asyncio.run(scenario())
    assert rig.written("a") == ("", "")
    assert not rig.api.pods["a"]["status"].get("nominatedNodeName")
    rig.settle()
    assert stage(rig, "a") is Stage.GATED


def test_who_stands_by_holds_nothing_of_what_is_written() -> None:
    before = let_go("a", n=2)
    before.fence.shut(lambda: "another one leads")
    before.follow()
    assert before.free() == 2
    rig = DirectRig()
    rig.fence.shut(lambda: "another one leads")
    rig.node("n", 2)
    rig.api.pods["a"] = before.api.pods["a"]
    rig.told("a")
    assert rig.free() == 2


def test_a_plan_is_not_carried_out_once_its_term_has_ended() -> None:
    rig = let_go("a", n=1)
    rig.pod("b", 1)
    rig.fence.shut(lambda: "not renewed in time")
    rig.api.pods["a"]["spec"]["nodeName"] = "n"
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))  # the other watch has not told of its node
    assert rig.free() == 1
    assert not rig.queue.dispatcher.reserve([(rig.queue.backlog.entries["b"], "n")])
    assert rig.free() == 1


def test_lists_begin_anew_without_what_was_reserved_by_the_old_ones() -> None:
    rig = let_go("a", n=1)
    rig.queue.backlog.clear()
    rig.queue.dispatcher.forget()
    assert rig.free() == 1
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods["a"]))
    assert rig.free() == 0


def test_nodes_whose_plugin_takes_pods_from_an_extender_alone_offer_nothing() -> None:
    rig = DirectRig()
    node = msgspec.convert(hami_node("hami", ("GPU-a", 16_000)), Node)
    (warning,) = rig.ledger.upsert_node(node)
    assert warning.endswith(
        "its device plugin, hami, takes pods one by one from an extender: its GPUs are not offered"
    )
    rig.hub.cache(NODES).upsert(node)
    rig.pod("a", 1)
    rig.round()
    assert stage(rig, "a") is Stage.GATED
    rig.node("n", 8)  # roomier: hami would be the first choice
    rig.round()
    assert rig.written("a") == ("n", "0")


def test_who_is_not_sure_to_lead_any_more_as_a_gate_is_to_be_opened_leaves_it_shut() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)

    def nominated(name: str, part: str) -> None:
        rig.election.sure = False

    rig.api.fail = nominated
    rig.round()
    assert rig.written("a") == ("n", "0")
    assert rig.api.pods["a"]["spec"]["schedulingGates"]


def test_who_is_not_sure_to_lead_leaves_no_pod_to_kube_scheduler() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.election.sure = False
    rig.round(10.0)
    assert rig.api.pods["a"]["spec"]["schedulingGates"]
    rig.election.sure = True
    rig.settle()
    rig.round(10.0)
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    assert rig.note("a", "planned-by").startswith("fail-open after ")


def in_doubt(*names: str) -> DirectRig:
    """Pods that were let go and refused, which nobody has looked after yet."""
    rig = let_go(*names, n=len(names))
    for name in names:
        rig.refuse(name)
    rig.round()
    assert all(stage(rig, name) is Stage.UNSETTLED for name in names)
    return rig


def test_what_is_written_on_a_pod_that_nobody_may_change_is_held(caplog: pytest.LogCaptureFixture) -> None:
    rig = in_doubt("bad", "good")
    rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied by a webhook") if name == "bad" else None
    for _ in range(8):
        rig.now += 0.1
        rig.settle()
    assert stage(rig, "good") is Stage.LOST
    assert (stage(rig, "bad"), rig.free()) == (Stage.UNSETTLED, 1)
    assert caplog.messages[-1] == (
        "pod ns/bad of the queue: outcome not known yet: 422 Invalid: denied by a webhook"
    )
    rig.api.fail = lambda name, part: None
    rig.now += 120.0
    rig.settle()
    assert (stage(rig, "bad"), rig.free()) == (Stage.LOST, 2)


def test_one_pod_that_can_not_be_settled_keeps_no_other_waiting() -> None:
    rig = in_doubt("bad")
    rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied by a webhook") if name == "bad" else None
    for _ in range(8):
        rig.now += 0.1
        rig.settle()
    rig.node("m", 1)
    rig.pod("good", 1)
    rig.round()
    rig.refuse("good")
    rig.round()
    rig.settle()
    assert stage(rig, "good") is Stage.LOST


def test_a_pod_on_which_nothing_is_written_is_in_doubt_until_the_api_server_answers() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: UnreachableError("cut")
    rig.round()
    rig.settle()
    assert (stage(rig, "a"), rig.free()) == (Stage.UNSETTLED, 0)


@pytest.mark.parametrize("field", ["deletionTimestamp", "phase"])
def test_a_pod_in_doubt_that_is_on_its_way_out_is_left_to_the_watch(field: str) -> None:
    rig = in_doubt("a")
    manifest = rig.api.pods["a"]
    if field == "phase":
        manifest["status"]["phase"] = "Failed"
    else:
        manifest["metadata"][field] = "1970-01-01T00:00:00Z"
    rig.versions.touch("a")
    version = manifest["metadata"]["resourceVersion"]
    rig.settle()
    assert (manifest["metadata"]["resourceVersion"], rig.free()) == (version, 0)
    rig.told("a")
    assert rig.free() == 1


def test_a_pod_in_doubt_that_is_gone_is_asked_about_no_more() -> None:
    rig = in_doubt("a")
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    version = rig.api.pods["a"]["metadata"]["resourceVersion"]
    rig.settle()
    assert rig.free() == 1
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == version


def test_who_stands_by_holds_nothing_of_what_is_in_doubt_and_finds_out_once_it_leads_again() -> None:
    rig = in_doubt("a")
    rig.fence.shut(lambda: "another one leads")
    rig.settle()
    assert rig.free() == 1
    assert stage(rig, "a") is Stage.UNSETTLED
    rig.lead()
    rig.settle()
    assert stage(rig, "a") is Stage.LOST
    assert rig.written("a") == ("", "")


def test_what_stands_is_known_as_it_is_and_from_when_on() -> None:
    """An opening whose answer is lost, and of which no watch tells."""
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.versions.lose = ("a", "")
    rig.round()
    rig.now += 100.0
    rig.settle()
    entry = rig.queue.backlog.entries["a"]
    assert (entry.stage, entry.opened) == (Stage.OPENED, rig.now)
    assert entry.pod.metadata.resource_version == rig.api.pods["a"]["metadata"]["resourceVersion"]


def test_a_gate_that_was_opened_without_a_node_is_known_to_be_open() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.versions.lose = ("a", "")
    rig.round(10.0)
    assert stage(rig, "a") is Stage.UNSETTLED
    rig.now += 100.0
    rig.settle()
    entry = rig.queue.backlog.entries["a"]
    assert (entry.stage, entry.opened) == (Stage.OPENED, rig.now)
    assert entry.pod.metadata.resource_version == rig.api.pods["a"]["metadata"]["resourceVersion"]


def test_a_gate_of_which_no_watch_tells_that_it_is_open_is_looked_after() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.round()
    assert stage(rig, "a") is Stage.OPENED
    rig.round(120.0)
    assert stage(rig, "a") is Stage.UNSETTLED
    rig.settle()
    assert (stage(rig, "a"), rig.free()) == (Stage.OPENED, 0)


def test_what_others_nominate_a_pod_for_that_was_left_to_kube_scheduler_is_not_kerfs() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.versions.lose = ("a", "")
    rig.round(10.0)
    manifest = rig.api.pods["a"]
    manifest["metadata"]["annotations"] |= {"kerf.dev/planned-node": "n", "kerf.dev/assigned-gpus": "0"}
    manifest["status"]["nominatedNodeName"] = "n"
    rig.versions.touch("a")
    rig.now += 100.0
    rig.settle()
    entry = rig.queue.backlog.entries["a"]
    assert (entry.stage, entry.opened) == (Stage.OPENED, rig.now)
    assert entry.pod.metadata.resource_version == manifest["metadata"]["resourceVersion"]
    assert manifest["status"]["nominatedNodeName"] == "n"


def test_nothing_is_remembered_of_an_assignment_of_a_pod_that_is_gone() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: UnreachableError("cut")
    rig.round()
    pod = decode_pod(rig.api.pods["a"])
    assert not rig.direct.writer.is_clear(pod)
    rig.hub.cache(PODS).remove(pod)
    assert rig.direct.writer.is_clear(pod)
