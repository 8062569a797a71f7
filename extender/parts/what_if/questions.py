"""What is asked: the question as it comes, read and bounded.

The objects of a question: under which names their pods are planned, and what becomes of each object.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NotRequired, TypedDict

import msgspec

from extender.core.resources.requests import RequestError
from extender.explain.manifests.documents import DocumentError, drop_nulls
from extender.explain.manifests.objects import MAX_PODS, Given, Texts, Workload, read_given, refusal_of, renamed
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
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)] = 1
    """How many of each pod, and of each object."""
    objects: list[dict[str, Any]] = []
    """Objects that make pods, such as Jobs, with what goes with them: PodGroups, claims and their templates, nodes to
    add."""
    manifest: Texts = ""
    """The same as text, YAML or JSON, of one document or several; or as several texts."""
    namespace: str = "default"
    """Of objects that name none."""
    drain: list[str] = []
    """Nodes that are taken out of use: their pods have to go elsewhere, before the others."""
    add_nodes: list[AddedNodes] = []
    claims: list[dict[str, Any]] = []
    """Manifests of ResourceClaims that the cluster does not have."""
    claim_templates: list[dict[str, Any]] = []
    """Manifests of ResourceClaimTemplates that pods name."""
    waiting: bool = False
    """Whether the pods that wait for a node now are asked about too, before the others; they are where nodes are added
    and nothing else is asked about."""
    find_nodes: bool = False
    """Whether to find the fewest new nodes by which all pods would be placed."""
    candidates: list[dict[str, Any]] = []
    """Manifests of nodes that new ones may be like, beside those of the cluster."""


_decoder: Final = msgspec.json.Decoder(WhatIf)


class PlacedObject(TypedDict):
    """What becomes of the pods of one object."""

    object: Annotated[str, "Job research/train"]
    place: Annotated[str, "objects[0]"]
    pods: Annotated[int, 2]
    placed: Annotated[int, 1]
    nodes: Annotated[list[dict[str, Any]], [{"node": "a100-0", "pods": ["research/train-0"]}]]
    reasons: _Reasons
    notes: list[str]


class WhatIfResult(PlanReport, TypedDict):
    """The answer."""

    fragmentsBefore: Annotated[float, 0.25]
    stranded: Annotated[float | None, 0.0312]
    strandedBefore: Annotated[float | None, 0.0284]
    reasons: _Reasons
    noMoveHelps: list[str]
    """Pods without a node that would have none either if running pods moved."""
    moved: list[str]
    gained: list[str]
    unreadable: int
    """Pods whose request can't be understood."""
    objects: list[PlacedObject]
    skipped: list[str]
    notChecked: dict[str, int]
    """What nobody has looked at of pods that find a node, and of how many."""
    missing: NotRequired[dict[str, Any]]


class Needs(msgspec.Struct):
    """What a question needs to know of the cluster."""

    drain: list[str]
    adds: bool
    claims: list[str]
    """ResourceClaims that its pods name, by `namespace/name`; "" for the name of one that is made from a template."""
    waiting: bool = False
    """Whether the pods that wait are asked about."""
    rules: bool = True
    """Whether rules about other pods matter to those that are asked about."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question, and what its objects hold."""

    asked: WhatIf
    given: Given

    @property
    def adds_alone(self) -> bool:
        """Whether nodes are added for nobody: then it is about the pods that wait."""
        asked, given = self.asked, self.given
        others = asked.pods or given.workloads or asked.drain or asked.waiting
        return not others and bool(asked.add_nodes or asked.find_nodes or given.nodes)

    @property
    def waiting(self) -> bool:
        """Whether pods that wait are asked about."""
        return self.asked.waiting or self.adds_alone

    @property
    def add_nodes(self) -> list[AddedNodes]:
        """Those of its objects are candidates instead where new ones are searched for."""
        given = [] if self.asked.find_nodes else self.given.nodes
        return [*self.asked.add_nodes, *(AddedNodes(manifest=node) for node in given)]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """What new nodes may be like."""
        return [*self.asked.candidates, *(self.given.nodes if self.asked.find_nodes else ())]


