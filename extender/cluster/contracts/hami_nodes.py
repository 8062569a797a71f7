"""HAMi's side of a node: the register of its GPUs, and the lock that says which pod its plugin serves next.

Read in Project-HAMi/HAMi: `pkg/device/devices.go` and `pkg/util/util.go` (registers), `pkg/device/nvidia/device.go`
(cordon, health), `pkg/util/nodelock/nodelock.go`, all of v2.4.1, v2.7.1, v2.8.3 and v2.10.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from extender.cluster.contracts.formats import (
    FormatError,
    Register,
    RegisteredGpu,
    bounded,
    shorten,
    whole_number,
)
from extender.core.nodes import GPU_RESOURCE, MAX_GPUS_PER_NODE, MAX_MEMORY_MIB

REGISTER: Final = "hami.io/node-nvidia-register"
HANDSHAKE: Final = "hami.io/node-handshake"
CORDON: Final = "hami.io/device-cordon"
"""UUIDs that get no new pods."""
NODE_LOCK: Final = "hami.io/mutex.lock"
VGPU_RESOURCE: Final = "nvidia.com/vgpu"
"""Number of GPUs in clusters that renamed `resourceName`, so that it does not collide with NVIDIA's own plugin."""

LOCK_EXPIRES_S: Final = 300.0
"""HAMi's default: a lock older than this is anybody's."""

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


_device_decoder: Final = msgspec.json.Decoder(list[_Device])


def read_register(annotations: Mapping[str, str], allocatable: Mapping[str, str | int | float]) -> Register | None:
    """What a node's plugin has registered, None when none has.

    A register that can't be read is one without GPUs, with a warning; so is one whose plugin is gone: the kubelet
    offers nothing any more, or HAMi's scheduler has written so.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return None
    if annotations.get(HANDSHAKE, "").startswith("Deleted"):
        return Register(warnings=(f"{HANDSHAKE}: the plugin is gone, its GPUs are not offered",))
    if all(str(allocatable.get(name, 0)) == "0" for name in (GPU_RESOURCE, VGPU_RESOURCE)):
        return Register(warnings=(f"{REGISTER}: the kubelet offers none of these GPUs",))
    try:
        devices = _read_devices(bounded(text).strip())
        gpus = [_checked(device) for device in devices]
    except FormatError as error:
        return Register(warnings=(f"{REGISTER} is ignored: {error}",))
    warnings = [
        f"{REGISTER}: {device.id} is in mode {shorten(device.mode)!r}, which Kerf does not hand out"
        for device in devices
        if device.mode not in ("", _MODE)
    ]
    cordoned = {uuid.strip() for uuid in annotations.get(CORDON, "").split(",")}
    gpus = [replace(gpu, healthy=False) if gpu.uuid in cordoned else gpu for gpu in gpus]
    if len({gpu.index for gpu in gpus}) < len(gpus):
        gpus = [replace(gpu, index=index) for index, gpu in enumerate(gpus)]  # before v2.5 there was only the order
    if len(gpus) > MAX_GPUS_PER_NODE:
        warnings.append(f"{len(gpus)} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
    gpus = sorted(gpus, key=lambda gpu: gpu.index)[:MAX_GPUS_PER_NODE]
    return Register(tuple(gpus), warnings=tuple(warnings))


def _read_devices(text: str) -> list[_Device]:
    """The devices of a register in either form: JSON since v2.8, segments before. Raises FormatError."""
    if text.startswith("["):
        try:
            devices = _device_decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FormatError(str(error)) from None
    else:
        devices = [_read_segment(segment) for segment in text.split(":") if segment]
    if not devices:
        raise FormatError("no devices")
    if len({device.id for device in devices}) < len(devices):
        raise FormatError("a UUID comes twice")
    return devices


def _read_segment(segment: str) -> _Device:
    """`uuid,count,memory MiB,cores,type,numa,health` and, since v2.5, `,index,mode`. Raises FormatError."""
    items = segment.split(",")
    if len(items) not in (7, 9):
        raise FormatError(f"{shorten(segment)!r} has {len(items)} fields, not 7 or 9")
    uuid, count, memory, _cores, product, numa, health, *rest = items
    if health not in _BOOLEANS:
        raise FormatError(f"health {shorten(health)!r} is neither true nor false")
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


def _checked(device: _Device) -> RegisteredGpu:
    """A device as a GPU. Raises FormatError."""
    if not device.id or len(device.id) > _MAX_UUID_CHARS:
        raise FormatError(f"{shorten(device.id)!r} is no UUID")
    if not 0 <= device.index <= _MAX_INDEX or not 0 <= device.count < 2**31:
        raise FormatError(f"index {device.index} or count {device.count} of {device.id} is out of range")
    if not 0 < device.devmem <= MAX_MEMORY_MIB:
        raise FormatError(f"memory {device.devmem} MiB of {device.id} is out of range")
    return RegisteredGpu(
        index=device.index,
        memory_mib=device.devmem,
        uuid=device.id,
        product=device.type,
        healthy=device.health and device.count > 0 and device.mode in ("", _MODE),
        numa=max(device.numa, -1),
        max_holders=device.count,
    )


@dataclass(frozen=True, slots=True)
class NodeLock:
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
        return wall_now - self.locked_at > LOCK_EXPIRES_S


def read_lock(annotations: Mapping[str, str]) -> NodeLock | None:
    """A node's lock, None when it is free."""
    text = annotations.get(NODE_LOCK)
    if text is None:
        return None
    parts = text[:1024].split(",")
    try:
        locked_at = datetime.fromisoformat(parts[0])
    except ValueError:
        return NodeLock(0.0, *parts[1:3]) if len(parts) == 3 else NodeLock(0.0)
    at = (locked_at if locked_at.tzinfo else locked_at.replace(tzinfo=UTC)).timestamp()
    return NodeLock(at, *parts[1:3]) if len(parts) == 3 else NodeLock(at)


def format_lock(namespace: str, name: str, wall_now: float) -> str:
    """A node's lock for one pod: RFC 3339 time, namespace, name."""
    at = datetime.fromtimestamp(int(wall_now), UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ},{namespace},{name}"
