"""The contracts' formats as Kerf's own terms: what nodes offer, what pods ask, what they hold and what they are given.

A node belongs to one plugin. GPUs of a plugin that hands out parts have the memory that it registers, not a nominal
one: it is by that number that the plugin shares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from extender.cluster import objects
from extender.cluster.contracts import gpushare, hami, hami_nodes
from extender.cluster.contracts.formats import (
    Ask,
    AssignedGpu,
    ContainerResources,
    PodShares,
    Register,
)
from extender.cluster.contracts.readings import NodeReading, UnreadableError
from extender.cluster.holdings import UNKNOWN_GPU, Holding, Part
from extender.cluster.patterns import pattern_reader
from extender.core.clusters import WHOLE_MILLI
from extender.core.models import UNKNOWN_MODEL, describe_model
from extender.core.nodes import MAX_GPUS_PER_NODE, Gpu, GpuUnit, NodeOffer
from extender.core.requests import (
    GENIUS_MEMORY_EACH,
    GENIUS_MEMORY_TOTAL,
    MEMORY_EACH,
    MEMORY_TOTAL,
    MODEL,
    MODEL_EXCLUDE,
    SHARE,
    UUID,
    UUID_EXCLUDE,
    AskedUnit,
    PodRequest,
    RequestError,
    read_request,
)

_SIZES = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""What a plugin's own resources say, and its plugin enforces: a pod that asks by those is not asked twice."""
_HAMI_CHOICES = {
    MODEL: (hami.USE_TYPE, hami.type_pattern),
    MODEL_EXCLUDE: (hami.NO_USE_TYPE, hami.type_pattern),
    UUID: (hami.USE_UUID, lambda text: ",".join(hami.uuids(text))),
    UUID_EXCLUDE: (hami.NO_USE_UUID, lambda text: ",".join(hami.uuids(text))),
}


class Plugin(Enum):
    """Whose contract a node's device plugin follows."""

    NATIVE = auto()
    """None that has to be told which GPUs a pod gets."""
    HAMI = auto()
    HAMI_WITHOUT_INIT = auto()
    """Up to v2.7, where init containers have no place among a pod's devices."""
    GPUSHARE = auto()


@dataclass(frozen=True, slots=True)
class Handover:
    """What has to be done with a Binding so that the plugin hands out what was decided."""

    annotations: Mapping[str, str]
    locks_node: bool = False
    """Whether the plugin must be led to the pod by its node's lock."""


# Nodes


def read_plugin(node: objects.Node) -> Plugin:
    """Whose contract a node follows."""
    register = (node.metadata.annotations or {}).get(hami_nodes.REGISTER)
    if register is not None:
        return Plugin.HAMI if register.lstrip().startswith("[") else Plugin.HAMI_WITHOUT_INIT
    if gpushare.MEMORY_RESOURCE in (node.status.allocatable or {}):
        return Plugin.GPUSHARE
    return Plugin.NATIVE


def hami_offer(node: objects.Node, reading: NodeReading) -> NodeOffer | None:
    """What HAMi's plugin registers on a node."""
    register = hami_nodes.read_register(node.metadata.annotations or {}, node.status.allocatable or {})
    return None if register is None else _offer(register, reading)


def gpushare_offer(node: objects.Node, reading: NodeReading) -> NodeOffer | None:
    """What gpushare's plugin offers on a node."""
    allocatable = node.status.allocatable or {}
    register = gpushare.read_register(node.status.capacity or {}, allocatable)
    return None if register is None else _offer(register, reading)


def _offer(register: Register, reading: NodeReading) -> NodeOffer:
    """A register in Kerf's terms; an index that it leaves out is a GPU that nobody may have."""
    if register.warnings and not register.gpus:
        raise UnreadableError("; ".join(register.warnings))
    by_index = {gpu.index: gpu for gpu in register.gpus if gpu.index < MAX_GPUS_PER_NODE}
    gpus = []
    for index in range(max(by_index, default=-1) + 1):
        gpu = by_index.get(index)
        if gpu is None:
            gpus.append(Gpu(UNKNOWN_MODEL, 0, healthy=False))
            continue
        model = describe_model(gpu.product, reading.aliases) if gpu.product else UNKNOWN_MODEL
        gpus.append(Gpu(model, gpu.memory_mib, gpu.uuid, gpu.healthy, numa=gpu.numa, max_holders=gpu.max_holders))
    healthy = sum(gpu.healthy for gpu in gpus)
    units = max(healthy - register.withheld, 0)
    return NodeOffer(tuple(gpus), GpuUnit.PART, 1, units, warnings=register.warnings)


# Pods


def hami_request(pod: objects.Pod) -> PodRequest | None:
    """What a pod asks by HAMi's resources and annotations, None when by neither."""
    annotations = pod.metadata.annotations or {}
    own = _asks_any(pod.spec, hami.OWN_RESOURCES)
    chosen = {
        key: written
        for key, (theirs, translate) in _HAMI_CHOICES.items()
        if theirs in annotations and (written := translate(annotations[theirs]))
    }
    if not own and not chosen:
        return None
    ask = hami.read_ask(containers_of(pod.spec))
    if ask is None:
        return None
    mode = annotations.get(hami.MODE, "")
    if mode and hami.MODE_SHARED not in mode:
        raise RequestError(f'{hami.MODE}: "{mode[:80]}" is not handed out by Kerf; write {hami.MODE_SHARED}')
    return _request(pod, ask if own else None, ask.count, chosen)


