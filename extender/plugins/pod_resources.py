"""Pods' resource requests as kube-scheduler counts them, and the resources managed by its first extender entry.

kube-scheduler calls that entry for pods whose containers name a managed resource, and looks at nothing else. So a pod
that requests GPUs by annotation or label only carries the marker, a resource that no node offers: the pod then waits
while Kerf is down, and Kerf binds it. Other pods go to the second entry, which kube-scheduler may skip.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil
from typing import Final

import msgspec

from extender.core.annotations import MARKER
from extender.core.resources.pod_resources import (
    NO_GPUS_REQUESTED,
    Container,
    RequestedGpus,
    requested_gpus,
    total_request,
)
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.resources.requests import RequestError
from extender.core.vendors.registry import GPU_RESOURCES, PARTITION_PREFIXES, VENDORS
from extender.kube import objects
from extender.kube.objects import requests_of
from extender.plugins.formats import asks_any
from extender.plugins.registry import plugins

_MAX_REMEMBERED_CHARS: Final = 64


def requested(spec: objects.PodSpec, resource: str) -> Fraction | int:
    """Return a pod's request of one resource. Raises RequestError.

    Pod-level resources override the sum of the containers: `PodRequests` of
    k8s.io/component-helpers/resource/helpers.go. A limit without a request counts as one, as in the API server.
    """
    overhead = spec.overhead or {}
    pod_level = spec.resources if _has_pod_level(resource) else None
    if pod_level and resource in (pod_level.requests or ()):
        return total_request(resource, [Container(pod_level.requests or {})], (), overhead)
    containers, init_containers = (
        [Container(requests_of(item.resources), sidecar=item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    in_containers = any(resource in container.requests for container in (*containers, *init_containers))
    if pod_level and not in_containers and resource in (pod_level.limits or ()):
        return total_request(resource, [Container(pod_level.limits or {})], (), overhead)
    return total_request(resource, containers, init_containers, overhead)


def while_resized(pod: objects.Pod) -> objects.PodSpec:
    """Return a running pod's spec with its requests as kube-scheduler counts them during a resize.

    That is the greatest of the requested, granted and actual resources; if the resize is infeasible, of the last two.
    `PodRequests` with `UseStatusResources`, k8s.io/component-helpers/resource/helpers.go, for each container (as up to
    Kubernetes 1.33; later versions take the greatest of the sums, which is never more).
    """
    status, spec = pod.status, pod.spec
    statuses = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    if status.allocated_resources is None and status.resources is None and _as_requested(spec, statuses):
        return spec  # fast path of nearly all pods
    known = {item.name: (item.allocated_resources, item.resources) for item in statuses}
    infeasible = any(
        item.type == "PodResizePending" and item.reason == "Infeasible" for item in status.conditions or ()
    )
    containers = [_while_resized(item, known.get(item.name), infeasible) for item in spec.containers or ()]
    init = [_while_resized(item, known.get(item.name), infeasible) for item in spec.init_containers or ()]
    pod_level = _greatest(spec.resources, status.allocated_resources, status.resources, infeasible)
    if pod_level is spec.resources and all(
        map(_same, (*containers, *init), (*(spec.containers or ()), *(spec.init_containers or ())))
    ):
        return spec
    return msgspec.structs.replace(spec, containers=containers, init_containers=init or None, resources=pod_level)


def _as_requested(spec: objects.PodSpec, statuses: Iterable[objects.ContainerStatus]) -> bool:
    """Whether no container's status differs from the requests in its spec."""
    requests: dict[str, objects.Quantities | None] = {}
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        requests[container.name] = container.resources.requests if container.resources is not None else None
    for item in statuses:
        wanted = requests.get(item.name)
        if item.allocated_resources and item.allocated_resources != wanted:
            return False
        if item.resources is not None and item.resources.requests and item.resources.requests != wanted:
            return False
    return True


def _same(one: object, other: object) -> bool:
    return one is other


