"""Which nodes are missing: the question as it comes, on a ledger of a test's own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from extender.parts.what_if import missing
from extender.parts.what_if.inputs import WhatIfInputs
from extender.parts.what_if.missing import _sentence
from extender.parts.what_if.waiting import PendingState, waiting_in
from tests.parts.what_if.test_what_if_demands import near
from tests.parts.what_if.what_if_facts import A100, H100, Manifest, asking, facts, node, pod, told, where
from tests.queueing.rigs import Rig


def test_the_fewest_nodes_like_those_of_the_cluster_are_found_and_the_pods_are_on_them() -> None:
    known = facts([node("a", 8, H100), node("b", 8, H100), node("c", 4)], [pod("x", 8, on="a"), pod("y", 7, on="b")])
    found = searched(known, pods=[pod("train", 8, gpu_model="h100")], replicas=2)
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
    found = searched(known, pods=[pod("small", 4), *gang])
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]}["ns/small"] == "b"
    assert found["missing"]["sentence"] == "2 nodes of 8 x h100-80gb-hbm3"


def test_nothing_is_missing_where_all_have_room() -> None:
    found = searched(facts([node("a", 8)]), pods=[pod("p", 8)])
    assert found["missing"]["nodes"] == []
    assert found["missing"]["sentence"] == "no new node is needed"


def test_what_no_shape_helps_is_told_with_its_reason() -> None:
    found = searched(facts([node("a", 8)]), pods=[pod("p", 1, gpu_model="b200"), pod("q", 9), pod("r", 8), pod("s", 8)])
    missing = found["missing"]
    assert [entry["pod"] for entry in missing["stillUnplaced"]] == ["ns/p", "ns/q"]
    assert "b200" in missing["stillUnplaced"][0]["reason"]
    assert missing["sentence"] == "1 node of 8 x a100-sxm4-40gb"
    alone = searched(facts([node("a", 8)]), pods=[pod("q", 9)])["missing"]
    assert (alone["nodes"], alone["sentence"]) == ([], "no new node like those of the cluster would help")


def test_a_node_of_the_question_may_be_what_is_missing() -> None:
    given = node("b200", 8, "NVIDIA-B200")
    found = searched(facts([node("a", 8)]), pods=[pod("p", 8, gpu_model="b200")], candidates=[given, given])["missing"]
    assert found["nodes"] == [{"like": "b200", "count": 1, "gpus": 8, "model": "b200"}]


def test_new_nodes_are_numbered_after_those_that_are_added_and_shapes_of_one_name_are_told_apart() -> None:
    known = facts([node("a", 8)], [pod("x", 8, on="a")])
    found = searched(known, pods=[pod("p", 8)], replicas=3, addNodes=[{"template": "a"}])
    assert sorted(entry["node"] for entry in found["assignments"]) == ["a+1", "a+2", "a+3"]
    assert [(entry["like"], entry["count"]) for entry in found["missing"]["nodes"]] == [("a", 2)]
    both = [pod("old", 8, gpu_model="a100"), pod("new", 8, gpu_model="h100")]
    found = searched(known, pods=both, candidates=[node("a", 8, H100)])
    assert {entry["pod"]: entry["node"] for entry in found["assignments"]} == {"ns/old": "a+1", "ns/new": "a.1+1"}
    assert found["missing"]["sentence"] == "1 node of 8 x a100-sxm4-40gb and 1 node of 8 x h100-80gb-hbm3"


def machine(name: str, gpus: int, product: str = A100, *, cpu: str = "64", memory: str = "256Gi") -> Manifest:
    made = node(name, gpus, product, memory)
    made["status"]["allocatable"] |= {"cpu": cpu}
    return made


def searched(known: WhatIfInputs, **question: Any) -> Any:
    return told(known, findNodes=True, **question)


def test_of_those_that_would_do_the_cheapest_is_missing() -> None:
    for dear, cheap in (
        (machine("a", 8), machine("b", 4, H100, cpu="99", memory="1Ti")),  # fewer GPUs
        (machine("a", 4, H100), machine("b", 4, cpu="99", memory="1Ti")),  # less memory of GPUs
        (machine("a", 4), machine("b", 4, cpu="63", memory="1Ti")),  # less CPU
        (machine("a", 4), machine("b", 4, memory="255Gi")),  # less memory
    ):
        full = [pod(f"on-{number}", 1, on=one["metadata"]["name"]) for one in (dear, cheap) for number in range(8)]
        for number, one in enumerate(full):
            one["metadata"]["uid"] = f"u{number}"
        found = searched(facts([dear, cheap, node("cpu", 0)], full), pods=[pod("p", 4)])["missing"]
        assert [(one["like"], one["count"]) for one in found["nodes"]] == [("b", 1)]
        assert found["fewest"]


def test_what_is_found_when_time_is_up_may_not_be_the_fewest() -> None:
    known = facts([node("a", 8), node("b", 4)], [pod("x", 8, on="a"), pod("y", 4, on="b")])
    mixed = [pod("p", 8), pod("q", 4), pod("r", 3), pod("s", 1)]
    assert searched(known, pods=mixed)["missing"]["fewest"]
    hurried = searched(replace(known, max_s=0.0), pods=mixed)
    assert not hurried["missing"]["fewest"]
    assert (hurried["placed"], hurried["unassigned"]) == (4, [])


def test_what_the_queue_knows_of_those_that_wait() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("room", 4)
    rig.pod("gang", 1, gang="g", gang_size="2")
    rig.pod("goes", 2)
    rig.round()
    held = waiting_in(rig.queue.backlog).held
    assert held == {"gang": "gang ns/g waits for its pods: 1 of 2 exist", "goes": "on its way to a node"}
    assert waiting_in(None) == PendingState()


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
    assert waiting_in(rig.queue.backlog) == PendingState({}, ["ns/of-one", "ns/of-two", "ns/of-let-go"])


def test_the_sentence_names_each_shape() -> None:
    words = _sentence([(2, 8, "h100", "a"), (1, 4, "", "b"), (3, 0, "", "c")], 0)
    assert words == "2 nodes of 8 x h100 and 1 node of 4 x GPU and 3 nodes like c"


CPU: Manifest = {"containers": [{"resources": {"requests": {"cpu": "60"}}}]}


def full(*names: str) -> list[Manifest]:
    """Pods that leave no GPU free on nodes of eight."""
    return [pod(f"on-{name}", 8, on=name) for name in names]


def likes(answered: Any) -> list[tuple[str, int]]:
    return [(entry["like"], entry["count"]) for entry in answered["missing"]["nodes"]]


def test_a_cluster_without_gpus_needs_nodes_too() -> None:
    found = searched(facts([node("c", 0)]), pods=[pod("p", spec=CPU), pod("q", spec=CPU)])
    assert found["missing"]["nodes"] == [{"like": "c", "count": 1, "gpus": 0, "model": ""}]
    assert found["planner"] == "greedy"


def partitioned(manifest: Manifest) -> Manifest:
    """Of a machine of one GPU: it is offered as a partition."""
    manifest["metadata"]["labels"]["nvidia.com/mig.strategy"] = "mixed"
    manifest["status"]["allocatable"] |= {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "1"}
    return manifest


def test_two_nodes_without_gpus_are_cheaper_than_one_that_has_a_gpu() -> None:
    for large in (machine("large", 1, cpu="128"), partitioned(machine("large", 1, cpu="128"))):
        found = searched(
            facts([]), pods=[pod("p", spec=CPU), pod("q", spec=CPU)], candidates=[large, machine("small", 0)]
        )
        assert likes(found) == [("small", 2)]


def test_of_too_many_shapes_the_cheapest_for_each_kind_of_pod_are_tried_then_the_cheapest_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missing, "_MAX_OFFERS", 3)
    monkeypatch.setattr(missing, "_MAX_ROWS", 3)  # one node of each
    shapes = [machine(f"a100-{cpu}", 8, cpu=str(cpu)) for cpu in (68, 67, 66, 65)]
    shapes += [machine(f"h100-{cpu}", 8, H100, cpu=str(cpu)) for cpu in (66, 65)]
    pods = [pod("p", 8), pod("q", 8), pod("newest", 8, gpu_model="h100")]
    found = searched(facts([node("cpu", 0)]), pods=pods, candidates=shapes)
    assert likes(found) == [("a100-66", 1), ("a100-65", 1), ("h100-65", 1)]
    assert found["placed"] == 3


def test_so_many_new_nodes_are_tried_and_no_more_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing, "_MAX_ROWS", 4)
    known = facts([node("a", 8), node("cpu", 0)], full("a"))
    for num_pods, count in ((3, 3), (4, 4), (6, 4)):
        found = searched(known, pods=[pod("p", 8)], replicas=num_pods)
        assert likes(found) == [("a", count)]
        reasons = [entry["reason"] for entry in found["missing"]["stillUnplaced"]]
        assert reasons == ["more new nodes would be needed than are tried"] * (num_pods - count)


# Who takes what room there is


def labelled(name: str, gpus: int, to: str) -> Manifest:
    """A pod, labelled with its name, that goes where another one is."""
    made = asking(name, gpus, labels={"app": name})
    made["spec"]["affinity"] = near(app=to)
    return made


def unplaced(answered: Any) -> list[str]:
    return [entry["pod"] for entry in answered["missing"]["stillUnplaced"]]


def test_who_goes_where_others_are_is_tried_until_nobody_comes_any_more() -> None:
    chain = [labelled("last", 1, "middle"), labelled("middle", 1, "first"), labelled("lone", 1, "nobody")]
    found = searched(facts([node("a", 8)]), pods=[*chain, asking("first", 1, labels={"app": "first"})])
    assert where(found) == {"ns/first": "a", "ns/middle": "a", "ns/last": "a"}
    assert (likes(found), unplaced(found)) == ([], ["ns/lone"])


def test_of_pods_that_are_alike_the_first_by_turn_gets_the_room_that_comes_with_another() -> None:
    followers = [asking(name, 2) for name in ("early", "late")]
    for one in followers:
        one["spec"]["affinity"] = near(app="leader")
    found = searched(facts([node("a", 8)]), pods=[followers[0], labelled("leader", 6, "leader"), followers[1]])
    assert where(found) == {"ns/leader": "a", "ns/early": "a"}
    assert unplaced(found) == ["ns/late"]


def gang(name: str, pods: int) -> Sequence[Manifest]:
    return [pod(f"{name}{number}", 2, gang=name, gang_size=str(pods)) for number in range(pods)]


def test_a_gang_that_has_room_now_takes_it_though_a_larger_one_before_it_has_none() -> None:
    known = facts([node("a", 8, A100)], [pod("x", 4, on="a")])
    found = searched(known, pods=[*gang("large", 3), *gang("small", 2)])
    assert {name: on for name, on in where(found).items() if "small" in name} == {"ns/small0": "a", "ns/small1": "a"}
    assert likes(found) == [("a", 1)]
