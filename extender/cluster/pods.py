"""What a pod object means to Kerf: its request, what it holds, and how its assignment is written."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from extender.cluster import objects
from extender.cluster.contracts import HOLDING_READERS, REQUEST_READERS
from extender.cluster.contracts.readings import UnreadableError
from extender.cluster.holdings import Holding, Part
from extender.cluster.patterns import pattern_reader
from extender.core.clusters import WHOLE_MILLI
from extender.core.nodes import GPU_RESOURCE, MAX_MEMORY_MIB, MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from extender.core.quantities import MIB, parse_quantity
from extender.core.requests import (
    POLICY,
    AskedUnit,
    Container,
    GpuRequest,
    PodRequest,
    RequestError,
    Resources,
    mig_devices,
    read_priority,
    read_request,
    resource_units,
    total_request,
)

ASSIGNED_GPUS: Final = "kerf.dev/assigned-gpus"
"""Indices of the GPUs assigned, "0,3"; "" where the device plugin alone picks them."""
ASSIGNED_UUIDS: Final = "kerf.dev/assigned-uuids"
"""Their UUIDs in the same order, where the node tells them."""
ASSIGNED_SHARE: Final = "kerf.dev/assigned-share"
"""Milli of each assigned GPU's compute that is booked, "500"; "" or missing where whole GPUs are."""
ASSIGNED_MEMORY: Final = "kerf.dev/assigned-memory-mib"
"""MiB of each assigned GPU's memory that is booked, where it is shared."""
ASSIGNED_MODEL: Final = "kerf.dev/assigned-model"
ASSIGNED_BY: Final = "kerf.dev/assigned-by"
"""Version and policy that decided: "kerf/0.1.0 bestfit"."""
EXPLANATION: Final = "kerf.dev/explanation"
"""Why the pod is pending, or what its node was the best of."""

_ASSIGNED: Final = (ASSIGNED_GPUS, ASSIGNED_UUIDS, ASSIGNED_SHARE, ASSIGNED_MEMORY, ASSIGNED_MODEL, ASSIGNED_BY)
_RESOURCES: Final = (GPU_RESOURCE, SHARED_GPU_RESOURCE)
_MAX_INDEX_CHARS: Final = 512
_MAX_UUID_CHARS: Final = 8192


def read_pod_request(pod: objects.Pod) -> PodRequest:
    """What a pod asks for. Raises RequestError with a sentence for its author."""
    request = _read_request(pod)
    if request.gpus and not pod.spec.node_name:
        stale = tuple(key for key in _ASSIGNED if key in (pod.metadata.annotations or ()))
        return replace(request, stale=stale) if stale else request
    return request


def _read_request(pod: objects.Pod) -> PodRequest:
    for read in REQUEST_READERS:
        request = read(pod)
        if request is not None:
            return completed(request, pod)
    units, unit, mig = _units(pod.spec)
    metadata = pod.metadata
    patterns = pattern_reader(pod.spec.node_name)
    request = read_request(units, unit, metadata.annotations or {}, metadata.labels or {}, patterns, mig)
    return completed(request, pod)


def completed(request: PodRequest, pod: objects.Pod) -> PodRequest:
    """With the pod's priority, CPU and main memory, where it asks for GPUs at all. Raises RequestError."""
    if request.gpus is None:
        return request
    priority = read_priority(pod.metadata.labels or {}, pod.spec.priority)
    cpu_milli, memory_mib = read_compute(pod.spec)
    return replace(request, priority=priority, cpu_milli=cpu_milli, memory_mib=memory_mib)


def read_policy(pod: objects.Pod) -> str:
    """The policy that a pod chooses, "" for the deployment's."""
    return (pod.metadata.annotations or {}).get(POLICY, "").strip()


