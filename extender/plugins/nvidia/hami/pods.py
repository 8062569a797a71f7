"""HAMi's side of a pod: GPUs shared by memory and compute, named by UUID.

HAMi's plugin finds the pod to serve by the node's lock, else by the first pending pod of the node that is marked as
allocating; it takes the GPUs from the pod's annotations, container by container, and enforces their memory and compute
limits there. What it has served it erases from `devices-to-allocate`; `devices-allocated` stays.

Read in Project-HAMi/HAMi: `pkg/device/devices.go`, `pkg/device/nvidia/device.go`, `pkg/device/initContainer.go`,
`pkg/scheduler/scheduler.go` and `pkg/device-plugin/nvidiadevice/nvinternal/plugin` of v2.4.1, v2.7.1, v2.8.3, v2.10.0.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.core.vendors.nvidia import NVIDIA
from extender.plugins.formats import ContainerResources, asked_number, bounded, shorten, whole_number
from extender.plugins.holdings import UNKNOWN_GPU, Holding, Part
from extender.plugins.nvidia.hami.nodes import VGPU_RESOURCE
from extender.plugins.protocol import AssignedGpu, UnreadableError

TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
ASSIGNED_NODE: Final = "hami.io/vgpu-node"
ASSIGNED_TIME: Final = "hami.io/vgpu-time"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
PHASE_ALLOCATING: Final = "allocating"
WRITTEN: Final = frozenset({TO_ALLOCATE, ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME})

USE_TYPE: Final = "nvidia.com/use-gputype"
NO_USE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NO_USE_UUID: Final = "nvidia.com/nouse-gpuuuid"

GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
_SPREAD: Final = "spread"
MODE: Final = "nvidia.com/vgpu-mode"
MODE_SHARED: Final = "hami-core"

MEMORY_RESOURCE: Final = "nvidia.com/gpumem"
MEMORY_PERCENT_RESOURCE: Final = "nvidia.com/gpumem-percentage"
CORES_RESOURCE: Final = "nvidia.com/gpucores"
OWN_RESOURCES: Final = (VGPU_RESOURCE, MEMORY_RESOURCE, MEMORY_PERCENT_RESOURCE, CORES_RESOURCE)
"""Resources that only HAMi hands out; a pod may well ask `nvidia.com/gpu` alone and be served by HAMi."""

_TYPE: Final = "NVIDIA"
"""The word by which the plugin knows devices that are still to be allocated."""
_ALL_CORES: Final = 100
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_MAX_DEVICES: Final = 1024


# What a pod asks


@dataclass(frozen=True, slots=True)
class _ContainerAsk:
    """What one container asks, as HAMi reads it."""

    init: bool
    count: int
    memory_mib: int
    """Of each GPU, 0 where it is asked in percent."""
    memory_percent: int
    """0 where it is asked in MiB."""
    cores: int
    """0: no compute of its own; 100: alone on its GPUs."""

    @property
    def whole(self) -> bool:
        return self.cores == _ALL_CORES

    def limits_on(self, gpu: AssignedGpu) -> tuple[int, int]:
        """MiB and percent of the compute that it gets of a GPU; Kerf's own annotations may ask less than all of it."""
        if self.whole and gpu.given_milli < WHOLE_MILLI:
            return gpu.given_mib, gpu.given_milli // 10
        return self.memory_mib or gpu.memory_mib * self.memory_percent // 100, self.cores


def read_request(containers: Sequence[ContainerResources], policy: str = "") -> GpuRequest | None:
    """What a pod asks of HAMi, None when nothing. Raises RequestError with a sentence for the pod's author.

    Containers that ask for shares share the same GPUs, as few as the one that asks most has; with the GPU policy
    `spread` each has GPUs of its own, and always where they have no room together, or one asks for whole GPUs: then
    each GPU is booked with what the container has that takes most. Init containers use what the others will.
    HAMi itself looks for a place of each container, one after the other.
    """
    asks = [ask for ask in map(_container_ask, containers) if ask.count]
    if not asks:
        return None
    num_apart = _most_at_once(asks, lambda ask: ask.count)
    if any(ask.whole for ask in asks):
        return _whole(num_apart, max(ask.memory_mib for ask in asks))
    cores = _most_at_once(asks, lambda ask: ask.cores)
    memory_mib = _most_at_once(asks, lambda ask: ask.memory_mib)
    percent = _most_at_once(asks, lambda ask: ask.memory_percent)
    num_running = sum(not ask.init for ask in asks)
    together = cores <= _ALL_CORES and percent <= 100 and not (memory_mib and percent)
    if not together or (policy == _SPREAD and num_running > 1):
        cores, memory_mib, percent = (
            max(amounts)
            for amounts in zip(*((ask.cores, ask.memory_mib, ask.memory_percent) for ask in asks), strict=True)
        )
        return GpuRequest(num_apart, AskedUnit.PART, memory_mib, milli=cores * 10, memory_each_percent=percent)
    count = max(ask.count for ask in asks)
    shared = _whole(count, memory_mib) if cores == _ALL_CORES else None
    shared = shared or GpuRequest(count, AskedUnit.PART, memory_mib, milli=cores * 10, memory_each_percent=percent)
    return replace(shared, containers=max(num_running, 1))


