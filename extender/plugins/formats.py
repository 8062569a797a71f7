"""Helpers shared by device plugins' formats: GPUs, requests and numbers."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

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
from extender.core.resources.pod_resources import RequestedGpus, Resources
from extender.core.resources.quantities import parse_quantity
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError, wrong
from extender.kube import objects
from extender.kube.patterns import pattern_reader
from extender.plugins.protocol import UnreadableError

_MAX_CHARS: Final = 64 * 1024
"""Longer annotations are rejected: no plugin writes them."""

_SIZES: Final = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""Annotations that a plugin's own resources, which it enforces, replace."""
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,10}")


# Nodes


def by_index(gpus: Mapping[int, Gpu]) -> tuple[Gpu, ...]:
    """Return GPUs in order of index; missing indices become unhealthy GPUs."""
    missing = Gpu(UNKNOWN_MODEL, 0, healthy=False)
    return tuple(gpus.get(index, missing) for index in range(max(gpus, default=-1) + 1))


def parts_offer(
    gpus: Mapping[int, Gpu], warnings: Iterable[str] = (), *, num_installed: int = 0, withheld: int = 0
) -> NodeOffer:
    """Return the offer of a plugin that serves parts of GPUs, without `withheld` GPUs of unknown index.

    `num_installed` is needed if `gpus` is incomplete; GPUs beyond MAX_GPUS_PER_NODE are dropped. The GPUs' memory is as
    registered, not nominal, since the plugin shares by it.
    """
    listed = by_index({index: gpu for index, gpu in gpus.items() if index < MAX_GPUS_PER_NODE})
    units = max(sum(gpu.healthy for gpu in listed) - withheld, 0)
    all_warnings, left_out = list(warnings), LeftOut.NOTHING
    num_installed = num_installed or len(gpus)
    if num_installed > MAX_GPUS_PER_NODE:
        all_warnings.append(f"{num_installed} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
        left_out = LeftOut.TOO_MANY
    return NodeOffer(listed, GpuUnit.PART, 1, units, warnings=tuple(all_warnings), left_out=left_out)


# Pods


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's requests; a limit without a request counts as one."""

    resources: Resources
    init: bool = False


def containers_of(spec: objects.PodSpec) -> list[ContainerResources]:
    """Return a pod's containers, init containers first."""
    return [
        ContainerResources(objects.requests_of(container.resources), init)
        for init, containers in ((True, spec.init_containers), (False, spec.containers))
        for container in containers or ()
    ]


def asks_any(spec: objects.PodSpec, resources: Collection[str]) -> bool:
    """Whether any container names one of the resources, as `IsInterested` of kube-scheduler's extender.go.

    Called for every pod of the cluster, so it allocates nothing.
    """
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            named = container.resources
            for quantities in (named.limits, named.requests) if named else ():
                if quantities and not quantities.keys().isdisjoint(resources):
                    return True
    return False


def with_conditions(pod: objects.Pod, size: GpuRequest, chosen: Mapping[str, str] | None = None) -> PodRequest:
    """Return a pod's request: the size by its resources, and the accepted GPUs by Kerf's annotations or `chosen`.

    Raises RequestError.
    """
    annotations = {**(chosen or {}), **(pod.metadata.annotations or {})}
    labels = pod.metadata.labels or {}
    if size.unit is AskedUnit.PART:
        annotations, labels = (
            {key: value for key, value in texts.items() if key not in _SIZES} for texts in (annotations, labels)
        )
    request = read_request(
        RequestedGpus(size.count, size.unit), annotations, labels, pattern_reader(pod.spec.node_name)
    )
    if request.gpus is None or size.unit is not AskedUnit.PART:
        return request
    gpus = replace(
        request.gpus,
        milli=size.milli,
        memory_each_mib=size.memory_each_mib,
        memory_each_percent=size.memory_each_percent,
        memory_total_mib=size.memory_total_mib,
        containers=size.containers,
    )
    return structs.replace(request, gpus=gpus)


# Numbers and texts


def asked_number(container: ContainerResources, *names: str) -> int | None:
    """Return the whole number requested of the first resource that the container names, None without one.

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
    """Return the whole number of a resource, 0 if missing. Raises UnreadableError."""
    text = str(resources.get(name, 0))
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise UnreadableError(f"{name}: {wrong(text, str(error))}") from None
    if quantity.denominator != 1 or not 0 <= quantity < 2**31:
        raise UnreadableError(f'{name}: "{shorten(text)}" is out of range')
    return int(quantity)


def whole_number(text: str, what: str) -> int:
    """Parse at most ten ASCII digits; int() would accept signs, blanks and other scripts. Raises UnreadableError."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise UnreadableError(f"{what} {shorten(text)!r} is not a whole number")
    return int(text)


def bounded(text: str) -> str:
    """Return the text if it is short enough. Raises UnreadableError."""
    if len(text) > _MAX_CHARS:
        raise UnreadableError(f"{len(text)} characters are more than any plugin writes")
    return text


def shorten(text: str) -> str:
    """Shorten foreign text for a log line."""
    return text if len(text) <= 80 else text[:77] + "..."
