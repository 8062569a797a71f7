"""HAMi: GPUs shared by memory and compute, named by UUID.

Nodes: a register lists the GPUs and outlives the plugin, so the evidence that it runs is the kubelet, to which it
offers `deviceSplitCount` devices for each registered GPU. Up to v2.7 the plugin also writes the time into the handshake
with each register, every 30 s, over what HAMi's scheduler writes there. From v2.8 on only the scheduler, which may be
gone, writes the handshake, and HAMi itself relies on the kubelet's count.

Pods: HAMi's plugin serves the pod of the node's lock, else the first pending pod of the node that is marked as
allocating. It takes the GPUs from the pod's annotations, container by container, and enforces their memory and compute
limits. It erases what it has served from `devices-to-allocate`; `devices-allocated` remains.

Locks: the plugin serves the pod of the lock and releases it; without one it may serve another pod. So pods are bound
to such a node one by one, under the lock. A lock whose pod was served, or never will be, is taken over: HAMi itself
waits five minutes for that. A pod that its kubelet has begun to start was served, whatever its annotations say: devices
are allocated before images are pulled.

Read in Project-HAMi/HAMi v2.4.1, v2.7.1, v2.8.3 and v2.10.0: `pkg/device/devices.go`, `pkg/util/util.go` (registers,
handshakes), `pkg/device/nvidia/device.go`, `pkg/device/initContainer.go`, `pkg/scheduler/scheduler.go`,
`pkg/util/nodelock/nodelock.go` and `pkg/device-plugin/nvidiadevice/nvinternal/plugin`.
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
"""UUIDs of GPUs that get no new pods."""
VGPU_RESOURCE: Final = "nvidia.com/vgpu"
"""Number of GPUs in clusters that renamed `resourceName` to avoid a collision with NVIDIA's own plugin."""

_SILENT_S: Final = 600.0
"""Age, by the node's clock, from which a handshake that should be renewed every 30 s means that the plugin is gone."""
_ZONES_S: Final = 15 * 3600.0
"""Allowance for times of HAMi's scheduler, which have no time zone and are by its own clock."""
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
"""As Go's strconv.ParseBool."""
_MAX_UUID_CHARS: Final = 128
_MAX_INDEX: Final = 1023


class _Device(msgspec.Struct, gc=False):
    """A device of the JSON register. Go omits zero values: a missing index is 0, missing health is false."""

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
    """Whether init containers have slots among a pod's devices: since v2.8, recognised by a JSON register."""
    return annotations.get(REGISTER, "").lstrip().startswith("[")


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Evidence of HAMi's plugin on a node besides its annotations."""

    allocatable: Quantities
    capacity: Quantities
    labels: Mapping[str, str]
    clock: float
    """The node's clock, as far as known, in Unix time."""


def _why_left_behind(annotations: Mapping[str, str], seen: _Evidence) -> str:
    """Return why a node's register does not mean that the plugin runs; "" if it does, or there is none.

    An unreadable register is taken for a newer plugin's.
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
        counts = f"{shares} devices of {len(devices)} GPUs are registered, the kubelet has {installed or offered}"
        return f"{REGISTER} is left behind: {counts}"
    if seen.labels.get(NVIDIA.replicas_label, "1") not in ("0", "1") or seen.labels.get(_STRATEGY_LABEL) in (
        "mps",
        "time-slicing",
    ):
        return f"{REGISTER} is left behind: NVIDIA's plugin shares these GPUs"
    if shares == len(devices) and (silence := _silence(annotations, seen.clock)):
        return f"{REGISTER} is left behind: {silence}"
    return ""


def _agree(devices: Sequence[_Device], offered: int, installed: int) -> bool:
    """Whether the kubelet has as many devices as the plugin makes of the registered ones, unhealthy ones included; if
    only `offered` is known, of some of the GPUs."""
    shares = sum(device.count for device in devices)
    if any(device.mode not in ("", _HAMI_CORE) for device in devices):
        return shares == len(devices) or (installed or offered) > len(
            devices
        )  # MIG: the numbers count different things
    if installed:
        return installed == shares
    per_gpu = gcd(*(device.count for device in devices)) or 1
    return offered <= shares and offered % per_gpu == 0 and not len(devices) == offered < shares


def _silence(annotations: Mapping[str, str], clock: float) -> str:
    """Return the age of a handshake that is no longer renewed; "" if it is renewed, or that is unknown."""
    match = _HANDSHAKE.fullmatch(annotations.get(HANDSHAKE, "")[:256])
    if match is None or not _shakes_hands(annotations.get(REGISTER, "")):
        return ""
    year, month, day, time, zone = match.groups()
    written = objects.unix_time(f"{year}-{month}-{day}T{time}{(zone or '+0000').strip()}")
    allowed_s = _SILENT_S if zone else _SILENT_S + _ZONES_S
    return f"{HANDSHAKE} is from {year}-{month}-{day} {time}" if written and clock - written > allowed_s else ""


def _shakes_hands(register: str) -> bool:
    """Whether the plugin that wrote a register also renews the handshake: up to v2.7."""
    return not register.lstrip().startswith("[")


def _amount(resources: Quantities, name: str) -> int:
    """Return the whole number of a resource, 0 if missing or invalid."""
    try:
        return whole_quantity(resources, name)
    except UnreadableError:
        return 0


def _read_register(annotations: Mapping[str, str], allocatable: Quantities, reading: NodeReading) -> NodeOffer | None:
    """Return what a node's plugin has registered, None without a register.

    Raises UnreadableError; PluginGoneError if the kubelet offers nothing or HAMi's scheduler says so.
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
        gpus = [(index, gpu) for index, (_, gpu) in enumerate(gpus)]  # before v2.5 there was only an order
    return parts_offer(dict(gpus), warnings)


