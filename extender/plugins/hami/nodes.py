"""HAMi's side of a node: the register of its GPUs.

Read in Project-HAMi/HAMi: `pkg/device/devices.go` and `pkg/util/util.go` (registers), `pkg/device/nvidia/device.go`
(cordon, health), all of v2.4.1, v2.7.1, v2.8.3 and v2.10.0.
"""

from collections.abc import Container, Mapping
from typing import Final

import msgspec

from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import GPU_RESOURCE, MAX_GPUS_PER_NODE, MAX_MEMORY_MIB, Gpu, NodeOffer, NodeReading
from extender.kube.decoding import Decoder
from extender.plugins.formats import bounded, parts_offer, shorten, whole_number
from extender.plugins.protocol import UnreadableError

REGISTER: Final = "hami.io/node-nvidia-register"
HANDSHAKE: Final = "hami.io/node-handshake"
CORDON: Final = "hami.io/device-cordon"
"""UUIDs that get no new pods."""
VGPU_RESOURCE: Final = "nvidia.com/vgpu"
"""Number of GPUs in clusters that renamed `resourceName`, so that it does not collide with NVIDIA's own plugin."""

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


def read_register(
    annotations: Mapping[str, str], allocatable: Mapping[str, str | int | float], reading: NodeReading
) -> NodeOffer | None:
    """What a node's plugin has registered, None when none has.

    Raises UnreadableError; also where the plugin is gone: the kubelet offers nothing any more, or HAMi's scheduler has
    written so.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return None
    if annotations.get(HANDSHAKE, "").startswith("Deleted"):
        raise UnreadableError(f"{HANDSHAKE}: the plugin is gone, its GPUs are not offered")
    if all(str(allocatable.get(name, 0)) == "0" for name in (GPU_RESOURCE, VGPU_RESOURCE)):
        raise UnreadableError(f"{REGISTER}: the kubelet offers none of these GPUs")
    cordoned = {uuid.strip() for uuid in annotations.get(CORDON, "").split(",")}
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
    if len(gpus) > MAX_GPUS_PER_NODE:
        warnings.append(f"{len(gpus)} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
    return parts_offer({index: gpu for index, gpu in gpus if index < MAX_GPUS_PER_NODE}, warnings)


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