def _while_resized(
    container: objects.Container,
    known: tuple[objects.Quantities | None, objects.ActualResources | None] | None,
    infeasible: bool,
) -> objects.Container:
    if known is None:
        return container
    resources = _greatest(container.resources, *known, infeasible)
    return container if resources is container.resources else msgspec.structs.replace(container, resources=resources)


def _greatest(
    resources: objects.Resources | None,
    granted: objects.Quantities | None,
    actual: objects.ActualResources | None,
    infeasible: bool,
) -> objects.Resources | None:
    """Return the resources that count; the same object if they are those requested."""
    wanted = requests_of(resources)
    in_use = actual.requests if actual is not None else None
    differs = any(quantities and not quantities.items() <= wanted.items() for quantities in (granted, in_use))
    if not differs and not (infeasible and (granted or in_use)):
        return resources
    greatest = dict(wanted)
    for name in ("cpu", "memory"):  # nothing else can be resized
        values = [one[name] for one in (granted, in_use) if one and name in one]
        if not infeasible and name in wanted:
            values.append(wanted[name])
        if values:
            greatest[name] = max(values, key=_amount)
    return objects.Resources(greatest)


def _amount(value: str | float) -> Fraction:
    """Parse a quantity, 0 if unreadable."""
    try:
        return parse_quantity(str(value))
    except ValueError:
        return Fraction(0)


def _has_pod_level(resource: str) -> bool:
    """Whether the API server accepts a resource at pod level."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def read_compute(spec: objects.PodSpec) -> tuple[int, int]:
    """Return a pod's requested CPU in milli and main memory in MiB; 0 where unreadable."""
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):  # most pods
        requests = requests_of(containers[0].resources)
        cpu, memory = str(requests.get("cpu", 0)), str(requests.get("memory", 0))
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


def gpu_units(spec: objects.PodSpec) -> RequestedGpus:
    """Return the GPUs that a pod's resources request. Raises RequestError."""
    only = spec.containers or ()
    if len(only) == 1 and not (spec.init_containers or spec.overhead):  # most pods
        gpus = [(name, str(value)) for name, value in _gpus_of(requests_of(only[0].resources)).items()]
        if sum(len(name) + len(value) for name, value in gpus) <= _MAX_REMEMBERED_CHARS:
            return _units_of_one(tuple(gpus))
    containers, init_containers = (
        [Container(_gpus_of(requests_of(item.resources)), item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    overhead = _gpus_of(spec.overhead)
    if not overhead and not any(container.requests for container in (*containers, *init_containers)):
        return NO_GPUS_REQUESTED  # fast path of most pods
    return requested_gpus(containers, init_containers, overhead)


@lru_cache(maxsize=4096)
def _units_of_one(gpus: tuple[tuple[str, str], ...]) -> RequestedGpus:
    return requested_gpus([Container(dict(gpus))], (), {})


def _gpus_of(quantities: Mapping[str, str | int | float] | None) -> Mapping[str, str | int | float]:
    return {
        name: value
        for name, value in (quantities or {}).items()
        if name in GPU_RESOURCES or name.startswith(PARTITION_PREFIXES)
    }


UNMARKED: Final = (
    f'requests GPUs by annotation or label only: add limits: {{{MARKER}: "1"}} to one of its containers, or install '
    "the policy that adds it (docs/guides/requests.md)"
)
"""Must be constant: a different text at each try would make kube-scheduler retry."""


@cache
def _managed_resources() -> tuple[str, ...]:
    """Return `managedResources` of the first entry, in order."""
    own = [resource for plugin in plugins() for resource in plugin.resources]
    partitions = [vendor.partitions for vendor in VENDORS if vendor.partitions]
    profiles = [f"{partition.resource_prefix}{profile}" for partition in partitions for profile in partition.profiles]
    return (MARKER, *GPU_RESOURCES, *own, *profiles)


def is_managed(spec: objects.PodSpec) -> bool:
    """Whether kube-scheduler calls the first entry for a pod."""
    return asks_any(spec, managed_names())


@cache
def managed_names() -> frozenset[str]:
    """Return the managed resources as a set."""
    return frozenset(_managed_resources())
