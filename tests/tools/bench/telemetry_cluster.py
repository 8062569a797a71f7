"""The cluster that telemetry is measured on: nodes, their page of series, and bodies of filter."""

import json
from collections.abc import Iterator

from tests.telemetry.exporters import V4_8, Gpu, Node, dcgm_page
from tests.tools.bench.servers import GPUS_PER_NODE

METRICS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_PROF_DRAM_ACTIVE",
)


def _name(number: int) -> str:
    return f"gpu-node-{number:05}"


def page(num_nodes: int) -> bytes:
    """A page with every series, as one exporter for all nodes would write it."""
    lines: dict[str, list[str]] = {metric: [] for metric in METRICS}
    for number in range(num_nodes):
        gpus = [
            Gpu(index, load=(number * 7 + index) % 100 / 100, used_mib=500, uuid=f"GPU-{number:08x}-{index:04x}")
            for index in range(GPUS_PER_NODE)
        ]
        for line in dcgm_page(Node(_name(number), gpus), V4_8).splitlines(keepends=True):
            family = lines.get(line.partition("{")[0])
            if family is not None:
                family.append(line)
    return "".join(line for family in lines.values() for line in family).encode()


def nodes(num_nodes: int) -> Iterator[dict[str, object]]:
    """Manifests of nodes of 8 GPUs."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.memory": "40960",
    }
    for number in range(num_nodes):
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": _name(number), "labels": labels},
            "status": {
                "allocatable": {"nvidia.com/gpu": str(GPUS_PER_NODE), "cpu": "96", "memory": "1Ti", "pods": "110"}
            },
        }


def body(number: int, num_nodes: int) -> bytes:
    """A filter call for one GPU that names all nodes."""
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
    pod = {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {"containers": [container]},
    }
    return json.dumps({"Pod": pod, "NodeNames": [_name(index) for index in range(num_nodes)]}).encode()
