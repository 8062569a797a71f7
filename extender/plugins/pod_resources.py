"""What a pod's containers request of a resource of any kind, as kube-scheduler counts it.

Which pods kube-scheduler's first extender entry is asked about: those whose containers name one of these resources.

kube-scheduler looks at nothing else of a pod. So a pod that asks for GPUs by annotation or label alone carries the
marker, a resource that no node offers and that is no amount of anything: by it the pod waits while Kerf is gone, and
is bound by Kerf. Everything that kube-scheduler is not told to wait for goes to the second entry, which it may skip.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil
from typing import Final

import msgspec

from extender.core.annotations import MARKER
from extender.core.resources.pod_resources import NO_GPUS_ASKED, AskedGpus, Container, asked_gpus, total_request
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.resources.requests import RequestError
from extender.core.vendors.registry import GPU_RESOURCES, PARTITION_PREFIXES, VENDORS
from extender.kube import objects
from extender.kube.objects import requests_of
from extender.plugins.formats import asks_any
from extender.plugins.registry import plugins

_MAX_REMEMBERED_CHARS: Final = 64


def requested(spec: objects.PodSpec, resource: str) -> Fraction | int:
    """A pod's request of one resource. Raises RequestError.

    What is said for the pod as a whole beats the sum of its containers: `PodRequests` of
    k8s.io/component-helpers/resource/helpers.go. A limit alone counts as the request, as the API server defaults it.
    """
    overhead = spec.overhead or {}
    of_pod = spec.resources if _is_for_pods(resource) else None
    if of_pod and resource in (of_pod.requests or ()):
        return total_request(resource, [Container(of_pod.requests or {})], (), overhead)
    containers, init_containers = (
        [Container(requests_of(item.resources), sidecar=item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    asked = any(resource in container.requests for container in (*containers, *init_containers))
    if of_pod and not asked and resource in (of_pod.limits or ()):
        return total_request(resource, [Container(of_pod.limits or {})], (), overhead)
    return total_request(resource, containers, init_containers, overhead)


def while_resized(pod: objects.Pod) -> objects.PodSpec:
    """The spec of a pod that runs, its requests as kube-scheduler counts them: while a resize is under way the greater
    of what is wanted, granted and in use; where it can't be had, what is granted and in use.

    `PodRequests` with `UseStatusResources`, k8s.io/component-helpers/resource/helpers.go, each container for itself
    (as up to Kubernetes 1.33; later ones take the greatest of the sums, which is never more).
    """
    status, spec = pod.status, pod.spec
    told = [*(status.container_statuses or ()), *(status.init_container_statuses or ())]
    if status.allocated_resources is None and status.resources is None and _as_asked(spec, told):
        return spec  # nearly all: spared the arithmetic
    known = {item.name: (item.allocated_resources, item.resources) for item in told}
    infeasible = any(
        item.type == "PodResizePending" and item.reason == "Infeasible" for item in status.conditions or ()
    )
    containers = [_while_resized(item, known.get(item.name), infeasible) for item in spec.containers or ()]
    init = [_while_resized(item, known.get(item.name), infeasible) for item in spec.init_containers or ()]
    of_pod = _greatest(spec.resources, status.allocated_resources, status.resources, infeasible)
    if of_pod is spec.resources and all(
        map(_same, (*containers, *init), (*(spec.containers or ()), *(spec.init_containers or ())))
    ):
        return spec
    return msgspec.structs.replace(spec, containers=containers, init_containers=init or None, resources=of_pod)


def _as_asked(spec: objects.PodSpec, told: Iterable[objects.ContainerStatus]) -> bool:
    """Whether all containers are told to have what their spec says, or nothing is told."""
    asked: dict[str, objects.Quantities | None] = {}
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        asked[container.name] = container.resources.requests if container.resources is not None else None
    for item in told:
        wanted = asked.get(item.name)
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
    asked: objects.Resources | None,
    granted: objects.Quantities | None,
    actual: objects.ActualResources | None,
    infeasible: bool,
) -> objects.Resources | None:
    """What is asked, itself where nothing else is told."""
    wanted = requests_of(asked)
    in_use = actual.requests if actual is not None else None
    told = [found for found in (granted, in_use) if found and not found.items() <= wanted.items()]
    if not told and not (infeasible and (granted or in_use)):
        return asked
    found = dict(wanted)
    for name in ("cpu", "memory"):  # nothing else can be resized
        values = [one[name] for one in (granted, in_use) if one and name in one]
        if not infeasible and name in wanted:
            values.append(wanted[name])
        if values:
            found[name] = max(values, key=_amount)
    return objects.Resources(found)


def _amount(value: str | float) -> Fraction:
    """Nothing where it can't be read."""
    try:
        return parse_quantity(str(value))
    except ValueError:
        return Fraction(0)


def _is_for_pods(resource: str) -> bool:
    """Whether the API server takes a resource for a pod as a whole."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def read_compute(spec: objects.PodSpec) -> tuple[int, int]:
    """CPU in milli and main memory in MiB that a pod requests; 0 where unreadable."""
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):  # most pods of a cluster
        asked = requests_of(containers[0].resources)
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


def gpu_units(spec: objects.PodSpec) -> AskedGpus:
    """The GPUs that a pod's resources ask for. Raises RequestError."""
    containers, init_containers = (
        [Container(_gpus_of(requests_of(item.resources)), item.restart_policy == "Always") for item in items or ()]
        for items in (spec.containers, spec.init_containers)
    )
    overhead = _gpus_of(spec.overhead)
    if not overhead and not any(container.requests for container in (*containers, *init_containers)):
        return NO_GPUS_ASKED  # most pods of a cluster: spared the arithmetic
    return asked_gpus(containers, init_containers, overhead)


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
"""Constant: another text at each try would make kube-scheduler ask again."""


@cache
def _managed_resources() -> tuple[str, ...]:
    """`managedResources` of the first entry, in its order."""
    own = [resource for plugin in plugins() for resource in plugin.resources]
    partitions = [vendor.partitions for vendor in VENDORS if vendor.partitions]
    cut = [f"{of.resource_prefix}{profile}" for of in partitions for profile in of.profiles]
    return (MARKER, *GPU_RESOURCES, *own, *cut)


def is_managed(spec: objects.PodSpec) -> bool:
    """Whether the first entry is asked about a pod."""
    return asks_any(spec, managed_names())


@cache
def managed_names() -> frozenset[str]:
    """The same, to look names up in."""
    return frozenset(_managed_resources())