def has_soft_preferences(spec: objects.PodSpec) -> bool:
    """Whether the pod states preferences that kube-scheduler's own plugins should weigh among good nodes."""
    affinity = spec.affinity
    if affinity and any(
        term and term.preferred for term in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    ):
        return True
    return any(item.when_unsatisfiable == "ScheduleAnyway" for item in spec.topology_spread_constraints or ())


def read_holding(pod: objects.Pod) -> tuple[Holding, str]:
    """What a bound pod holds, whoever placed it, and what could not be read of it, "" when all could.

    Never fails, and in doubt something is held rather than free: a share that can't be read is a whole GPU, indices
    that can't be are unknown ones.
    """
    annotations = pod.metadata.annotations or {}
    fault = ""
    try:
        gpus = _assigned_gpus(annotations)
        if not gpus:
            holding = next((held for read in HOLDING_READERS if (held := read(pod)) is not None), None)
            if holding is not None:
                return holding, ""
    except UnreadableError as error:
        gpus, fault = (), str(error)
    gpu_request: GpuRequest | None = None
    mig: tuple[tuple[str, int], ...] = ()
    try:
        gpu_request = read_pod_request(pod).gpus
        units = (gpu_request.count or len(gpus) or 1) if gpu_request else 0
        mig = gpu_request.mig if gpu_request else ()
    except RequestError as error:
        fault = fault or str(error)
        try:
            units, _, mig = _units(pod.spec)
        except RequestError:
            units = 1
    if mig:
        return Holding(0, (), mig), fault
    if units and gpus and len(gpus) != units:
        # Written by somebody else: the number is certain, the indices are not.
        gpus, fault = (), fault or f"{ASSIGNED_GPUS}: names {len(gpus)} GPUs, while the pod asks for {units}"
    try:
        return Holding(units or len(gpus), _parts(annotations, gpus, gpu_request)), fault
    except UnreadableError as error:
        return Holding(units or len(gpus), tuple(Part(gpu) for gpu in gpus)), fault or str(error)


def read_compute(spec: objects.PodSpec) -> tuple[int, int]:
    """CPU in milli and main memory in MiB that a pod requests, as kube-scheduler counts them; 0 where unreadable."""
    return _peak(spec, "cpu", _cpu_milli), -(-_peak(spec, "memory", _memory_bytes) // MIB)


def _assigned_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The indices that were assigned, () when there are none. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_GPUS, "")
    gpus = parse_gpus(text)
    if text and not gpus:
        raise UnreadableError(f'{ASSIGNED_GPUS}: "{text[:80]}" is no list of GPU indices')
    return gpus


def _parts(annotations: Mapping[str, str], gpus: tuple[int, ...], request: GpuRequest | None) -> tuple[Part, ...]:
    """What is held of each GPU: all of it, unless it was asked and assigned as a share. Raises UnreadableError."""
    text = annotations.get(ASSIGNED_UUIDS, "")
    uuids = text.split(",") if text and len(text) <= _MAX_UUID_CHARS else []
    if len(uuids) != len(gpus):
        uuids = [""] * len(gpus)
    milli, mib = WHOLE_MILLI, 0
    if request and (request.milli or request.shares_by_memory) and annotations.get(ASSIGNED_SHARE):
        # Whoever may write a pod may write these too: what was asked is held at least.
        milli = max(_number(annotations, ASSIGNED_SHARE, WHOLE_MILLI), request.milli)
        mib = max(_number(annotations, ASSIGNED_MEMORY, MAX_MEMORY_MIB), request.memory_each_mib)
        if milli and not request.milli:
            raise UnreadableError(f'{ASSIGNED_SHARE}: "{milli}" was not asked for')
    return tuple(Part(gpu, milli, mib, uuid) for gpu, uuid in zip(gpus, uuids, strict=True))


def _number(annotations: Mapping[str, str], key: str, largest: int) -> int:
    text = annotations.get(key, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= largest):
        raise UnreadableError(f'{key}: "{text[:80]}" is no whole number up to {largest}')
    return int(text)


