"""Which nodes are missing: the question as it comes, on a ledger of a test's own."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from extender.kube.objects import Node
from extender.ledger.ledger import Ledger
from extender.parts.what_if.grounds import Facts
from extender.parts.what_if.missing import _sentence, _shapes_of
from extender.parts.what_if.process import _answer
from extender.parts.what_if.questions import WhatIfError, needs_of, read_question
from extender.parts.what_if.waiting import Waiting, waiting_in
from extender.queueing.pods.objects import decode_node
from tests.parts.what_if.what_if_facts import A100, H100, Manifest, facts, node, pod
from tests.queueing.rigs import Rig


def told(known: Facts, **question: Any) -> Any:
    return _answer(read_question(msgspec.json.encode({"findNodes": True} | question)), known)


def test_the_fewest_nodes_like_those_of_the_cluster_are_found_and_the_pods_are_on_them() -> None:
    known = facts([node("a", 8, H100), node("b", 8, H100), node("c", 4)], [pod("x", 8, on="a"), pod("y", 7, on="b")])
    found = told(known, pods=[pod("train", 8, gpu_model="h100")], replicas=2)
    assert found["missing"] == {
        "nodes": [{"like": "a", "count": 2, "gpus": 8, "model": "h100-80gb-hbm3"}],
        "sentence": "2 nodes of 8 x h100-80gb-hbm3",
        "stillUnplaced": [],
        "fewest": True,
    }
    assert (found["placed"], found["unassigned"]) == (2, [])
    assert sorted(entry["node"] for entry in found["assignments"]) == ["a+1", "a+2"]


def test_what_has_room_now_takes_it_and_a_gang_may_use_old_nodes_and_new_ones() -> None:
    known = facts([node("a", 8, H100), node("b", 8, H100)], [pod("x", 1, on="b")])
    gang = [pod(f"g{number}", 8, gang="g", gang_size="3") for number in range(3)]
    found = told(known, pods=[pod("small", 4), *gang])
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]}["ns/small"] == "b"
    assert found["missing"]["sentence"] == "2 nodes of 8 x h100-80gb-hbm3"


def test_nothing_is_missing_where_all_have_room() -> None:
    found = told(facts([node("a", 8)]), pods=[pod("p", 8)])
    assert found["missing"]["nodes"] == []
    assert found["missing"]["sentence"] == "no new node is needed"


def test_what_no_shape_helps_is_told_with_its_reason() -> None:
    found = told(facts([node("a", 8)]), pods=[pod("p", 1, gpu_model="b200"), pod("q", 9), pod("r", 8), pod("s", 8)])
    missing = found["missing"]
    assert [entry["pod"] for entry in missing["stillUnplaced"]] == ["ns/p", "ns/q"]
    assert "b200" in missing["stillUnplaced"][0]["reason"]
    assert missing["sentence"] == "1 node of 8 x a100-sxm4-40gb"
    alone = told(facts([node("a", 8)]), pods=[pod("q", 9)])["missing"]
    assert (alone["nodes"], alone["sentence"]) == ([], "no new node like those of the cluster would help")


def test_a_node_of_the_question_may_be_what_is_missing() -> None:
    given = node("b200", 8, "NVIDIA-B200")
    known = facts([node("a", 8)])
    found = told(known, pods=[pod("p", 8, gpu_model="b200")], candidates=[given, given])["missing"]
    assert found["nodes"] == [{"like": "b200", "count": 1, "gpus": 8, "model": "b200"}]
    with pytest.raises(WhatIfError, match="candidates: Expected"):
        told(known, candidates=[{"status": 3}])
    with pytest.raises(WhatIfError, match="more than 100"):
        told(known, candidates=[given] * 101)


def test_new_nodes_have_the_labels_and_taints_of_their_pool_but_not_those_of_one_node() -> None:
    pool = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    passing = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]
    nodes = [node("a", 8, pool="gpu", serial="1"), node("b", 8, pool="gpu", serial="2")]
    nodes[0]["spec"] = {"taints": [*pool["taints"], *passing], "unschedulable": True}
    nodes[1]["spec"] = pool
    may = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    taken = [pod("x", 8, on="b")]
    found = told(facts(nodes, taken), pods=[pod("p", 8, spec=may | {"nodeSelector": {"pool": "gpu"}})])
    assert found["missing"]["sentence"] == "1 node of 8 x a100-sxm4-40gb"
    for spec in ({}, may | {"nodeSelector": {"serial": "1"}}, may | {"nodeSelector": {"kubernetes.io/hostname": "b"}}):
        missing = told(facts(nodes, taken), pods=[pod("p", 8, spec=spec)])["missing"]
        assert not missing["nodes"], spec


def test_equal_machines_are_one_shape_and_broken_ones_stand_for_none() -> None:
    broken = node("broken", 8)
    broken["metadata"]["annotations"] = {
        "kerf.dev/gpus": msgspec.json.encode(
            [{"index": index, "model": A100, "memory_mib": 40960, "healthy": index > 0} for index in range(8)]
        ).decode()
    }
    manifests = [node("a", 8, memory="262200Mi"), node("b", 8, memory="262300Mi"), node("cpu", 0), broken]
    ledger = Ledger(reservation_ttl_s=0.0)
    nodes: list[Node] = [decode_node(manifest) for manifest in manifests]
    for item in nodes:
        ledger.upsert_node(item)
    shapes = _shapes_of(nodes, [], ledger.snapshot(0.0), ())
    assert [shape.like for shape in shapes] == ["a", "cpu"], "the one with the least memory stands for both"
    assert "kubernetes.io/hostname" not in (shapes[0].node.metadata.labels or {})


def test_new_nodes_are_numbered_after_those_that_are_added_and_shapes_of_one_name_are_told_apart() -> None:
    known = facts([node("a", 8)], [pod("x", 8, on="a")])
    found = told(known, pods=[pod("p", 8)], replicas=3, addNodes=[{"template": "a"}])
    assert sorted(entry["node"] for entry in found["assignments"]) == ["a+1", "a+2", "a+3"]
    assert [(entry["like"], entry["count"]) for entry in found["missing"]["nodes"]] == [("a", 2)]
    both = [pod("old", 8, gpu_model="a100"), pod("new", 8, gpu_model="h100")]
    found = told(known, pods=both, candidates=[node("a", 8, H100)])
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]} == {"ns/old": "a+1", "ns/new": "a.1+1"}
    assert found["missing"]["sentence"] == "1 node of 8 x a100-sxm4-40gb and 1 node of 8 x h100-80gb-hbm3"


def machine(name: str, gpus: int, product: str = A100, *, cpu: str = "64", memory: str = "256Gi") -> Manifest:
    made = node(name, gpus, product, memory)
    made["status"]["allocatable"] |= {"cpu": cpu}
    return made


@pytest.mark.parametrize(
    ("dear", "cheap"),
    [
        pytest.param(machine("a", 8), machine("b", 4, H100, cpu="99", memory="1Ti"), id="of fewer GPUs"),
        pytest.param(machine("a", 4, H100), machine("b", 4, cpu="99", memory="1Ti"), id="of less memory of GPUs"),
        pytest.param(machine("a", 4), machine("b", 4, cpu="63", memory="1Ti"), id="of less CPU"),
        pytest.param(machine("a", 4), machine("b", 4, memory="255Gi"), id="of less memory"),
    ],
)
def test_of_those_that_would_do_the_cheapest_is_missing(dear: Manifest, cheap: Manifest) -> None:
    full = [pod(f"on-{number}", 1, on=one["metadata"]["name"]) for one in (dear, cheap) for number in range(8)]
    for number, one in enumerate(full):
        one["metadata"]["uid"] = f"u{number}"
    found = told(facts([dear, cheap, node("cpu", 0)], full), pods=[pod("p", 4)])["missing"]
    assert [(one["like"], one["count"]) for one in found["nodes"]] == [("b", 1)]
    assert found["fewest"]


def test_what_is_found_when_time_is_up_may_not_be_the_fewest() -> None:
    known = facts([node("a", 8), node("b", 4)], [pod("x", 8, on="a"), pod("y", 4, on="b")])
    mixed = [pod("p", 8), pod("q", 4), pod("r", 3), pod("s", 1)]
    assert told(known, pods=mixed)["missing"]["fewest"]
    hurried = told(replace(known, max_s=0.0), pods=mixed)
    assert not hurried["missing"]["fewest"]
    assert (hurried["placed"], hurried["unassigned"]) == (4, [])


def test_pods_without_gpus_get_a_node_without_them() -> None:
    known = facts([node("a", 8), node("cpu", 0)], [pod("x", 1, on="a")])
    asks = {"containers": [{"resources": {"requests": {"cpu": "60"}}}]}
    found = told(known, pods=[pod(f"p{number}", spec=asks) for number in range(3)])["missing"]
    assert found["nodes"][0]["like"] == "cpu"
    assert found["sentence"] == "1 node like cpu"


def waits(name: str, gpus: int, **more: Any) -> Manifest:
    return pod(name, gpus, spec={"schedulingGates": [{"name": "kerf.dev/queue"}]}, **more)


def refused(name: str, gpus: int) -> Manifest:
    made = pod(name, gpus)
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return made


def test_the_pods_that_wait_are_asked_about_by_their_turn_and_no_others() -> None:
    other_gate, nominated, late = waits("gated", 8), waits("nominated", 8), waits("late", 8)
    other_gate["spec"]["schedulingGates"].append({"name": "else"})
    nominated["status"]["nominatedNodeName"] = "a"
    late["spec"]["priority"] = -1
    pending = [late, waits("first", 8), refused("refused", 8), refused("cpu", 0), pod("unseen", 8), pod("fresh", 0)]
    pending += [other_gate, nominated, waits("over", 8), waits("odd", 8, gpu_memory_each="lots")]
    known = facts([node("a", 8)], [], pending, over="quota of namespace ns: 8 GPUs")
    found = told(known, waiting=True)
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]} == {
        "ns/first": "a", "ns/refused": "a+1", "ns/unseen": "a+2", "ns/late": "a+3",
    }  # fmt: skip
    assert found["missing"]["sentence"] == "3 nodes of 8 x a100-sxm4-40gb"
    reasons = {entry["pod"]: entry["reason"] for entry in found["unassigned"]}
    assert reasons.keys() == {"ns/odd", "ns/over"}
    assert reasons["ns/over"] == "quota of namespace ns: 8 GPUs"


def test_a_list_that_cant_be_read_is_told() -> None:
    known = facts([node("a", 8)])
    with pytest.raises(WhatIfError, match="pending pods can't be read"):
        _answer(read_question(b'{"waiting": true}'), replace(known, pending=b"x"))


def test_what_the_queue_knows_of_those_that_wait() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("room", 4)
    rig.pod("gang", 1, gang="g", gang_size="2")
    rig.pod("goes", 2)
    rig.round()
    held = waiting_in(rig.queue.backlog).held
    assert held == {"gang": "gang ns/g waits for its pods: 1 of 2 exist", "goes": "on its way to a node"}
    assert waiting_in(None) == Waiting()


def test_the_claims_of_all_that_wait_are_known_and_who_was_let_go_without_a_node_waits_too() -> None:
    rig = Rig()
    rig.node("n", 2)
    for name in ("one", "two", "let-go"):
        rig.pod(name, 4)
        rig.api.pods[name]["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": f"of-{name}"}]
        rig.told(name)
    rig.round()
    rig.api.pods["let-go"]["spec"]["schedulingGates"] = []  # by somebody else
    rig.told("let-go")
    assert waiting_in(rig.queue.backlog) == Waiting({}, ["ns/of-one", "ns/of-two", "ns/of-let-go"])


def test_what_a_question_needs() -> None:
    assert needs_of(read_question(b'{"findNodes": true, "waiting": true}')).adds
    assert needs_of(read_question(b'{"waiting": true}')).waiting
    assert not needs_of(read_question(b"{}")).adds


def test_the_sentence_names_each_shape() -> None:
    words = _sentence([(2, 8, "h100", "a"), (1, 4, "", "b"), (3, 0, "", "c")], 0)
    assert words == "2 nodes of 8 x h100 and 1 node of 4 x GPU and 3 nodes like c"
