"""What a pod object means to Kerf: its request, what it holds, and how its assignment is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import re2

from extender.cluster import objects
from extender.core.nodes import GPU_RESOURCE, SHARED_GPU_RESOURCE
from extender.core.requests import (
    AskedUnit,
    Container,
    PodRequest,
    RequestError,
    Resources,
    read_request,
    resource_units,
)

ASSIGNED_GPUS: Final = "kerf.dev/assigned-gpus"
"""Indices of the GPUs assigned, "0,3"; "" where the device plugin alone picks them."""
ASSIGNED_MODEL: Final = "kerf.dev/assigned-model"
ASSIGNED_BY: Final = "kerf.dev/assigned-by"
"""Version and policy that decided: "kerf/0.1.0 bestfit"."""

_RESOURCES: Final = (GPU_RESOURCE, SHARED_GPU_RESOURCE)
_MAX_INDEX_CHARS: Final = 512


def _quiet_options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return options


_RE2_OPTIONS: Final = _quiet_options()


def compile_pattern(text: str) -> "re2._Regexp":
    """A pod author's pattern, by RE2: linear time whatever the pattern, and the syntax of Go, which Genius uses.

    Raises ValueError when it is none.
    """
    try:
        return re2.compile(text, _RE2_OPTIONS)
    except re2.error as error:
        fault = error.args[0] if error.args else "unreadable"
        raise ValueError(fault.decode(errors="replace") if isinstance(fault, bytes) else str(fault)) from None


def read_pod_request(pod: objects.Pod) -> PodRequest:
    """What a pod asks for. Raises RequestError with a sentence for its author."""
    units, unit = _units(pod.spec)
    metadata = pod.metadata
    return read_request(units, unit, metadata.annotations or {}, metadata.labels or {}, compile_pattern)


def has_soft_preferences(spec: objects.PodSpec) -> bool:
    """Whether the pod states preferences that kube-scheduler's own plugins should weigh among good nodes."""
    affinity = spec.affinity
    if affinity and any(
        term and term.preferred for term in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    ):
        return True
    return any(item.when_unsatisfiable == "ScheduleAnyway" for item in spec.topology_spread_constraints or ())


@dataclass(frozen=True, slots=True)
class Holding:
    """What a bound pod holds on its node."""

    units: int
    gpus: tuple[int, ...]
    """GPU indices, () when they are not known."""


def read_holding(pod: objects.Pod) -> Holding:
    """What a bound pod holds, whoever placed it; never fails, and in doubt something is held rather than free."""
    gpus = parse_gpus((pod.metadata.annotations or {}).get(ASSIGNED_GPUS, ""))
    try:
        request = read_pod_request(pod)
        units = (request.gpus.count or len(gpus) or 1) if request.gpus else 0
    except RequestError:
        try:
            units, _ = _units(pod.spec)
        except RequestError:
            units = 1
    if units and gpus and len(gpus) != units:
        gpus = ()  # written by somebody else: the number is certain, the indices are not
    return Holding(units or len(gpus), gpus)


def parse_gpus(text: str) -> tuple[int, ...]:
    """The indices of an assignment annotation; () when there are none or it is not of that form."""
    if not text or len(text) > _MAX_INDEX_CHARS:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        return ()
    gpus = tuple(sorted({int(part) for part in parts}))
    return gpus if len(gpus) == len(parts) else ()


def format_gpus(gpus: tuple[int, ...]) -> str:
    """An assignment as its annotation has it."""
    return ",".join(map(str, gpus))


def _units(spec: objects.PodSpec) -> tuple[int, AskedUnit]:
    containers = [_container(container) for container in spec.containers or ()]
    init_containers = [_container(container) for container in spec.init_containers or ()]
    overhead = _gpus_of(spec.overhead)
    if not overhead and not any(container.requests for container in (*containers, *init_containers)):
        return 0, AskedUnit.GPU  # most pods of a cluster: spared the arithmetic
    return resource_units(containers, init_containers, overhead)


def _container(container: objects.Container) -> Container:
    return Container(_gpu_requests(container.resources), sidecar=container.restart_policy == "Always")


def _gpu_requests(resources: objects.Resources | None) -> Resources:
    """A container's GPU requests; a limit alone counts as the request, as the API server defaults it."""
    if resources is None:
        return {}
    return {**_gpus_of(resources.limits), **_gpus_of(resources.requests)}


def _gpus_of(quantities: Mapping[str, str | int | float] | None) -> dict[str, str | int | float]:
    return {name: quantities[name] for name in _RESOURCES if name in quantities} if quantities else {}
