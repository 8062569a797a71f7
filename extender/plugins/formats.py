"""What the formats of device plugins have in common: how registers, requests and numbers are read."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from extender.core.annotations import (
    GENIUS_MEMORY_EACH,
    GENIUS_MEMORY_TOTAL,
    MEMORY_EACH,
    MEMORY_TOTAL,
    SHARE,
    read_request,
)
from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, Gpu, GpuUnit, LeftOut, NodeOffer
from extender.core.resources.pod_resources import AskedGpus, Resources
from extender.core.resources.quantities import parse_quantity
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError, wrong
from extender.kube import objects
from extender.kube.patterns import pattern_reader
from extender.plugins.protocol import UnreadableError

_MAX_CHARS: Final = 64 * 1024
"""Longer annotations are not looked at: no plugin writes such."""

_SIZES: Final = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""What a plugin's own resources say, and its plugin enforces: a pod that asks by those is not asked twice."""
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,10}")


# Nodes


def by_index(gpus: Mapping[int, Gpu]) -> tuple[Gpu, ...]:
    """GPUs in order; an index that is left out is a GPU that nobody may have."""
    nobodys = Gpu(UNKNOWN_MODEL, 0, healthy=False)
    return tuple(gpus.get(index, nobodys) for index in range(max(gpus, default=-1) + 1))


def parts_offer(
    gpus: Mapping[int, Gpu], warnings: Iterable[str] = (), *, num_installed: int = 0, withheld: int = 0
) -> NodeOffer:
    """What a plugin offers that hands out parts of these GPUs, so many of unknown index left out. Of a node that has
    more than count, `num_installed` where they are not all among these, the rest is cut off.

    Their memory is what the plugin registers, not a nominal size: it is by that number that it shares them.
    """
    listed = by_index({index: gpu for index, gpu in gpus.items() if index < MAX_GPUS_PER_NODE})
    units = max(sum(gpu.healthy for gpu in listed) - withheld, 0)
    told, left_out = list(warnings), LeftOut.NOTHING
    num_installed = num_installed or len(gpus)
    if num_installed > MAX_GPUS_PER_NODE:
        told.append(f"{num_installed} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
        left_out = LeftOut.TOO_MANY
    return NodeOffer(listed, GpuUnit.PART, 1, units, warnings=tuple(told), left_out=left_out)


# Pods


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's requests, limits standing in for what is not requested; in the order of the pod."""

    resources: Resources
    init: bool = False


def containers_of(spec: objects.PodSpec) -> list[ContainerResources]:
    """A pod's containers, init containers first."""
    return [
        ContainerResources(objects.requests_of(container.resources), init)
        for init, containers in ((True, spec.init_containers), (False, spec.containers))
        for container in containers or ()
    ]


def asks_any(spec: objects.PodSpec, resources: Collection[str]) -> bool:
    """Whether any container names one of the resources, as `IsInterested` of kube-scheduler's extender.go finds.

    Asked of every pod of the cluster, so it makes nothing.
    """
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            asked = container.resources
            for quantities in (asked.limits, asked.requests) if asked else ():
                if quantities and not quantities.keys().isdisjoint(resources):
                    return True
    return False


def with_conditions(pod: objects.Pod, asked: GpuRequest, chosen: Mapping[str, str] | None = None) -> PodRequest:
    """A pod's request: how much its resources ask, and by Kerf's annotations, or those `chosen`, which GPUs will do.

    Raises RequestError.
    """
    annotations = {**(chosen or {}), **(pod.metadata.annotations or {})}
    labels = pod.metadata.labels or {}
    if asked.unit is AskedUnit.PART:
        annotations, labels = (
            {key: value for key, value in said.items() if key not in _SIZES} for said in (annotations, labels)
        )
    request = read_request(AskedGpus(asked.count, asked.unit), annotations, labels, pattern_reader(pod.spec.node_name))
    if request.gpus is None or asked.unit is not AskedUnit.PART:
        return request
    gpus = replace(
        request.gpus,
        milli=asked.milli,
        memory_each_mib=asked.memory_each_mib,
        memory_each_percent=asked.memory_each_percent,
        memory_total_mib=asked.memory_total_mib,
        containers=asked.containers,
    )
    return replace(request, gpus=gpus)


# Texts of others


def asked_number(container: ContainerResources, *names: str) -> int | None:
    """A whole number asked by the first of the resources that the container names, None when by none.

    Raises RequestError.
    """
    name = next((name for name in names if name in container.resources), None)
    if name is None:
        return None
    try:
        return whole_quantity(container.resources, name)
    except UnreadableError as error:
        raise RequestError(f"{error}; write a whole number") from None


def whole_quantity(resources: Resources, name: str) -> int:
    """A whole number of a resource, 0 when it is not there. Raises UnreadableError."""
    text = str(resources.get(name, 0))
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise UnreadableError(f"{name}: {wrong(text, str(error))}") from None
    if quantity.denominator != 1 or not 0 <= quantity < 2**31:
        raise UnreadableError(f'{name}: "{shorten(text)}" is out of range')
    return int(quantity)


def whole_number(text: str, what: str) -> int:
    """A decimal number of at most ten digits. Raises UnreadableError; int() would take signs, blanks and any script."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise UnreadableError(f"{what} {shorten(text)!r} is not a whole number")
    return int(text)


def bounded(text: str) -> str:
    """The text, if it is short enough to be looked at. Raises UnreadableError."""
    if len(text) > _MAX_CHARS:
        raise UnreadableError(f"{len(text)} characters are more than any plugin writes")
    return text


def shorten(text: str) -> str:
    """Somebody else's text, short enough for a log line."""
    return text if len(text) <= 80 else text[:77] + "..."