def _whole(count: int, memory_each_mib: int) -> GpuRequest:
    """Whole GPUs: memory in total is asked of those only."""
    return GpuRequest(count, AskedUnit.PART, memory_each_mib, memory_total_mib=count * memory_each_mib)


def _container_ask(container: ContainerResources) -> _ContainerAsk:
    """One container's ask, by `GenerateResourceRequests` and `defaultExclusiveCoreIfNeeded` of device.go."""
    count = asked_number(container, VGPU_RESOURCE, NVIDIA.resource)
    memory_mib = asked_number(container, MEMORY_RESOURCE) or 0
    percent = asked_number(container, MEMORY_PERCENT_RESOURCE) or 0
    cores = asked_number(container, CORES_RESOURCE)
    if count is None:
        count = 1 if memory_mib or percent or cores else 0  # its webhook adds the number to the others
    if percent > 100:
        raise RequestError(f'{MEMORY_PERCENT_RESOURCE}: "{percent}" is more than 100')
    if memory_mib:
        percent = 0
    elif not percent:
        percent = 100
    if cores is None:
        cores = _ALL_CORES if percent == 100 else 0
    return _ContainerAsk(container.init, count, memory_mib, percent, min(cores, _ALL_CORES))


def _most_at_once(asks: Iterable[_ContainerAsk], what: Callable[[_ContainerAsk], int]) -> int:
    """The most that is held at once by containers that run together and init containers, which start one by one."""
    running = sum(what(ask) for ask in asks if not ask.init)
    return max([running, *(what(ask) for ask in asks if ask.init)])


def type_pattern(types: str) -> str:
    """HAMi's list of parts of model names as one pattern; "" when it asks for nothing."""
    words = (_SEPARATORS.split(word.strip()) for word in types.split(","))
    return "|".join("[ -]".join(re.escape(part) for part in word) for word in words if any(word))


def uuids(text: str) -> tuple[str, ...]:
    """HAMi's list of UUIDs; () when it asks for nothing."""
    return tuple(sorted({uuid.strip() for uuid in text.split(",")} - {""}))


# What a bound pod holds


def read_holding(annotations: Mapping[str, str], node: str, containers: Sequence[ContainerResources]) -> Holding | None:
    """What a bound pod holds by HAMi's annotations, None when it has none.

    Raises UnreadableError; also for what was decided for another node than the one it is on.
    """
    text = annotations.get(ALLOCATED) or annotations.get(TO_ALLOCATE)
    if text is None:
        return None
    said = annotations.get(ASSIGNED_NODE, node)
    if said != node:
        raise UnreadableError(f"{ASSIGNED_NODE} is {shorten(said)!r}, the pod is on {node}")
    try:
        slots = [_read_slot(part) for part in bounded(text).removesuffix(";").split(";")]
    except UnreadableError as error:
        raise UnreadableError(f"{ALLOCATED} can't be read: {error}") from None
    if sum(map(len, slots)) > _MAX_DEVICES:
        raise UnreadableError(f"{ALLOCATED} names more devices than a node has")
    # Before v2.9 the containers that start a pod had no places in the list.
    num_starting = sum(container.init for container in containers) if len(slots) == len(containers) else 0
    running: _Held = {}
    for slot in slots[num_starting:]:
        for uuid, (mib, cores) in slot.items():
            held_mib, held_cores = running.get(uuid, (0, 0))
            running[uuid] = held_mib + mib, held_cores + cores
    held = _most_of([*slots[:num_starting], running])
    if _is_short(held, containers):
        raise UnreadableError(f"{ALLOCATED} names less than the pod's resources ask")
    parts = tuple(
        Part(UNKNOWN_GPU, min(cores * 10, WHOLE_MILLI), 0 if cores >= _ALL_CORES else mib, uuid)
        for uuid, (mib, cores) in sorted(held.items())
    )
    return Holding(len(parts), parts) if parts else None