def _read_devices(text: str) -> list[_Device]:
    """Parse a register: JSON since v2.8, segments before. Raises UnreadableError."""
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
    """Parse `uuid,count,memory MiB,cores,type,numa,health` and, since v2.5, `,index,mode`. Raises UnreadableError."""
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
    """Convert a registered device. Raises UnreadableError."""
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
"""Resources that only HAMi serves; it may also serve pods that request `nvidia.com/gpu` only."""

_TYPE: Final = "NVIDIA"
"""Type by which the plugin recognises devices to be allocated."""
_ALL_CORES: Final = 100
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_MAX_DEVICES: Final = 1024


# Requests


@dataclass(frozen=True, slots=True)
class _ContainerRequest:
    """One container's request, as HAMi reads it."""

    init: bool
    count: int
    memory_mib: int
    """Of each GPU, 0 if requested in percent."""
    memory_percent: int
    """0 if requested in MiB."""
    cores: int
    """Percent of compute; 0: none reserved, 100: exclusive GPUs."""

    @property
    def whole(self) -> bool:
        return self.cores == _ALL_CORES

    def limits_on(self, gpu: AssignedGpu) -> tuple[int, int]:
        """Return the MiB and percent of compute of a GPU; Kerf's own annotations may reduce a whole GPU."""
        if self.whole and gpu.given_milli < WHOLE_MILLI:
            return gpu.given_mib, gpu.given_milli // 10
        return self.memory_mib or gpu.memory_mib * self.memory_percent // 100, self.cores


def _read_request(containers: Sequence[ContainerResources], policy: str = "") -> GpuRequest | None:
    """Return what a pod requests of HAMi, None for nothing. Raises RequestError with a message for the pod's author.

    Containers with shares use the same GPUs, as many as the largest container needs. With the GPU policy `spread`, if
    they don't fit together, or if one requests whole GPUs, each gets its own GPUs, all booked for the largest request.
    Init containers reuse the others' GPUs. HAMi itself places containers one after the other.
    """
    requests = [request for request in map(_container_request, containers) if request.count]
    if not requests:
        return None
    num_apart = _most_at_once(requests, lambda request: request.count)
    if any(request.whole for request in requests):
        return _whole(num_apart, max(request.memory_mib for request in requests))
    cores = _most_at_once(requests, lambda request: request.cores)
    memory_mib = _most_at_once(requests, lambda request: request.memory_mib)
    percent = _most_at_once(requests, lambda request: request.memory_percent)
    num_running = sum(not request.init for request in requests)
    together = cores <= _ALL_CORES and percent <= 100 and not (memory_mib and percent)
    if not together or (policy == _SPREAD and num_running > 1):
        cores, memory_mib, percent = (
            max(amounts)
            for amounts in zip(
                *((request.cores, request.memory_mib, request.memory_percent) for request in requests), strict=True
            )
        )
        return GpuRequest(num_apart, AskedUnit.PART, memory_mib, milli=cores * 10, memory_each_percent=percent)
    count = max(request.count for request in requests)
    shared = _whole(count, memory_mib) if cores == _ALL_CORES else None
    shared = shared or GpuRequest(count, AskedUnit.PART, memory_mib, milli=cores * 10, memory_each_percent=percent)
    return replace(shared, containers=max(num_running, 1))