@lru_cache(maxsize=4096)
def _cpu_milli(text: str) -> int:
    return ceil(parse_quantity(text) * 1000)


@lru_cache(maxsize=4096)
def _memory_bytes(text: str) -> int:
    return ceil(parse_quantity(text))


def _peak(spec: objects.PodSpec, name: str, amount: Callable[[str], int]) -> int:
    """The larger of the containers' sum and any moment of the initialisation, plus the overhead."""

    def asked(quantities: Mapping[str, str | int | float] | None) -> int | None:
        value = quantities.get(name) if quantities else None
        if value is None:
            return None
        try:
            return max(amount(str(value)), 0)
        except ValueError:
            return 0

    def of(container: objects.Container) -> int:
        resources = container.resources
        if resources is None:
            return 0
        requested = asked(resources.requests)
        return (asked(resources.limits) if requested is None else requested) or 0

    running = sum(map(of, spec.containers or ()))
    if spec.init_containers:
        sidecars = initialising = 0
        for container in spec.init_containers:
            own = of(container)
            initialising = max(initialising, sidecars + own)
            if container.restart_policy == "Always":
                sidecars += own
        running = max(running + sidecars, initialising)
    return running + (asked(spec.overhead) or 0)


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


def requested(spec: objects.PodSpec, resource: str) -> Fraction | int:
    """A pod's request of one resource of any kind, as kube-scheduler counts it. Raises RequestError."""
    overhead = spec.overhead or {}
    of_pod = (spec.resources and spec.resources.requests) or {}
    if resource in of_pod:
        return total_request(resource, [Container(of_pod)], (), overhead)
    containers, init_containers = (
        [Container(_requests(item.resources), sidecar=item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    return total_request(resource, containers, init_containers, overhead)


def _requests(resources: objects.Resources | None) -> Resources:
    return {} if resources is None else {**(resources.limits or {}), **(resources.requests or {})}


def _units(spec: objects.PodSpec) -> tuple[int, AskedUnit, tuple[tuple[str, int], ...]]:
    """GPU units of a pod's resources, their kind, and its MIG devices. Raises RequestError."""
    containers = [_container(container) for container in spec.containers or ()]
    init_containers = [_container(container) for container in spec.init_containers or ()]
    overhead = _gpus_of(spec.overhead)
    if not overhead and not any(container.requests for container in (*containers, *init_containers)):
        return 0, AskedUnit.GPU, ()  # most pods of a cluster: spared the arithmetic
    units, unit = resource_units(containers, init_containers, overhead)
    return units, unit, mig_devices(containers, init_containers, overhead)


def _container(container: objects.Container) -> Container:
    return Container(_gpu_requests(container.resources), sidecar=container.restart_policy == "Always")


def _gpu_requests(resources: objects.Resources | None) -> Resources:
    """A container's GPU requests; a limit alone counts as the request, as the API server defaults it."""
    if resources is None:
        return {}
    return {**_gpus_of(resources.limits), **_gpus_of(resources.requests)}


def _gpus_of(quantities: Mapping[str, str | int | float] | None) -> dict[str, str | int | float]:
    if not quantities:
        return {}
    return {
        name: value for name, value in quantities.items() if name in _RESOURCES or name.startswith(MIG_RESOURCE_PREFIX)
    }


_GENERATED_SUFFIX: Final = re.compile(r"-[0-9a-z]*[0-9][0-9a-z]*$")
"""What controllers append to a name: a ReplicaSet's hash, a run's number or time."""


def owner_of(metadata: objects.Metadata) -> str:
    """The controller whose pods are alike: `namespace/Kind/name`, without a generated suffix; the pod's own name where
    nobody controls it."""
    controllers = [owner for owner in metadata.owner_references or () if owner.controller]
    kind, name = (controllers[0].kind, controllers[0].name) if controllers else ("Pod", metadata.name)
    return f"{metadata.namespace}/{kind}/{_GENERATED_SUFFIX.sub('', name)}"
