"""What if: where a batch of pods would go and what would stay pending, on a copy of the cluster as it is now.

Nothing is reserved, written or kept. Usage is the ledger's, reservations included; nodes are read from the API server
for what a decision does not need: taints, cordons, labels, and how many pods they take.

All of it runs in a process of its own (see `what_if`), which ends with its answer: what is asked may be large.
"""

import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.core.resources.requests import RequestError
from extender.explain.processes import Pipe, QuestionError, serve
from extender.explain.what_if_claims import (
    AskedClaims,
    DeviceFacts,
    names_of,
    read_claims,
    read_templates,
    with_devices,
)
from extender.kube.objects import Node, Pod
from extender.kube.watches.lists import ListDecoder
from extender.ledger.rows import NodeRows
from extender.planning import reports
from extender.planning.plan_state import PlanState
from extender.planning.planners import PLANNERS
from extender.planning.plans import GREEDY, PlanPod, View
from extender.queueing.node_view import view_of
from extender.queueing.pods.batches import asked_of, plan_pod
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import Kinds

_MAX_PODS: Final = 10_000
_MAX_ADDED: Final = 1_000
_HOSTNAME: Final = "kubernetes.io/hostname"


class WhatIfError(QuestionError):
    """An invalid request; says what would be right."""


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
    claims: list[dict[str, Any]] = []
    """Manifests of ResourceClaims that the cluster does not have."""
    claim_templates: list[dict[str, Any]] = []
    """Manifests of ResourceClaimTemplates that pods name."""


_decoder: Final = msgspec.json.Decoder(WhatIf)
_nodes_decoder: Final = ListDecoder(Node)
_pods_decoder: Final = ListDecoder(Pod)


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster as it is: what a plan is made on."""

    nodes: bytes
    """The API server's list."""
    pods_on: dict[str, bytes]
    """The same of the pods on each node that is drained."""
    cluster: Cluster
    ledger: NodeRows | None
    """Where nodes are added."""
    num_pods: dict[str, int]
    """By node."""
    default_policy: str
    policies: dict[str, Policy]
    """By name, as they are configured."""
    devices: DeviceFacts | None
    """For pods with ResourceClaims; None where Kerf allocates none."""