def _whole(count: int, memory_each_mib: int) -> GpuRequest:
    """Return a request for whole GPUs, the only ones with a total of memory."""
    return GpuRequest(count, AskedUnit.PART, memory_each_mib, memory_total_mib=count * memory_each_mib)


def _container_request(container: ContainerResources) -> _ContainerRequest:
    """Read a request, as `GenerateResourceRequests` and `defaultExclusiveCoreIfNeeded` of device.go."""
    count = asked_number(container, VGPU_RESOURCE, NVIDIA.resource)
    memory_mib = asked_number(container, MEMORY_RESOURCE) or 0
    percent = asked_number(container, MEMORY_PERCENT_RESOURCE) or 0
    cores = asked_number(container, CORES_RESOURCE)
    if count is None:
        count = 1 if memory_mib or percent or cores else 0  # as HAMi's webhook adds
    if percent > 100:
        raise RequestError(f'{MEMORY_PERCENT_RESOURCE}: "{percent}" is more than 100')
    if memory_mib:
        percent = 0
    elif not percent:
        percent = 100
    if cores is None:
        cores = _ALL_CORES if percent == 100 else 0
    return _ContainerRequest(container.init, count, memory_mib, percent, min(cores, _ALL_CORES))


def _most_at_once(requests: Iterable[_ContainerRequest], what: Callable[[_ContainerRequest], int]) -> int:
    """Return the most held at once by containers that run together, or by init containers, which run one by one."""
    running = sum(what(request) for request in requests if not request.init)
    return max([running, *(what(request) for request in requests if request.init)])


def _type_pattern(types: str) -> str:
    """Convert HAMi's list of parts of model names to one pattern; "" if empty."""
    words = (_SEPARATORS.split(word.strip()) for word in types.split(","))
    return "|".join("[ -]".join(re.escape(part) for part in word) for word in words if any(word))


def _uuids(text: str) -> tuple[str, ...]:
    """Parse HAMi's list of UUIDs."""
    return tuple(sorted({uuid.strip() for uuid in text.split(",")} - {""}))


# Holdings


def _read_holding(
    annotations: Mapping[str, str], node: str, containers: Sequence[ContainerResources]
) -> Holding | None:
    """Return what a bound pod holds by HAMi's annotations, None without them.

    Raises UnreadableError, also if they are for another node.
    """
    text = annotations.get(ALLOCATED) or annotations.get(TO_ALLOCATE)
    if text is None:
        return None
    assigned = annotations.get(ASSIGNED_NODE, node)
    if assigned != node:
        raise UnreadableError(f"{ASSIGNED_NODE} is {shorten(assigned)!r}, the pod is on {node}")
    try:
        slots = [_read_slot(part) for part in bounded(text).removesuffix(";").split(";")]
    except UnreadableError as error:
        raise UnreadableError(f"{ALLOCATED} can't be read: {error}") from None
    if sum(map(len, slots)) > _MAX_DEVICES:
        raise UnreadableError(f"{ALLOCATED} names more devices than a node has")
    # Before v2.9 init containers had no slots.
    num_init = sum(container.init for container in containers) if len(slots) == len(containers) else 0
    running: _Held = {}
    for slot in slots[num_init:]:
        for uuid, (mib, cores) in slot.items():
            held_mib, held_cores = running.get(uuid, (0, 0))
            running[uuid] = held_mib + mib, held_cores + cores
    held = _most_of([*slots[:num_init], running])
    if _is_short(held, containers):
        raise UnreadableError(f"{ALLOCATED} names less than the pod's resources request")
    parts = tuple(
        Part(UNKNOWN_GPU, min(cores * 10, WHOLE_MILLI), 0 if cores >= _ALL_CORES else mib, uuid)
        for uuid, (mib, cores) in sorted(held.items())
    )
    return Holding(len(parts), parts) if parts else None


_Held = dict[str, tuple[int, int]]
"""MiB and cores by UUID."""


