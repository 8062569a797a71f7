"""HAMi: GPUs shared by memory and compute, named by UUID.

HAMi's device plugin, as Kerf asks about it.

HAMi's side of a node: the register of its GPUs, and whether its plugin is at work there.

The register outlives the plugin, so what tells is the kubelet: the plugin hands it `deviceSplitCount` devices of each
GPU of the register. Up to v2.7 the plugin also writes the time into the handshake with each register, every 30 s, over
what HAMi's scheduler has written there. From v2.8 on it writes no handshake: what stands there is the scheduler's,
which may be gone, and HAMi itself goes by the kubelet's number.

Read in Project-HAMi/HAMi: `pkg/device/devices.go` and `pkg/util/util.go` (registers, handshakes),
`pkg/device/nvidia/device.go` (cordon, health), `pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go`, all of
v2.4.1, v2.7.1, v2.8.3 and v2.10.0.

HAMi's side of a pod: GPUs shared by memory and compute, named by UUID.

HAMi's plugin finds the pod to serve by the node's lock, else by the first pending pod of the node that is marked as
allocating; it takes the GPUs from the pod's annotations, container by container, and enforces their memory and compute
limits there. What it has served it erases from `devices-to-allocate`; `devices-allocated` stays.

Read in Project-HAMi/HAMi: `pkg/device/devices.go`, `pkg/device/nvidia/device.go`, `pkg/device/initContainer.go`,
`pkg/scheduler/scheduler.go` and `pkg/device-plugin/nvidiadevice/nvinternal/plugin` of v2.4.1, v2.7.1, v2.8.3, v2.10.0.

HAMi's node lock: which pod a node's plugin serves next.

The plugin serves the pod of the lock and lets the lock go; without one it takes the first pending pod that is marked,
which may be another one. So a pod is bound to such a node only under the lock, one after the other. A lock whose pod
was served, or will never be, is taken over in time: HAMi itself waits five minutes for that. A pod that its kubelet has
begun to start was served, whatever its annotations say: devices come before images. Read in Project-HAMi/HAMi
`pkg/util/nodelock/nodelock.go` of v2.4.1, v2.7.1, v2.8.3 and v2.10.0.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import gcd
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from extender.core.annotations import MODEL, MODEL_EXCLUDE, UUID, UUID_EXCLUDE
from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import MAX_MEMORY_MIB, Gpu, NodeOffer, NodeReading, Quantities
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.core.vendors.nvidia import NVIDIA
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.transport import NODES_PATH
from extender.plugins.formats import (
    ContainerResources,
    asked_number,
    asks_any,
    bounded,
    containers_of,
    parts_offer,
    shorten,
    whole_number,
    whole_quantity,
    with_conditions,
)
from extender.plugins.holdings import UNKNOWN_GPU, Holding, Part
from extender.plugins.protocol import (
    AssignedGpu,
    DevicePlugin,
    Handover,
    LockError,
    Locks,
    PluginGoneError,
    UnreadableError,
)

logger = logging.getLogger(__name__)

REGISTER: Final = "hami.io/node-nvidia-register"
HANDSHAKE: Final = "hami.io/node-handshake"
_CORDON: Final = "hami.io/device-cordon"
"""UUIDs that get no new pods."""
VGPU_RESOURCE: Final = "nvidia.com/vgpu"
"""Number of GPUs in clusters that renamed `resourceName`, so that it does not collide with NVIDIA's own plugin."""

_SILENT_S: Final = 600.0
"""A handshake that should be renewed every 30 s, and is older by the node's own clock, is of a plugin that is gone."""
_ZONES_S: Final = 15 * 3600.0
"""What HAMi's scheduler writes has no time zone, and is by its own clock."""
_HANDSHAKE: Final = re.compile(
    r"(?:Reported |Requesting_)([0-9]{4})[-.]([0-9]{2})[-.]([0-9]{2})"
    r" ([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?( [+-][0-9]{4})?.*"
)
_STRATEGY_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
_NO_DEVICES: Final = ("", "[]", "null")
_HAMI_CORE: Final = "hami-core"
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""What Go's strconv.ParseBool takes."""
_MAX_UUID_CHARS: Final = 128
_MAX_INDEX: Final = 1023


