"""Kerf's own annotations, valid on nodes of every device plugin: a node's GPUs, and a pod's assignment.

`kerf node-agent` reports its node's GPUs, and which of them the kubelet gave to pods, in one annotation. The report
only adds to what the kubelet offers: without a readable one the node counts as if it had no agent.
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
"""What a node's kubelet gave, which overrides assignments: a JSON object of GPU UUIDs by pod UID,
`{"d5b1...": ["GPU-..."]}`; other pods keep their assignment. `namespace/name` also works, for the pod that has the name
when the entry is written, not for later ones."""

ASSIGNED_GPUS: Final = "kerf.dev/assigned-gpus"
"""Indices of the assigned GPUs, "0,3"; "" if the device plugin chooses them."""
ASSIGNED_UUIDS: Final = "kerf.dev/assigned-uuids"
"""Their UUIDs in the same order, if the node publishes them."""
ASSIGNED_SHARE: Final = "kerf.dev/assigned-share"
"""Booked thousandths of each assigned GPU's compute, "500"; "" or missing for whole GPUs."""
ASSIGNED_MEMORY: Final = "kerf.dev/assigned-memory-mib"
"""Booked MiB of each assigned GPU's memory, if shared."""
ASSIGNED_MODEL: Final = "kerf.dev/assigned-model"
ASSIGNED_NODE: Final = "kerf.dev/assigned-node"
"""Node of the assignment, if written before the pod has a node; the assignment is void on other nodes."""
ASSIGNED_BY: Final = "kerf.dev/assigned-by"
"""Kerf's version and the policy: "kerf/0.1.0 tightest"."""
EXPLANATION: Final = "kerf.dev/explanation"
"""Why the pod is pending, or why its node was chosen."""
ASSIGNMENT: Final = (
    *(ASSIGNED_GPUS, ASSIGNED_UUIDS, ASSIGNED_SHARE, ASSIGNED_MEMORY, ASSIGNED_MODEL, ASSIGNED_NODE, ASSIGNED_BY),
)
"""Annotations that a copy of a bound pod carries, and a Binding has to blank."""

_MAX_UUID_CHARS: Final = 128
_MAX_INDEX_LIST_CHARS: Final = 512
_MAX_UUID_LIST_CHARS: Final = 8192
_Group = Annotated[int, msgspec.Meta(ge=-1, le=2**15)]


# Nodes


class _AnnotatedGpu(msgspec.Struct, forbid_unknown_fields=False):
    """One GPU of a node in an annotation."""

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
"""GPU UUIDs by pod UID or `namespace/name`."""


def read_gpus(text: str, reading: NodeReading) -> tuple[Gpu, ...]:
    """Parse the annotation `GPUS`, in order of index. Raises UnreadableError."""
    try:
        listed = _gpus_decoder.decode(bounded(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError, UnreadableError) as error:
        raise UnreadableError(f"{GPUS}: {str(error)[:200]}") from None
    return _described(listed, reading, GPUS)


def _described(listed: Sequence[_AnnotatedGpu], reading: NodeReading, key: str) -> tuple[Gpu, ...]:
    """Return the GPUs listed in an annotation, in order of index. Raises UnreadableError."""
    gpus = {gpu.index: _gpu_of(gpu, reading) for gpu in listed}
    uuids = [gpu.uuid for gpu in listed if gpu.uuid]
    if len(gpus) < len(listed) or len(set(uuids)) < len(uuids):
        raise UnreadableError(f"{key}: names a GPU twice")
    return by_index(gpus)


def _gpu_of(gpu: _AnnotatedGpu, reading: NodeReading) -> Gpu:
    model = describe_model(gpu.model, reading.aliases) if gpu.model else UNKNOWN_MODEL
    memory_mib = gpu.memory_mib or PRODUCT_MEMORY_MIB.get(model.name, 0)
    return Gpu(model, nominal_mib(memory_mib, reading.memory_tolerance_frac), gpu.uuid, gpu.healthy, gpu.numa, gpu.link)


def with_annotated_gpus(gpus: tuple[Gpu, ...], offer: NodeOffer, allocatable: Mapping[str, object]) -> NodeOffer:
    """Return the annotated GPUs in the offer's units; all of them are allocatable if no plugin offers any."""
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
    """Add the plugin's memory and sharing limit to an annotated GPU; it is healthy if both say so."""
    if registered is None:
        return gpu
    return replace(
        gpu,
        memory_mib=registered.memory_mib,
        healthy=gpu.healthy and registered.healthy,
        max_holders=registered.max_holders,
    )


def _read_given(annotations: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    """Return what pods were given, and warnings. If unreadable, assignments stay booked."""
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
    """Parse the indices in an assignment annotation; () if empty or malformed."""
    if not text or len(text) > _MAX_INDEX_LIST_CHARS:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        return ()
    gpus = tuple(sorted({int(part) for part in parts}))
    return gpus if len(gpus) == len(parts) else ()


def format_gpus(gpus: tuple[int, ...]) -> str:
    """Return the annotation value of an assignment."""
    return ",".join(map(str, gpus))


def assigned_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the assigned indices, () for none. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_GPUS, "")
    gpus = parse_gpus(text)
    if text and not gpus:
        raise UnreadableError(f'{ASSIGNED_GPUS}: "{text[:80]}" is not a list of GPU indices')
    return gpus


def assigned_parts(
    annotations: Mapping[str, str], gpus: tuple[int, ...], request: GpuRequest | None
) -> tuple[Part, ...]:
    """Return what is held of each GPU: all of it, unless a share was requested and assigned. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_UUIDS, "")
    uuids = text.split(",") if text and len(text) <= _MAX_UUID_LIST_CHARS else []
    if len(uuids) != len(gpus):
        uuids = [""] * len(gpus)
    milli, mib = WHOLE_MILLI, 0
    if request and (request.milli or request.shares_by_memory) and annotations.get(ASSIGNED_SHARE):
        # Anyone who may write the pod may write these, so at least the request is held.
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
"""JSON of `_Report`."""
_VERSION: Final = 1
_MAX_CHARS: Final = 256 * 1024
"""Kubernetes' limit for all annotations of an object."""

_BY_GPU: Final = frozenset(GPU_RESOURCES)
_REPLICA: Final = "::"
"""Separates a GPU's UUID and the number of its time slice in the plugin's device IDs."""

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=160)]


