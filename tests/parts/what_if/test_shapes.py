"""What new nodes may be like: one node of each pool, without what is its own or will pass."""

from collections.abc import Collection
from typing import Any

import msgspec

from extender.kube.objects import Node
from extender.ledger.ledger import Ledger
from extender.parts.what_if.missing import _keys_of, _resources_of, _Shape, _shapes_of
from extender.planning.demands import AffinityTerm, Demands, PodSelector
from extender.planning.plans import PlanPod
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.parts.what_if.what_if_facts import A100, H100, Manifest, node, offering, pod

HOSTNAME = "kubernetes.io/hostname"


def shapes(
    *manifests: Manifest, given: Collection[Manifest] = (), keys: Collection[str] = (), resources: Collection[str] = ()
) -> list[_Shape]:
    """Those of a cluster."""
    ledger = Ledger(reservation_ttl_s=0.0)
    nodes: list[Node] = [decode_node(manifest) for manifest in manifests]
    for item in nodes:
        ledger.upsert_node(item)
    return _shapes_of(nodes, [decode_node(item) for item in given], ledger.snapshot(0.0), keys, resources)


def likes(*manifests: Manifest, **options: Any) -> list[str]:
    return [shape.like for shape in shapes(*manifests, **options)]


def tainted(manifest: Manifest, *taints: tuple[str, str]) -> Manifest:
    manifest["spec"]["taints"] = [{"key": key, "effect": effect} for key, effect in taints]
    return manifest


def broken(manifest: Manifest, index: int = 0) -> Manifest:
    gpus = [{"index": at, "model": A100, "memory_mib": 40960, "healthy": at != index} for at in range(8)]
    manifest["metadata"]["annotations"] = {"kerf.dev/gpus": msgspec.json.encode(gpus).decode()}
    return manifest


def sound(manifest: Manifest) -> Manifest:
    return broken(manifest, -1)


def test_the_most_common_shape_comes_first_and_its_node_of_least_memory_stands_for_it() -> None:
    """Of equals the first by name."""
    nodes = [node("z", 8, H100), node("b", 8, memory="262300Mi"), node("a", 8, memory="262310Mi")]
    nodes += [node("d", 4), node("c", 4), node("e", 2), node("f", 8, H100, memory="1Gi")]
    assert likes(*nodes) == ["b", "c", "e", "f", "z"]
    assert likes(node("b", 4), node("a", 4)) == ["a"]


def test_what_makes_machines_differ() -> None:
    plain = node("a", 8)
    for other in (
        node("b", 7),
        node("b", 8, H100),
        node("b", 8, memory="255Gi"),
        offering(node("b", 8), cpu="63"),
        offering(node("b", 8), pods="250"),
        offering(node("b", 8), **{"rdma/hca": "1"}),
        tainted(node("b", 8), ("team", "NoSchedule")),
    ):
        assert likes(plain, other) == ["a", "b"], other
    for same in (
        node("b", 8, memory="262145Mi"),
        offering(node("b", 8), **{"ephemeral-storage": "7Gi", "hugepages-2Mi": "1Gi", "attachable-volumes-x": "9"}),
        node("b", 8, zone="2"),
    ):
        assert likes(plain, same) == ["a"], same


def test_labels_and_resources_that_pods_name_matter() -> None:
    nodes = [node("a", 8, pool="one"), node("b", 8, pool="two"), node("c", 8, pool="two"), node("d", 8, pool="one")]
    assert likes(*nodes) == ["a"]
    assert likes(*nodes, keys=["other", "pool"]) == ["a", "b"]
    huge = offering(node("b", 8), **{"hugepages-2Mi": "1Gi"})
    assert likes(node("a", 8), huge) == ["a"]
    assert likes(node("a", 8), huge, resources=["hugepages-2Mi"]) == ["a", "b"]


def labels_of(shape: _Shape) -> set[str]:
    return set(shape.node.metadata.labels or {})