class _Device(msgspec.Struct, gc=False):
    """A device of the JSON register. Go leaves out what is zero: no index is 0, no health is unhealthy."""

    id: str = ""
    index: int = 0
    count: int = 0
    devmem: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    health: bool = False


_device_decoder: Final = Decoder(list[_Device])


def _has_init_slots(annotations: Mapping[str, str]) -> bool:
    """Whether init containers have a place among a pod's devices: since v2.8, as JSON in the register."""
    return annotations.get(REGISTER, "").lstrip().startswith("[")


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a node shows of HAMi's plugin, beside its own annotations."""

    allocatable: Quantities
    capacity: Quantities
    labels: Mapping[str, str]
    clock: float
    """The node's, in Unix time; the nearest to it that is known."""


def _why_left_behind(annotations: Mapping[str, str], seen: _Evidence) -> str:
    """Why a node's register is no sign of the plugin's being at work, in a sentence; "" where it is one, or none is
    there.

    What can't be read is of a plugin that is newer than this, as far as anybody can tell.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return ""
    if text.strip() in _NO_DEVICES:
        return f"{REGISTER} is empty"
    name = VGPU_RESOURCE if _amount(seen.allocatable, VGPU_RESOURCE) or _amount(seen.capacity, VGPU_RESOURCE) else None
    resource = name or NVIDIA.resource
    offered, installed = (_amount(resources, resource) for resources in (seen.allocatable, seen.capacity))
    try:
        devices = _read_devices(bounded(text).strip())
    except UnreadableError:
        return "" if offered or installed else f"{REGISTER} is left behind: the kubelet offers none of these GPUs"
    shares = sum(device.count for device in devices)
    if not offered and installed != shares:
        return f"{REGISTER} is left behind: the kubelet offers none of these GPUs"
    if not _agree(devices, offered, installed):
        told = f"{shares} devices of {len(devices)} GPUs are registered, the kubelet has {installed or offered}"
        return f"{REGISTER} is left behind: {told}"
    if seen.labels.get(NVIDIA.replicas_label, "1") not in ("0", "1") or seen.labels.get(_STRATEGY_LABEL) in (
        "mps",
        "time-slicing",
    ):
        return f"{REGISTER} is left behind: NVIDIA's plugin shares these GPUs"
    if shares == len(devices) and (told := _silence(annotations, seen.clock)):
        return f"{REGISTER} is left behind: {told}"
    return ""


def _agree(devices: Sequence[_Device], offered: int, installed: int) -> bool:
    """Whether the kubelet has as many devices as the plugin makes of those that are registered, the sick ones
    included; where only those that are `offered` are known, of some of the GPUs."""
    shares = sum(device.count for device in devices)
    if any(device.mode not in ("", _HAMI_CORE) for device in devices):
        return shares == len(devices) or (installed or offered) > len(devices)  # MIG: the numbers are of two things
    if installed:
        return installed == shares
    of_each = gcd(*(device.count for device in devices)) or 1
    return offered <= shares and offered % of_each == 0 and not len(devices) == offered < shares


def _silence(annotations: Mapping[str, str], clock: float) -> str:
    """How it is known that a plugin that renews its handshake does so no more; "" where it does, or nobody can tell."""
    found = _HANDSHAKE.fullmatch(annotations.get(HANDSHAKE, "")[:256])
    if found is None or not _shakes_hands(annotations.get(REGISTER, "")):
        return ""
    year, month, day, time, zone = found.groups()
    written = objects.unix_time(f"{year}-{month}-{day}T{time}{(zone or '+0000').strip()}")
    allowed_s = _SILENT_S if zone else _SILENT_S + _ZONES_S
    return f"{HANDSHAKE} is of {year}-{month}-{day} {time}" if written and clock - written > allowed_s else ""


def _shakes_hands(register: str) -> bool:
    """Whether the plugin that has written a register renews the handshake, too: up to v2.7."""
    return not register.lstrip().startswith("[")


def _amount(resources: Quantities, name: str) -> int:
    """A whole number of a resource, 0 where it is not there or none."""
    try:
        return whole_quantity(resources, name)
    except UnreadableError:
        return 0


def _read_register(annotations: Mapping[str, str], allocatable: Quantities, reading: NodeReading) -> NodeOffer | None:
    """What a node's plugin has registered, None when none has.

    Raises UnreadableError; also where the plugin is gone: the kubelet offers nothing any more, or HAMi's scheduler has
    written so.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return None
    if _shakes_hands(text) and annotations.get(HANDSHAKE, "").startswith("Deleted"):
        raise PluginGoneError(f"{HANDSHAKE}: the plugin is gone, its GPUs are not offered")
    if not any(_amount(allocatable, name) for name in (NVIDIA.resource, VGPU_RESOURCE)):
        raise PluginGoneError(f"{REGISTER}: the kubelet offers none of these GPUs")
    cordoned = {uuid.strip() for uuid in annotations.get(_CORDON, "").split(",")}
    try:
        devices = _read_devices(bounded(text).strip())
        gpus = [(device.index, _gpu(device, cordoned, reading)) for device in devices]
    except UnreadableError as error:
        raise UnreadableError(f"{REGISTER} is ignored: {error}") from None
    warnings = [
        f"{REGISTER}: {device.id} is in mode {shorten(device.mode)!r}, which Kerf does not support"
        for device in devices
        if device.mode not in ("", _HAMI_CORE)
    ]
    if len(dict(gpus)) < len(gpus):
        gpus = [(index, gpu) for index, (_, gpu) in enumerate(gpus)]  # before v2.5 there was only the order
    return parts_offer(dict(gpus), warnings)