_Held = dict[str, tuple[int, int]]
"""MiB and cores by UUID."""


def _is_short(held: _Held, containers: Sequence[ContainerResources]) -> bool:
    """Whether less is held than the containers ask for by number: HAMi never gives less, so its plugin did not write
    that. What HAMi's own settings decide, such as the memory of who names none, can't be told here."""
    try:
        asks = [_container_ask(container) for container in containers]
        named = [min(asked_number(container, CORES_RESOURCE) or 0, _ALL_CORES) for container in containers]
    except RequestError:
        return False
    asks = [replace(ask, cores=cores) for ask, cores in zip(asks, named, strict=True)]
    whole = any(cores >= _ALL_CORES for _, cores in held.values())
    return (
        len(held) < max((ask.count for ask in asks), default=0)
        or (not whole and sum(mib for mib, _ in held.values()) < _most_at_once(asks, lambda a: a.count * a.memory_mib))
        or sum(cores for _, cores in held.values()) < _most_at_once(asks, lambda ask: ask.count * ask.cores)
    )


def _read_slot(text: str) -> _Held:
    """One container's devices: `uuid,type,memory MiB,cores:` each. Raises UnreadableError."""
    held: _Held = {}
    for device in text.split(":"):
        items = [item.strip() for item in device.split(",")]
        if not any(items) or (items[:1] == [""] and set(items) <= {"", "0", _TYPE}):
            continue  # of a container without GPUs: nothing, or a device of zeros: ",,0,0:"
        if len(items) < 4 or not items[0]:
            raise UnreadableError(f"{shorten(device)!r} is not a device")
        uuid = items[0].split("[")[0]  # up to v2.9 a MIG instance was written behind its GPU: "GPU-...[0-1]"
        mib, cores = whole_number(items[2], "memory"), whole_number(items[3], "cores")
        if uuid != items[0]:
            mib, cores = 0, _ALL_CORES  # of a partitioned GPU nothing else is given
        known_mib, known_cores = held.get(uuid, (0, 0))
        held[uuid] = known_mib + mib, known_cores + cores
    return held


def _most_of(alternatives: Sequence[_Held]) -> _Held:
    """The most that is held of each GPU, by containers that don't run at the same time."""
    most: _Held = {}
    for held in alternatives:
        for uuid, (mib, cores) in held.items():
            most_mib, most_cores = most.get(uuid, (0, 0))
            most[uuid] = max(mib, most_mib), max(cores, most_cores)
    return most


# What is written with the Binding


def binding_annotations(
    containers: Sequence[ContainerResources],
    gpus: Sequence[AssignedGpu],
    node: str,
    wall_now: float,
    *,
    init_slots: bool = True,
) -> dict[str, str]:
    """What HAMi's plugin has to find on a pod that gets these GPUs. `wall_now` is Unix time.

    A pod whose containers ask for no resource of HAMi's is never seen by the plugin: it gets only what HAMi's own
    scheduler counts by. `init_slots` is false for plugins up to v2.7, which know no places of init containers.
    """
    asks = [_container_ask(container) for container in containers]
    served = any(ask.count for ask in asks)
    if not served:
        asks = [_ContainerAsk(False, len(gpus), 0, 100, _ALL_CORES)]
    slots = []
    next_gpu = 0
    apart = len(gpus) >= sum(ask.count for ask in asks if not ask.init)
    for ask in asks:
        first = next_gpu if apart and not ask.init else 0
        given = gpus[first : first + ask.count]
        if not ask.init:
            next_gpu += ask.count
        if init_slots or not ask.init:
            limits = ((gpu.uuid, *ask.limits_on(gpu)) for gpu in given)
            slots.append("".join(f"{uuid},{_TYPE},{mib},{cores}:" for uuid, mib, cores in limits))
    devices = "".join(f"{slot};" for slot in slots)
    seconds = str(int(wall_now))
    written = {ASSIGNED_NODE: node, ASSIGNED_TIME: seconds, ALLOCATED: devices}
    if not served:
        return written
    return {**written, TO_ALLOCATE: devices, BIND_PHASE: PHASE_ALLOCATING, BIND_TIME: seconds}
