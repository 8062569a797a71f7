"""Kerf's own annotations: what an agent tells of a node's GPUs, and what Kerf has assigned to a pod.

They count on nodes of every device plugin.

What `kerf node-agent` tells of its node, in one annotation: its GPUs, and which of them the kubelet really gave.

It tells more than the kubelet offers, and takes nothing away from it: a report that is missing or can't be read leaves
a node as it is without an agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import (
    MAX_GPUS_PER_NODE,
    MAX_MEMORY_MIB,
    MAX_UNITS_PER_GPU,
    SLICES,
    Gpu,
    GpuUnit,
    NodeOffer,
    NodeReading,
    nominal_mib,
)
from extender.core.resources.requests import GpuRequest
from extender.core.vendors.registry import GPU_RESOURCES, PRODUCT_MEMORY_MIB, VENDORS
from extender.plugins.formats import bounded, by_index
from extender.plugins.holdings import Part
from extender.plugins.protocol import UnreadableError

GPUS: Final = "kerf.dev/gpus"
"""A node's GPUs, as a JSON list of `AnnotatedGpu`."""
_GIVEN: Final = "kerf.dev/given-gpus"
"""What a node's kubelet really gave, which beats what was assigned: a JSON object of GPU UUIDs by the pod's UID,
`{"d5b1...": ["GPU-..."]}`; a pod that is not named keeps what it was assigned. `namespace/name` instead of the UID is
understood as well, of the pod that has that name when the entry is written: one that is made again under the name
inherits nothing."""

ASSIGNED_GPUS: Final = "kerf.dev/assigned-gpus"
"""Indices of the GPUs assigned, "0,3"; "" where the device plugin alone picks them."""
ASSIGNED_UUIDS: Final = "kerf.dev/assigned-uuids"
"""Their UUIDs in the same order, where the node tells them."""
ASSIGNED_SHARE: Final = "kerf.dev/assigned-share"
"""Milli of each assigned GPU's compute that is booked, "500"; "" or missing where whole GPUs are."""
ASSIGNED_MEMORY: Final = "kerf.dev/assigned-memory-mib"
"""MiB of each assigned GPU's memory that is booked, where it is shared."""
ASSIGNED_MODEL: Final = "kerf.dev/assigned-model"
ASSIGNED_NODE: Final = "kerf.dev/assigned-node"
"""Node that it was assigned on, where it is written before the pod has one: on any other node it says nothing."""
ASSIGNED_BY: Final = "kerf.dev/assigned-by"
"""Version and policy that decided: "kerf/0.1.0 tightest"."""
EXPLANATION: Final = "kerf.dev/explanation"
"""Why the pod is pending, or what its node was the best of."""
ASSIGNMENT: Final = (
    *(ASSIGNED_GPUS, ASSIGNED_UUIDS, ASSIGNED_SHARE, ASSIGNED_MEMORY, ASSIGNED_MODEL, ASSIGNED_NODE, ASSIGNED_BY),
)
"""What a copy of a bound pod carries, and a Binding has to blank."""

_MAX_UUID_CHARS: Final = 128
_MAX_INDEX_LIST_CHARS: Final = 512
_MAX_UUID_LIST_CHARS: Final = 8192
_Group = Annotated[int, msgspec.Meta(ge=-1, le=2**15)]


# Nodes


class _AnnotatedGpu(msgspec.Struct, forbid_unknown_fields=False):
    """One GPU of a node, as an annotation describes it."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_GPUS_PER_NODE)]
    uuid: Annotated[str, msgspec.Meta(max_length=_MAX_UUID_CHARS)] = ""
    model: Annotated[str, msgspec.Meta(max_length=256)] = ""
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMORY_MIB)] = 0
    healthy: bool = True
    numa: _Group = -1
    link: _Group = -1


_gpus_decoder: Final = msgspec.json.Decoder(list[_AnnotatedGpu])
_given_decoder: Final = msgspec.json.Decoder(dict[str, list[str]])

Given = dict[str, tuple[str, ...]]
"""UUIDs by a pod's UID, or by `namespace/name`."""


