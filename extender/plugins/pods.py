"""What a pod object means to Kerf: its request, and what it holds once it is bound.

What follows from a pod alone: worked out once for each version of it, whoever asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Final, TypeVar

from extender.core.annotations import POLICY, check_words, read_priority, read_request
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


def once(read: Callable[[Pod], T]) -> Callable[[Pod], T]:
    """A reader of pods that reads each of them once; a RequestError that it raises it raises again."""
    answer, fault = f"{read.__module__}.{read.__qualname__}", f"{read.__module__}.{read.__qualname__} failed"

    @wraps(read)
    def known(pod: Pod) -> T:
        kept = pod.__dict__
        if answer in kept:
            found: T = kept[answer]
            return found
        if fault in kept:
            raise RequestError(kept[fault])  # another one: what was raised knows all that led to it
        try:
            found = kept[answer] = read(pod)
        except RequestError as error:
            kept[fault] = str(error)
            raise
        return found

    return known


@once
def read_pod_request(pod: objects.Pod) -> PodRequest:
    """What a pod asks for. Raises RequestError with a sentence for its author.

    Keys that nobody reads and slips of units count against it as long as it has no node: what it has is no different.
    """
    request = next((asked for plugin in plugins() if (asked := plugin.request(pod)) is not None), None)
    annotations = pod.metadata.annotations or {}
    if request is None:
        patterns = pattern_reader(pod.spec.node_name)
        request = read_request(gpu_units(pod.spec), annotations, pod.metadata.labels or {}, patterns)
    request = completed(request, pod)
    if pod.spec.node_name:
        return request
    check_words(annotations, pod.metadata.labels or {}, asks=request.gpus is not None or is_managed(pod.spec))
    if request.gpus and annotations:
        stale = tuple(key for key in ASSIGNMENT if key in annotations)
        return replace(request, stale=stale) if stale else request
    return request


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


@dataclass(frozen=True, slots=True)
class Reading:
    """What a bound pod says that it holds."""

    native: Holding = NOTHING
    """On the nodes of most plugins."""
    elsewhere: Mapping[str, Holding] = field(default_factory=dict)
    """On those of plugins by whose words it is something else, by the plugin's name."""

    def on(self, plugin: DevicePlugin) -> Holding:
        """What that comes to on a node of a plugin."""
        return self.elsewhere.get(plugin.name, self.native)

    def __bool__(self) -> bool:
        return bool(self.native) or any(self.elsewhere.values())


_HOLDS_NOTHING: Final = Reading()


def assigned_node(pod: objects.Pod) -> str:
    """The node that a pod's assignment was written for before it had one, "" where it counts wherever the pod is."""
    return (pod.metadata.annotations or {}).get(ASSIGNED_NODE, "")


def is_elsewhere(pod: objects.Pod) -> bool:
    """Whether a pod has another node than its assignment is for, so that nobody has said which GPUs it has there."""
    return bool(pod.spec.node_name) and assigned_node(pod) not in ("", pod.spec.node_name)


@once
def read_holdings(pod: objects.Pod) -> tuple[Reading, str]:
    """What a bound pod holds on a node of each plugin, whoever placed it; and what could not be read of it."""
    asked = _asked(pod)
    native, fault = _read_holding(pod, NATIVE, asked)
    shared = ASSIGNED_SHARE in (pod.metadata.annotations or ())
    elsewhere = {}
    for plugin in plugins():
        if plugin.concerns(pod) or (shared and plugin.parts):
            holding, its_fault = _read_holding(pod, plugin, asked)
            fault = fault or its_fault
            if holding != native:
                elsewhere[plugin.name] = holding
    return (Reading(native, elsewhere) if native or elsewhere else _HOLDS_NOTHING), fault


def read_holding(pod: objects.Pod, plugin: DevicePlugin = NATIVE) -> tuple[Holding, str]:
    """What a bound pod holds on a node of a plugin, whoever placed it, and what could not be read of it, "" when all
    could.

    Never fails, and in doubt something is held rather than free: a share that can't be read is a whole GPU, indices
    that can't be are unknown ones. What its spec asks, which nobody can change, is held at least; where it asks for
    whole GPUs of a kubelet they are held whole, and a pod that asks for none has none, whatever its annotations say.
    """
    return _read_holding(pod, plugin, _asked(pod))


def _asked(pod: objects.Pod) -> GpuRequest | RequestError | None:
    """What GPUs a pod asks for, or why that can't be read."""
    try:
        return read_pod_request(pod).gpus
    except RequestError as error:
        return error


def _read_holding(
    pod: objects.Pod, plugin: DevicePlugin, asked: GpuRequest | RequestError | None
) -> tuple[Holding, str]:
    annotations = pod.metadata.annotations or {}
    fault = ""
    gpus: tuple[int, ...] = ()
    elsewhere = is_elsewhere(pod)  # then as many are held, of unknown indices
    try:
        gpus = () if elsewhere else assigned_gpus(annotations)
        if not gpus and not elsewhere and (holding := plugin.holding(pod)) is not None:
            return holding, ""
    except UnreadableError as error:
        fault = str(error)
    gpu_request: GpuRequest | None = None
    mig: tuple[tuple[str, int], ...] = ()
    if isinstance(asked, RequestError):
        fault = fault or str(asked)
        try:
            by_resource = gpu_units(pod.spec)
            units, mig = by_resource.units, by_resource.mig
        except RequestError:
            units = 1
    elif asked:
        gpu_request = asked
        units, mig = asked.count or len(gpus) or 1, asked.mig
    else:
        return NOTHING, fault or (gpus and f"{ASSIGNED_GPUS}: the pod asks for no GPU, and holds none") or ""
    if mig:
        return Holding(0, (), mig), fault
    if units and gpus and len(gpus) != units:
        # Written by somebody else: the number is certain, the indices are not.
        gpus, fault = (), fault or f"{ASSIGNED_GPUS}: names {len(gpus)} GPUs, while the pod asks for {units}"
    unserved = gpu_request is not None and gpu_request.unit is AskedUnit.WHOLE
    if gpu_request and gpu_request.unit is AskedUnit.GPU and not plugin.parts:
        gpu_request = None  # the kubelet gives whole GPUs
    try:
        parts = assigned_parts(annotations, gpus, gpu_request)
    except UnreadableError as error:
        parts, fault = tuple(Part(gpu) for gpu in gpus), fault or str(error)
    return Holding(units or len(gpus), parts, unserved=unserved), fault


def owner_of(metadata: objects.Metadata) -> str:
    """The controller whose pods are alike: `namespace/Kind/name`, without a generated suffix; the pod's own name where
    nobody controls it."""
    controller = metadata.controller
    kind, name = (controller.kind, controller.name) if controller else ("Pod", metadata.name)
    return owner_name(metadata.namespace, kind, name)
