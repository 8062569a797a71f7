"""Shapes of nodes: what new nodes may be like, found among those of the cluster.

What tells nodes of one pool apart, such as a hostname, is left out of a shape, and what has befallen a single node:
cordons, conditions, broken GPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from extender.core.clusters import Cluster
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.vendors.registry import DOMAINS
from extender.explain.what_if.questions import HOSTNAME
from extender.kube.objects import Node, PodSpec, Taint
from extender.planning.plans import PlanPod

_MOST: Final = 64
_GIB_MIB: Final = 1024
_VARYING: Final = ("ephemeral-storage", "hugepages-", "attachable-volumes-")
_OF_POOLS: Final = (
    *("topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/", "node.kubernetes.io/", "beta.kubernetes.io/"),
    *("kubernetes.io/os", "kubernetes.io/arch", *DOMAINS),
)
"""Beginnings of labels that say what a node is, however few share a value."""
_PASSING: Final = (
    *("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler"),
    *("DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupt", "karpenter.sh/unregistered"),
)
"""Beginnings of taints that go again."""

_Key = tuple[Any, ...]


class Shape(NamedTuple):
    """What new nodes may be like."""

    like: str
    """The node of the cluster, or of the question, that they are made from."""
    node: Node
    """That node without what is its own."""
    of_cluster: bool


def shapes_of(
    nodes: Sequence[Node],
    given: Iterable[Node],
    cluster: Cluster,
    keys: Collection[str],
    resources: Collection[str] = (),
) -> list[Shape]:
    """The distinct shapes of a cluster's nodes, the most common 64, and those given; `keys` are the labels that matter,
    `resources` those that pods ask for.

    Nodes with broken GPUs stand for no shape that a sound node has too.
    """
    known = [node for node in nodes if node.metadata.name in cluster.row_of]
    own = _own_labels(known, cluster)
    alike: dict[_Key, list[Node]] = defaultdict(list)
    for node in known:
        stripped = _stripped(node, own)
        labels = stripped.metadata.labels or {}
        key = (
            *(_gpus(cluster, node), _is_sound(cluster, node), _allocatable(node, resources)),
            tuple(labels.get(name) for name in sorted(keys)),
            tuple((taint.key, taint.value, taint.effect) for taint in stripped.spec.taints or ()),
        )
        alike[key].append(stripped)
    sound = {gpus for gpus, is_sound, *_ in alike if is_sound}
    usable = [found for (gpus, is_sound, *_), found in alike.items() if is_sound or gpus not in sound]
    common = sorted(usable, key=lambda found: (-len(found), found[0].metadata.name))[:_MOST]
    first = [min(found, key=lambda node: (_memory_mib(node), node.metadata.name)) for found in common]
    return [
        *(Shape(node.metadata.name, node, True) for node in first),
        *(Shape(node.metadata.name, _stripped(node, frozenset()), False) for node in given),
    ]


def keys_of(specs: Iterable[PodSpec], batch: Iterable[PlanPod]) -> set[str]:
    """Labels of nodes that pods name."""
    found = {key for spec in specs for key in _named(spec)}
    for pod in batch:
        found |= {pod.topology} if pod.topology else set()
        found |= pod.demands.topologies if pod.demands is not None else set()
    return found


def resources_of(batch: Iterable[PlanPod]) -> set[str]:
    """Resources beside CPU, memory and GPUs that pods ask for."""
    return {name for pod in batch if pod.demands is not None for name, _ in pod.demands.resources}


def _named(spec: PodSpec) -> Iterator[str]:
    yield from spec.node_selector or ()
    affinity = spec.affinity.node_affinity if spec.affinity else None
    for term in (affinity.required.node_selector_terms if affinity and affinity.required else None) or ():
        for expression in term.match_expressions or ():
            yield expression.key


def _own_labels(nodes: Sequence[Node], cluster: Cluster) -> frozenset[str]:
    """Labels that each of several nodes that are otherwise alike has another value of."""
    groups: dict[_Key, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_gpus(cluster, node), _allocatable(node)].append(node)
    own, shared = {HOSTNAME}, set[str]()
    for group in groups.values():
        if len(group) < 2:
            continue
        values = Counter(pair for node in group for pair in (node.metadata.labels or {}).items())
        for (key, _), count in values.items():
            (shared if count > 1 else own).add(key)
    return frozenset(key for key in own - shared if not key.startswith(_OF_POOLS)) | {HOSTNAME}


def _stripped(node: Node, own: Collection[str]) -> Node:
    """A node without labels of its own, and without what will pass."""
    name = node.metadata.name
    labels = {key: value for key, value in (node.metadata.labels or {}).items() if key not in own and value != name}
    taints = [taint for taint in node.spec.taints or () if not _passes(taint)]
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    spec = msgspec.structs.replace(node.spec, unschedulable=False, taints=taints or None)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec)


def _passes(taint: Taint) -> bool:
    return taint.key.startswith(_PASSING)


def _gpus(cluster: Cluster, node: Node) -> _Key:
    """What GPUs a node has, whoever told that."""
    row = cluster.row_of[node.metadata.name]
    models = [cluster.models[index].name if index >= 0 else None for index in cluster.gpu_model[row].tolist()]
    return (
        *(int(cluster.unit[row]), int(cluster.units_per_gpu[row]), tuple(models)),
        *(tuple(cluster.gpu_memory_mib[row].tolist()), tuple(cluster.mig_installed[row].tolist())),
    )


def _is_sound(cluster: Cluster, node: Node) -> bool:
    row = cluster.row_of[node.metadata.name]
    return bool((cluster.gpu_healthy[row] == (cluster.gpu_model[row] >= 0)).all())


def _allocatable(node: Node, asked: Collection[str] = ()) -> _Key:
    """What a node offers; memory in GiB, since equal machines differ by less, and what varies where it is asked for."""
    offered = (node.status.allocatable or {}).items()
    found = {key: str(text) for key, text in offered if key in asked or not key.startswith(_VARYING)}
    return tuple(sorted((found | {"memory": str(_memory_mib(node) // _GIB_MIB)}).items()))


def _memory_mib(node: Node) -> int:
    try:
        return int(parse_quantity(str((node.status.allocatable or {}).get("memory", 0))) // MIB)
    except ValueError:
        return 0
