"""What a node offers, from whoever says so.

Kerf's own annotation knows most and is asked first, then what other device plugins write (`contracts`), then what the
kubelet offers with the labels of GPU Feature Discovery. A source that is there and can't be read makes the node offer
nothing, until it can: a GPU that it calls broken or taken must not be given away.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from extender.cluster import objects
from extender.cluster.contracts import OFFER_READERS
from extender.cluster.contracts.readings import NodeReading, UnreadableError
from extender.core.models import PRODUCT_MEMORY_MIB, UNKNOWN_MODEL, describe_model
from extender.core.nodes import (
    GPU_RESOURCE,
    MAX_GPUS_PER_NODE,
    MAX_MEMORY_MIB,
    SHARED_GPU_RESOURCE,
    Gpu,
    GpuUnit,
    NodeOffer,
    nominal_mib,
    read_node,
)
from extender.core.quantities import MIB, parse_quantity

GPUS: Final = "kerf.dev/gpus"
"""A node's GPUs, as a JSON list of `_AnnotatedGpu`."""

_MAX_CHARS: Final = 1 << 16
_Group = Annotated[int, msgspec.Meta(ge=-1, le=2**15)]


class _AnnotatedGpu(msgspec.Struct, forbid_unknown_fields=False):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_GPUS_PER_NODE)]
    uuid: Annotated[str, msgspec.Meta(max_length=128)] = ""
    model: Annotated[str, msgspec.Meta(max_length=256)] = ""
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMORY_MIB)] = 0
    healthy: bool = True
    numa: _Group = -1
    link: _Group = -1


_decoder = msgspec.json.Decoder(list[_AnnotatedGpu])


def read_offer(node: objects.Node, reading: NodeReading) -> NodeOffer:
    """What a node offers; never fails, and says in `warnings` what it could not read."""
    kubelet = read_node(
        node.status.allocatable or {},
        node.metadata.labels or {},
        memory_tolerance_frac=reading.memory_tolerance_frac,
        aliases=reading.aliases,
    )
    try:
        plugin = next((offer for read in OFFER_READERS if (offer := read(node, reading)) is not None), None)
        offer = kubelet if plugin is None else replace(plugin, mig=plugin.mig or kubelet.mig)
        text = (node.metadata.annotations or {}).get(GPUS)
        return offer if text is None else _merged(_read_gpus(text, reading), offer, node.status.allocatable or {})
    except UnreadableError as error:
        warnings = (*kubelet.warnings, f"{error}; the node offers no GPU until that can be read")
        return replace(kubelet, allocatable_units=0, mig=(), warnings=warnings)


def read_capacity(node: objects.Node) -> tuple[int, int]:
    """A node's allocatable CPU in milli and main memory in MiB, 0 where that can't be read."""
    allocatable = node.status.allocatable or {}
    try:
        cpu = int(parse_quantity(str(allocatable.get("cpu", 0))) * 1000)
    except ValueError:
        cpu = 0
    try:
        memory = int(parse_quantity(str(allocatable.get("memory", 0))) // MIB)
    except ValueError:
        memory = 0
    return cpu, memory


def _read_gpus(text: str, reading: NodeReading) -> tuple[Gpu, ...]:
    """The GPUs of Kerf's annotation, by index; an index that is left out is a GPU nobody may have."""
    if len(text) > _MAX_CHARS:
        raise UnreadableError(f"{GPUS}: longer than {_MAX_CHARS} characters")
    try:
        listed = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableError(f"{GPUS}: {str(error)[:200]}") from None
    by_index = {gpu.index: gpu for gpu in listed}
    uuids = [gpu.uuid for gpu in listed if gpu.uuid]
    if len(by_index) < len(listed) or len(set(uuids)) < len(uuids):
        raise UnreadableError(f"{GPUS}: names a GPU twice")
    return tuple(
        _described(by_index[index], reading) if index in by_index else Gpu(UNKNOWN_MODEL, 0, healthy=False)
        for index in range(max(by_index, default=-1) + 1)
    )


def _described(gpu: _AnnotatedGpu, reading: NodeReading) -> Gpu:
    model = describe_model(gpu.model, reading.aliases) if gpu.model else UNKNOWN_MODEL
    memory_mib = gpu.memory_mib or PRODUCT_MEMORY_MIB.get(model.name, 0)
    return Gpu(model, nominal_mib(memory_mib, reading.memory_tolerance_frac), gpu.uuid, gpu.healthy, gpu.numa, gpu.link)


def _merged(gpus: tuple[Gpu, ...], offer: NodeOffer, allocatable: Mapping[str, object]) -> NodeOffer:
    """The annotated GPUs, in the units in which they are offered already; all of them where no plugin offers any."""
    if not gpus:
        return NodeOffer(mig=offer.mig, warnings=offer.warnings)
    if offer.unit is GpuUnit.PART:
        registered = {gpu.uuid: gpu for gpu in offer.gpus if gpu.uuid}
        gpus = tuple(_as_registered(gpu, registered.get(gpu.uuid)) for gpu in gpus)
    unit = GpuUnit.WHOLE if offer.unit is GpuUnit.NONE else offer.unit
    units = sum(gpu.healthy for gpu in gpus) * offer.units_per_gpu
    by_plugin = offer.gpus or GPU_RESOURCE in allocatable or SHARED_GPU_RESOURCE in allocatable
    if by_plugin:
        units = min(offer.allocatable_units, units)
    return NodeOffer(gpus, unit, offer.units_per_gpu, units, offer.mig, offer.warnings)


def _as_registered(gpu: Gpu, registered: Gpu | None) -> Gpu:
    """An annotated GPU with what its plugin shares it by, and as healthy as both say."""
    if registered is None:
        return gpu
    return replace(
        gpu,
        memory_mib=registered.memory_mib,
        healthy=gpu.healthy and registered.healthy,
        max_holders=registered.max_holders,
    )
