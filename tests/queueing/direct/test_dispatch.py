"""Releasing pods that kube-scheduler binds by itself: what is written, and what holds GPUs until when."""

import asyncio

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.objects import Node
from extender.kube.watches import NODES
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from tests.plugins.rigs import hami_node
from tests.queueing.direct.rigs import DirectRig

CUT, DENIED = UnreachableError("cut"), ApiError(422, "Invalid", "denied by a webhook")


def let_go(*names: str, **nodes: int) -> DirectRig:
    """Released pods of one GPU each, on nodes with these numbers of GPUs."""
    rig = DirectRig()
    for node, count in nodes.items():
        rig.node(node, count)
    for name in names:
        rig.pod(name, 1)
    rig.round()
    return rig


def waiting() -> DirectRig:
    """A pod `a` of one GPU that no round has seen yet, and a node of one."""
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    return rig


def in_doubt(*names: str) -> DirectRig:
    """Pods that were released and refused, and not read since."""
    rig = let_go(*names, n=len(names))
    for name in names:
        rig.refuse(name)
    rig.round()
    assert all(stage(rig, name) is Stage.UNSETTLED for name in names)
    return rig


def restarted(before: DirectRig, gpus: int) -> DirectRig:
    """The next process, once its watch has reported pod `a`."""
    rig = DirectRig()
    rig.node("n", gpus)
    rig.api.pods["a"] = before.api.pods["a"]
    rig.told("a")
    return rig


def stage(rig: DirectRig, name: str = "a") -> Stage:
    return rig.entry(name).stage


def open_gate(rig: DirectRig, name: str = "a") -> bool:
    return not rig.api.pods[name]["spec"]["schedulingGates"]


def test_an_assignment_is_written_with_the_nomination_and_held_until_the_pod_has_its_node() -> None:
    rig = let_go("a", n=1)
    assert (rig.node_of("a"), rig.written("a"), rig.note("a", "planned-by")) == ("n", ("n", "0"), "greedy")
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == "3", "one write for both, and one for the gate"
    rig.now += 3600.0
    assert rig.free() == 0
    rig.node("n", 2)
    assert rig.free() == 1
    rig.pod("b", 1)
    rig.round()
    assert rig.written("b") == ("n", "1")
    for name in "ab":
        rig.bind_to(name, "n")
    assert rig.free() == 0
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)
    assert rig.events == [("GPUsAssigned", "Assigned on node n, which it was nominated for")] * 2
    assert rig.told_of == [("ns", "a", "a"), ("ns", "b", "b")]


@pytest.mark.parametrize("part", ["status", ""])
@pytest.mark.parametrize("error", [CUT, ApiError(409, "", "changed")])
def test_writes_that_fail_are_settled_and_done_again(part: str, error: ClusterError) -> None:
    rig = waiting()
    rig.api.fail = lambda name, where: error if where == part else None
    rig.round()
    assert (stage(rig), rig.free()) == (Stage.UNSETTLED, 0)
    rig.api.fail = lambda name, where: None
    rig.settle()
    assert (stage(rig), rig.free(), rig.written("a")) == (Stage.GATED, 1, ("", ""))
    rig.round()
    assert rig.node_of("a") == "n"


@pytest.mark.parametrize("leads", [True, False])
def test_who_finds_its_assignment_written_opens_the_gate_only_while_it_leads(leads: bool) -> None:
    """A leader that was paused with its clock finds its own write beside its successor's mark, on a version of the pod
    that its own term does not vouch for."""
    rig = waiting()
    rig.versions.lose = ("a", "status")

    def paused(name: str, part: str) -> None:
        if rig.versions.lose == ("", "") and rig.election.num_sure is None and not leads:
            rig.election.num_asked = rig.election.num_sure = 1  # as it asks what became of its write

    rig.api.fail = paused
    rig.round()
    assert rig.note("a", "planned-node") == "n", "it was written"
    assert rig.note("a", "sealed")
    assert (rig.node_of("a") == "n") is leads
    assert not leads or (stage(rig), rig.free()) == (Stage.OPENED, 0)