def _read_devices(text: str) -> list[_Device]:
    """The devices of a register in either form: JSON since v2.8, segments before. Raises UnreadableError."""
    if text.startswith("["):
        try:
            devices = _device_decoder.decode(text.encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableError(str(error)) from None
    else:
        devices = [_read_segment(segment) for segment in text.split(":") if segment]
    if not devices:
        raise UnreadableError("no devices")
    if len({device.id for device in devices}) < len(devices):
        raise UnreadableError("a UUID occurs twice")
    return devices


def _read_segment(segment: str) -> _Device:
    """`uuid,count,memory MiB,cores,type,numa,health` and, since v2.5, `,index,mode`. Raises UnreadableError."""
    items = segment.split(",")
    if len(items) not in (7, 9):
        raise UnreadableError(f"{shorten(segment)!r} has {len(items)} fields, not 7 or 9")
    uuid, count, memory, _cores, product, numa, health, *rest = items
    if health not in _BOOLEANS:
        raise UnreadableError(f"health {shorten(health)!r} is neither true nor false")
    index, mode = rest or ("0", _HAMI_CORE)
    return _Device(
        id=uuid,
        index=whole_number(index, "index"),
        count=whole_number(count, "count"),
        devmem=whole_number(memory, "memory"),
        type=product,
        numa=-1 if numa.startswith("-") else whole_number(numa, "NUMA node"),
        mode=mode,
        health=_BOOLEANS[health],
    )


def _gpu(device: _Device, cordoned: Container[str], reading: NodeReading) -> Gpu:
    """A device as a GPU. Raises UnreadableError."""
    if not device.id or len(device.id) > _MAX_UUID_CHARS:
        raise UnreadableError(f"{shorten(device.id)!r} is not a UUID")
    if not 0 <= device.index <= _MAX_INDEX or not 0 <= device.count < 2**31:
        raise UnreadableError(f"index {device.index} or count {device.count} of {device.id} is out of range")
    if not 0 < device.devmem <= MAX_MEMORY_MIB:
        raise UnreadableError(f"memory {device.devmem} MiB of {device.id} is out of range")
    return Gpu(
        describe_model(device.type, reading.aliases) if device.type else UNKNOWN_MODEL,
        device.devmem,
        device.id,
        healthy=device.health and device.count > 0 and device.mode in ("", _HAMI_CORE) and device.id not in cordoned,
        numa=max(device.numa, -1),
        max_holders=device.count,
    )


TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
ASSIGNED_NODE: Final = "hami.io/vgpu-node"
ASSIGNED_TIME: Final = "hami.io/vgpu-time"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
_PHASE_ALLOCATING: Final = "allocating"
WRITTEN: Final = frozenset({TO_ALLOCATE, ALLOCATED, ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE, BIND_TIME})

_USE_TYPE: Final = "nvidia.com/use-gputype"
_NO_USE_TYPE: Final = "nvidia.com/nouse-gputype"
_USE_UUID: Final = "nvidia.com/use-gpuuuid"
_NO_USE_UUID: Final = "nvidia.com/nouse-gpuuuid"

_GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
_SPREAD: Final = "spread"
_MODE: Final = "nvidia.com/vgpu-mode"
_MODE_SHARED: Final = "hami-core"

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


def _read_request(containers: Sequence[ContainerResources], policy: str = "") -> GpuRequest | None:
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


def _type_pattern(types: str) -> str:
    """HAMi's list of parts of model names as one pattern; "" when it asks for nothing."""
    words = (_SEPARATORS.split(word.strip()) for word in types.split(","))
    return "|".join("[ -]".join(re.escape(part) for part in word) for word in words if any(word))


def _uuids(text: str) -> tuple[str, ...]:
    """HAMi's list of UUIDs; () when it asks for nothing."""
    return tuple(sorted({uuid.strip() for uuid in text.split(",")} - {""}))


# What a bound pod holds


def _read_holding(
    annotations: Mapping[str, str], node: str, containers: Sequence[ContainerResources]
) -> Holding | None:
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


def _bound_annotations(
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
    return {**written, TO_ALLOCATE: devices, BIND_PHASE: _PHASE_ALLOCATING, BIND_TIME: seconds}


NODE_LOCK: Final = "hami.io/mutex.lock"

_EXPIRES_S: Final = 300.0
"""HAMi's default: a lock older than this is anybody's."""
_FIRST_WAIT_S: Final = 0.05
_MAX_WAIT_S: Final = 0.5
_LETS_GO_S: Final = 5.0
"""A lock whose pod is served is the plugin's to let go for so long. It tries for up to 2.3 s and looks only once whose
lock it is: one taken over meanwhile would be deleted, and the next pod be served as another one, which fails it."""
_UNBOUND_S: Final = 30.0
"""A lock is taken before its pod is bound; a pod that has no node for longer was given up."""

_node_decoder = Decoder(objects.Node)
_pod_decoder = Decoder(objects.Pod)


@dataclass(frozen=True, slots=True)
class _NodeLock:
    """Which pod a node's plugin serves: while it stands, nobody else may send one there."""

    locked_at: float
    """Unix time, 0 when it can't be read: then it has long expired."""
    namespace: str = ""
    name: str = ""
    """"" in the form that named no pod."""

    def is_of(self, namespace: str, name: str) -> bool:
        """Whether it was taken for this pod."""
        return (self.namespace, self.name) == (namespace, name)

    def expired(self, wall_now: float) -> bool:
        """Whether it is anybody's."""
        return wall_now - self.locked_at > _EXPIRES_S


def _read_lock(annotations: Mapping[str, str]) -> _NodeLock | None:
    """A node's lock, None when it is free."""
    text = annotations.get(NODE_LOCK)
    if text is None:
        return None
    time, *pod = text[:1024].split(",")
    try:
        locked_at = datetime.fromisoformat(time)
    except ValueError:
        locked_at = datetime.fromtimestamp(0, UTC)
    at = (locked_at if locked_at.tzinfo else locked_at.replace(tzinfo=UTC)).timestamp()
    return _NodeLock(at, *pod) if len(pod) == 2 else _NodeLock(at)


def _format_lock(namespace: str, name: str, wall_now: float) -> str:
    """A node's lock for one pod: RFC 3339 time, namespace, name."""
    at = datetime.fromtimestamp(int(wall_now), UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ},{namespace},{name}"


class _NodeLocks:
    """Takes and releases nodes' locks, for pods that Kerf binds."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        wait_s: float = 3.0,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._wall_clock = wall_clock
        self._wait_s = wait_s
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by node, while one is in use
        self._left: dict[str, tuple[_NodeLock, float]] = {}  # by node, with when its pod was first seen not to need it
        self._met: dict[str, tuple[_NodeLock, float]] = {}  # by node, with when it was first seen

    async def take(self, node: str, namespace: str, name: str) -> None:
        """Lock a node for a pod; pods of the same node wait for each other. Raises LockError, ClusterError."""
        queue = self._queues.setdefault(node, asyncio.Lock())
        deadline = self._clock() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await queue.acquire()
            try:
                await self._take(node, namespace, name, deadline)
            finally:
                queue.release()
        except TimeoutError:
            raise LockError(f"node {node} has been locked for other pods for more than {self._wait_s:g} s") from None

    async def release(self, node: str, namespace: str, name: str) -> None:
        """Let a pod's lock go, if it still is the pod's. Never fails: one that stays is taken over in time."""
        try:
            while True:
                found = await self._get_node(node)
                lock = _read_lock(found.metadata.annotations or {})
                if lock is None or not lock.is_of(namespace, name):
                    return
                if await self._write(found, None):
                    return
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("the lock of node %s for pod %s/%s could not be released: %s", node, namespace, name, error)

    async def _take(self, node: str, namespace: str, name: str, deadline: float) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                found = await self._get_node(node)
            except msgspec.DecodeError as error:
                raise LockError(f"node {node} can't be read: {error}") from error
            lock = _read_lock(found.metadata.annotations or {})
            if lock is None or lock.is_of(namespace, name) or await self._is_stale(lock, node):
                if await self._write(found, _format_lock(namespace, name, self._wall_clock())):
                    self._left.pop(node, None)
                    self._met.pop(node, None)
                    return
            elif self._clock() + wait_s > deadline:
                raise LockError(f"node {node} is locked for pod {lock.namespace}/{lock.name}, which HAMi serves first")
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
            if self._clock() > deadline:
                raise LockError(f"node {node} could not be locked within {self._wait_s:g} s")

    async def _get_node(self, node: str) -> objects.Node:
        return _node_decoder.decode(await self._transport.get(f"{NODES_PATH}/{node}"))

    async def _write(self, node: objects.Node, lock: str | None) -> bool:
        """Write a node's lock or take it away; False when the node has changed meanwhile.

        By way of its status, so that no right to change a node's spec is needed.
        """
        metadata = {"annotations": {NODE_LOCK: lock}, "resourceVersion": node.metadata.resource_version}
        try:
            path = f"{NODES_PATH}/{node.metadata.name}/status"
            await self._transport.patch(path, msgspec.json.encode({"metadata": metadata}))
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def _is_stale(self, lock: _NodeLock, node: str) -> bool:
        """Whether nobody will let a lock go: it has expired, by its time or by this clock where the other is ahead, or
        its pod has been served, elsewhere or gone for long."""
        if lock.expired(self._wall_clock()) or self._seen_for_s(self._met, node, lock) > _EXPIRES_S:
            return True
        if not lock.name:
            return False
        try:
            pod = _pod_decoder.decode(
                await self._transport.get(f"/api/v1/namespaces/{lock.namespace}/pods/{lock.name}")
            )
        except ApiError as error:
            if error.status != 404:
                raise
        except msgspec.DecodeError:
            return False
        else:
            if not pod.spec.node_name:
                return self._wall_clock() - lock.locked_at > _UNBOUND_S
            phase = (pod.metadata.annotations or {}).get(BIND_PHASE, "")
            # A kubelet has a pod's devices allocated before it pulls images, and tells of its start after that.
            waits = pod.status.phase == "Pending" and pod.status.start_time is None
            if pod.spec.node_name == node and waits and phase == _PHASE_ALLOCATING:
                return False
        return self._seen_for_s(self._left, node, lock) >= _LETS_GO_S

    def _seen_for_s(self, seen: dict[str, tuple[_NodeLock, float]], node: str, lock: _NodeLock) -> float:
        """How long a node's lock is among those `seen`, which it is from now on."""
        before, since = seen.get(node, (None, 0.0))
        if before != lock:
            since = self._clock()
            seen[node] = lock, since
        return self._clock() - since


_CHOICES: Final = {
    MODEL: (_USE_TYPE, _type_pattern),
    MODEL_EXCLUDE: (_NO_USE_TYPE, _type_pattern),
    UUID: (_USE_UUID, lambda text: ",".join(_uuids(text))),
    UUID_EXCLUDE: (_NO_USE_UUID, lambda text: ",".join(_uuids(text))),
}
"""HAMi's words for Kerf's annotations."""


class Hami(DevicePlugin):
    """Nodes that carry HAMi's register."""

    name = "hami"
    resources = OWN_RESOURCES
    written = WRITTEN
    leftovers = (REGISTER, HANDSHAKE, NODE_LOCK)
    told = led = parts = True

    def owns(self, node: objects.Node) -> bool:
        return REGISTER in (node.metadata.annotations or ()) and not self.left_behind(node)

    def left_behind(self, node: objects.Node) -> str:
        annotations = node.metadata.annotations or {}
        return _why_left_behind(annotations, _evidence(node)) if REGISTER in annotations else ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        annotations = node.metadata.annotations or {}
        if told := _silence(annotations, _clock(node)):
            raise PluginGoneError(f"{told}: the plugin is silent, its GPUs are not offered")
        return _read_register(annotations, node.status.allocatable or {}, reading)

    def request(self, pod: objects.Pod) -> PodRequest | None:
        annotations = pod.metadata.annotations or {}
        chosen = {
            key: written
            for key, (theirs, translate) in _CHOICES.items()
            if theirs in annotations and (written := translate(annotations[theirs]))
        }
        own = asks_any(pod.spec, self.resources)
        policy = annotations.get(_GPU_POLICY, "").strip()
        asked = _read_request(containers_of(pod.spec), policy) if own or chosen else None
        if asked is None:
            return None
        mode = annotations.get(_MODE, "")
        if mode and _MODE_SHARED not in mode:
            raise RequestError(f'{_MODE}: "{mode[:80]}" is not supported by Kerf; use {_MODE_SHARED}')
        return with_conditions(pod, asked if own else GpuRequest(asked.count, AskedUnit.GPU), chosen)

    def concerns(self, pod: objects.Pod) -> bool:
        annotations = pod.metadata.annotations
        return annotations is not None and (ALLOCATED in annotations or TO_ALLOCATE in annotations)

    def holding(self, pod: objects.Pod) -> Holding | None:
        return _read_holding(pod.metadata.annotations or {}, pod.spec.node_name or "", containers_of(pod.spec))

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        init_slots = _has_init_slots(node.metadata.annotations or {})
        containers, name = containers_of(pod.spec), node.metadata.name
        annotations = _bound_annotations(containers, gpus, name, decided_at, init_slots=init_slots)
        return Handover(annotations, locks_node=TO_ALLOCATE in annotations)

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        return _NodeLocks(transport, clock, wall_clock)


def _evidence(node: objects.Node) -> _Evidence:
    status, labels = node.status, node.metadata.labels or {}
    return _Evidence(status.allocatable or {}, status.capacity or {}, labels, _clock(node))


def _clock(node: objects.Node) -> float:
    """The node's own clock, as its kubelet has told it last: the plugin goes by it too, and Kerf's may be another. By
    Kerf's where the kubelet has not told."""
    told = (objects.unix_time(condition.last_heartbeat_time) for condition in node.status.conditions or ())
    return max(told, default=0.0) or time.time()
