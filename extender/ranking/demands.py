"""The expected demand on a cluster in the terms of a model: classes of pods, and nodes by type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

import numpy as np

from extender.core.clusters import GIB_MIB, WHOLE_MILLI, Cluster, Floats, Longs
from extender.core.fragmentation import ANY_MODEL, Mix, Nodes, PodClasses, expected_count, typical_mix
from extender.core.policies.fgd import DEFAULT_MIX
from extender.core.policies.policy import Expected
from extender.core.resources.gpu_models import GpuModel, ModelPattern, canonical_name, models_allowed
from extender.core.resources.requests import AskedUnit, PodRequest
from extender.core.valuenet.features import Outlook, Worth, outlook_of, plain_worth
from extender.core.vendors.registry import SEVERAL

_MAX_MODELS: Final = 61
"""Most GPU models distinguished; one more bit is for later models."""
_MAX_KINDS: Final = 128
"""Number of kinds in an outlook, the most common ones."""
_CHOOSY_FRAC: Final = 0.2
"""Fraction of choosy pods in the default mix."""
_PRIOR_BY_GPU: Final = 0.03
_MIN_PRIOR: Final = 10.0
_MAX_AMOUNT: Final = 2**40
"""Upper bound of a pod's CPU and memory, which fits nowhere and keeps sums within 64 bits."""
_MAX_TYPES: Final = 48
_RESOLUTION: Final = 1000
"""Counts are integers in units of 1/1000 pod."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of pods with equal requests."""

    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_milli: int = 0
    """Per GPU; 1000 for whole GPUs, 0 without GPUs."""
    products: tuple[str, ...] = ()
    """Acceptable products; () for any."""
    include: ModelPattern | None = None
    exclude: ModelPattern | None = None
    gpu_memory_mib: int = 0
    """Required memory of each GPU."""
    choosy: bool = False
    """Whether the pods are spread evenly over the GPU models, each accepting its model and those with more memory."""
    vendor: int = 0
    """The GPUs' vendor, by number in the registry."""


_CHOOSY: Final = Kind(8000, 32768, 1, WHOLE_MILLI, choosy=True)


@dataclass(frozen=True, slots=True)
class Demand:
    """Empty nodes, and C classes of pods expected on them."""

    nodes: Nodes
    asks: PodClasses
    count: Longs
    """(C,) thousandths of pods."""
    num_models: int


def kind_of(request: PodRequest) -> Kind | None:
    """The kind of a pod; None if it requests time slices or MIG devices, which models don't cover."""
    gpus = request.gpus
    cpu_milli, memory_mib = min(request.cpu_milli, _MAX_AMOUNT), min(request.memory_mib, _MAX_AMOUNT)
    if gpus is None:
        return Kind(cpu_milli, memory_mib)
    if gpus.mig or gpus.unit is AskedUnit.SHARED:
        return None
    return Kind(
        cpu_milli,
        memory_mib,
        gpus=max(gpus.count, 1),
        gpu_milli=gpus.milli or WHOLE_MILLI,
        include=gpus.include,
        exclude=gpus.exclude,
        gpu_memory_mib=gpus.memory_each_mib,
        vendor=gpus.vendor,
    )


def _kind_expected(pod: Expected) -> Kind:
    """The kind of a configured class."""
    products = tuple(sorted(canonical_name(name) for name in pod.models))
    return Kind(pod.cpu_milli, pod.memory_mib, pod.gpus, pod.gpu_milli if pod.gpus else 0, products)


def guessed(expected: Sequence[Expected] = ()) -> dict[Kind, float]:
    """The prior mix by kind: the configured classes, or DEFAULT_MIX with choosy pods.

    DEFAULT_MIX names no GPU models, but large or rare GPUs will be requested, and pods placed on them until then stay.
    """
    counts: dict[Kind, float] = {}
    for pod in expected or DEFAULT_MIX:
        kind = _kind_expected(pod)
        counts[kind] = counts.get(kind, 0.0) + pod.count
    if not expected:
        counts[_CHOOSY] = _CHOOSY_FRAC / (1 - _CHOOSY_FRAC) * sum(counts.values())
    return counts


def prior_pods_of(num_gpus: int) -> float:
    """The weight of the prior mix in pods: 3 for 100 GPUs, at least 10.

    In a small cluster few pods fill the GPUs, so that observed ones must count sooner (docs/research/model.md).
    """
    return max(_PRIOR_BY_GPU * num_gpus, _MIN_PRIOR)


def asks_of(counts: Mapping[Kind, float], models: Sequence[GpuModel], memory_mib: Longs) -> tuple[PodClasses, Floats]:
    """C classes of pods and their (C,) numbers, for numbers by kind and M GPU models with `memory_mib` (M,).

    Memory of 0 is unknown; choosy pods then accept only their own model.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    pods: list[float] = []
    for kind, count in counts.items():
        masks = _choices(memory_mib) if kind.choosy else [_bits(kind, models, memory_mib)]
        rows += [(kind.cpu_milli, kind.memory_mib, kind.gpus, kind.gpu_milli, mask) for mask in masks]
        pods += [count / max(len(masks), 1)] * len(masks)
    return PodClasses(*np.array(rows, np.int64).reshape(-1, 5).T), np.array(pods, np.float64)


def gpu_mix(cluster: Cluster, counts: Mapping[Kind, float]) -> Mix:
    """The typical mix of GPU pods, for numbers by kind, in terms of a cluster's models."""
    common = nlargest(
        _MAX_KINDS, ((kind, count) for kind, count in counts.items() if kind.gpus), key=lambda item: item[1]
    )
    asks, pods = asks_of(dict(common), cluster.models[:_MAX_MODELS], _memory_of_models(cluster))
    return typical_mix(asks, pods)


