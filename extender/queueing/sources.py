"""Reads the nodes and pods for a one-off plan from manifest files or an API server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from extender.core.resources.requests import RequestError
from extender.kube.client import Query, Transport
from extender.kube.objects import Named, Node, Pod
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import Lister, stand_in
from extender.ledger.bound_pods import BoundPodIndex
from extender.ledger.ledger import Ledger
from extender.planning.plans import Plan, PlanPod, View
from extender.queueing.node_view import view_of
from extender.queueing.pods.batches import asked_of, by_gang, plan_pod
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import RestrictionKinds, domain_of

ObjectT = TypeVar("ObjectT", bound=Named)


class SourceError(ValueError):
    """Manifests that can't be used for planning; `faults` has a sentence for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


@dataclass
class Source:
    """Nodes, bound pods, and pods that wait for a node."""

    nodes: list[Node] = field(default_factory=list)
    bound: list[Pod] = field(default_factory=list)
    waiting: list[Pod] = field(default_factory=list)
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Manifests of pods read from files, by `namespace/name`."""

    def add(self, pods: Iterable[Pod]) -> None:
        """Add pods as bound or waiting; ignore unbound ones that have finished or are being deleted."""
        for pod in pods:
            if pod.spec.node_name:
                self.bound.append(pod)
            elif not pod.finished and not pod.metadata.deletion_timestamp:
                self.waiting.append(pod)


def read_files(paths: Iterable[Path]) -> Source:
    """Read nodes and pods, or lists of them, from YAML or JSON files. Raises SourceError with all faults."""
    source, faults = Source(), []
    for path in paths:
        try:
            documents = list(yaml.safe_load_all(path.read_text()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            faults.append(f"{path}: {error}")
            continue
        for number, manifest in enumerate(documents, 1):
            faults += [f"{path}, document {number}: {fault}" for fault in _take(source, manifest)]
    if faults:
        raise SourceError(faults)
    return source


async def read_cluster(transport: Transport) -> Source:
    """Read the nodes and pods of an API server. Raises ClusterError, msgspec.DecodeError."""
    source = Source(nodes=await list_objects(transport, NODES_PATH, Node))
    source.add(await list_objects(transport, PODS_PATH, Pod))
    return source


def batch_of(source: Source, reserve_frac: float) -> tuple[View, list[PlanPod], dict[str, str]]:
    """Return the view, the waiting pods by priority and age, and the faults of pods that can't be planned, by key."""
    ledger = Ledger(reservation_ttl_s=0.0)
    for node in source.nodes:
        ledger.upsert_node(node)
    for pod in source.bound:
        ledger.upsert_pod(pod, 0.0)
    kinds = RestrictionKinds()
    running = [pod for pod in source.bound if not pod.finished]
    mates = by_gang(running)
    pods: list[tuple[Pod, PlanPod]] = []
    faults: dict[str, str] = {}
    for pod in source.waiting:
        try:
            planned = plan_pod(pod, kinds)
            beside = tuple(mate.spec.node_name for mate in mates.get(planned.gang, ()) if mate.spec.node_name)
            pods.append((pod, replace(planned, beside=beside)))
        except RequestError as error:
            faults[pod.key] = str(error)
    pods.sort(key=lambda pair: (-pair[1].priority, pair[0].metadata.creation_timestamp, pair[1].key))
    batch = [planned for _, planned in pods]
    crowd = BoundPodIndex()
    for pod in running:
        crowd.upsert(pod)
    cluster = ledger.snapshot(0.0)
    view = view_of(
        cluster=cluster,
        nodes=source.nodes,
        kinds=kinds,
        batch=batch,
        num_pods=crowd.num_pods,
        crowd=crowd,
        reserve_frac=reserve_frac,
    )
    return view, batch, faults


def node_of(view: View, plan: Plan) -> dict[str, str]:
    """Return the node name of each placed pod, by the pod's key."""
    names = view.cluster.node_names
    return {pod.key: names[row] for pod, row in zip(plan.pods, plan.rows, strict=True) if row >= 0}


def domains_of(source: Source, plan: Plan, nodes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the labels that keep each placed pod to its gang's domain, by the pod's key; `nodes` as from `node_of`."""
    named = {node.metadata.name: node for node in source.nodes}
    return {pod.key: domain_of(named[nodes[pod.key]], pod.topology) for pod in plan.pods if pod.key in nodes}


def _take(source: Source, manifest: Any) -> list[str]:
    """Add the objects of a document; return faults."""
    if manifest is None:
        return []
    if not isinstance(manifest, dict):
        return [f"expected a Kubernetes object, not {type(manifest).__name__}"]
    kind = manifest.get("kind")
    if isinstance(kind, str) and kind.endswith("List"):
        items = manifest.get("items") or []
        default = kind.removesuffix("List")
        return [
            f"item {number}: {fault}"
            for number, item in enumerate(items, 1)
            for fault in _take(source, {"kind": default, **item} if isinstance(item, dict) else item)
        ]
    try:
        if kind == "Node":
            source.nodes.append(decode_node(manifest))
        elif kind == "Pod":
            pod = decode_pod(manifest)
            pod.metadata.namespace = pod.metadata.namespace or "default"
            pod.metadata.uid = pod.metadata.uid or pod.key
            if not pod.metadata.name:
                return ["metadata.name: a pod needs a name"]
            asked_of(pod)
            source.add([pod])
            source.manifests[pod.key] = manifest
        else:
            return [f"kind {kind!r} can't be planned; write nodes and pods"]
    except (msgspec.ValidationError, RequestError) as error:
        return [str(error)]
    return []


async def list_objects(
    transport: Transport, path: str, kind: type[ObjectT], query: Query | None = None
) -> list[ObjectT]:
    """List all objects at a path. Raises ClusterError, msgspec.DecodeError.

    A pod that can't be decoded counts as using its whole node; such a node is left out.
    """
    listed = await Lister(transport, path, kind, query).all()
    return listed.items + [stand_in(item, kind) for item in listed.unread if path.endswith("/pods")]
