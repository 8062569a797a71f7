"""What a pod object means to Kerf: its request, what it holds, and how its assignment is written."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple

from extender.cluster import objects
from extender.cluster.contracts import HOLDING_READERS, REQUEST_READERS, hami
from extender.cluster.contracts.readers import Plugin, asks_gpushare
from extender.cluster.contracts.readings import UnreadableError
from extender.cluster.holdings import NOTHING, Holding, Part
from extender.cluster.patterns import pattern_reader
from extender.core.clusters import WHOLE_MILLI
from extender.core.nodes import GPU_RESOURCE, MAX_MEMORY_MIB, MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from extender.core.quantities import MIB
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
_MAX_REMEMBERED_CHARS: Final = 64
_VARYING: Final = frozenset((ASSIGNED_SHARE, hami.ALLOCATED, hami.TO_ALLOCATE))
"""What says something else on a node of another plugin."""


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


class Reading(NamedTuple):
    """What a bound pod says that it holds, by whose keys count on its node."""

    native: Holding
    hami: Holding
    gpushare: Holding

    def on(self, plugin: Plugin) -> Holding:
        """What that comes to on a node of a plugin."""
        match plugin:
            case Plugin.NATIVE:
                return self.native
            case Plugin.GPUSHARE:
                return self.gpushare
        return self.hami


_HOLDS_NOTHING: Final = Reading(NOTHING, NOTHING, NOTHING)


def read_holdings(pod: objects.Pod) -> tuple[Reading, str]:
    """What a bound pod holds on a node of each plugin, whoever placed it; and what could not be read of it."""
    native, fault = read_holding(pod)
    if _VARYING.isdisjoint(pod.metadata.annotations or ()) and not asks_gpushare(pod.spec):
        return (Reading(native, native, native) if native else _HOLDS_NOTHING), fault  # nearly all pods
    (hami, hami_fault), (gpushare, gpushare_fault) = (
        read_holding(pod, plugin) for plugin in (Plugin.HAMI, Plugin.GPUSHARE)
    )
    return Reading(native, hami, gpushare), fault or hami_fault or gpushare_fault


def read_holding(pod: objects.Pod, plugin: Plugin = Plugin.NATIVE) -> tuple[Holding, str]:
    """What a bound pod holds on a node of a plugin, whoever placed it, and what could not be read of it, "" when all
    could.

    Never fails, and in doubt something is held rather than free: a share that can't be read is a whole GPU, indices
    that can't be are unknown ones. What its spec asks, which nobody can change, is held at least; where it asks for
    whole GPUs of a kubelet they are held whole, and a pod that asks for none has none, whatever its annotations say.
    """
    annotations = pod.metadata.annotations or {}
    fault = ""
    gpus: tuple[int, ...] = ()
    try:
        gpus = _assigned_gpus(annotations)
        if not gpus and (read := HOLDING_READERS.get(plugin)) and (holding := read(pod)) is not None:
            return holding, ""
    except UnreadableError as error:
        fault = str(error)
    gpu_request: GpuRequest | None = None
    mig: tuple[tuple[str, int], ...] = ()
    try:
        gpu_request = read_pod_request(pod).gpus
        units = (gpu_request.count or len(gpus) or 1) if gpu_request else 0
        mig = gpu_request.mig if gpu_request else ()
        if not units:
            return NOTHING, fault or (gpus and f"{ASSIGNED_GPUS}: the pod asks for no GPU, and holds none") or ""
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
    if gpu_request and gpu_request.unit is AskedUnit.GPU and plugin is Plugin.NATIVE:
        gpu_request = None  # the kubelet gives whole GPUs
    try:
        return Holding(units or len(gpus), _parts(annotations, gpus, gpu_request)), fault
    except UnreadableError as error:
        return Holding(units or len(gpus), tuple(Part(gpu) for gpu in gpus)), fault or str(error)


def read_compute(spec: objects.PodSpec) -> tuple[int, int]:
    """CPU in milli and main memory in MiB that a pod requests, as kube-scheduler counts them; 0 where unreadable."""
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):  # most pods of a cluster
        asked = _requests(containers[0].resources)
        cpu, memory = str(asked.get("cpu", 0)), str(asked.get("memory", 0))
        if len(cpu) + len(memory) <= _MAX_REMEMBERED_CHARS:
            return _compute_of_one(cpu, memory)
    return _compute_of(spec)


@lru_cache(maxsize=4096)
def _compute_of_one(cpu: str, memory: str) -> tuple[int, int]:
    resources = objects.Resources(requests={"cpu": cpu, "memory": memory})
    return _compute_of(objects.PodSpec(containers=[objects.Container(resources=resources)]))


def _compute_of(spec: objects.PodSpec) -> tuple[int, int]:
    return ceil(_readable(spec, "cpu") * 1000), ceil(_readable(spec, "memory") / MIB)


def _readable(spec: objects.PodSpec, resource: str) -> Fraction | int:
    try:
        return requested(spec, resource)
    except RequestError:
        return 0


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
    """A pod's request of one resource of any kind, as kube-scheduler counts it. Raises RequestError.

    What is said for the pod as a whole beats the sum of its containers: `PodRequests` of
    k8s.io/component-helpers/resource/helpers.go. A limit alone counts as the request, as the API server defaults it.
    """
    overhead = spec.overhead or {}
    of_pod = spec.resources if _is_for_pods(resource) else None
    if of_pod and resource in (of_pod.requests or ()):
        return total_request(resource, [Container(of_pod.requests or {})], (), overhead)
    containers, init_containers = (
        [Container(_requests(item.resources), sidecar=item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    asked = any(resource in container.requests for container in (*containers, *init_containers))
    if of_pod and not asked and resource in (of_pod.limits or ()):
        return total_request(resource, [Container(of_pod.limits or {})], (), overhead)
    return total_request(resource, containers, init_containers, overhead)


def _is_for_pods(resource: str) -> bool:
    """Whether the API server takes a resource for a pod as a whole."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


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