def demand_of(cluster: Cluster, counts: Mapping[Kind, float]) -> Demand:
    """The demand on a cluster's nodes, for numbers of pods by kind; the rarest kinds are left out."""
    models, memory = cluster.models[:_MAX_MODELS], _memory_of_models(cluster)
    common = nlargest(_MAX_KINDS, counts.items(), key=lambda item: item[1])
    asks, pods = asks_of(dict(common), models, memory)
    return Demand(_nodes(cluster, len(models)), asks, np.rint(pods * _RESOLUTION).astype(np.int64), len(models))


def outlook_on(demand: Demand, worth: Worth | None, load: float) -> Outlook:
    """The outlook for a demand. `worth` is from the LP, for at most m models; None for plain worth.

    It has a row per model of the cluster, one for later models and one for nodes without GPUs; models that the LP has
    not priced have plain worth. `load` is that of `pricing.priced`.
    """
    nodes, asks = demand.nodes, demand.asks
    full = plain_worth(demand.num_models + 1)
    if worth is not None:
        priced = np.unique(nodes.model[(nodes.model >= 0) & (nodes.model < len(worth.left) - 1)])
        rows = np.append(priced, -1)
        full.left[rows], full.compute[rows] = worth.left[rows], worth.compute[rows]
    expected = expected_count(asks, demand.count, int(nodes.num_gpus.sum()), load)
    outlook = outlook_of(nodes, asks, expected, typical_mix(asks, demand.count.astype(np.float64)), full)
    # If pods' needs are unknown, assume the nodes' CPU and memory per GPU, so that neither is ever scarce.
    gpus, with_gpus = max(int(nodes.num_gpus.sum()), 1), nodes.num_gpus > 0
    cpu, memory = (max(float(column[with_gpus].sum()) / gpus, 1.0) for column in (nodes.cpu_milli, nodes.memory_mib))
    return outlook._replace(
        cpu_need_milli=outlook.cpu_need_milli if outlook.cpu_need_milli > 1 else cpu,
        memory_need_mib=outlook.memory_need_mib if outlook.memory_need_mib > 1 else memory,
    )


def _memory_of_models(cluster: Cluster) -> Longs:
    """(M,) MiB of the largest GPU of each model; 0 if unknown."""
    num_models = min(len(cluster.models), _MAX_MODELS)
    memory = np.zeros(num_models, np.int64)
    index = np.where(cluster.gpu_model < num_models, cluster.gpu_model, -1)
    np.maximum.at(memory, index[index >= 0], cluster.gpu_memory_mib[index >= 0])
    return memory


def _choices(memory_mib: Longs) -> list[int]:
    """(M,) bit masks of the models that choosy pods of each model accept: it, and those with more memory in GiB."""
    gib = (memory_mib + GIB_MIB // 2) // GIB_MIB
    larger = gib > gib[:, None]  # (M, M)
    np.fill_diagonal(larger, True)
    return [sum(1 << bit for bit in np.flatnonzero(row).tolist()) for row in larger]


def _bits(kind: Kind, models: Sequence[GpuModel], memory: Longs) -> int:
    if not (kind.products or kind.include or kind.exclude or kind.gpu_memory_mib or SEVERAL):
        return ANY_MODEL
    allowed = models_allowed(models, kind.include, kind.exclude, kind.vendor) & (memory >= kind.gpu_memory_mib)
    if kind.products:
        allowed &= np.array([model.name in kind.products for model in models], np.bool_)
    return sum(1 << bit for bit in np.flatnonzero(allowed).tolist())


def _nodes(cluster: Cluster, num_models: int) -> Nodes:
    """The cluster's nodes, empty. Similar nodes are made equal, since the LP has rows for each type of node."""
    is_node = np.array([bool(name) for name in cluster.node_names], np.bool_) & (cluster.cpu_milli > 0)
    installed = cluster.gpu_model[is_node]
    num_gpus = (installed >= 0).sum(axis=1)
    model = np.minimum(installed.max(axis=1, initial=-1), num_models).astype(np.int64)
    cpu, memory = (_two_digits(column[is_node]) for column in (cluster.cpu_milli, cluster.memory_mib))
    if len(np.unique(np.stack([model, num_gpus, cpu, memory]), axis=1).T) > _MAX_TYPES:
        _, group = np.unique(np.stack([model, num_gpus]), axis=1, return_inverse=True)
        group = group.reshape(-1)
        size = np.bincount(group)
        cpu, memory = ((np.bincount(group, column) / size)[group].astype(np.int64) for column in (cpu, memory))
    free = np.where(np.arange(installed.shape[1]) < num_gpus[:, None], WHOLE_MILLI, 0).astype(np.int32)
    return Nodes(cpu, memory, num_gpus, model, cpu, memory, free)


def _two_digits(amount: Longs) -> Longs:
    """Rounded down to two significant digits: 63920 is 63000."""
    unit = 10 ** np.maximum(np.floor(np.log10(np.maximum(amount, 1))).astype(np.int64) - 1, 0)
    rounded: Longs = amount // unit * unit
    return rounded
