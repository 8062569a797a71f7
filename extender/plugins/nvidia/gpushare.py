"""gpushare (Aliyun): GPUs shared by memory, named by index; all GPUs of a node count as equally large.

Of the node's pending pods that are assumed but not assigned, its device plugin serves the one assumed first with the
memory that the kubelet requests: it allocates the GPU of the pod's index and marks the pod as assigned. The memory is
not enforced, except by Aliyun's cGPU kernel module.

Read in AliyunContainerService/gpushare-scheduler-extender c0b6141 (`pkg/utils`, `pkg/cache/nodeinfo.go`) and
gpushare-device-plugin 45fb8b8 (`pkg/gpu/nvidia/allocate.go`, `podmanager.go`, `podutils.go`, `nvidia.go`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, MAX_MEMORY_MIB, Gpu, NodeOffer, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.core.vendors.nvidia import NVIDIA
from extender.kube import objects
from extender.plugins.formats import (
    ContainerResources,
    asked_number,
    asks_any,
    containers_of,
    parts_offer,
    whole_number,
    whole_quantity,
    with_conditions,
)
from extender.plugins.holdings import Holding, Part
from extender.plugins.protocol import AssignedGpu, DevicePlugin, Handover, PluginGoneError, UnreadableError

MEMORY_RESOURCE: Final = "aliyun.com/gpu-mem"
_COUNT_RESOURCE: Final = "aliyun.com/gpu-count"

INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
GPU_MEMORY: Final = "ALIYUN_COM_GPU_MEM_DEV"
POD_MEMORY: Final = "ALIYUN_COM_GPU_MEM_POD"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

_GIB: Final = 1024
_MAX_GIB: Final = 300
"""The plugin counts in GiB, or in MiB with `--memory-unit=MiB`, and does not publish which. No GPU has more GiB than
this, and no pod requests fewer MiB: a CUDA context alone takes more."""


class GpuShare(DevicePlugin):
    """Nodes whose kubelet has `aliyun.com/gpu-mem`."""

    name = "gpushare"
    resources = (MEMORY_RESOURCE,)
    written = frozenset({INDEX, GPU_MEMORY, POD_MEMORY, ASSIGNED, ASSUME_TIME})
    told = parts = True

    def owns(self, node: objects.Node) -> bool:
        """Whether gpushare's memory is allocatable, or its plugin is only down: then the capacity remains, and no other
        plugin offers devices. When it is gone, the kubelet reports 0 units, and the GPU count that it wrote remains."""
        allocatable, capacity = node.status.allocatable or {}, node.status.capacity or {}
        if _has_memory(allocatable) or not _has_memory(capacity):
            return _has_memory(allocatable)
        return all(str(allocatable.get(name, "0")) == "0" for name in NVIDIA.resources)

    def left_behind(self, node: objects.Node) -> str:
        known = {**(node.status.allocatable or {}), **(node.status.capacity or {})}
        if self.owns(node) or known.keys().isdisjoint((MEMORY_RESOURCE, _COUNT_RESOURCE)):
            return ""
        return f"{MEMORY_RESOURCE} is 0 but {_COUNT_RESOURCE} is set: gpushare's plugin is gone"

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        return _read_register(node.status.capacity or {}, node.status.allocatable or {})

    def request(self, pod: objects.Pod) -> PodRequest | None:
        units = _requested_units(containers_of(pod.spec)) if self.concerns(pod) else 0
        return with_conditions(pod, _read_request(units)) if units else None

    def concerns(self, pod: objects.Pod) -> bool:
        return asks_any(pod.spec, self.resources)

    def holding(self, pod: objects.Pod) -> Holding | None:
        if not self.concerns(pod):
            return None
        try:
            units = _requested_units(containers_of(pod.spec))
        except RequestError as error:
            raise UnreadableError(str(error)) from error
        return _read_holding(pod.metadata.annotations or {}, units)

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        first, at_ns = gpus[0], int(decided_at * 1_000_000_000)
        return Handover(_binding_annotations(containers_of(pod.spec), first.index, first.memory_mib, at_ns))


def _read_register(
    capacity: Mapping[str, str | int | float], allocatable: Mapping[str, str | int | float]
) -> NodeOffer | None:
    """Return what a node's plugin offers, None without one. Raises UnreadableError.

    The plugin writes its number of GPUs into the capacity. Memory that is not allocatable belongs to unhealthy GPUs of
    unknown index.
    """
    if MEMORY_RESOURCE not in capacity and MEMORY_RESOURCE not in allocatable:
        return None
    installed = {**allocatable, **capacity}
    try:
        units = whole_quantity(installed, MEMORY_RESOURCE)
        count = whole_quantity(installed, _COUNT_RESOURCE)
        offered = min(whole_quantity(allocatable, MEMORY_RESOURCE), units)
    except UnreadableError as error:
        raise UnreadableError(f"{error}: its GPUs are not offered") from None
    if not offered:
        raise PluginGoneError(f"{MEMORY_RESOURCE}: the kubelet offers none of {units}: gpushare's plugin is down")
    if not units or not count:
        raise UnreadableError(f"{MEMORY_RESOURCE} is {units} and {_COUNT_RESOURCE} {count}: nothing to offer")
    memory_mib = (units // count) * _unit_mib(units // count)
    if memory_mib > MAX_MEMORY_MIB or not memory_mib:
        raise UnreadableError(f"{MEMORY_RESOURCE}: {memory_mib} MiB can't be a GPU's memory")
    gpus = dict.fromkeys(range(min(count, MAX_GPUS_PER_NODE)), Gpu(UNKNOWN_MODEL, memory_mib))
    return parts_offer(gpus, (), num_installed=count, withheld=-(-(units - offered) // (units // count)))


def _has_memory(resources: Mapping[str, str | int | float]) -> bool:
    """Whether the plugin's memory is among the resources, readable or not."""
    return str(resources.get(MEMORY_RESOURCE, "0")) != "0"


