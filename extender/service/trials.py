"""What if: where a batch of pods would go and what would stay pending, on a copy of the cluster as it is now.

Nothing is reserved, written or kept. Usage is the ledger's, reservations included; nodes are read from the API server
for what a decision does not need: taints, cordons, labels, and how many pods they take.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from extender.cluster.ledger import Ledger
from extender.cluster.mirrors import NODES_PATH, PODS_PATH, Mirror
from extender.cluster.transports import ClusterError, Transport
from extender.core.policies import POLICIES, Policy
from extender.core.requests import RequestError
from extender.queueing import reports, sources
from extender.queueing.batches import asked_of, plan_pod, view_of
from extender.queueing.boards import Board
from extender.queueing.manifests import Node, Pod, decode_node, decode_pod
from extender.queueing.planners import PLANNERS
from extender.queueing.plans import Plan, PlanPod, View
from extender.queueing.restrictions import Kinds

_MAX_PODS: Final = 10_000
_MAX_ADDED: Final = 1_000
_HOSTNAME: Final = "kubernetes.io/hostname"


class TrialError(ValueError):
    """A question that can't be understood; says what would be right."""


class AddedNodes(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Nodes that the cluster does not have."""

    template: str = ""
    """Name of a node that they are like."""
    manifest: dict[str, Any] | None = None
    """Or the node itself."""
    count: Annotated[int, msgspec.Meta(ge=1, le=_MAX_ADDED)] = 1


class WhatIf(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The question."""

    pods: list[dict[str, Any]] = []
    """Manifests."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PODS)] = 1
    """How many of each."""
    drain: list[str] = []
    """Nodes that are taken out of use: their pods have to go elsewhere, before the others."""
    add_nodes: list[AddedNodes] = []


_decoder: Final = msgspec.json.Decoder(WhatIf)


class Trials:
    """Answers what-if questions, one at a time: a plan takes a processor."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        mirror: Mirror,
        clock: Callable[[], float],
        default_policy: str,
        policies: Callable[[], Mapping[str, Policy]] = lambda: POLICIES,
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._mirror = mirror
        self._clock = clock
        self._policy = default_policy
        self._policies = policies
        self._busy = asyncio.Lock()

    async def answer(self, body: bytes) -> dict[str, Any]:
        """Where the pods would go. Raises TrialError, ClusterError."""
        try:
            asked = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TrialError(f"the question can't be read: {error}") from None
        async with self._busy:
            return await self._answer(asked)

    async def _answer(self, asked: WhatIf) -> dict[str, Any]:
        try:
            nodes = await sources.list_objects(self._transport, NODES_PATH, Node)
            by_name = {node.metadata.name: node for node in nodes}
            if unknown := [name for name in asked.drain if name not in by_name]:
                raise TrialError(f"drain: no node is named {', '.join(unknown[:5])}")
            moving = [pod for name in dict.fromkeys(asked.drain) for pod in await self._pods_on(name)]
        except msgspec.DecodeError as error:
            raise ClusterError(f"nodes and pods can't be read: {error}") from None
        added = _added(asked.add_nodes, by_name)
        kinds = Kinds()
        batch, faults = _planned([*moving, *_pods(asked)], kinds, self._policy)
        # Everything from here to the plan sees one moment: no await in between.
        now = self._clock()
        cluster = self._ledger.extended(added, now) if added else self._ledger.snapshot(now)
        num_pods = {name: len(self._mirror.tenants.on(name)) for name in by_name}
        topologies = {pod.topology for pod in batch if pod.topology}
        view = view_of(cluster, [*nodes, *added], kinds, num_pods=num_pods, topologies=topologies)
        drained = [cluster.row_of[name] for name in asked.drain if name in cluster.row_of]
        view.allowed[:, drained] = False
        view = replace(view, policies=self._policies())
        return await asyncio.to_thread(_told, view, batch, faults, [pod.key for pod in moving])

    async def _pods_on(self, node: str) -> list[Pod]:
        """The pods that a drain moves: those that run, and that no DaemonSet keeps on the node."""
        pods = await sources.list_objects(self._transport, PODS_PATH, Pod, {"fieldSelector": f"spec.nodeName={node}"})
        return [pod for pod in pods if pod.spec.node_name == node and not pod.finished and not _stays(pod)]


def _stays(pod: Pod) -> bool:
    owners = pod.metadata.owner_references or ()
    return any(owner.controller and owner.kind in ("DaemonSet", "Node") for owner in owners)


def _added(asked: Iterable[AddedNodes], known: dict[str, Node]) -> list[Node]:
    """The nodes to add, under names that the cluster does not have. Raises TrialError."""
    added: list[Node] = []
    for entry in asked:
        if bool(entry.template) == (entry.manifest is not None):
            raise TrialError("addNodes: write either the template, which is a node's name, or a manifest")
        if entry.manifest is not None:
            template = _decoded_node(entry.manifest)
        elif entry.template in known:
            template = known[entry.template]
        else:
            raise TrialError(f"addNodes: no node is named {entry.template}")
        name = template.metadata.name
        for _ in range(entry.count):
            if len(added) == _MAX_ADDED:
                raise TrialError(f"addNodes: more than {_MAX_ADDED} nodes")
            new = f"{name}+{len(added) + 1}"
            labels = {**(template.metadata.labels or {}), _HOSTNAME: new}
            metadata = msgspec.structs.replace(template.metadata, name=new, uid=new, labels=labels)
            spec = msgspec.structs.replace(template.spec, unschedulable=False)
            added.append(msgspec.structs.replace(template, metadata=metadata, spec=spec))
    return added


def _decoded_node(manifest: dict[str, Any]) -> Node:
    try:
        return decode_node(manifest)
    except msgspec.ValidationError as error:
        raise TrialError(f"addNodes: {error}") from None


def _pods(asked: WhatIf) -> list[Pod]:
    """The pods asked about, each as often as it is wanted. Raises TrialError."""
    if len(asked.pods) * asked.replicas > _MAX_PODS:
        raise TrialError(f"pods: {len(asked.pods)} x {asked.replicas} replicas are more than {_MAX_PODS} pods")
    pods: list[Pod] = []
    for number, manifest in enumerate(asked.pods):
        try:
            pod = decode_pod(manifest)
            asked_of(pod)
        except (msgspec.ValidationError, RequestError) as error:
            raise TrialError(f"pods[{number}]: {error}") from None
        metadata = pod.metadata
        name, namespace = metadata.name or f"pod-{number}", metadata.namespace or "default"
        for replica in range(asked.replicas):
            key = f"{name}-{replica}" if asked.replicas > 1 else name
            named = msgspec.structs.replace(metadata, name=key, namespace=namespace, uid=f"{number}-{key}")
            pods.append(msgspec.structs.replace(pod, metadata=named))
    return pods


def _planned(pods: Iterable[Pod], kinds: Kinds, policy: str) -> tuple[list[PlanPod], dict[str, str]]:
    """The pods as planners take them, and the faults of those that can't be understood, by key."""
    batch: list[PlanPod] = []
    faults: dict[str, str] = {}
    for pod in pods:
        try:
            planned = plan_pod(pod, kinds)
        except RequestError as error:
            faults[pod.key] = str(error)
            continue
        batch.append(replace(planned, policy=planned.policy or policy))
    return batch, faults


def _told(view: View, batch: list[PlanPod], faults: dict[str, str], moving: list[str]) -> dict[str, Any]:
    """The plan and the report of it; made in a thread."""
    made: Plan = PLANNERS["greedy"].make(view, batch, 0)
    told = dict(reports.report(view, made))
    told["pods"] += len(faults)
    told["unassigned"] = [*told["unassigned"], *({"pod": key, "reason": why} for key, why in faults.items())]
    told["reasons"] = dict(Counter(entry["reason"] for entry in told["unassigned"]).most_common())
    told["fragmentsBefore"] = round(Board(view, ()).quality(np.zeros(0)).fragments, 4)
    told["moved"] = moving
    told["nodes"] = [node for node in told["nodes"] if node["pods"]]
    return told