def test_a_pod_that_nobody_may_change_holds_nothing_where_nothing_is_written_on_it() -> None:
    rig = waiting()
    rig.api.fail = lambda name, where: CUT
    rig.round()
    rig.api.fail = lambda name, where: DENIED
    rig.settle()
    assert (stage(rig), rig.free()) == (Stage.GATED, 1)


def test_nothing_is_taken_back_before_the_api_server_says_so() -> None:
    rig = in_doubt("a")
    rig.api.fail = lambda name, where: CUT
    rig.settle()
    assert (stage(rig), rig.free()) == (Stage.UNSETTLED, 0)
    rig.api.fail = lambda name, where: None
    rig.settle()
    assert (stage(rig), rig.free(), rig.written("a")) == (Stage.LOST, 1, ("", ""))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_nomination_that_kube_scheduler_does_not_retry_is_taken_back(restarts: bool) -> None:
    """It has refused the pod, and only a withdrawn nomination makes it try once more."""
    rig = let_go("a", n=1)
    rig.refuse("a", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    rig.round()
    rig.settle()
    rig.round()  # the node is ruled out for a second
    rig.round(1.0)
    assert rig.written("a") == ("n", "0")
    if restarts:
        rig = restarted(rig, 1)
    rig.round(14.5 if restarts else 4.5)  # sooner where it refused a node with room
    assert stage(rig) is Stage.OPENED
    rig.round(1.0)
    assert stage(rig) is Stage.UNSETTLED
    rig.settle()
    assert not rig.api.pods["a"]["status"].get("nominatedNodeName")
    assert rig.free() == 1
    if not restarts:
        rig.round()  # its node is ruled out again
    rig.round(61.0)
    assert rig.written("a") == ("n", "0")


def test_a_pod_that_is_bound_as_it_is_to_be_taken_back_keeps_what_it_has() -> None:
    rig = in_doubt("a")
    rig.api.pods["a"]["spec"]["nodeName"] = "n"  # and no watch has reported it
    rig.now += 5.0
    rig.settle()
    assert (rig.written("a"), rig.free()) == (("n", "0"), 0)
    claim = rig.ledger.allocation("a")
    assert claim is not None
    assert claim.since == rig.now
    rig.bind_to("a", "n")
    assert rig.free() == 0


def test_the_next_process_holds_what_the_one_before_has_written() -> None:
    rig = restarted(let_go("a", n=2), 2)
    claim = rig.ledger.allocation("a")
    assert claim is not None
    assert (rig.free(), claim.since, claim.pinned) == (1, rig.now, True)
    rig.pod("b", 1)
    rig.round()
    assert rig.written("b") == ("n", "1")
    rig.bind_to("a", "n")
    assert rig.free() == 0


def test_what_was_refused_while_no_kerf_ran_is_taken_back() -> None:
    before = let_go("a", n=1)
    before.refuse("a")
    rig = restarted(before, 1)
    assert (stage(rig), rig.free()) == (Stage.UNSETTLED, 0)
    rig.settle()
    assert (stage(rig), rig.free(), rig.written("a")) == (Stage.LOST, 1, ("", ""))


def test_what_the_process_before_left_on_a_gated_pod_is_taken_back() -> None:
    before = waiting()
    before.api.fail = lambda name, where: CUT if where == "" else None
    before.round()
    assert before.written("a") == ("n", "0")
    rig = restarted(before, 0)
    rig.round()
    rig.settle()
    assert "nominatedNodeName" not in rig.api.pods["a"]["status"]
    assert (stage(rig), rig.written("a")) == (Stage.GATED, ("", ""))


def test_a_request_by_annotation_alone_waits_with_the_reason() -> None:
    rig = DirectRig()
    rig.node("n", 2)
    rig.pod("a", 0, gpu_share="500")
    rig.round(2.0)
    assert rig.note("a").startswith("kube-scheduler counts no GPUs requested by annotation or label alone")
    assert not open_gate(rig)


def test_a_process_that_is_not_sure_to_lead_opens_no_gate_and_takes_nothing_back() -> None:
    rig = waiting()

    def nominated(name: str, part: str) -> None:
        rig.election.sure = False

    rig.api.fail = nominated
    rig.round()
    assert (rig.written("a"), open_gate(rig)) == (("n", "0"), False)
    rig = in_doubt("a")
    rig.election.sure = False
    rig.settle()
    assert (rig.written("a"), rig.free()) == (("n", "0"), 0)
    rig.election.sure = True
    rig.settle()
    rig.remove_node("n")
    rig.node("m", 1)
    rig.election.sure = False
    rig.round()
    assert rig.written("a") == ("", ""), "nor is it nominated again"
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.election.sure = False
    rig.round(10.0)
    assert not open_gate(rig), "nor without a node"
    rig.election.sure = True
    rig.settle()
    rig.round(10.0)
    assert open_gate(rig)
    assert rig.note("a", "planned-by").startswith("fail-open after ")


def test_a_second_refusal_in_the_same_words_is_noticed_at_once() -> None:
    rig = let_go("a", n=1)
    for number in (1, 2):
        rig.refuse("a")
        rig.round()
        rig.settle()
        assert rig.free() == 1
        rig.round(0.5)  # the node is ruled out for 1 s, then for 2
        rig.round(2.0)
        assert (rig.node_of("a"), rig.written("a")) == ("n", ("n", "0"))
        assert "conditions" not in rig.api.pods["a"]["status"]
        assert rig.note("a", "nomination-lost").startswith(f"{number}. n: ")


def test_a_reservation_that_does_not_stand_any_more_is_not_written() -> None:
    """A pod that was not nominated takes the GPU between the plan and the write."""
    rig = waiting()

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
    assert stage(rig) is Stage.GATED


def test_a_standby_holds_nothing_of_what_is_written_or_in_doubt_until_it_leads_again() -> None:
    rig, before = in_doubt("a"), let_go("b", n=1)
    for one in (rig, before):
        one.fence.shut(lambda: "another one leads")
    before.follow()
    rig.settle()
    assert (before.free(), rig.free(), stage(rig)) == (1, 1, Stage.UNSETTLED)
    rig.lead()
    rig.settle()
    assert (stage(rig), rig.written("a")) == (Stage.LOST, ("", ""))
    standby = DirectRig()
    standby.fence.shut(lambda: "another one leads")
    standby.node("n", 1)
    standby.api.pods["b"] = before.api.pods["b"]
    standby.told("b")
    assert standby.free() == 1


def test_a_plan_is_not_carried_out_once_its_term_has_ended() -> None:
    rig = let_go("a", n=1)
    rig.pod("b", 1)
    rig.fence.shut(lambda: "not renewed in time")
    rig.api.pods["a"]["spec"]["nodeName"] = "n"
    rig.gone("a")  # the other watch has not reported its node
    assert rig.free() == 1
    assert not rig.queue.dispatcher.reserve([(rig.entry("b"), "n")])
    assert rig.free() == 1


def test_nodes_whose_plugin_takes_pods_from_an_extender_alone_offer_nothing() -> None:
    rig = DirectRig()
    node = msgspec.convert(hami_node("hami", ("GPU-a", 16_000)), Node)
    (warning,) = rig.ledger.upsert_node(node)
    assert warning.endswith("hami, takes pods one by one from an extender: its GPUs are not offered")
    rig.hub.cache(NODES).upsert(node)
    rig.pod("a", 1)
    rig.round()
    assert stage(rig) is Stage.GATED
    rig.node("n", 8)  # roomier: hami would be the first choice
    rig.round()
    assert rig.written("a") == ("n", "0")


def test_what_is_written_on_a_pod_that_nobody_may_change_is_held_and_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = in_doubt("bad", "good")
    rig.api.fail = lambda name, part: DENIED if name == "bad" else None
    for _ in range(8):
        rig.now += 0.1
        rig.settle()
    assert stage(rig, "good") is Stage.LOST
    assert (stage(rig, "bad"), rig.free()) == (Stage.UNSETTLED, 1)
    assert caplog.messages[-1] == "pod ns/bad of the queue: outcome not known yet: 422 Invalid: denied by a webhook"
    rig.api.fail = lambda name, part: None
    rig.now += 120.0
    rig.settle()
    assert (stage(rig, "bad"), rig.free()) == (Stage.LOST, 2)


@pytest.mark.parametrize("part", ["metadata", "status"])
def test_a_pod_in_doubt_that_is_on_its_way_out_is_left_to_the_watch(part: str) -> None:
    rig = in_doubt("a")
    manifest = rig.api.pods["a"]
    manifest[part] |= {"phase": "Failed"} if part == "status" else {"deletionTimestamp": "1970-01-01T00:00:00Z"}
    rig.versions.touch("a")
    version = manifest["metadata"]["resourceVersion"]
    rig.settle()
    assert (manifest["metadata"]["resourceVersion"], rig.free()) == (version, 0)
    rig.told("a")
    assert rig.free() == 1


def test_a_pod_in_doubt_that_is_gone_is_not_read_again() -> None:
    rig = in_doubt("a")
    rig.gone("a")
    version = rig.api.pods["a"]["metadata"]["resourceVersion"]
    rig.settle()
    assert (rig.free(), rig.api.pods["a"]["metadata"]["resourceVersion"]) == (1, version)
    rig = waiting()
    rig.api.fail = lambda name, where: CUT
    rig.round()
    pod = decode_pod(rig.api.pods["a"])
    assert not rig.direct.writer.is_clear(pod)
    rig.gone("a")
    assert rig.direct.writer.is_clear(pod), "nothing is remembered of its assignment"


def test_an_opening_whose_answer_is_lost_stands_and_counts_from_when_it_is_known() -> None:
    rig = waiting()
    rig.api.deaf = True
    rig.versions.lose = ("a", "")
    rig.round()
    assert stage(rig) is Stage.UNSETTLED
    rig.now += 100.0
    rig.settle()
    entry = rig.entry("a")
    assert (entry.stage, entry.opened, rig.free(), rig.written("a")) == (Stage.OPENED, rig.now, 0, ("n", "0"))
    assert entry.pod.metadata.resource_version == rig.api.pods["a"]["metadata"]["resourceVersion"]


def test_a_gate_that_was_opened_without_a_node_stays_open_whatever_others_nominate_the_pod_for() -> None:
    rig = DirectRig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.versions.lose = ("a", "")
    rig.round(10.0)
    assert stage(rig) is Stage.UNSETTLED
    manifest = rig.api.pods["a"]
    manifest["metadata"]["annotations"] |= {"kerf.dev/planned-node": "n", "kerf.dev/assigned-gpus": "0"}
    manifest["status"]["nominatedNodeName"] = "n"
    rig.versions.touch("a")
    rig.now += 100.0
    rig.settle()
    entry = rig.entry("a")
    assert (entry.stage, entry.opened) == (Stage.OPENED, rig.now)
    assert entry.pod.metadata.resource_version == manifest["metadata"]["resourceVersion"]
    assert manifest["status"]["nominatedNodeName"] == "n"


def test_a_gate_that_no_watch_reports_as_open_is_read() -> None:
    rig = waiting()
    rig.api.deaf = True
    rig.round()
    assert stage(rig) is Stage.OPENED
    rig.round(120.0)
    assert stage(rig) is Stage.UNSETTLED
    rig.settle()
    assert (stage(rig), rig.free()) == (Stage.OPENED, 0)
