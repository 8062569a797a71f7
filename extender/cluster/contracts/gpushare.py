"""gpushare (Aliyun): GPUs shared by memory, named by index; every GPU of a node counts as equally large.

Its device plugin takes, of the node's pending pods that are assumed and not yet assigned, the one assumed first whose
memory is what the kubelet asks for, hands it the GPU of its index and marks it as assigned. Nothing enforces the
memory, unless Aliyun's own cGPU kernel module is there.

Read in AliyunContainerService/gpushare-scheduler-extender c0b6141 (`pkg/utils`, `pkg/cache/nodeinfo.go`) and
gpushare-device-plugin 45fb8b8 (`pkg/gpu/nvidia/allocate.go`, `podmanager.go`, `podutils.go`, `nvidia.go`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from extender.cluster.contracts.formats import (
    Ask,
    ContainerResources,
    FormatError,
    GpuShare,
    PodShares,
    Register,
    RegisteredGpu,
    asked_number,
    shorten,
    whole_number,
)
from extender.core.nodes import MAX_GPUS_PER_NODE, MAX_MEMORY_MIB
from extender.core.quantities import parse_quantity

MEMORY_RESOURCE: Final = "aliyun.com/gpu-mem"
COUNT_RESOURCE: Final = "aliyun.com/gpu-count"

INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
GPU_MEMORY: Final = "ALIYUN_COM_GPU_MEM_DEV"
POD_MEMORY: Final = "ALIYUN_COM_GPU_MEM_POD"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

_GIB: Final = 1024
_MAX_GIB: Final = 300
"""The plugin counts in GiB, or in MiB with `--memory-unit=MiB`, and says nowhere in which. No GPU has more than so
many GiB, and nobody asks for less than so many MiB: a CUDA context alone takes them."""


def read_register(
    capacity: Mapping[str, str | int | float], allocatable: Mapping[str, str | int | float]
) -> Register | None:
    """What a node's plugin offers, None when there is none.

    The plugin writes its number of GPUs into the capacity. Memory that is there and not allocatable belongs to
    unhealthy GPUs of unknown index.
    """
    if MEMORY_RESOURCE not in capacity and MEMORY_RESOURCE not in allocatable:
        return None
    installed = {**allocatable, **capacity}
    try:
        units = _quantity(installed, MEMORY_RESOURCE)
        count = _quantity(installed, COUNT_RESOURCE)
        offered = min(_quantity(allocatable, MEMORY_RESOURCE), units)
    except FormatError as error:
        return Register(warnings=(f"{error}: its GPUs are not offered",))
    if not units or not count:
        return Register(warnings=(f"{MEMORY_RESOURCE} is {units} and {COUNT_RESOURCE} {count}: nothing to offer",))
    warnings = []
    memory_mib = (units // count) * unit_mib(units // count)
    if memory_mib > MAX_MEMORY_MIB or not memory_mib:
        return Register(warnings=(f"{MEMORY_RESOURCE}: {memory_mib} MiB can't be a GPU's memory",))
    if count > MAX_GPUS_PER_NODE:
        warnings.append(f"{count} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
    withheld = -(-(units - offered) // (units // count))
    gpus = tuple(RegisteredGpu(index, memory_mib) for index in range(min(count, MAX_GPUS_PER_NODE)))
    return Register(gpus, min(withheld, len(gpus)), tuple(warnings))


def read_ask(containers: Sequence[ContainerResources]) -> Ask | None:
    """What a pod asks of gpushare, None when nothing: a share of one GPU by memory. Raises RequestError.

    As the plugin counts it: the sum of the containers, init containers left out.
    """
    units = asked_units(containers)
    return Ask(1, memory_each_mib=units * unit_mib(units)) if units else None


def read_shares(annotations: Mapping[str, str], asked: int) -> PodShares | None:
    """What a bound pod holds by gpushare's annotations, or by its resource alone; None when by neither.

    An index or memory that can't be read is a GPU that nobody knows: taken. `asked` are the units of its resources; the
    larger number counts.
    """
    if INDEX not in annotations and POD_MEMORY not in annotations:
        if not asked:
            return None
        return PodShares((), 1, (f"asks {MEMORY_RESOURCE} and has no {INDEX}: which GPU it uses is not known",))
    try:
        index = whole_number(annotations.get(INDEX, ""), INDEX)
        units = whole_number(annotations.get(POD_MEMORY, str(asked)), POD_MEMORY)
    except FormatError as error:
        return PodShares((), 1, (f"{error}: which GPU it uses is not known",))
    units = max(units, asked)
    memory_mib = units * unit_mib(units)
    if index >= MAX_GPUS_PER_NODE or memory_mib > MAX_MEMORY_MIB:
        return PodShares((), 1, (f"{INDEX} {index} or {POD_MEMORY} {units} is out of range",))
    return PodShares((GpuShare(0, memory_mib, index=index),))


def binding_annotations(
    containers: Sequence[ContainerResources], index: int, gpu_memory_mib: int, wall_now_ns: int
) -> dict[str, str]:
    """What gpushare's plugin has to find on a pod that gets a GPU, {} for a pod that it never sees.

    `wall_now_ns` is Unix time in nanoseconds: it serves equal pods in that order.
    """
    units = asked_units(containers)
    if not units:
        return {}
    return {
        INDEX: str(index),
        GPU_MEMORY: str(gpu_memory_mib // unit_mib(units)),
        POD_MEMORY: str(units),
        ASSIGNED: "false",
        ASSUME_TIME: str(wall_now_ns),
    }


def unit_mib(units: int) -> int:
    """MiB of one unit, told by the number of units of one GPU or pod."""
    return _GIB if units <= _MAX_GIB else 1


def asked_units(containers: Sequence[ContainerResources]) -> int:
    """Units of memory that a pod's containers ask, as the plugin counts them. Raises RequestError."""
    return sum(asked_number(container, MEMORY_RESOURCE) or 0 for container in containers if not container.init)


def _quantity(resources: Mapping[str, str | int | float], name: str) -> int:
    """A whole number of a resource, 0 when it is not there. Raises FormatError."""
    text = str(resources.get(name, 0))
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise FormatError(f"{name}: {shorten(text)!r} is {error}") from None
    if quantity.denominator != 1 or not 0 <= quantity < 2**31:
        raise FormatError(f"{name}: {shorten(text)!r} is no whole number in range")
    return int(quantity)
