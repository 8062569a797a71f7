"""A pod's request, and what it holds once it is bound; computed once for each version of the pod."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from extender.core.annotations import POLICY, check_metadata, read_priority, read_request
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.history.records import owner_name
from extender.kube import objects
from extender.kube.objects import Pod
from extender.kube.patterns import pattern_reader
from extender.plugins.holdings import NOTHING, Holding, Part
from extender.plugins.kerf import (
    ASSIGNED_GPUS,
    ASSIGNED_NODE,
    ASSIGNED_SHARE,
    ASSIGNMENT,
    assigned_gpus,
    assigned_parts,
)
from extender.plugins.pod_resources import gpu_units, is_managed, read_compute
from extender.plugins.protocol import DevicePlugin, UnreadableError
from extender.plugins.registry import NATIVE, plugins

T = TypeVar("T")


def cached_on_pod(read: Callable[[Pod], T]) -> Callable[[Pod], T]:
    """Cache a function of a pod in the pod object, including a RequestError."""
    result_key, error_key = f"{read.__module__}.{read.__qualname__}", f"{read.__module__}.{read.__qualname__} failed"

    @wraps(read)
    def cached(pod: Pod) -> T:
        cache = pod.__dict__
        if result_key in cache:
            result: T = cache[result_key]
            return result
        if error_key in cache:
            raise RequestError(cache[error_key])  # a new one: the original's traceback keeps objects alive
        try:
            result = cache[result_key] = read(pod)
        except RequestError as error:
            cache[error_key] = str(error)
            raise
        return result

    return cached


@cached_on_pod
def read_pod_request(pod: objects.Pod) -> PodRequest:
    """Return what a pod requests. Raises RequestError with a message for its author.

    Unknown keys and wrong units are errors only while the pod has no node.
    """
    annotations = pod.metadata.annotations or {}
    for plugin in plugins():
        if (request := plugin.request(pod)) is not None:
            break
    else:
        patterns = pattern_reader(pod.spec.node_name)
        request = read_request(gpu_units(pod.spec), annotations, pod.metadata.labels or {}, patterns)
    request = completed(request, pod)
    if pod.spec.node_name:
        return request
    check_metadata(annotations, pod.metadata.labels or {}, asks=request.gpus is not None or is_managed(pod.spec))
    if request.gpus and annotations:
        stale = tuple(key for key in ASSIGNMENT if key in annotations)
        return structs.replace(request, stale=stale) if stale else request
    return request


def completed(request: PodRequest, pod: objects.Pod) -> PodRequest:
    """Add a pod's priority, CPU and main memory to a request for GPUs. Raises RequestError."""
    if request.gpus is None:
        return request
    priority = read_priority(pod.metadata.labels or {}, pod.spec.priority)
    cpu_milli, memory_mib = read_compute(pod.spec)
    return PodRequest(request.gpus, request.policy, priority, request.stale, cpu_milli, memory_mib)


def read_policy(pod: objects.Pod) -> str:
    """Return the pod's policy, "" for the deployment's."""
    return (pod.metadata.annotations or {}).get(POLICY, "").strip()


def has_soft_preferences(spec: objects.PodSpec) -> bool:
    """Whether a pod has preferences for kube-scheduler's own plugins to weigh among good nodes."""
    affinity = spec.affinity
    if affinity and any(
        term and term.preferred for term in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    ):
        return True
    return any(item.when_unsatisfiable == "ScheduleAnyway" for item in spec.topology_spread_constraints or ())


class Holdings(msgspec.Struct, frozen=True):
    """What a bound pod holds by its own annotations and resources."""

    native: Holding = NOTHING
    """On nodes of most plugins."""
    elsewhere: Mapping[str, Holding] = msgspec.field(default_factory=dict)
    """By plugin name, on nodes of plugins whose format says otherwise."""

    def on(self, plugin: DevicePlugin) -> Holding:
        """Return the holding on a node of a plugin."""
        return self.elsewhere.get(plugin.name, self.native)

    def __bool__(self) -> bool:
        return bool(self.native) or any(self.elsewhere.values())


_HOLDS_NOTHING: Final = Holdings()


