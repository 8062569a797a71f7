"""HAMi's side of a node: the register of its GPUs, and whether its plugin is at work there.

The register outlives the plugin, so what tells is the kubelet: the plugin hands it `deviceSplitCount` devices of each
GPU of the register. Up to v2.7 the plugin also writes the time into the handshake with each register, every 30 s, over
what HAMi's scheduler has written there. From v2.8 on it writes no handshake: what stands there is the scheduler's,
which may be gone, and HAMi itself goes by the kubelet's number.

Read in Project-HAMi/HAMi: `pkg/device/devices.go` and `pkg/util/util.go` (registers, handshakes),
`pkg/device/nvidia/device.go` (cordon, health), `pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go`, all of
v2.4.1, v2.7.1, v2.8.3 and v2.10.0.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

import msgspec

from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import MAX_MEMORY_MIB, Gpu, NodeOffer, NodeReading, Quantities
from extender.core.vendors.nvidia import NVIDIA
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.plugins.formats import bounded, parts_offer, shorten, whole_number, whole_quantity
from extender.plugins.protocol import PluginGoneError, UnreadableError

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
_MODE: Final = "hami-core"
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


def has_init_slots(annotations: Mapping[str, str]) -> bool:
    """Whether init containers have a place among a pod's devices: since v2.8, as JSON in the register."""
    return annotations.get(REGISTER, "").lstrip().startswith("[")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a node shows of HAMi's plugin, beside its own annotations."""

    allocatable: Quantities
    capacity: Quantities
    labels: Mapping[str, str]
    clock: float
    """The node's, in Unix time; the nearest to it that is known."""


def why_left_behind(annotations: Mapping[str, str], seen: Evidence) -> str:
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
    if shares == len(devices) and (told := silence(annotations, seen.clock)):
        return f"{REGISTER} is left behind: {told}"
    return ""


def _agree(devices: Sequence[_Device], offered: int, installed: int) -> bool:
    """Whether the kubelet has as many devices as the plugin makes of those that are registered, the sick ones
    included; where only those that are `offered` are known, of some of the GPUs."""
    shares = sum(device.count for device in devices)
    if any(device.mode not in ("", _MODE) for device in devices):
        return shares == len(devices) or (installed or offered) > len(devices)  # MIG: the numbers are of two things
    if installed:
        return installed == shares
    of_each = gcd(*(device.count for device in devices)) or 1
    return offered <= shares and offered % of_each == 0 and not len(devices) == offered < shares


def silence(annotations: Mapping[str, str], clock: float) -> str:
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


def read_register(annotations: Mapping[str, str], allocatable: Quantities, reading: NodeReading) -> NodeOffer | None:
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
        if device.mode not in ("", _MODE)
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
    index, mode = rest or ("0", _MODE)
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
        healthy=device.health and device.count > 0 and device.mode in ("", _MODE) and device.id not in cordoned,
        numa=max(device.numa, -1),
        max_holders=device.count,
    )
