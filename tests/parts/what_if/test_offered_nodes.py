"""New nodes at their edges: what they may be like, which and how many are tried, and who takes what room there is."""

from collections.abc import Sequence
from typing import Any

import pytest

from extender.parts.what_if import missing
from tests.parts.what_if.test_missing_nodes import machine, told
from tests.parts.what_if.test_what_if_demands import asking, near, where
from tests.parts.what_if.what_if_facts import A100, H100, Manifest, facts, node, pod

CPU: Manifest = {"containers": [{"resources": {"requests": {"cpu": "60"}}}]}


def full(*names: str) -> list[Manifest]:
    """Pods that leave no GPU free on nodes of eight."""
    return [pod(f"on-{name}", 8, on=name) for name in names]


def likes(answered: Any) -> list[tuple[str, int]]:
    return [(entry["like"], entry["count"]) for entry in answered["missing"]["nodes"]]


def test_a_label_that_each_machine_has_another_value_of_is_on_no_new_one_whatever_other_machines_there_are() -> None:
    nodes = [node("alone", 0), node("a", 8, serial="1"), node("b", 8, serial="2")]
    found = told(facts(nodes, full("a", "b")), pods=[pod("p", 8, spec={"nodeSelector": {"serial": "1"}})])
    assert not likes(found)


def test_machines_whose_gpus_differ_in_their_model_alone_are_no_equal_ones() -> None:
    known = facts([node("a", 8, "NVIDIA-A100-SXM4-80GB"), node("b", 8, H100)], full("a", "b"))
    assert likes(told(known, pods=[pod("p", 8, gpu_model="h100")])) == [("b", 1)]
    assert likes(told(known, pods=[pod("p", 8, gpu_model="a100")])) == [("a", 1)]


def test_a_cluster_without_gpus_needs_nodes_too() -> None:
    found = told(facts([node("c", 0)]), pods=[pod("p", spec=CPU), pod("q", spec=CPU)])
    assert found["missing"]["nodes"] == [{"like": "c", "count": 1, "gpus": 0, "model": ""}]
    assert found["planner"] == "greedy"


def test_a_machine_of_one_gpu_is_told_with_it() -> None:
    known = facts([node("a", 1)], [pod("x", 1, on="a")])
    assert told(known, pods=[pod("p", 1)])["missing"]["sentence"] == "1 node of 1 x a100-sxm4-40gb"


@pytest.mark.parametrize("memory", ["0", "lots", None])
def test_memory_that_is_not_told_or_cannot_be_read_is_none(memory: str | None) -> None:
    """Of machines that are alike the one with the least memory stands for all, and of those the first by name."""
    nodes = [node("a", 8, memory="lots"), node("b", 8)]
    nodes[1]["status"]["allocatable"] |= {"memory": memory}
    if memory is None:
        del nodes[1]["status"]["allocatable"]["memory"]
    assert likes(told(facts(nodes, full("a", "b")), pods=[pod("p", 8)])) == [("a", 1)]


def partitioned(manifest: Manifest) -> Manifest:
    """Of a machine of one GPU: it is offered as a partition."""
    manifest["metadata"]["labels"]["nvidia.com/mig.strategy"] = "mixed"
    manifest["status"]["allocatable"] |= {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "1"}
    return manifest


@pytest.mark.parametrize(
    "large",
    [
        pytest.param(machine("large", 1, cpu="128"), id="a whole one"),
        pytest.param(partitioned(machine("large", 1, cpu="128")), id="a partition of one"),
    ],
)
def test_two_nodes_without_gpus_are_cheaper_than_one_that_has_a_gpu(large: Manifest) -> None:
    found = told(facts([]), pods=[pod("p", spec=CPU), pod("q", spec=CPU)], candidates=[large, machine("small", 0)])
    assert likes(found) == [("small", 2)]


def test_of_too_many_shapes_the_cheapest_for_each_kind_of_pod_are_tried_then_the_cheapest_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missing, "_MAX_OFFERS", 3)
    monkeypatch.setattr(missing, "_MAX_ROWS", 3)  # one node of each
    shapes = [machine(f"a100-{cpu}", 8, cpu=str(cpu)) for cpu in (68, 67, 66, 65)]
    shapes += [machine(f"h100-{cpu}", 8, H100, cpu=str(cpu)) for cpu in (66, 65)]
    pods = [pod("p", 8), pod("q", 8), pod("newest", 8, gpu_model="h100")]
    found = told(facts([node("cpu", 0)]), pods=pods, candidates=shapes)
    assert likes(found) == [("a100-66", 1), ("a100-65", 1), ("h100-65", 1)]
    assert found["placed"] == 3


@pytest.mark.parametrize(
    ("num_pods", "count", "still"),
    [
        pytest.param(3, 3, 0, id="fewer are needed"),
        pytest.param(4, 4, 0, id="just as many"),
        pytest.param(6, 4, 2, id="more are needed"),
    ],
)
def test_so_many_new_nodes_are_tried_and_no_more_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, num_pods: int, count: int, still: int
) -> None:
    monkeypatch.setattr(missing, "_MAX_ROWS", 4)
    known = facts([node("a", 8), node("cpu", 0)], full("a"))
    found = told(known, pods=[pod("p", 8)], replicas=num_pods)
    assert likes(found) == [("a", count)]
    reasons = [entry["reason"] for entry in found["missing"]["stillUnplaced"]]
    assert reasons == ["more new nodes would be needed than are tried"] * still


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
    found = told(facts([node("a", 8)]), pods=[*chain, asking("first", 1, labels={"app": "first"})])
    assert where(found) == {"ns/first": "a", "ns/middle": "a", "ns/last": "a"}
    assert (likes(found), unplaced(found)) == ([], ["ns/lone"])


def test_of_pods_that_are_alike_the_first_by_turn_gets_the_room_that_comes_with_another() -> None:
    followers = [asking(name, 2) for name in ("early", "late")]
    for one in followers:
        one["spec"]["affinity"] = near(app="leader")
    found = told(facts([node("a", 8)]), pods=[followers[0], labelled("leader", 6, "leader"), followers[1]])
    assert where(found) == {"ns/leader": "a", "ns/early": "a"}
    assert unplaced(found) == ["ns/late"]


def gang(name: str, pods: int) -> Sequence[Manifest]:
    return [pod(f"{name}{number}", 2, gang=name, gang_size=str(pods)) for number in range(pods)]


def test_a_gang_that_has_room_now_takes_it_though_a_larger_one_before_it_has_none() -> None:
    known = facts([node("a", 8, A100)], [pod("x", 4, on="a")])
    found = told(known, pods=[*gang("large", 3), *gang("small", 2)])
    assert {name: on for name, on in where(found).items() if "small" in name} == {"ns/small0": "a", "ns/small1": "a"}
    assert likes(found) == [("a", 1)]