def assigned_node(pod: objects.Pod) -> str:
    """Return the node for which an assignment was written before binding, "" if it is valid on any."""
    return (pod.metadata.annotations or {}).get(ASSIGNED_NODE, "")


def is_elsewhere(pod: objects.Pod) -> bool:
    """Whether a pod is on another node than its assignment is for, so that its GPUs are unknown."""
    return bool(pod.spec.node_name) and assigned_node(pod) not in ("", pod.spec.node_name)


@cached_on_pod
def read_holdings(pod: objects.Pod) -> tuple[Holdings, str]:
    """Return what a bound pod holds on a node of each plugin, and what could not be read, "" if nothing."""
    request = _requested_gpus(pod)
    native, fault = _read_holding(pod, NATIVE, request)
    shared = ASSIGNED_SHARE in (pod.metadata.annotations or ())
    elsewhere = {}
    for plugin in plugins():
        if plugin.concerns(pod) or (shared and plugin.parts):
            holding, plugin_fault = _read_holding(pod, plugin, request)
            fault = fault or plugin_fault
            if holding != native:
                elsewhere[plugin.name] = holding
    return (Holdings(native, elsewhere) if native or elsewhere else _HOLDS_NOTHING), fault


def read_holding(pod: objects.Pod, plugin: DevicePlugin = NATIVE) -> tuple[Holding, str]:
    """Return what a bound pod holds on a node of a plugin, and what could not be read, "" if nothing.

    Never fails; in doubt GPUs count as held: an unreadable share as a whole GPU, unreadable indices as unknown ones.
    The spec, which is immutable, is the lower bound. Whole GPUs of the kubelet are held whole, and a pod that requests
    none holds none, whatever its annotations say.
    """
    return _read_holding(pod, plugin, _requested_gpus(pod))


def _requested_gpus(pod: objects.Pod) -> GpuRequest | RequestError | None:
    """Return the GPUs that a pod requests, or why that can't be read."""
    try:
        return read_pod_request(pod).gpus
    except RequestError as error:
        return error


def _read_holding(
    pod: objects.Pod, plugin: DevicePlugin, request: GpuRequest | RequestError | None
) -> tuple[Holding, str]:
    annotations = pod.metadata.annotations or {}
    fault = ""
    gpus: tuple[int, ...] = ()
    elsewhere = is_elsewhere(pod)  # the indices are then unknown
    try:
        gpus = () if elsewhere else assigned_gpus(annotations)
        if not gpus and not elsewhere and (holding := plugin.holding(pod)) is not None:
            return holding, ""
    except UnreadableError as error:
        fault = str(error)
    gpu_request: GpuRequest | None = None
    mig: tuple[tuple[str, int], ...] = ()
    if isinstance(request, RequestError):
        fault = fault or str(request)
        try:
            by_resource = gpu_units(pod.spec)
            units, mig = by_resource.units, by_resource.mig
        except RequestError:
            units = 1
    elif request:
        gpu_request = request
        units, mig = request.count or len(gpus) or 1, request.mig
    else:
        return NOTHING, fault or (gpus and f"{ASSIGNED_GPUS}: the pod requests no GPUs and holds none") or ""
    if mig:
        return Holding(0, (), mig), fault
    if units and gpus and len(gpus) != units:
        # Not written by Kerf: the number is certain, the indices are not.
        gpus, fault = (), fault or f"{ASSIGNED_GPUS}: names {len(gpus)} GPUs, but the pod requests {units}"
    unserved = gpu_request is not None and gpu_request.unit is AskedUnit.WHOLE
    if gpu_request and gpu_request.unit is AskedUnit.GPU and not plugin.parts:
        gpu_request = None  # the kubelet allocates whole GPUs
    try:
        parts = assigned_parts(annotations, gpus, gpu_request)
    except UnreadableError as error:
        parts, fault = tuple(Part(gpu) for gpu in gpus), fault or str(error)
    return Holding(units or len(gpus), parts, unserved=unserved), fault


def owner_of(metadata: objects.Metadata) -> str:
    """Return the controller, else the pod itself, as `namespace/Kind/name` without a generated suffix."""
    controller = metadata.controller
    kind, name = (controller.kind, controller.name) if controller else ("Pod", metadata.name)
    return owner_name(metadata.namespace, kind, name)