def read_question(body: bytes) -> WhatIf:
    """Raises WhatIfError."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WhatIfError(f"invalid request: {error}") from None
    if len(asked.drain) > _MAX_ADDED:
        raise WhatIfError(f"drain: more than {_MAX_ADDED} nodes")
    return asked


def answer(asked: WhatIf, facts: Facts) -> dict[str, Any]:
    """Where the pods would go. Raises WhatIfError."""
    try:
        nodes = _nodes_decoder.decode(facts.nodes).items
        by_name = {node.metadata.name: node for node in nodes}
        if unknown := [name for name in asked.drain if name not in by_name]:
            raise WhatIfError(f"drain: no node is named {', '.join(unknown[:5])}")
        moving = [
            pod
            for name in dict.fromkeys(asked.drain)
            if name in facts.pods_on
            for pod in _pods_decoder.decode(facts.pods_on[name]).items
            if pod.spec.node_name == name and not pod.finished and not pod.metadata.belongs_to_a_node
        ]
    except msgspec.DecodeError as error:
        raise WhatIfError(f"nodes and pods can't be read: {error}") from None
    added = _added(asked.add_nodes, by_name)
    kinds = Kinds()
    batch, faults = _planned([*moving, *_pods(asked)], kinds, facts.default_policy, _claims(asked, facts))
    cluster = facts.ledger.extended([node for node, _ in added]) if added and facts.ledger else facts.cluster
    if facts.devices is not None:
        cluster = with_devices(cluster, facts.devices, {node.metadata.name: like for node, like in added})
    described = [*nodes, *(node for node, _ in added)]
    view = view_of(cluster, described, kinds, batch, num_pods=facts.num_pods)
    drained = [cluster.row_of[name] for name in asked.drain if name in cluster.row_of]
    view.allowed[:, drained] = False
    view = replace(view, policies=facts.policies)
    return _result(view, batch, faults, [pod.key for pod in moving])


def _claims(asked: WhatIf, facts: Facts) -> AskedClaims:
    """The claims of the question. Raises WhatIfError."""
    try:
        return AskedClaims(facts.devices, read_claims(asked.claims), read_templates(asked.claim_templates))
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise WhatIfError(f"claims: {error}") from None


def _added(asked: Iterable[AddedNodes], known: dict[str, Node]) -> list[tuple[Node, str]]:
    """The nodes to add, under names that the cluster does not have, each with the one that it is like. Raises
    WhatIfError."""
    added: list[tuple[Node, str]] = []
    for entry in asked:
        if bool(entry.template) == (entry.manifest is not None):
            raise WhatIfError("addNodes: write either template (a node's name) or manifest")
        if entry.manifest is not None:
            template = _decoded_node(entry.manifest)
        elif entry.template in known:
            template = known[entry.template]
        else:
            raise WhatIfError(f"addNodes: no node is named {entry.template}")
        name = template.metadata.name
        for _ in range(entry.count):
            if len(added) == _MAX_ADDED:
                raise WhatIfError(f"addNodes: more than {_MAX_ADDED} nodes")
            new = f"{name}+{len(added) + 1}"
            labels = {**(template.metadata.labels or {}), _HOSTNAME: new}
            metadata = msgspec.structs.replace(template.metadata, name=new, uid=new, labels=labels)
            spec = msgspec.structs.replace(template.spec, unschedulable=False)
            added.append((msgspec.structs.replace(template, metadata=metadata, spec=spec), entry.template))
    return added


def _decoded_node(manifest: dict[str, Any]) -> Node:
    try:
        return decode_node(manifest)
    except msgspec.ValidationError as error:
        raise WhatIfError(f"addNodes: {error}") from None


def _pods(asked: WhatIf) -> list[Pod]:
    """The pods asked about, each as often as it is wanted. Raises WhatIfError."""
    if len(asked.pods) * asked.replicas > _MAX_PODS:
        raise WhatIfError(f"pods: {len(asked.pods)} x {asked.replicas} replicas are more than {_MAX_PODS} pods")
    pods: list[Pod] = []
    for number, manifest in enumerate(asked.pods):
        try:
            pod = decode_pod(manifest)
            asked_of(pod)
        except (msgspec.ValidationError, RequestError) as error:
            raise WhatIfError(f"pods[{number}]: {error}") from None
        metadata = pod.metadata
        name, namespace = metadata.name or f"pod-{number}", metadata.namespace or "default"
        for replica in range(asked.replicas):
            key = f"{name}-{replica}" if asked.replicas > 1 else name
            named = msgspec.structs.replace(metadata, name=key, namespace=namespace, uid=f"{number}-{key}")
            pods.append(msgspec.structs.replace(pod, metadata=named))
    return pods


def _planned(
    pods: Iterable[Pod], kinds: Kinds, policy: str, claims: AskedClaims
) -> tuple[list[PlanPod], dict[str, str]]:
    """The pods as planners take them, and the faults of those that can't be understood, by key."""
    batch: list[PlanPod] = []
    faults: dict[str, str] = {}
    for pod in pods:
        try:
            planned = plan_pod(pod, kinds, claims.of(pod))
        except RequestError as error:
            faults[pod.key] = str(error)
            continue
        batch.append(replace(planned, policy=planned.policy or policy))
    return batch, faults


def _result(view: View, batch: list[PlanPod], faults: dict[str, str], moving: list[str]) -> dict[str, Any]:
    """The plan and the report of it."""
    report = reports.report(view, PLANNERS[GREEDY].make(view, batch))
    unassigned = [*report["unassigned"], *({"pod": key, "reason": why} for key, why in faults.items())]
    return {
        **report,
        "pods": report["pods"] + len(faults),
        "unassigned": unassigned,
        "reasons": dict(Counter(entry["reason"] for entry in unassigned).most_common()),
        "fragmentsBefore": round(PlanState(view, ()).quality(np.zeros(0)).fragments, 4),
        "moved": moving,
        "nodes": [node for node in report["nodes"] if node["pods"]],
    }


class Needs(msgspec.Struct):
    """What a question needs to know of the cluster."""

    drain: list[str]
    adds: bool
    claims: list[str]
    """ResourceClaims that its pods name, by `namespace/name`; "" for the name of one that is made from a template."""


def _answered(pipe: Pipe) -> bytes:
    """A question comes in, what it needs goes out, that comes in, and the answer goes out."""
    asked = read_question(pipe.read())
    pipe.tell(msgspec.json.encode(Needs(list(dict.fromkeys(asked.drain)), bool(asked.add_nodes), names_of(asked.pods))))
    # From the service alone, and never from who asks: what it pickles may be trusted.
    facts: Facts = pickle.loads(pipe.read())  # noqa: S301
    return msgspec.json.encode(answer(asked, facts))


if __name__ == "__main__":
    serve(_answered)
