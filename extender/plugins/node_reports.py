"""What `kerf node-agent` tells of its node, in one annotation: its GPUs, and which of them the kubelet really gave.

It tells more than the kubelet offers, and takes nothing away from it: a report that is missing or can't be read leaves
a node as it is without an agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import (
    MAX_UNITS_PER_GPU,
    SLICES,
    Gpu,
    GpuUnit,
    NodeOffer,
    NodeReading,
)
from extender.core.vendors.registry import GPU_RESOURCES, VENDORS
from extender.plugins.kerf import AnnotatedGpu, Given, described, read_given
from extender.plugins.protocol import UnreadableError

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
    gpus: Annotated[list[AnnotatedGpu], msgspec.Meta(max_length=64)] = []
    given: dict[_Id, dict[str, dict[str, list[_Id]]]] = {}
    """Device IDs by the pod's UID, container and resource, as the kubelet's PodResources API has them."""
    steers: list[str] = []
    """Resources whose devices the agent chooses as Kerf has."""
    replicas: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS_PER_GPU)]] = {}
    """Of resources whose devices are time slices: how many a GPU is shared into."""


@dataclass(frozen=True, slots=True)
class _NodeReport:
    """A report that could be read."""

    gpus: tuple[AnnotatedGpu, ...] = ()
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
    by_hand, warnings = read_given(annotations)
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
        gpus = described(report.gpus, reading, REPORT)
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