def read_gpus(text: str, reading: NodeReading) -> tuple[Gpu, ...]:
    """The GPUs that `GPUS` names, by index. Raises UnreadableError."""
    try:
        listed = _gpus_decoder.decode(bounded(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError, UnreadableError) as error:
        raise UnreadableError(f"{GPUS}: {str(error)[:200]}") from None
    return _described(listed, reading, GPUS)


def _described(listed: Sequence[_AnnotatedGpu], reading: NodeReading, key: str) -> tuple[Gpu, ...]:
    """The GPUs that an annotation lists, by index. Raises UnreadableError."""
    gpus = {gpu.index: _gpu_of(gpu, reading) for gpu in listed}
    uuids = [gpu.uuid for gpu in listed if gpu.uuid]
    if len(gpus) < len(listed) or len(set(uuids)) < len(uuids):
        raise UnreadableError(f"{key}: names a GPU twice")
    return by_index(gpus)


def _gpu_of(gpu: _AnnotatedGpu, reading: NodeReading) -> Gpu:
    model = describe_model(gpu.model, reading.aliases) if gpu.model else UNKNOWN_MODEL
    memory_mib = gpu.memory_mib or PRODUCT_MEMORY_MIB.get(model.name, 0)
    return Gpu(model, nominal_mib(memory_mib, reading.memory_tolerance_frac), gpu.uuid, gpu.healthy, gpu.numa, gpu.link)


def merged(gpus: tuple[Gpu, ...], offer: NodeOffer, allocatable: Mapping[str, object]) -> NodeOffer:
    """The annotated GPUs, in the units in which they are offered already; all of them where no plugin offers any."""
    if not gpus:
        return NodeOffer(mig=offer.mig, warnings=offer.warnings)
    if offer.unit is GpuUnit.PART:
        registered = {gpu.uuid: gpu for gpu in offer.gpus if gpu.uuid}
        gpus = tuple(_as_registered(gpu, registered.get(gpu.uuid)) for gpu in gpus)
    unit = GpuUnit.WHOLE if offer.unit is GpuUnit.NONE else offer.unit
    units = sum(gpu.healthy for gpu in gpus) * offer.units_per_gpu
    by_plugin = offer.gpus or not allocatable.keys().isdisjoint(GPU_RESOURCES)
    if by_plugin:
        units = min(offer.allocatable_units, units)
    return replace(offer, gpus=gpus, unit=unit, allocatable_units=units)


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


def _read_given(annotations: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    """UUIDs of the GPUs that pods were really given, by UID or `namespace/name`; and warnings.

    An annotation that can't be read says nothing: what was assigned stays booked.
    """
    text = annotations.get(_GIVEN)
    if text is None:
        return {}, ()
    try:
        given = _given_decoder.decode(bounded(text))
    except (UnreadableError, msgspec.DecodeError, RecursionError) as error:
        return {}, (f"{_GIVEN} is ignored: {error}",)
    understood, warnings = {}, []
    for pod, uuids in given.items():
        names = tuple(sorted(set(uuids)))
        fit = len(names) == len(uuids) and all(0 < len(uuid) <= _MAX_UUID_CHARS for uuid in names)
        if not pod or pod.count("/") > 1 or not fit:
            warnings.append(f"{_GIVEN}: its entry for {pod[:80]!r} is ignored")
        elif names:
            understood[pod] = names
    return understood, tuple(warnings)


# Pods


def parse_gpus(text: str) -> tuple[int, ...]:
    """The indices of an assignment annotation; () when there are none or it is not of that form."""
    if not text or len(text) > _MAX_INDEX_LIST_CHARS:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        return ()
    gpus = tuple(sorted({int(part) for part in parts}))
    return gpus if len(gpus) == len(parts) else ()


def format_gpus(gpus: tuple[int, ...]) -> str:
    """An assignment as its annotation has it."""
    return ",".join(map(str, gpus))


def assigned_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The indices that were assigned, () when there are none. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_GPUS, "")
    gpus = parse_gpus(text)
    if text and not gpus:
        raise UnreadableError(f'{ASSIGNED_GPUS}: "{text[:80]}" is not a list of GPU indices')
    return gpus


def assigned_parts(
    annotations: Mapping[str, str], gpus: tuple[int, ...], request: GpuRequest | None
) -> tuple[Part, ...]:
    """What is held of each GPU: all of it, unless it was asked and assigned as a share. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_UUIDS, "")
    uuids = text.split(",") if text and len(text) <= _MAX_UUID_LIST_CHARS else []
    if len(uuids) != len(gpus):
        uuids = [""] * len(gpus)
    milli, mib = WHOLE_MILLI, 0
    if request and (request.milli or request.shares_by_memory) and annotations.get(ASSIGNED_SHARE):
        # Whoever may write a pod may write these too: what was asked is held at least.
        milli = max(_number(annotations, ASSIGNED_SHARE, WHOLE_MILLI), request.milli)
        mib = max(_number(annotations, ASSIGNED_MEMORY, MAX_MEMORY_MIB), request.memory_each_mib)
        if milli and not request.milli:
            raise UnreadableError(f'{ASSIGNED_SHARE}: "{milli}" was not requested')
    return tuple(Part(gpu, milli, mib, uuid) for gpu, uuid in zip(gpus, uuids, strict=True))


def _number(annotations: Mapping[str, str], key: str, largest: int) -> int:
    text = annotations.get(key, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= largest):
        raise UnreadableError(f'{key}: "{text[:80]}" is not a whole number up to {largest}')
    return int(text)


REPORT: Final = "kerf.dev/node-report"
"""JSON: see `_Report`."""
_VERSION: Final = 1
_MAX_CHARS: Final = 256 * 1024
"""All annotations of an object together have room for as much."""

_BY_GPU: Final = frozenset(GPU_RESOURCES)
_REPLICA: Final = "::"
"""Between the UUID of a GPU and the number of its time slice, in the plugin's device IDs."""

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=160)]


