"""Finds the fewest new nodes, copies of the cluster's, with which all pods are placed.

New nodes have the shapes of existing ones. A shape leaves out what differs within a node pool, such as the hostname,
and what affects a single node: cordons, conditions, broken GPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from extender.core.clusters import Cluster, Mask
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.vendors.registry import DOMAINS
from extender.kube.objects import Node, PodSpec, Taint
from extender.parts.what_if.inputs import Added, QuestionCluster
from extender.parts.what_if.questions import HOSTNAME, copied
from extender.planning.missing_nodes import Cost, Group, Missing, Unit, max_copies, missing_nodes
from extender.planning.plan_state import PlanState
from extender.planning.plans import GREEDY, Plan, PlanPod, View, units_of
from extender.planning.retries import waits_for_others
from extender.planning.rounds import place_unit

_MAX_SHAPES: Final = 64
"""Shapes taken from the cluster."""
_GIB_MIB: Final = 1024
_VARYING: Final = ("ephemeral-storage", "hugepages-", "attachable-volumes-")
_SHAPE_LABELS: Final = (
    *("topology.kubernetes.io/", "failure-domain.beta.kubernetes.io/", "node.kubernetes.io/", "beta.kubernetes.io/"),
    *("kubernetes.io/os", "kubernetes.io/arch", *DOMAINS),
)
"""Prefixes of labels that belong to a shape even if no two nodes share a value."""
_TEMPORARY_TAINTS: Final = (
    *("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler"),
    *("DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupt", "karpenter.sh/unregistered"),
)
"""Prefixes of temporary taints."""

_Key = tuple[Any, ...]


class _Shape(NamedTuple):
    """A template for new nodes."""

    like: str
    """Name of the node, of the cluster or the question, that it was made from."""
    node: Node
    """That node without its individual labels and taints."""
    of_cluster: bool


def _shapes_of(
    nodes: Sequence[Node],
    given: Iterable[Node],
    cluster: Cluster,
    keys: Collection[str],
    resources: Collection[str] = (),
) -> list[_Shape]:
    """The 64 most common shapes of the cluster's nodes, and those of `given`.

    `keys` are the labels that tell shapes apart, `resources` those that pods request. A node with broken GPUs is left
    out if a node with the same GPUs has none broken.
    """
    known = [node for node in nodes if node.metadata.name in cluster.row_of]
    own = _own_labels(known, cluster)
    alike: dict[_Key, list[Node]] = defaultdict(list)
    for node in known:
        stripped = _stripped(node, own)
        labels = stripped.metadata.labels or {}
        key = (
            *(_gpu_key(cluster, node), _is_sound(cluster, node), _allocatable(node, resources)),
            tuple(labels.get(name) for name in sorted(keys)),
            tuple((taint.key, taint.value, taint.effect) for taint in stripped.spec.taints or ()),
        )
        alike[key].append(stripped)
    sound = {gpus for gpus, is_sound, *_ in alike if is_sound}
    usable = [found for (gpus, is_sound, *_), found in alike.items() if is_sound or gpus not in sound]
    common = sorted(usable, key=lambda found: (-len(found), found[0].metadata.name))[:_MAX_SHAPES]
    first = [min(found, key=lambda node: (_memory_mib(node), node.metadata.name)) for found in common]
    return [
        *(_Shape(node.metadata.name, node, True) for node in first),
        *(_Shape(node.metadata.name, _stripped(node, frozenset()), False) for node in given),
    ]


def _keys_of(specs: Iterable[PodSpec], batch: Iterable[PlanPod]) -> set[str]:
    """Node labels that pods name."""
    found = {key for spec in specs for key in _named(spec)}
    for pod in batch:
        found |= {pod.topology} if pod.topology else set()
        found |= pod.demands.topologies if pod.demands is not None else set()
    return found


def _resources_of(batch: Iterable[PlanPod]) -> set[str]:
    """Resources that pods request besides CPU, memory and GPUs."""
    return {name for pod in batch if pod.demands is not None for name, _ in pod.demands.resources}


def _named(spec: PodSpec) -> Iterator[str]:
    yield from spec.node_selector or ()
    affinity = spec.affinity.node_affinity if spec.affinity else None
    for term in (affinity.required.node_selector_terms if affinity and affinity.required else None) or ():
        for expression in term.match_expressions or ():
            yield expression.key


def _own_labels(nodes: Sequence[Node], cluster: Cluster) -> frozenset[str]:
    """Labels of which otherwise equal nodes never share a value, such as the hostname."""
    groups: dict[_Key, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_gpu_key(cluster, node), _allocatable(node)].append(node)
    own, shared = {HOSTNAME}, set[str]()
    for group in groups.values():
        if len(group) < 2:
            continue
        values = Counter(pair for node in group for pair in (node.metadata.labels or {}).items())
        for (key, _), count in values.items():
            (shared if count > 1 else own).add(key)
    return frozenset(key for key in own - shared if not key.startswith(_SHAPE_LABELS)) | {HOSTNAME}


def _stripped(node: Node, own: Collection[str]) -> Node:
    """A node without individual labels, cordon and temporary taints."""
    name = node.metadata.name
    labels = {key: value for key, value in (node.metadata.labels or {}).items() if key not in own and value != name}
    taints = [taint for taint in node.spec.taints or () if not _is_temporary(taint)]
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    spec = msgspec.structs.replace(node.spec, unschedulable=False, taints=taints or None)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec)


def _is_temporary(taint: Taint) -> bool:
    return taint.key.startswith(_TEMPORARY_TAINTS)


def _gpu_key(cluster: Cluster, node: Node) -> _Key:
    """The GPUs of a node: unit, models, memory and MIG devices."""
    row = cluster.row_of[node.metadata.name]
    models = [cluster.models[index].name if index >= 0 else None for index in cluster.gpu_model[row].tolist()]
    return (
        *(int(cluster.unit[row]), int(cluster.units_per_gpu[row]), tuple(models)),
        *(tuple(cluster.gpu_memory_mib[row].tolist()), tuple(cluster.mig_installed[row].tolist())),
    )


def _is_sound(cluster: Cluster, node: Node) -> bool:
    row = cluster.row_of[node.metadata.name]
    return bool((cluster.gpu_healthy[row] == (cluster.gpu_model[row] >= 0)).all())


def _allocatable(node: Node, requested: Collection[str] = ()) -> _Key:
    """A node's allocatable; memory in GiB, as equal machines differ slightly; varying resources only if `requested`."""
    offered = (node.status.allocatable or {}).items()
    found = {key: str(text) for key, text in offered if key in requested or not key.startswith(_VARYING)}
    return tuple(sorted((found | {"memory": str(_memory_mib(node) // _GIB_MIB)}).items()))


def _memory_mib(node: Node) -> int:
    try:
        return int(parse_quantity(str((node.status.allocatable or {}).get("memory", 0))) // MIB)
    except ValueError:
        return 0


_MAX_ROWS: Final = 2_000
_MAX_OFFERS: Final = 12
_TOO_MANY: Final = "more new nodes would be needed than are tried"


class _Offer(NamedTuple):
    """As many new nodes of one shape as could be needed."""

    number: int
    """Index of the shape."""
    shape: _Shape
    cost: Cost
    gpus: int
    model: str
    most: int
    """Most nodes that could be needed."""
    copies: Sequence[Node] = ()

    def copied(self, stem: str, after: int) -> "_Offer":
        """The offer with its nodes, numbered from `after` + 1."""
        names = (f"{stem}+{after + number}" for number in range(1, self.most + 1))
        return self._replace(copies=[copied(self.shape.node, name) for name in names])


def found_nodes(
    ground: QuestionCluster, specs: Sequence[PodSpec], candidates: Sequence[Node], enough: Callable[[], bool]
) -> tuple[View, Plan, dict[str, Any]]:
    """The view and plan with the nodes that were found, and the missing nodes as JSON data.

    Pods that fit now are placed first. `specs` are those of the pods, `candidates` further nodes to copy; `enough`
    returns whether time is up.
    """
    keys, resources = _keys_of(specs, ground.batch), _resources_of(ground.batch)
    shapes = _shapes_of(ground.nodes, candidates, ground.facts.cluster, keys, resources)
    stems = _stems(shapes)
    trial = [copied(shape.node, f"{stem}+0") for shape, stem in zip(shapes, stems, strict=True)]
    state = _state(ground, _added(shapes, trial))
    units = _place_now(state, [node.metadata.name for node in trial])
    begun = _nodes_of(state)
    offers = [offer.copied(stems[offer.number], len(ground.added)) for offer in _offers(state, units, shapes, trial)]
    state = _state(ground, [pair for offer in offers for pair in _added([offer.shape], offer.copies)])
    _restore(state, begun)
    row_of = state.view.cluster.row_of
    groups = [Group(tuple(row_of[node.metadata.name] for node in offer.copies), offer.cost) for offer in offers]
    old = np.ones(state.view.num_nodes, np.bool_)
    for group in groups:
        old[list(group.rows)] = False
    found = missing_nodes(state, units, old, groups, enough)
    placed = _nodes_of(state)
    used = [
        pair
        for offer, count in zip(offers, found.counts, strict=True)
        for pair in _added([offer.shape], offer.copies[:count])
    ]
    final = _state(ground, used)
    _restore(final, placed)
    plan = final.plan(GREEDY)
    return final.view, plan, _report(offers, found, plan)


def _state(ground: QuestionCluster, more: Added) -> PlanState:
    return PlanState(ground.view(more), ground.batch)


def _added(shapes: Sequence[_Shape], copies: Sequence[Node]) -> list[tuple[Node, str]]:
    """Copies with the names of the nodes that they copy; `shapes` has one for all, or one for each."""
    repeated = [*shapes] * len(copies) if len(shapes) == 1 else shapes
    return [(node, shape.like if shape.of_cluster else "") for node, shape in zip(copies, repeated, strict=True)]


def _stems(shapes: Sequence[_Shape]) -> list[str]:
    """Name prefixes of the new nodes of each shape."""
    seen: dict[str, int] = {}
    for number, shape in enumerate(shapes):
        seen.setdefault(shape.like, number)
    return [
        shape.like if seen[shape.like] == number else f"{shape.like}.{number}" for number, shape in enumerate(shapes)
    ]


def _place_now(state: PlanState, others: Sequence[str]) -> list[Unit]:
    """Place the units that fit on existing nodes, all but `others`; returns the units that don't fit."""
    allowed = np.ones(state.view.num_nodes, np.bool_)
    allowed[[state.view.cluster.row_of[name] for name in others]] = False
    waiting: list[Unit] = list(units_of(state.pods))
    while True:
        left = _unplaced(state, waiting, allowed)
        if len(left) == len(waiting) or not any(waits_for_others(state.pods[unit[0]]) for unit in left):
            return left
        waiting = left


def _unplaced(state: PlanState, units: Sequence[Unit], allowed: Mask) -> list[Unit]:
    """Place the units that fit on the allowed nodes; returns the others."""
    full: set[object] = set()
    left: list[Unit] = []
    for unit in units:
        first = state.pods[unit[0]]
        alike = None if first.gang else state.view.alike(first)
        if alike not in full and place_unit(state, unit, allowed):
            continue
        left.append(unit)
        if alike is not None:
            full.add(alike)
    return left


def _nodes_of(state: PlanState) -> list[tuple[int, str]]:
    """Positions of the placed pods and their nodes, in the order of placement."""
    names = state.view.cluster.node_names
    return [(position, names[row]) for position, row in state.placed()]


def _restore(state: PlanState, placed: Sequence[tuple[int, str]]) -> None:
    for position, name in placed:
        state.put(position, state.view.cluster.row_of[name])


def _offers(state: PlanState, units: Sequence[Unit], shapes: Sequence[_Shape], trial: Sequence[Node]) -> list[_Offer]:
    """The shapes that fit at least one unplaced pod, with as many copies as all such pods could need.

    The cheapest shape of each kind of pod is always among them, others up to `_MAX_OFFERS`.
    """
    num_alike: dict[tuple[object, ...], list[int]] = {}
    for unit in units:
        for position in unit:
            num_alike.setdefault(state.view.alike(state.pods[position]), []).append(position)
    cluster = state.view.cluster
    needs = [0] * len(shapes)
    rows = [cluster.row_of[node.metadata.name] for node in trial]
    costs = [_cost(state.view, row) for row in rows]
    order = sorted(range(len(shapes)), key=lambda number: (costs[number], shapes[number].like))
    chosen: set[int] = set()
    for positions in num_alike.values():
        fits = state.fits(positions[0])
        helping = [number for number in order if fits[rows[number]]]
        for number in helping:
            needs[number] += -(-len(positions) // max(max_copies(state, positions[0], rows[number], len(positions)), 1))
        chosen.update(helping[:1])
    for number in order:
        if needs[number] and len(chosen) < _MAX_OFFERS:
            chosen.add(number)
    most = _MAX_ROWS // max(len(chosen), 1)
    return [
        _Offer(number, shapes[number], costs[number], *_gpus(cluster, rows[number]), min(needs[number], most))
        for number in sorted(chosen)
    ]


def _gpus(cluster: Cluster, row: int) -> tuple[int, str]:
    """Number of GPUs of a node, and the model of the first."""
    gpus = cluster.gpu_model[row]
    models = [cluster.models[index].name for index in gpus[gpus >= 0].tolist()]
    return len(models), models[0] if models else ""


def _cost(view: View, row: int) -> Cost:
    """A node's cost, compared in order: GPUs, GPU memory, nodes, CPU, memory."""
    cluster = view.cluster
    installed = int((cluster.gpu_model[row] >= 0).sum()) or int(cluster.mig_installed[row].sum() > 0)
    return (
        *(installed, int(cluster.gpu_memory_mib[row].sum()), 1),
        *(int(view.cpu_allocatable_milli[row]), int(view.memory_allocatable_mib[row])),
    )


def _report(offers: Sequence[_Offer], found: Missing, plan: Plan) -> dict[str, Any]:
    used = [(offer, count) for offer, count in zip(offers, found.counts, strict=True) if count]
    tried = sum(len(offer.copies) for offer in offers) >= _MAX_ROWS
    still = [
        {"pod": plan.pods[position].key, "reason": _TOO_MANY if tried else str(why)}
        for position, why in plan.unassigned.items()
    ]
    return {
        "nodes": [
            {"like": offer.shape.like, "count": count, "gpus": offer.gpus, "model": offer.model}
            for offer, count in used
        ],
        "sentence": _sentence(
            [(count, offer.gpus, offer.model, offer.shape.like) for offer, count in used], len(still)
        ),
        "stillUnplaced": still,
        "fewest": found.proven,
    }


def _sentence(nodes: Sequence[tuple[int, int, str, str]], num_unplaced: int) -> str:
    """The missing nodes in words; `nodes` are tuples of count, GPUs, model and the node that they copy."""
    words = [
        f"{count} node{'' if count == 1 else 's'} " + (f"of {gpus} x {model or 'GPU'}" if gpus else f"like {like}")
        for count, gpus, model, like in nodes
    ]
    if not words:
        return "no new node like those of the cluster would help" if num_unplaced else "no new node is needed"
    return " and ".join(words)
