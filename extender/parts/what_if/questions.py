"""The request and response of `/what-if`: decoding, limits, and the report on each object."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NotRequired, TypedDict

import msgspec

from extender.core.resources.requests import RequestError
from extender.explain.manifests.documents import DocumentError, drop_nulls
from extender.explain.manifests.objects import MAX_PODS, GivenObjects, Texts, Workload, read_given, refusal_of, renamed
from extender.explain.processes import QuestionError
from extender.kube.objects import Node, Pod
from extender.parts.what_if.claims import claims_of, names_of, pods_of
from extender.planning.plans import PlanPod
from extender.planning.reports import PlanReport
from extender.queueing.pods.batches import asked_of
from extender.queueing.pods.objects import decode_node, decode_pod

_MAX_ADDED: Final = 1_000
_MAX_CANDIDATES: Final = 100
HOSTNAME: Final = "kubernetes.io/hostname"
_Reasons = Annotated[dict[str, int], {"needs 2 GPUs, best node: 1 free": 1}]


class WhatIfError(QuestionError):
    """An invalid request."""


class AddedNodes(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Nodes to add. Exactly one of `template` and `manifest` is required."""

    template: str = ""
    """Name of the node to copy."""
    manifest: dict[str, Any] | None = None
    """A Node manifest."""
    count: Annotated[int, msgspec.Meta(ge=1, le=_MAX_ADDED)] = 1