def test_labels_that_each_node_of_a_kind_has_another_value_of_are_its_own() -> None:
    nodes = [
        node("a", 8, serial="1", pool="x", rack="1", owner="a", **{"topology.kubernetes.io_zone": "1"}),
        node("b", 8, serial="2", pool="x", rack="2", **{"topology.kubernetes.io_zone": "2"}),
        node("c", 4, serial="3", rack="2"),
        node("d", 4, serial="4", rack="2"),
    ]
    eight, four = shapes(*nodes, keys=["pool"])
    of_gpus = {"nvidia.com/gpu.product", "nvidia.com/gpu.count"}
    assert labels_of(eight) == of_gpus | {"pool", "rack", "topology.kubernetes.io/zone"}
    assert labels_of(four) == of_gpus | {"rack"}
    (alone,) = shapes(node("a", 8, serial="1", mine="a"))
    assert labels_of(alone) == of_gpus | {"serial"}, "of one alone nobody knows, but its name is its own"


def test_what_will_pass_is_no_part_of_a_shape() -> None:
    passing = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
        ("karpenter.sh/disrupted", "NoSchedule"),
        ("karpenter.sh/unregistered", "NoExecute"),
    ]
    cordoned = tainted(node("a", 8), *passing)
    cordoned["spec"]["unschedulable"] = True
    (shape,) = shapes(cordoned, tainted(node("b", 8)))
    assert (shape.like, shape.node.spec.unschedulable, shape.node.spec.taints) == ("a", False, None)
    kept = tainted(node("a", 8), ("node.kubernetes.io/x", "NoSchedule"), ("nvidia.com/gpu", "NoSchedule"))
    (shape,) = shapes(kept)
    assert [taint.key for taint in shape.node.spec.taints or ()] == ["nvidia.com/gpu"]


def test_a_broken_machine_stands_for_its_kind_only_where_none_is_sound() -> None:
    assert likes(broken(node("a", 8)), sound(node("b", 8))) == ["b"]
    assert likes(broken(node("a", 8))) == ["a"]
    assert likes(broken(node("a", 8)), broken(node("b", 8), 3), node("c", 4)) == ["a", "c"]


def test_the_64_most_common_shapes_are_tried_and_all_that_are_given() -> None:
    many = [offering(node(f"n{number:02}", 1), cpu=str(number + 1)) for number in range(70)]
    twice = offering(node("z", 1), cpu="70")
    found = shapes(*many, twice, given=[node("mine", 8, H100, serial="1"), node("mine", 8, H100)])
    assert [shape.like for shape in found] == ["n69", *(f"n{number:02}" for number in range(63)), "mine", "mine"]
    assert [shape.of_cluster for shape in found] == [True] * 64 + [False] * 2
    assert {HOSTNAME, "serial"} - labels_of(found[-2]) == {HOSTNAME}


def test_a_node_that_kerf_does_not_know_yet_is_like_none() -> None:
    ledger = Ledger(reservation_ttl_s=0.0)
    nodes = [decode_node(node("a", 8)), decode_node(node("b", 4))]
    ledger.upsert_node(nodes[1])
    assert [shape.like for shape in _shapes_of(nodes, [], ledger.snapshot(0.0), ())] == ["b"]


def test_memory_that_cannot_be_read_is_none() -> None:
    odd, less = offering(node("b", 8), memory="lots"), offering(node("a", 8), memory="")
    assert likes(odd, less) == ["a"]
    assert likes(odd, node("a", 8)) == ["a", "b"]


def test_the_labels_that_pods_name() -> None:
    terms: list[Manifest] = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("one", "two")]
    terms += [{"matchFields": []}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    specs: tuple[Manifest | None, ...] = (
        {"nodeSelector": {"pool": "x"}, "affinity": {"nodeAffinity": required}},
        {"affinity": {"nodeAffinity": {}}},
        {"affinity": {}},
        None,
    )
    assert _keys_of([decode_pod(pod("p", spec=spec)).spec for spec in specs], []) == {"pool", "one", "two"}


def test_the_labels_and_resources_of_a_plan() -> None:
    term = AffinityTerm(HOSTNAME, PodSelector(None, ()))
    demands = Demands(resources=(("rdma/hca", 1), ("hugepages-2Mi", 2)), anti_affinity=(term,))
    batch = [PlanPod("a", topology="rack"), PlanPod("b", demands=demands), PlanPod("c")]
    assert _resources_of(batch) == {"rdma/hca", "hugepages-2Mi"}
    assert _keys_of([], batch) == {"rack", HOSTNAME}