def _read_request(units: int) -> GpuRequest:
    """Return a request for a share of one GPU by memory."""
    return GpuRequest(1, AskedUnit.PART, units * _unit_mib(units))


def _read_holding(annotations: Mapping[str, str], requested: int) -> Holding | None:
    """Return what a bound pod holds: the larger of gpushare's annotations and the requested units; None without either.

    Raises UnreadableError.
    """
    if INDEX not in annotations and POD_MEMORY not in annotations:
        if not requested:
            return None
        raise UnreadableError(f"requests {MEMORY_RESOURCE} but has no {INDEX}: its GPU is unknown")
    try:
        index = whole_number(annotations.get(INDEX, ""), INDEX)
        units = max(whole_number(annotations.get(POD_MEMORY, str(requested)), POD_MEMORY), requested)
    except UnreadableError as error:
        raise UnreadableError(f"{error}: its GPU is unknown") from None
    memory_mib = units * _unit_mib(units)
    if index >= MAX_GPUS_PER_NODE or memory_mib > MAX_MEMORY_MIB:
        raise UnreadableError(f"{INDEX} {index} or {POD_MEMORY} {units} is out of range")
    return Holding(1, (Part(index, 0, memory_mib),))


def _binding_annotations(
    containers: Sequence[ContainerResources], index: int, gpu_memory_mib: int, wall_now_ns: int
) -> dict[str, str]:
    """Return the annotations from which gpushare's plugin serves a pod, {} for a pod that it never sees.

    `wall_now_ns` is Unix time in nanoseconds, by which the plugin orders equal pods.
    """
    units = _requested_units(containers)
    if not units:
        return {}
    return {
        INDEX: str(index),
        GPU_MEMORY: str(gpu_memory_mib // _unit_mib(units)),
        POD_MEMORY: str(units),
        ASSIGNED: "false",
        ASSUME_TIME: str(wall_now_ns),
    }


def _unit_mib(units: int) -> int:
    """Infer the MiB of one unit from the units of one GPU or pod."""
    return _GIB if units <= _MAX_GIB else 1


def _requested_units(containers: Sequence[ContainerResources]) -> int:
    """Return the memory units that containers request, as the plugin counts them. Raises RequestError."""
    return sum(asked_number(container, MEMORY_RESOURCE) or 0 for container in containers if not container.init)