def _is_short(held: _Held, containers: Sequence[ContainerResources]) -> bool:
    """Whether less is held than the containers request by number: HAMi never gives less, so its plugin did not write
    that. HAMi's own defaults, such as for unspecified memory, are unknown here."""
    try:
        requests = [_container_request(container) for container in containers]
        named = [min(asked_number(container, CORES_RESOURCE) or 0, _ALL_CORES) for container in containers]
    except RequestError:
        return False
    requests = [replace(request, cores=cores) for request, cores in zip(requests, named, strict=True)]
    whole = any(cores >= _ALL_CORES for _, cores in held.values())
    return (
        len(held) < max((request.count for request in requests), default=0)
        or (
            not whole
            and sum(mib for mib, _ in held.values()) < _most_at_once(requests, lambda a: a.count * a.memory_mib)
        )
        or sum(cores for _, cores in held.values())
        < _most_at_once(requests, lambda request: request.count * request.cores)
    )


def _read_slot(text: str) -> _Held:
    """Parse one container's devices, each `uuid,type,memory MiB,cores:`. Raises UnreadableError."""
    held: _Held = {}
    for device in text.split(":"):
        items = [item.strip() for item in device.split(",")]
        if not any(items) or (items[:1] == [""] and set(items) <= {"", "0", _TYPE}):
            continue  # a container without GPUs: nothing, or zeros: ",,0,0:"
        if len(items) < 4 or not items[0]:
            raise UnreadableError(f"{shorten(device)!r} is not a device")
        uuid = items[0].split("[")[0]  # up to v2.9 a MIG instance follows its GPU: "GPU-...[0-1]"
        mib, cores = whole_number(items[2], "memory"), whole_number(items[3], "cores")
        if uuid != items[0]:
            mib, cores = 0, _ALL_CORES  # a partitioned GPU serves nothing else
        known_mib, known_cores = held.get(uuid, (0, 0))
        held[uuid] = known_mib + mib, known_cores + cores
    return held


def _most_of(alternatives: Sequence[_Held]) -> _Held:
    """Return the most held of each GPU by containers that don't run at the same time."""
    most: _Held = {}
    for held in alternatives:
        for uuid, (mib, cores) in held.items():
            most_mib, most_cores = most.get(uuid, (0, 0))
            most[uuid] = max(mib, most_mib), max(cores, most_cores)
    return most


# Bindings


def _bound_annotations(
    containers: Sequence[ContainerResources],
    gpus: Sequence[AssignedGpu],
    node: str,
    wall_now: float,
    *,
    init_slots: bool = True,
) -> dict[str, str]:
    """Return the annotations from which HAMi's plugin serves a pod with these GPUs. `wall_now` is Unix time.

    A pod without HAMi's resources is never seen by the plugin, and only gets those that HAMi's scheduler counts.
    `init_slots` is false for plugins up to v2.7, which have no slots for init containers.
    """
    requests = [_container_request(container) for container in containers]
    served = any(request.count for request in requests)
    if not served:
        requests = [_ContainerRequest(False, len(gpus), 0, 100, _ALL_CORES)]
    slots = []
    next_gpu = 0
    apart = len(gpus) >= sum(request.count for request in requests if not request.init)
    for request in requests:
        first = next_gpu if apart and not request.init else 0
        assigned = gpus[first : first + request.count]
        if not request.init:
            next_gpu += request.count
        if init_slots or not request.init:
            limits = ((gpu.uuid, *request.limits_on(gpu)) for gpu in assigned)
            slots.append("".join(f"{uuid},{_TYPE},{mib},{cores}:" for uuid, mib, cores in limits))
    devices = "".join(f"{slot};" for slot in slots)
    seconds = str(int(wall_now))
    written = {ASSIGNED_NODE: node, ASSIGNED_TIME: seconds, ALLOCATED: devices}
    if not served:
        return written
    return {**written, TO_ALLOCATE: devices, BIND_PHASE: _PHASE_ALLOCATING, BIND_TIME: seconds}


NODE_LOCK: Final = "hami.io/mutex.lock"

_EXPIRES_S: Final = 300.0
"""HAMi's default: an older lock may be taken over."""
_FIRST_WAIT_S: Final = 0.05
_MAX_WAIT_S: Final = 0.5
_RELEASE_S: Final = 5.0
"""Time for the plugin to release the lock of a served pod. It tries for up to 2.3 s and checks the holder only once: a
lock taken over meanwhile would be deleted, and the wrong pod served, which fails it."""
_UNBOUND_S: Final = 30.0
"""A lock is taken before its pod is bound; a pod unbound for longer was abandoned."""

_node_decoder = Decoder(objects.Node)
_pod_decoder = Decoder(objects.Pod)


