"""The plugins' side: what is written with a Binding is what their code hands out, and it ends as they end it."""

import pytest

from extender.plugins.formats import ContainerResources
from extender.plugins.nvidia import gpushare, hami
from extender.plugins.nvidia.gpushare import _binding_annotations
from extender.plugins.nvidia.hami import _bound_annotations, _format_lock, _read_holding
from extender.plugins.protocol import AssignedGpu
from tests.plugins.plugins import AllocationError, PluginNode, gpushare_allocate, hami_allocate, plugin_pod

A = AssignedGpu(0, "GPU-a", 15360)
B = AssignedGpu(1, "GPU-b", 40960)
SHARE = ContainerResources({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
NOW = 1795241852.0


def hami_node(*pods: tuple[str, dict[str, str]], locked_by: str = "") -> PluginNode:
    node = PluginNode("n1", pods=[plugin_pod(name, written, containers=[{"name": "main"}]) for name, written in pods])
    if locked_by:
        node.annotations[hami.NODE_LOCK] = _format_lock("default", locked_by, NOW)
    return node


def test_hami_hands_out_the_gpus_of_the_binding_and_lets_the_lock_go() -> None:
    node = hami_node(("a", _bound_annotations([SHARE], [B], "n1", NOW)), locked_by="a")

    environment = hami_allocate(node, 1)

    assert environment == {
        "container": "main",
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    }
    assert node.annotations == {}
    written = node.pods[0]["annotations"]
    assert written[hami.BIND_PHASE] == "success"
    held = _read_holding(written, "n1", [SHARE])
    assert held is not None
    assert [part.uuid for part in held.parts] == ["GPU-b"]


def test_the_lock_says_which_of_two_pending_pods_hami_serves() -> None:
    pods = [(name, _bound_annotations([SHARE], [gpu], "n1", NOW)) for name, gpu in (("a", A), ("b", B))]

    assert hami_allocate(hami_node(*pods, locked_by="b"), 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert hami_allocate(hami_node(*pods), 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"  # which may be the wrong one


def test_hami_is_called_once_for_each_container() -> None:
    containers = [
        ContainerResources({}, init=True),
        ContainerResources({"nvidia.com/gpu": "1"}, init=True),
        ContainerResources({"nvidia.com/gpu": "1"}),
        ContainerResources({}),
        ContainerResources({"nvidia.com/gpu": "1"}),
    ]
    pod = plugin_pod(
        "a",
        _bound_annotations(containers, [A, B], "n1", NOW),
        init_containers=[{"name": "i0"}, {"name": "i1"}],
        containers=[{"name": "c0"}, {"name": "c1"}, {"name": "c2"}],
    )
    node = PluginNode("n1", {hami.NODE_LOCK: _format_lock("default", "a", NOW)}, [pod])

    served = [hami_allocate(node, 1) for _ in range(3)]

    assert [(it["container"], it["NVIDIA_VISIBLE_DEVICES"]) for it in served] == [
        ("i1", "GPU-a"),
        ("c0", "GPU-a"),
        ("c2", "GPU-b"),
    ]
    assert node.annotations == {}
    assert pod["annotations"][hami.BIND_PHASE] == "success"


def test_plugins_up_to_v2_7_find_containers_where_they_look_for_them() -> None:
    containers = [ContainerResources({}, init=True), SHARE]
    written = _bound_annotations(containers, [A], "n1", NOW, init_slots=False)
    pod = plugin_pod("a", written, init_containers=[{"name": "i0"}], containers=[{"name": "c0"}])

    assert hami_allocate(PluginNode("n1", pods=[pod]), 1, init_slots=False)["container"] == "c0"


def test_a_pod_that_asks_nothing_of_hami_is_never_taken_for_one_to_serve() -> None:
    node = hami_node(("a", _bound_annotations([ContainerResources({})], [A], "n1", NOW)))

    with pytest.raises(AllocationError, match="no binding pod"):
        hami_allocate(node, 1)


def gpushare_pod(name: str, units: int, index: int, now_ns: int) -> dict[str, object]:
    containers = [ContainerResources({"aliyun.com/gpu-mem": str(units)})]
    written = _binding_annotations(containers, index, 15360, now_ns)
    return plugin_pod(name, written, containers=[{"name": "main", "limits": {"aliyun.com/gpu-mem": str(units)}}])


def test_gpushare_hands_out_the_gpu_of_the_binding() -> None:
    pod = gpushare_pod("a", 3, 1, 17)

    assert gpushare_allocate(PluginNode("n1", pods=[pod]), 3, 2)["NVIDIA_VISIBLE_DEVICES"] == "1"
    assert pod["annotations"][gpushare.ASSIGNED] == "true"  # type: ignore[index]


def test_gpushare_serves_equal_pods_in_the_order_of_their_bindings() -> None:
    node = PluginNode(
        "n1", pods=[gpushare_pod("b", 3, 1, 18), gpushare_pod("c", 2, 0, 16), gpushare_pod("a", 3, 0, 17)]
    )

    assert [gpushare_allocate(node, 3, 2)["pod"] for _ in range(2)] == ["a", "b"]
    with pytest.raises(AllocationError, match="can't be satisfied"):
        gpushare_allocate(node, 3, 2)


def test_a_pod_that_asks_nothing_of_gpushare_is_never_taken_for_one_to_serve() -> None:
    pod = plugin_pod("a", _binding_annotations([ContainerResources({})], 0, 15360, 17))

    with pytest.raises(AllocationError):
        gpushare_allocate(PluginNode("n1", pods=[pod]), 3, 2)
