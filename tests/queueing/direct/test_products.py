"""Keeping pods to nodes with suitable GPUs, as kube-scheduler knows no models and no GPU memory."""

from typing import Any

from extender.core.resources.requests import GpuRequest
from extender.kube.watches import NODES
from extender.queueing.direct.writer import is_picky
from extender.queueing.pods.objects import decode_node
from tests.queueing.direct.rigs import DirectRig

LABEL = "nvidia.com/gpu.product"
LARGE, SMALL, OLD = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "Tesla-V100-SXM2-16GB"
PRODUCTS = {"large": (LARGE, 81920), "small": (SMALL, 40960), "old": (OLD, 16384), "unlabelled": ("", 98304)}


def rig_of(*nodes: str) -> DirectRig:
    rig = DirectRig()
    for name in nodes:
        product, mib = PRODUCTS[name]
        labels = {LABEL: product, "nvidia.com/gpu.memory": str(mib), "nvidia.com/gpu.count": "2", "rack": "r1"}
        if not product:
            del labels[LABEL]
        manifest = {
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "2"}},
        }
        node = decode_node(manifest)
        rig.ledger.upsert_node(node)
        rig.hub.cache(NODES).upsert(node)
    return rig


def products(spec: dict[str, Any]) -> list[str]:
    """Those that a pod is kept to, by its affinity."""
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((expression,),) = (term["matchExpressions"] for term in required["nodeSelectorTerms"])
    assert (expression["key"], expression["operator"]) == (LABEL, "In")
    found: list[str] = expression["values"]
    return found


def test_a_picky_pod_is_kept_to_all_products_that_will_do() -> None:
    for asks, kept_to in (
        ({"gpu_model": "a100"}, [SMALL, LARGE]),
        ({"gpu_model_exclude": "a100"}, [OLD]),
        ({"gpu_memory_each": "41Gi"}, [LARGE]),
        ({"gpu_memory_each": "16Gi"}, [SMALL, LARGE, OLD]),
    ):
        rig = rig_of("large", "small", "old")
        rig.pod("a", 1, **asks)
        rig.round()
        assert rig.node_of("a")
        assert products(rig.api.pods["a"]["spec"]) == kept_to


def test_products_that_are_full_now_will_do_later() -> None:
    rig = rig_of("large", "small")
    rig.pod("first", 2, gpu_model="80gb")
    rig.round()
    rig.bind_to("first", "large")
    rig.pod("a", 1, gpu_model="a100")
    rig.round()
    assert products(rig.api.pods["a"]["spec"]) == [SMALL, LARGE]


def test_a_pod_with_an_affinity_of_its_own_keeps_that() -> None:
    """It is kept to the product of its node instead, if that has a label."""
    own: dict[str, Any] = {"podAntiAffinity": {}}
    for nodes, selector in ((("large", "small"), {LABEL: LARGE}), (("unlabelled",), None)):
        rig = rig_of(*nodes)
        rig.pod("a", 1, gpu_memory_each="41Gi", spec={"affinity": own})
        rig.round()
        assert rig.node_of("a") == nodes[0]
        spec = rig.api.pods["a"]["spec"]
        assert (spec["affinity"], spec.get("nodeSelector")) == (own, selector)


def test_a_pod_is_kept_nowhere_if_it_takes_any_gpu_or_a_node_that_will_do_has_no_label() -> None:
    for nodes, asks in (
        (("large", "small"), {"policy": "spread"}),
        (("large", "unlabelled"), {"gpu_memory_each": "41Gi"}),
    ):
        rig = rig_of(*nodes)
        for name in "ab":
            rig.pod(name, 2, **asks)
        rig.round()
        assert sorted(rig.node_of(name) for name in "ab") == sorted(nodes)
        assert not any({"affinity", "nodeSelector"} & rig.api.pods[name]["spec"].keys() for name in "ab")


def test_a_gang_is_kept_to_its_domain_as_well() -> None:
    rig = rig_of("large", "small")
    rig.pod("a", 1, gang="g", gang_size="1", gang_topology="rack", gpu_memory_each="41Gi")
    rig.round()
    assert rig.api.pods["a"]["spec"]["nodeSelector"] == {"rack": "r1"}
    assert products(rig.api.pods["a"]["spec"]) == [LARGE]


def test_a_request_for_memory_or_certain_gpus_is_picky() -> None:
    assert not is_picky(GpuRequest(1))
    assert is_picky(GpuRequest(1, memory_each_mib=1))
    assert is_picky(GpuRequest(1, memory_total_mib=1))
    assert is_picky(GpuRequest(1, uuids=frozenset({"GPU-a"})))