@dataclass(frozen=True, slots=True)
class _NodeLock:
    """The pod that a node's plugin serves; meanwhile no other pod may be bound there."""

    locked_at: float
    """Unix time, 0 if unreadable and thus expired."""
    namespace: str = ""
    name: str = ""
    """"" in the old format without a pod."""

    def is_of(self, namespace: str, name: str) -> bool:
        """Whether the lock was taken for this pod."""
        return (self.namespace, self.name) == (namespace, name)

    def expired(self, wall_now: float) -> bool:
        """Whether the lock may be taken over."""
        return wall_now - self.locked_at > _EXPIRES_S


def _read_lock(annotations: Mapping[str, str]) -> _NodeLock | None:
    """Parse a node's lock, None if it is free."""
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
    """Format a node's lock for a pod: RFC 3339 time, namespace, name."""
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
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by node, while in use
        self._done: dict[
            str, tuple[_NodeLock, float]
        ] = {}  # by node: the lock, and when its pod was first seen without need of it
        self._seen: dict[str, tuple[_NodeLock, float]] = {}  # by node: the lock, and when it was first seen

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
        """Release a lock, if this pod still holds it. Never fails: a remaining lock expires."""
        try:
            while True:
                current = await self._get_node(node)
                lock = _read_lock(current.metadata.annotations or {})
                if lock is None or not lock.is_of(namespace, name):
                    return
                if await self._write(current, None):
                    return
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("the lock of node %s for pod %s/%s could not be released: %s", node, namespace, name, error)

    async def _take(self, node: str, namespace: str, name: str, deadline: float) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                current = await self._get_node(node)
            except msgspec.DecodeError as error:
                raise LockError(f"node {node} can't be read: {error}") from error
            lock = _read_lock(current.metadata.annotations or {})
            if lock is None or lock.is_of(namespace, name) or await self._is_stale(lock, node):
                if await self._write(current, _format_lock(namespace, name, self._wall_clock())):
                    self._done.pop(node, None)
                    self._seen.pop(node, None)
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
        """Set or remove a node's lock; False on a resourceVersion conflict.

        Patches nodes/status, so that no right to patch nodes is needed.
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
        """Whether a lock may be taken over: it has expired, by its time or by this clock if the other is ahead, or its
        pod was served, is on another node, or gone for long."""
        if lock.expired(self._wall_clock()) or self._seen_for_s(self._seen, node, lock) > _EXPIRES_S:
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
            # A kubelet allocates devices before it pulls images, and reports the start after that.
            is_waiting = pod.status.phase == "Pending" and pod.status.start_time is None
            if pod.spec.node_name == node and is_waiting and phase == _PHASE_ALLOCATING:
                return False
        return self._seen_for_s(self._done, node, lock) >= _RELEASE_S

    def _seen_for_s(self, seen: dict[str, tuple[_NodeLock, float]], node: str, lock: _NodeLock) -> float:
        """Return for how long a node's lock is in `seen`, adding it if new."""
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
"""HAMi's counterparts of Kerf's annotations."""


class Hami(DevicePlugin):
    """Nodes with HAMi's register."""

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
        if silence := _silence(annotations, _clock(node)):
            raise PluginGoneError(f"{silence}: the plugin is silent, its GPUs are not offered")
        return _read_register(annotations, node.status.allocatable or {}, reading)

    def request(self, pod: objects.Pod) -> PodRequest | None:
        annotations = pod.metadata.annotations or {}
        chosen = {
            key: translated
            for key, (theirs, translate) in _CHOICES.items()
            if theirs in annotations and (translated := translate(annotations[theirs]))
        }
        own = asks_any(pod.spec, self.resources)
        policy = annotations.get(_GPU_POLICY, "").strip()
        request = _read_request(containers_of(pod.spec), policy) if own or chosen else None
        if request is None:
            return None
        mode = annotations.get(_MODE, "")
        if mode and _MODE_SHARED not in mode:
            raise RequestError(f'{_MODE}: "{mode[:80]}" is not supported by Kerf; use {_MODE_SHARED}')
        return with_conditions(pod, request if own else GpuRequest(request.count, AskedUnit.GPU), chosen)

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
    """Return the node's clock at its kubelet's last heartbeat, since the plugin uses that clock; else Kerf's."""
    heartbeats = (objects.unix_time(condition.last_heartbeat_time) for condition in node.status.conditions or ())
    return max(heartbeats, default=0.0) or time.time()