class WhatIf(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The request body."""

    pods: list[dict[str, Any]] = []
    """Pod manifests."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)] = 1
    """Copies of each pod and of each object."""
    objects: list[dict[str, Any]] = []
    """Manifests of objects that create pods, such as Jobs, and of PodGroups, claims, claim templates and nodes to
    add."""
    manifest: Texts = ""
    """The same as YAML or JSON text of one or more documents, or as several texts."""
    namespace: str = "default"
    """Namespace of objects that name none."""
    drain: list[str] = []
    """Nodes to drain: their pods are placed elsewhere, before all other pods."""
    add_nodes: list[AddedNodes] = []
    claims: list[dict[str, Any]] = []
    """Manifests of ResourceClaims that are not in the cluster."""
    claim_templates: list[dict[str, Any]] = []
    """Manifests of ResourceClaimTemplates that pods name."""
    waiting: bool = False
    """Whether to place the pending pods too, before the pods of the request; implied if the request only adds nodes."""
    find_nodes: bool = False
    """Whether to find the fewest new nodes with which all pods are placed."""
    candidates: list[dict[str, Any]] = []
    """Manifests of further nodes that new nodes may be copies of, besides those of the cluster."""


_decoder: Final = msgspec.json.Decoder(WhatIf)


class PlacedObject(TypedDict):
    """Where the pods of one object go."""

    object: Annotated[str, "Job research/train"]
    place: Annotated[str, "objects[0]"]
    pods: Annotated[int, 2]
    placed: Annotated[int, 1]
    nodes: Annotated[list[dict[str, Any]], [{"node": "a100-0", "pods": ["research/train-0"]}]]
    reasons: _Reasons
    notes: list[str]


class WhatIfResult(PlanReport, TypedDict):
    """The response body."""

    fragmentsBefore: Annotated[float, 0.25]
    stranded: Annotated[float | None, 0.0312]
    strandedBefore: Annotated[float | None, 0.0284]
    reasons: _Reasons
    noMoveHelps: list[str]
    """Unplaced pods that would stay unplaced even if running pods moved."""
    moved: list[str]
    gained: list[str]
    unreadable: int
    """Number of pods whose request is invalid."""
    objects: list[PlacedObject]
    skipped: list[str]
    notChecked: dict[str, int]
    """Number of placed pods by what was not checked of them."""
    missing: NotRequired[dict[str, Any]]


class Needs(msgspec.Struct):
    """The cluster data that a question needs."""

    drain: list[str]
    adds: bool
    claims: list[str]
    """`namespace/name` of the ResourceClaims that its pods name; the name is "" for one made from a template."""
    waiting: bool = False
    """Whether it places the pending pods."""
    rules: bool = True
    """Whether any of its pods may have topology spread constraints or inter-pod affinity."""


@dataclass(frozen=True, slots=True)
class Question:
    """The request, with its objects decoded."""

    asked: WhatIf
    given: GivenObjects

    @property
    def adds_alone(self) -> bool:
        """Whether the request only adds nodes: then it places the pending pods."""
        request, given = self.asked, self.given
        others = request.pods or given.workloads or request.drain or request.waiting
        return not others and bool(request.add_nodes or request.find_nodes or given.nodes)

    @property
    def waiting(self) -> bool:
        """Whether to place the pending pods."""
        return self.asked.waiting or self.adds_alone

    @property
    def add_nodes(self) -> list[AddedNodes]:
        """Nodes to add; those among the objects are candidates instead if new nodes are searched for."""
        given = [] if self.asked.find_nodes else self.given.nodes
        return [*self.asked.add_nodes, *(AddedNodes(manifest=node) for node in given)]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Manifests of nodes that new nodes may be copies of."""
        return [*self.asked.candidates, *(self.given.nodes if self.asked.find_nodes else ())]


def needs_of(question: Question) -> Needs:
    """The cluster data that a question needs."""
    request = question.asked
    adds = bool(question.add_nodes) or request.find_nodes
    claims = dict.fromkeys((*names_of(request.pods), *claims_of(question.given.pods)))
    pods = (*pods_of(request.pods), *question.given.pods)
    rules = bool(question.waiting or request.drain) or any(map(_has_rules, pods))
    return Needs(list(dict.fromkeys(request.drain)), adds, list(claims), question.waiting, rules)


def _has_rules(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    return bool(
        pod.spec.topology_spread_constraints
        or (affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None))
    )


def read_question(body: bytes) -> Question:
    """The decoded request body. Raises WhatIfError."""
    try:
        request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WhatIfError(f"invalid request: {error}") from None
    if len(request.drain) > _MAX_ADDED:
        raise WhatIfError(f"drain: more than {_MAX_ADDED} nodes")
    drop_nulls(request.pods)
    try:
        given = read_given(request.objects, request.manifest, request.namespace, request.replicas)
    except DocumentError as error:
        raise WhatIfError(str(error)) from None
    question = Question(request, given)
    if len(question.candidates) > _MAX_CANDIDATES:
        raise WhatIfError(f"candidates: more than {_MAX_CANDIDATES} nodes")
    return question


def added_nodes(entries: Iterable[AddedNodes], known: dict[str, Node]) -> list[tuple[Node, str]]:
    """The nodes to add under new names, each with the name of the node that it copies, "" for a manifest. Raises
    WhatIfError."""
    added: list[tuple[Node, str]] = []
    for entry in entries:
        if bool(entry.template) == (entry.manifest is not None):
            raise WhatIfError("addNodes: write either template (a node's name) or manifest")
        if entry.manifest is not None:
            template = decoded_node(entry.manifest, "addNodes")
        elif entry.template in known:
            template = known[entry.template]
        else:
            raise WhatIfError(f"addNodes: no node is named {entry.template}")
        name = template.metadata.name
        for _ in range(entry.count):
            if len(added) == _MAX_ADDED:
                raise WhatIfError(f"addNodes: more than {_MAX_ADDED} nodes")
            added.append((copied(template, f"{name}+{len(added) + 1}"), entry.template))
    return added


def copied(template: Node, name: str) -> Node:
    """An empty copy of a node under a new name, not cordoned."""
    labels = {**(template.metadata.labels or {}), HOSTNAME: name}
    metadata = msgspec.structs.replace(template.metadata, name=name, uid=name, labels=labels)
    spec = msgspec.structs.replace(template.spec, unschedulable=False)
    return msgspec.structs.replace(template, metadata=metadata, spec=spec)


def decoded_node(manifest: dict[str, Any], key: str) -> Node:
    """A node of the request; `key` names it in errors. Raises WhatIfError."""
    try:
        return decode_node(manifest)
    except msgspec.ValidationError as error:
        raise WhatIfError(f"{key}: {error}") from None


def asked_pods(request: WhatIf) -> list[Pod]:
    """The pods of the request, each `replicas` times. Raises WhatIfError."""
    if len(request.pods) * request.replicas > MAX_PODS:
        raise WhatIfError(f"pods: {len(request.pods)} x {request.replicas} replicas are more than {MAX_PODS} pods")
    pods: list[Pod] = []
    for number, manifest in enumerate(request.pods):
        try:
            pod = decode_pod(manifest)
            asked_of(pod)
            where, why = refusal_of(pod.spec)
            if why:
                raise RequestError(f"spec.{where}: {why}")
        except (msgspec.ValidationError, RequestError) as error:
            raise WhatIfError(f"pods[{number}]: {error}") from None
        metadata = pod.metadata
        name, namespace = metadata.name or f"pod-{number}", metadata.namespace or "default"
        for replica in range(request.replicas):
            key = f"{name}-{replica}" if request.replicas > 1 else name
            named = msgspec.structs.replace(metadata, name=key, namespace=namespace, uid=f"{number}-{key}")
            pods.append(msgspec.structs.replace(pod, metadata=named))
    return pods


@dataclass(frozen=True, slots=True)
class Objects:
    """The request's workloads and their pods."""

    workloads: Sequence[Workload]
    pods_of: Sequence[Sequence[Pod]]
    """Pods of each workload, under unique names."""
    copy_of: Mapping[str, int]
    """By pod UID: the number of the workload's copy, 0 if there is only one."""

    @classmethod
    def of(cls, given: GivenObjects, taken: Iterable[str]) -> "Objects":
        """The objects of a request; `taken` are the keys of its other pods."""
        pods_of = renamed(given.workloads, taken)
        copies = {
            pod.metadata.uid: workload.copy
            for workload, pods in zip(given.workloads, pods_of, strict=True)
            for pod in pods
        }
        return cls(given.workloads, pods_of, copies)

    @property
    def pods(self) -> list[Pod]:
        """Pods of all workloads, in order."""
        return [pod for pods in self.pods_of for pod in pods]

    def copied(self, pod: Pod, planned: PlanPod) -> PlanPod:
        """A planned pod; each copy of an object is a separate gang."""
        copy = self.copy_of[pod.metadata.uid]
        return replace(planned, gang=f"{planned.gang}, copy {copy}") if copy and planned.gang else planned

    def report(self, result: PlanReport, notes: Mapping[str, str]) -> list[PlacedObject]:
        """For each object, which pods go where and why others are not placed; `notes` are by pod key."""
        node_of = {entry["pod"]: entry["node"] for entry in result["assignments"]}
        why = {entry["pod"]: entry["reason"] for entry in result["unassigned"]}
        return [
            _report(workload, [pod.key for pod in pods], node_of, why, notes)
            for workload, pods in zip(self.workloads, self.pods_of, strict=True)
        ]


def _report(
    workload: Workload,
    keys: Sequence[str],
    node_of: Mapping[str, str],
    why: Mapping[str, str],
    notes: Mapping[str, str],
) -> PlacedObject:
    nodes: dict[str, list[str]] = {}
    for key in keys:
        if key in node_of:
            nodes.setdefault(node_of[key], []).append(key)
    reasons = Counter(why[key] for key in keys if key in why)
    return {
        "object": workload.name,
        "place": workload.place,
        "pods": len(keys),
        "placed": sum(map(len, nodes.values())),
        "nodes": [{"node": node, "pods": pods} for node, pods in nodes.items()],
        "reasons": dict(reasons.most_common()),
        "notes": [*workload.notes, *(notes[key] for key in keys if key in notes)],
    }
