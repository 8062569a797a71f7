"""The device plugins' side of the contracts, as their own code has it, on pods and nodes in plain dictionaries.

HAMi: `GetPendingPod`, `popNextContainerDevices`, `Allocate` and `PodAllocationTrySuccess` of v2.10.0, and the stricter
`GetNextDeviceRequest` of v2.7.1. gpushare: `getCandidatePods` and `Allocate` of gpushare-device-plugin 45fb8b8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Pod = dict[str, Any]
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
LOCK = "hami.io/mutex.lock"


class AllocationError(Exception):
    """The plugin refuses: the kubelet would fail the pod."""


@dataclass
class PluginNode:
    """A node as its plugin sees it: its annotations, and the pods that the API server has on it."""

    name: str
    annotations: dict[str, str] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)


def plugin_pod(
    name: str,
    annotations: Mapping[str, str],
    *,
    containers: Sequence[Mapping[str, Any]] = (),
    init_containers: Sequence[Mapping[str, Any]] = (),
    phase: str = "Pending",
) -> Pod:
    return {
        "namespace": "default",
        "name": name,
        "annotations": dict(annotations),
        "containers": list(containers),
        "init_containers": list(init_containers),
        "phase": phase,
    }


# HAMi


def hami_pending_pod(node: PluginNode) -> Pod:
    """`GetPendingPod`: the pod of the lock, else the first that is marked."""
    if LOCK in node.annotations:
        _, namespace, name = node.annotations[LOCK].split(",")
        return next(pod for pod in node.pods if (pod["namespace"], pod["name"]) == (namespace, name))
    for pod in node.pods:
        annotations = pod["annotations"]
        if (
            pod["phase"] == "Pending"
            and "hami.io/bind-time" in annotations
            and annotations.get("hami.io/bind-phase") in ("allocating", "success")
            and annotations.get("hami.io/vgpu-node") == node.name
        ):
            return pod
    raise AllocationError(f"no binding pod found on node {node.name}")


def hami_decode(text: str) -> list[list[tuple[str, str, int, int]]]:
    """`DecodePodDevices`: uuid, type, memory and cores of each device of each container."""
    containers = []
    for part in text.split(";"):
        devices = []
        for item in part.split(":"):
            if "," in item:
                uuid, kind, memory, cores = item.split(",")[:4]
                devices.append((uuid, kind, int(memory), int(cores)))
        containers.append(devices)
    return containers


def hami_encode(containers: Sequence[Sequence[tuple[str, str, int, int]]]) -> str:
    """`EncodePodSingleDevice`."""
    return "".join(
        "".join(f"{uuid},{kind},{memory},{cores}:" for uuid, kind, memory, cores in devices) + ";"
        for devices in containers
    )


def hami_allocate(node: PluginNode, num_devices: int, *, init_slots: bool = True) -> dict[str, str]:
    """`Allocate` for one container with so many devices; returns its environment."""
    pod = hami_pending_pod(node)
    remaining = hami_decode(pod["annotations"][TO_ALLOCATE])
    starting = pod["init_containers"] if init_slots else []
    for index, devices in enumerate(remaining):
        if devices:
            container = [*starting, *pod["containers"]][index]  # a place too many is a panic in Go
            break
    else:
        _hami_finish(node, pod, "failed")
        raise AllocationError("device request not found")
    if len(devices) != num_devices:
        _hami_finish(node, pod, "failed")
        raise AllocationError("device number not matched")
    remaining[index] = []
    pod["annotations"][TO_ALLOCATE] = hami_encode(remaining)
    if "NVIDIA" not in pod["annotations"][TO_ALLOCATE]:
        _hami_finish(node, pod, "success")
    return {
        "container": container["name"],
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuid for uuid, *_ in devices),
        "CUDA_DEVICE_SM_LIMIT": str(devices[0][3]),
        **{f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{memory}m" for i, (_, _, memory, _) in enumerate(devices)},
    }


def _hami_finish(node: PluginNode, pod: Pod, phase: str) -> None:
    """`updatePodAnnotationsAndReleaseLock`."""
    pod["annotations"]["hami.io/bind-phase"] = phase
    if node.annotations.get(LOCK, "").endswith(f",{pod['namespace']},{pod['name']}"):
        del node.annotations[LOCK]


# gpushare


def gpushare_memory(pod: Pod) -> int:
    """`getGPUMemoryFromPodResource`."""
    return sum(int(container.get("limits", {}).get("aliyun.com/gpu-mem", 0)) for container in pod["containers"])


def gpushare_allocate(node: PluginNode, units: int, num_gpus: int) -> dict[str, str]:
    """`Allocate` for so many units of memory; returns the container's environment."""
    candidates = [
        pod
        for pod in node.pods
        if pod["phase"] == "Pending"
        and gpushare_memory(pod) > 0
        and "ALIYUN_COM_GPU_MEM_ASSUME_TIME" in pod["annotations"]
        and pod["annotations"].get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "false"
    ]
    candidates.sort(key=lambda pod: int(pod["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"]))
    for pod in candidates:
        if gpushare_memory(pod) == units:
            break
    else:
        raise AllocationError(f"request GPU memory {units} can't be satisfied")
    index = int(pod["annotations"]["ALIYUN_COM_GPU_MEM_IDX"])
    if not 0 <= index < num_gpus:
        raise AllocationError(f"not able to find dev with index {index}")
    pod["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
    return {"pod": pod["name"], "NVIDIA_VISIBLE_DEVICES": str(index), "ALIYUN_COM_GPU_MEM_IDX": str(index)}