class _Report(msgspec.Struct):
    version: int
    gpus: Annotated[list[_AnnotatedGpu], msgspec.Meta(max_length=64)] = []
    given: dict[_Id, dict[str, dict[str, list[_Id]]]] = {}
    """Device IDs by pod UID, container and resource, from the kubelet's PodResources API."""
    steers: list[str] = []
    """Resources whose devices the agent steers to Kerf's assignment."""
    replicas: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_GPU)]] = {}
    """Time slices per GPU, by resource."""


@dataclass(frozen=True, slots=True)
class _NodeReport:
    """A decoded report."""

    gpus: tuple[_AnnotatedGpu, ...] = ()
    given: Given = field(default_factory=dict)
    steers: frozenset[str] = frozenset()
    replicas: Mapping[str, int] = field(default_factory=dict)


_NO_REPORT: Final = _NodeReport()
_decoder: Final = msgspec.json.Decoder(_Report)


def _read_report(annotations: Mapping[str, str]) -> _NodeReport:
    """Return the report of a node's agent, empty without one. Raises UnreadableError."""
    text = annotations.get(REPORT)
    return _NO_REPORT if text is None else _read(text)


@lru_cache(maxsize=16)
def _read(text: str) -> _NodeReport:
    """Cached, since each change of a node reads its report twice."""
    if len(text) > _MAX_CHARS:
        raise UnreadableError(f"{REPORT} is ignored: {len(text)} characters, more than {_MAX_CHARS}")
    try:
        report = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableError(f"{REPORT} is ignored: {str(error)[:200]}") from None
    if report.version != _VERSION:
        raise UnreadableError(f"{REPORT} is ignored: version {report.version} instead of {_VERSION}")
    given = {uid: uuids for uid, containers in report.given.items() if (uuids := _uuids(containers))}
    return _NodeReport(tuple(report.gpus), given, frozenset(report.steers), report.replicas)


def _uuids(containers: Mapping[str, Mapping[str, list[str]]]) -> tuple[str, ...]:
    """Return the GPUs of all containers of a pod, repeated for each time slice, without MIG devices."""
    ids = {device for devices in containers.values() for name in _BY_GPU & devices.keys() for device in devices[name]}
    return tuple(sorted(device.partition(_REPLICA)[0] for device in ids))


def read_given_gpus(annotations: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    """Return what pods were given, and warnings; the annotation written by hand (`_GIVEN`) overrides the report."""
    by_hand, warnings = _read_given(annotations)
    try:
        return {**_read_report(annotations).given, **by_hand}, warnings
    except UnreadableError as error:
        return by_hand, (*warnings, str(error))


def with_report(offer: NodeOffer, annotations: Mapping[str, str], reading: NodeReading) -> NodeOffer:
    """Add the agent's knowledge of each GPU to the kubelet's offer. An unreadable report changes nothing."""
    if REPORT not in annotations or not offer.gpus or _is_disguised_mig(offer):
        return offer
    try:
        report = _read_report(annotations)
        gpus = _described(report.gpus, reading, REPORT)
    except UnreadableError:
        return offer  # `read_given_gpus` warns
    vendor = VENDORS[offer.vendor]
    resource = vendor.shared_resource if offer.unit is GpuUnit.REPLICA else vendor.resource
    steered = resource in report.steers
    offer = _in_slices(offer, report.replicas.get(resource, 1))
    offer = replace(offer, plugin_picks=offer.plugin_picks and not steered)
    if len(gpus) < len(offer.gpus):
        return offer  # no GPUs are listed, or fewer than offered
    completed = tuple(_completed(gpu, offer.gpus[0]) for gpu in gpus)
    return replace(offer, gpus=completed, slices_led=steered and offer.unit in SLICES)


def _is_disguised_mig(offer: NodeOffer) -> bool:
    return offer.unit is GpuUnit.REPLICA_AS_GPU and offer.units_per_gpu == 1


def _in_slices(offer: NodeOffer, replicas: int) -> NodeOffer:
    """Return the same units as time slices of fewer GPUs, `replicas` of each: labels need not say so."""
    if replicas == 1:
        return offer
    unit = GpuUnit.REPLICA_AS_GPU if offer.unit is GpuUnit.WHOLE else offer.unit
    gpus = offer.gpus[: -(-offer.allocatable_units // replicas)]
    return replace(offer, gpus=gpus, unit=unit, units_per_gpu=replicas, plugin_picks=False)


def _completed(gpu: Gpu, likely: Gpu) -> Gpu:
    """Fill in a reported GPU's missing model and memory from the node's labels."""
    if gpu.model is UNKNOWN_MODEL:
        gpu = replace(gpu, model=likely.model)
    return gpu if gpu.memory_mib else replace(gpu, memory_mib=likely.memory_mib)