def gpushare_request(pod: objects.Pod) -> PodRequest | None:
    """What a pod asks by gpushare's resource, None when nothing."""
    if not asks_gpushare(pod.spec):
        return None
    ask = gpushare.read_ask(containers_of(pod.spec))
    return None if ask is None else _request(pod, ask, ask.count, {})


def _request(pod: objects.Pod, ask: Ask | None, count: int, chosen: Mapping[str, str]) -> PodRequest:
    """A pod's request: the plugin's resources say how much, where it asks by them, annotations which GPUs will do."""
    annotations = {**chosen, **(pod.metadata.annotations or {})}
    labels, patterns = pod.metadata.labels or {}, pattern_reader(pod.spec.node_name)
    if ask is None:
        return read_request(count, AskedUnit.GPU, annotations, labels, patterns)
    annotations = {key: value for key, value in annotations.items() if key not in _SIZES}
    labels = {key: value for key, value in labels.items() if key not in _SIZES}
    request = read_request(count, AskedUnit.PART, annotations, labels, patterns)
    if request.gpus is None:
        return request
    gpus = replace(
        request.gpus,
        milli=ask.milli,
        memory_each_mib=ask.memory_each_mib,
        memory_each_percent=ask.memory_each_percent,
        # Memory in total is asked of whole GPUs only.
        memory_total_mib=ask.count * ask.memory_each_mib if ask.whole else 0,
    )
    return replace(request, gpus=gpus)


def hami_holding(pod: objects.Pod) -> Holding | None:
    """What a pod holds by HAMi's annotations, None when it has none."""
    annotations = pod.metadata.annotations or {}
    if hami.ALLOCATED not in annotations and hami.TO_ALLOCATE not in annotations:
        return None
    return _holding(hami.read_shares(annotations, pod.spec.node_name or "", containers_of(pod.spec)))


def gpushare_holding(pod: objects.Pod) -> Holding | None:
    """What a pod holds by gpushare's annotations, None when it asks for nothing that its plugin would hand out."""
    if not asks_gpushare(pod.spec):
        return None
    annotations = pod.metadata.annotations or {}
    try:
        asked = gpushare.asked_units(containers_of(pod.spec))
    except RequestError as error:
        raise UnreadableError(str(error)) from error
    return _holding(gpushare.read_shares(annotations, asked))


def _holding(shares: PodShares | None) -> Holding | None:
    if shares is None or not (shares.shares or shares.unknown):
        return None
    if shares.unknown:
        raise UnreadableError("; ".join(shares.warnings))
    parts = tuple(
        Part(share.index if share.index >= 0 else UNKNOWN_GPU, share.milli, share.memory_mib, share.uuid)
        for share in shares.shares
    )
    return Holding(len(parts), parts)


# Bindings


def handover(plugin: Plugin, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: str, decided_at: float) -> Handover:
    """What has to be written with a pod's Binding to a node, and whether the node is locked for it before.

    `decided_at` is Unix time. Raises RequestError when the pod's containers can't be read.
    """
    containers = containers_of(pod.spec)
    if plugin is Plugin.NATIVE or not gpus:
        return Handover({})
    if plugin is Plugin.GPUSHARE:
        first = gpus[0]
        return Handover(
            gpushare.binding_annotations(containers, first.index, first.memory_mib, int(decided_at * 1_000_000_000))
        )
    init_slots = plugin is Plugin.HAMI
    annotations = hami.binding_annotations(containers, gpus, node, decided_at, init_slots=init_slots)
    return Handover(annotations, locks_node=hami.TO_ALLOCATE in annotations)


def assigned_gpus(offer: NodeOffer, holding: Holding) -> tuple[AssignedGpu, ...]:
    """The GPUs of a decision as a plugin has to be told them."""
    return tuple(
        AssignedGpu(
            part.gpu,
            offer.gpus[part.gpu].uuid,
            offer.gpus[part.gpu].memory_mib,
            WHOLE_MILLI if part.whole else part.milli,
            part.mib,
        )
        for part in holding.parts
        if 0 <= part.gpu < len(offer.gpus)
    )


def asks_gpushare(spec: objects.PodSpec) -> bool:
    """Whether a pod asks for gpushare's resource."""
    return _asks_any(spec, (gpushare.MEMORY_RESOURCE,))


def containers_of(spec: objects.PodSpec) -> list[ContainerResources]:
    """A pod's containers in HAMi's order, init containers first; a limit alone counts as the request."""
    return [
        ContainerResources(_requests(container), init)
        for init, containers in ((True, spec.init_containers), (False, spec.containers))
        for container in containers or ()
    ]


def _asks_any(spec: objects.PodSpec, names: Sequence[str]) -> bool:
    """Whether any container names one of the resources; asked of every pod of the cluster, so it makes nothing."""
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources
            for quantities in (resources.limits, resources.requests) if resources else ():
                if quantities and any(name in quantities for name in names):
                    return True
    return False


def _requests(container: objects.Container) -> Mapping[str, str | int | float]:
    resources = container.resources
    if resources is None:
        return {}
    return {**(resources.limits or {}), **(resources.requests or {})}