class _Report(msgspec.Struct):
    version: int
    gpus: Annotated[list[_AnnotatedGpu], msgspec.Meta(max_length=64)] = []
    given: dict[_Id, dict[str, dict[str, list[_Id]]]] = {}
    """Device IDs by the pod's UID, container and resource, as the kubelet's PodResources API has them."""
    steers: list[str] = []
    """Resources whose devices the agent chooses as Kerf has."""
    replicas: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_GPU)]] = {}
    """Of resources whose devices are time slices: how many a GPU is shared into."""


@dataclass(frozen=True, slots=True)
class _NodeReport:
    """A report that could be read."""

    gpus: tuple[_AnnotatedGpu, ...] = ()
    given: Given = field(default_factory=dict)
    steers: frozenset[str] = frozenset()
    replicas: Mapping[str, int] = field(default_factory=dict)


_NOTHING: Final = _NodeReport()
_decoder: Final = msgspec.json.Decoder(_Report)


def _read_report(annotations: Mapping[str, str]) -> _NodeReport:
    """What a node's agent tells; nothing where there is none. Raises UnreadableError."""
    text = annotations.get(REPORT)
    return _NOTHING if text is None else _read(text)


@lru_cache(maxsize=16)
def _read(text: str) -> _NodeReport:
    """Remembered, since a change of a node asks for its GPUs and for what was given."""
    if len(text) > _MAX_CHARS:
        raise UnreadableError(f"{REPORT} is ignored: {len(text)} characters, more than {_MAX_CHARS}")
    try:
        report = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableError(f"{REPORT} is ignored: {str(error)[:200]}") from None
    if report.version != _VERSION:
        raise UnreadableError(f"{REPORT} is ignored: it is of version {report.version}, not {_VERSION}")
    given = {uid: uuids for uid, containers in report.given.items() if (uuids := _uuids(containers))}
    return _NodeReport(tuple(report.gpus), given, frozenset(report.steers), report.replicas)


def _uuids(containers: Mapping[str, Mapping[str, list[str]]]) -> tuple[str, ...]:
    """The GPUs of all containers of a pod, one once for each time slice; MIG devices count by number alone."""
    ids = {device for devices in containers.values() for name in _BY_GPU & devices.keys() for device in devices[name]}
    return tuple(sorted(device.partition(_REPLICA)[0] for device in ids))


def told_given(annotations: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    """UUIDs of the GPUs that pods were really given, by UID or `namespace/name`, and warnings; what was written by hand
    (`kerf.GIVEN`) beats the report."""
    by_hand, warnings = _read_given(annotations)
    try:
        return {**_read_report(annotations).given, **by_hand}, warnings
    except UnreadableError as error:
        return by_hand, (*warnings, str(error))


def with_report(offer: NodeOffer, annotations: Mapping[str, str], reading: NodeReading) -> NodeOffer:
    """What a node's kubelet offers, with what its agent knows of each GPU. An unreadable report changes nothing."""
    if REPORT not in annotations or not offer.gpus or _is_disguised_mig(offer):
        return offer
    try:
        report = _read_report(annotations)
        gpus = _described(report.gpus, reading, REPORT)
    except UnreadableError:
        return offer  # `told_given` says so
    vendor = VENDORS[offer.vendor]
    resource = vendor.shared_resource if offer.unit is GpuUnit.REPLICA else vendor.resource
    steered = resource in report.steers
    offer = _in_slices(offer, report.replicas.get(resource, 1))
    offer = replace(offer, plugin_picks=offer.plugin_picks and not steered)
    if len(gpus) < len(offer.gpus):
        return offer  # none are listed, or those of a plugin that has fewer
    known = tuple(_known(gpu, offer.gpus[0]) for gpu in gpus)
    return replace(offer, gpus=known, slices_led=steered and offer.unit in SLICES)


def _is_disguised_mig(offer: NodeOffer) -> bool:
    return offer.unit is GpuUnit.REPLICA_AS_GPU and offer.units_per_gpu == 1


def _in_slices(offer: NodeOffer, replicas: int) -> NodeOffer:
    """The same units as time slices of fewer GPUs, so many of each: labels need not tell."""
    if replicas == 1:
        return offer
    unit = GpuUnit.REPLICA_AS_GPU if offer.unit is GpuUnit.WHOLE else offer.unit
    gpus = offer.gpus[: -(-offer.allocatable_units // replicas)]
    return replace(offer, gpus=gpus, unit=unit, units_per_gpu=replicas, plugin_picks=False)


def _known(gpu: Gpu, likely: Gpu) -> Gpu:
    """A GPU of the report, with what labels say of all the node's GPUs where it does not say more."""
    if gpu.model is UNKNOWN_MODEL:
        gpu = replace(gpu, model=likely.model)
    return gpu if gpu.memory_mib else replace(gpu, memory_mib=likely.memory_mib)
