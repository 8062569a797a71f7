"""A demo with a node of each way in which GPUs are handed out: `python -m tests.page.mixed demo --port N`."""

import sys
from collections.abc import Iterator, Mapping

from extender.core.annotations import SHARE
from extender.kube.memory import Manifest
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_SHARE
from tests.nvidia import (
    COUNT_LABEL,
    GPU_RESOURCE,
    MEMORY_LABEL,
    MIG_RESOURCE_PREFIX,
    PRODUCT_LABEL,
    REPLICAS_LABEL,
    SHARED_GPU_RESOURCE,
)
from tests.page.large import serve


def mixed_cluster() -> Iterator[Manifest]:
    """Whole GPUs, time slices, shares and MIG devices, of each some that pods hold."""
    a100 = {PRODUCT_LABEL: "NVIDIA-A100-SXM4-40GB", COUNT_LABEL: "4", MEMORY_LABEL: "40536"}
    t4 = {PRODUCT_LABEL: "Tesla-T4-SHARED", COUNT_LABEL: "4", MEMORY_LABEL: "15360", REPLICAS_LABEL: "4"}
    yield _node("whole", {GPU_RESOURCE: "4"}, a100)
    yield _pod("half", "whole", {GPU_RESOURCE: "2"}, {ASSIGNED_GPUS: "0,1"})
    yield _node("free", {GPU_RESOURCE: "4"}, a100)
    yield _node("shares", {GPU_RESOURCE: "4"}, a100)
    yield _pod("share", "shares", {}, {SHARE: "300", ASSIGNED_GPUS: "0", ASSIGNED_SHARE: "300"})
    yield _node("slices", {SHARED_GPU_RESOURCE: "16"}, t4)
    yield _pod("slice", "slices", {SHARED_GPU_RESOURCE: "3"}, {})
    yield _node("mig", {MIG_RESOURCE_PREFIX + "1g.5gb": "4", MIG_RESOURCE_PREFIX + "3g.20gb": "2"}, {})
    yield _pod("part", "mig", {MIG_RESOURCE_PREFIX + "1g.5gb": "3"}, {})


def _node(name: str, gpus: Mapping[str, str], labels: Mapping[str, str]) -> Manifest:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", **gpus}},
    }


def _pod(name: str, node: str, gpus: Mapping[str, str], annotations: Mapping[str, str]) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": gpus}}]},
        "status": {"phase": "Running"},
    }


if __name__ == "__main__":
    serve(mixed_cluster(), int(sys.argv[-1]))