def needs_of(question: Question) -> Needs:
    """What a question needs."""
    asked = question.asked
    adds = bool(question.add_nodes) or asked.find_nodes
    claims = dict.fromkeys((*names_of(asked.pods), *claims_of(question.given.pods)))
    rules = bool(question.waiting or asked.drain) or any(map(_has_rules, (*pods_of(asked.pods), *question.given.pods)))
    return Needs(list(dict.fromkeys(asked.drain)), adds, list(claims), question.waiting, rules)


def _has_rules(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    return bool(
        pod.spec.topology_spread_constraints
        or (affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None))
    )


def read_question(body: bytes) -> Question:
    """Raises WhatIfError."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WhatIfError(f"invalid request: {error}") from None
    if len(asked.drain) > _MAX_ADDED:
        raise WhatIfError(f"drain: more than {_MAX_ADDED} nodes")
    drop_nulls(asked.pods)
    try:
        given = read_given(asked.objects, asked.manifest, asked.namespace, asked.replicas)
    except DocumentError as error:
        raise WhatIfError(str(error)) from None
    question = Question(asked, given)
    if len(question.candidates) > _MAX_CANDIDATES:
        raise WhatIfError(f"candidates: more than {_MAX_CANDIDATES} nodes")
    return question


def added_nodes(asked: Iterable[AddedNodes], known: dict[str, Node]) -> list[tuple[Node, str]]:
    """The nodes to add, under names that the cluster does not have, each with the one that it is like. Raises
    WhatIfError."""
    added: list[tuple[Node, str]] = []
    for entry in asked:
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
    """An empty node like another one, under a name of its own; not cordoned."""
    labels = {**(template.metadata.labels or {}), HOSTNAME: name}
    metadata = msgspec.structs.replace(template.metadata, name=name, uid=name, labels=labels)
    spec = msgspec.structs.replace(template.spec, unschedulable=False)
    return msgspec.structs.replace(template, metadata=metadata, spec=spec)


def decoded_node(manifest: dict[str, Any], key: str) -> Node:
    """A node given in a question, under a key of it. Raises WhatIfError."""
    try:
        return decode_node(manifest)
    except msgspec.ValidationError as error:
        raise WhatIfError(f"{key}: {error}") from None


def asked_pods(asked: WhatIf) -> list[Pod]:
    """The pods asked about, each as often as it is wanted. Raises WhatIfError."""
    if len(asked.pods) * asked.replicas > MAX_PODS:
        raise WhatIfError(f"pods: {len(asked.pods)} x {asked.replicas} replicas are more than {MAX_PODS} pods")
    pods: list[Pod] = []
    for number, manifest in enumerate(asked.pods):
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
        for replica in range(asked.replicas):
            key = f"{name}-{replica}" if asked.replicas > 1 else name
            named = msgspec.structs.replace(metadata, name=key, namespace=namespace, uid=f"{number}-{key}")
            pods.append(msgspec.structs.replace(pod, metadata=named))
    return pods


@dataclass(frozen=True, slots=True)
class Objects:
    """Those that make pods."""

    workloads: Sequence[Workload]
    pods_of: Sequence[Sequence[Pod]]
    """Of each workload, no two pods under one name."""
    copy_of: Mapping[str, int]
    """By UID of a pod, the number of the copy that it is of, 0 where there is one."""

    @classmethod
    def of(cls, given: Given, taken: Iterable[str]) -> "Objects":
        """The objects of a question whose other pods have these keys."""
        pods_of = renamed(given.workloads, taken)
        copies = {
            pod.metadata.uid: workload.copy
            for workload, pods in zip(given.workloads, pods_of, strict=True)
            for pod in pods
        }
        return cls(given.workloads, pods_of, copies)

    @property
    def pods(self) -> list[Pod]:
        """Of all of them, in their order."""
        return [pod for pods in self.pods_of for pod in pods]

    def copied(self, pod: Pod, planned: PlanPod) -> PlanPod:
        """A pod as planners take it: copies of an object are gangs of their own."""
        copy = self.copy_of[pod.metadata.uid]
        return replace(planned, gang=f"{planned.gang}, copy {copy}") if copy and planned.gang else planned

    def report(self, result: PlanReport, notes: Mapping[str, str]) -> list[PlacedObject]:
        """Of each object which pods go where, and why others go nowhere; `notes` are by the keys of pods."""
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
