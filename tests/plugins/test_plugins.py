"""The plugins' side of a Binding; tests/plugins/test_placing.py has whole pods."""

from typing import Any

import pytest

from extender.plugins.formats import ContainerResources
from extender.plugins.nvidia import gpushare, hami
from extender.plugins.nvidia.gpushare import _binding_annotations
from extender.plugins.nvidia.hami import _bound_annotations, _format_lock
from extender.plugins.protocol import AssignedGpu
from tests.plugins.plugins import AllocationError, PluginNode, Pod, gpushare_allocate, hami_allocate, plugin_pod

A = AssignedGpu(0, "GPU-a", 15360)
B = AssignedGpu(1, "GPU-b", 40960)
NO_GPU = ContainerResources({})
GPU = {"nvidia.com/gpu": "1"}
SHARE = ContainerResources({**GPU, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
NOW = 1795241852.0


def hami_pod(name: str, gpus: list[AssignedGpu], *containers: ContainerResources, **options: Any) -> Pod:
    """A pod with containers i0, i1, ... and c0, c1, ..., and what is written with its Binding."""
    written = _bound_annotations(list(containers) or [SHARE], gpus, "n1", NOW, **options)
    num_init = sum(one.init for one in containers)
    called = [{"name": f"i{index}"} for index in range(num_init)]
    return plugin_pod(name, written, init_containers=called, containers=[{"name": f"c{index}"} for index in range(3)])


def node(*pods: Pod, locked_by: str = "") -> PluginNode:
    locks = {hami.NODE_LOCK: _format_lock("default", locked_by, NOW)} if locked_by else {}
    return PluginNode("n1", locks, list(pods))


def test_the_lock_says_which_of_two_pending_pods_hami_serves() -> None:
    pods = (hami_pod("a", [A]), hami_pod("b", [B]))
    assert hami_allocate(node(*pods, locked_by="b"), 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
    assert hami_allocate(node(*pods), 1)["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"  # which may be the wrong one


def test_hami_is_called_once_for_each_container() -> None:
    init, main = ContainerResources(GPU, init=True), ContainerResources(GPU)
    pod = hami_pod("a", [A, B], ContainerResources({}, init=True), init, main, NO_GPU, main)
    served = node(pod, locked_by="a")
    calls = [hami_allocate(served, 1) for _ in range(3)]
    assert [(call["container"], call["NVIDIA_VISIBLE_DEVICES"]) for call in calls] == [
        *(("i1", "GPU-a"), ("c0", "GPU-a"), ("c2", "GPU-b"))
    ]
    assert (served.annotations, pod["annotations"][hami.BIND_PHASE]) == ({}, "success")
    old = hami_pod("a", [A], ContainerResources({}, init=True), SHARE, init_slots=False)
    assert hami_allocate(node(old), 1, init_slots=False)["container"] == "c0", "plugins up to v2.7"


def gpushare_pod(name: str, units: int, index: int, now_ns: int) -> Pod:
    limits = {"aliyun.com/gpu-mem": str(units)}
    written = _binding_annotations([ContainerResources(limits)], index, 15360, now_ns)
    return plugin_pod(name, written, containers=[{"name": "main", "limits": limits}])


def test_gpushare_serves_equal_pods_in_the_order_of_their_bindings() -> None:
    pods = [gpushare_pod("b", 3, 1, 18), gpushare_pod("c", 2, 0, 16), gpushare_pod("a", 3, 0, 17)]
    calls = [gpushare_allocate(node(*pods), 3, 2) for _ in range(2)]
    assert [(call["pod"], call["NVIDIA_VISIBLE_DEVICES"]) for call in calls] == [("a", "0"), ("b", "1")]
    assert pods[0]["annotations"][gpushare.ASSIGNED] == "true"
    with pytest.raises(AllocationError, match="can't be satisfied"):
        gpushare_allocate(node(*pods), 3, 2)


def test_a_pod_that_requests_nothing_of_a_plugin_is_not_served() -> None:
    with pytest.raises(AllocationError, match="no binding pod"):
        hami_allocate(node(hami_pod("a", [A], NO_GPU)), 1)
    with pytest.raises(AllocationError):
        gpushare_allocate(node(plugin_pod("a", _binding_annotations([NO_GPU], 0, 15360, 17))), 3, 2)
