"""Reads the objects of a request, given as data or as text: workloads, and the nodes, claims and PodGroups with them.

Resources are checked as the API server does: `validateResourceRequirements` of kubernetes 1.37
`pkg/apis/core/validation/validation.go`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from extender.core.resources.quantities import parse_quantity
from extender.core.vendors.registry import DEFAULT
from extender.explain.manifests.batches import Batch, KindError, read, spec_of
from extender.explain.manifests.documents import (
    MAX_CHARS,
    Document,
    DocumentError,
    given_documents,
    name_of,
    read_documents,
    read_texts,
)
from extender.explain.manifests.fields import unknown_fields
from extender.explain.manifests.kinds import MAKES, OTHERS, PASSIVE, read_made
from extender.kube.objects import Container, Metadata, Pod, PodSpec, Quantities
from extender.kube.transport import is_name
from extender.plugins.pod_resources import managed_names
from extender.queueing.gangs import Group, PodGroup, read_group
from extender.queueing.pods.batches import POD_GROUP_LABEL
from extender.queueing.pods.objects import PIPELINE_LABEL

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE_PAGES: Final = "hugepages-"
_MAX_RESOURCE_NAME: Final = 80


def refusal_of(spec: PodSpec) -> tuple[str, str]:
    """The path within a pod's spec that the API server refuses, and why; ("", "") if it accepts the spec."""
    for key, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers or ()):
            if why := _of_container(container):
                return f"{key}[{number}].resources", f"the API server refuses it: {why}"
    return "", ""


def _of_container(container: Container) -> str:
    resources = container.resources
    if resources is None:
        return ""
    limits, requests = resources.limits or {}, resources.requests or {}
    for name in dict.fromkeys((*limits, *requests)):
        if why := _of_name(name) or _of_amounts(name, limits, requests):
            return f"{name[:_MAX_RESOURCE_NAME]}: {why}"
    asked = {*limits, *requests}
    if any(name.startswith(_HUGE_PAGES) for name in asked) and asked.isdisjoint(("cpu", "memory")):
        return "huge pages need cpu or memory beside them"
    return ""


def _of_name(name: str) -> str:
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
        return f"not a standard resource; an extended resource has a domain, such as {DEFAULT.resource}"
    domain, _, rest = name.rpartition("/")
    return "not a valid resource name" if "/" in domain or ("/" in name and not (domain and rest)) else ""


def _of_amounts(name: str, limits: Quantities, requests: Quantities) -> str:
    limit, request = limits.get(name), requests.get(name)
    try:
        amounts = [parse_quantity(str(value)) for value in (limit, request) if value is not None]
    except ValueError:
        return ""  # reported where the request is read
    if any(amount < 0 for amount in amounts):
        return "is negative"
    counted = "/" in name and "kubernetes.io/" not in name
    if counted and name not in managed_names() and any(amount.denominator != 1 for amount in amounts):
        return "must be a whole number"
    if len(amounts) == 2 and (
        amounts[0] != amounts[1] if counted or name.startswith(_HUGE_PAGES) else amounts[1] > amounts[0]
    ):
        return f"its request {request} {'differs from' if counted else 'exceeds'} its limit {limit}"
    if (counted or name.startswith(_HUGE_PAGES)) and limit is None:
        return "is requested without a limit, which must be the same"
    return ""


MAX_PODS: Final = 10_000
_MAX_NAME: Final = 400
_OF_PODS: Final = ("kerf.dev/", "genius/")
_OWN_KINDS: Final = frozenset({"Pod", "Pipeline", "MLFlow"})
"""Kinds whose own annotations and labels Kerf reads."""
_MAX_KEY: Final = 80
_MOST_KEYS: Final = 8
_NATIVE, _PLUGINS = "scheduling.k8s.io/", "scheduling.x-k8s.io/"


@dataclass(frozen=True, slots=True)
class Workload:
    """One object that makes pods, or one copy of it."""

    name: str
    """`Job default/train`"""
    place: str
    """Where it was given, as of `Document.place`."""
    pods: Sequence[Pod]
    notes: Sequence[str] = ()
    copy: int = 0
    """Number of the copy, from 1, if several copies are requested: each copy is a separate gang. Else 0."""


@dataclass(slots=True)
class GivenObjects:
    """The objects of a request."""

    workloads: list[Workload] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    """PodGroups, by the key of `group_key`."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    claim_templates: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Objects that make no pods."""

    @property
    def pods(self) -> list[Pod]:
        """The pods of all workloads."""
        return [pod for workload in self.workloads for pod in workload.pods]


class _PriorityClass(msgspec.Struct):
    value: int = 0


def _read_objects(documents: Sequence[Document], copies: int = 1, namespace: str = "default") -> GivenObjects:
    """The objects of some documents, with each workload copied `copies` times. Raises DocumentError.

    `namespace` is the default for objects that have none.
    """
    given = GivenObjects()
    priorities: dict[str, int] = {}
    making: list[Document] = []
    for document in documents:
        _set_namespace(document.manifest, namespace)
        try:
            if not _add_other(given, document, priorities):
                making.append(document)
        except KindError as error:
            raise document.fault(error.why, error.path) from None
    num_pods = 0
    for number, document in enumerate(making):
        try:
            num_pods += _add_workload(given, document, number, copies, num_pods, priorities)
        except KindError as error:
            raise document.fault(error.why, error.path) from None
    if documents and not (num_pods or given.nodes or given.claims or given.claim_templates):
        raise documents[0].fault("neither it nor any other object here creates pods")
    return given


def renamed(workloads: Iterable[Workload], taken: Iterable[str]) -> list[list[Pod]]:
    """The pods of each workload, renamed so that no `namespace/name` occurs twice or is among the taken ones."""
    names = set(taken)
    found: list[list[Pod]] = []
    for workload in workloads:
        pods: list[Pod] = []
        for pod in workload.pods:
            name, number = pod.metadata.name, 2
            while f"{pod.metadata.namespace}/{name}" in names:
                name, number = f"{pod.metadata.name}.{number}", number + 1
            if name != pod.metadata.name:
                pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=name))  # noqa: PLW2901
            names.add(pod.key)
            pods.append(pod)
        found.append(pods)
    return found


def _set_namespace(manifest: dict[str, Any], namespace: str) -> None:
    """Set the default namespace of an object; harmless for cluster-scoped objects such as a Node."""
    metadata = manifest.setdefault("metadata", {})
    if isinstance(metadata, dict):
        metadata.setdefault("namespace", namespace)


def _add_other(given: GivenObjects, document: Document, priorities: dict[str, int]) -> bool:
    """Add an object that makes no pods. Returns False for a workload. Raises DocumentError, KindError."""
    manifest = document.manifest
    kind, version = manifest.get("kind"), str(manifest.get("apiVersion", ""))
    if not isinstance(kind, str) or not kind:
        raise KindError("kind", "is missing")
    if kind in MAKES:
        return False
    if kind == "PodGroup" and version.startswith((_NATIVE, _PLUGINS)):
        metadata = read(manifest["metadata"], Metadata, "metadata")
        key = f"{metadata.namespace}/{metadata.name}"
        given.groups[f"{key} native" if version.startswith(_NATIVE) else key] = read_group(read(manifest, PodGroup))
    elif kind == "Node":
        given.nodes.append(manifest)
    elif kind == "ResourceClaim":
        given.claims.append(manifest)
    elif kind == "ResourceClaimTemplate":
        given.claim_templates.append(manifest)
    elif kind in OTHERS:
        raise document.fault(OTHERS[kind])
    elif kind in PASSIVE or kind == "PodGroup":
        given.skipped.append(name_of(manifest))
        if kind == "PriorityClass":
            metadata = read(manifest["metadata"], Metadata, "metadata")
            priorities[metadata.name] = read(manifest, _PriorityClass).value
    else:
        raise KindError("kind", f"{kind[:80]} is not supported; use {', '.join(MAKES)}, or the pods themselves")
    return True


def _add_workload(
    given: GivenObjects, document: Document, number: int, copies: int, num_before: int, priorities: dict[str, int]
) -> int:
    """Add a workload and return the number of its pods. Raises DocumentError, KindError."""
    manifest = document.manifest
    kind = manifest["kind"]
    metadata = read(manifest["metadata"], Metadata, "metadata")
    prefix = manifest["metadata"].get("generateName")
    prefix = prefix.rstrip("-") if isinstance(prefix, str) else ""
    name, namespace = metadata.name or prefix or f"{kind.lower()}-{number}", metadata.namespace
    for text, path in ((name, "metadata.name"), (namespace, "metadata.namespace")):
        if not is_name(text):
            raise KindError(path, f"{text[:80]!r} is not a valid name")
    made = read_made(manifest, name)
    namespace = made.namespace or namespace
    count = copies * sum(batch.num_pods for batch in made.batches)
    if num_before + count > MAX_PODS:
        before = f" with {num_before:,} others" if num_before else ""
        most = max(made.batches, key=lambda batch: batch.num_pods)
        raise document.fault(f"{count:,} pods{before} exceed the limit of {MAX_PODS:,}", most.path)
    read_batches = [(batch, _template(batch, priorities)) for batch in made.batches if batch.num_pods]
    notes = list(made.notes) if count else [*made.notes, "it creates no pods as written"]
    if stray := _stray_keys(manifest, [pod for _, pod in read_batches]):
        notes.append(f"{', '.join(stray)}: only read in the pod template, not on the {kind} itself")
    notes += unknown_fields(manifest, made.batches)
    if any(pod.spec.node_name for _, pod in read_batches):
        notes.append("spec.nodeName is ignored: the pod is placed again")
    for copy in range(copies):
        suffix = f"-{copy}" if copies > 1 else ""
        pods = [
            _named(template, f"{name}{suffix}{batch.name(position)[len(name) :]}", namespace, f"{number}.{copy}")
            for batch, template in read_batches
            for position in range(batch.num_pods)
        ]
        label = f"{kind} {namespace}/{name}{suffix}"
        # Copies of a bare pod stay in the gang that the pod names.
        copy_number = 0 if kind == "Pod" or copies == 1 else copy + 1
        given.workloads.append(Workload(label, document.place, pods, tuple(notes), copy_number))
    return count


def _stray_keys(manifest: dict[str, Any], templates: Sequence[Pod]) -> list[str]:
    """Kerf's pod keys that the object itself has, but none of its pod templates."""
    if manifest["kind"] in _OWN_KINDS:
        return []
    metadata = manifest["metadata"]
    own = {key for part in ("annotations", "labels") for key in metadata.get(part) or () if _is_of_pods(key)}
    theirs = {
        key for pod in templates for part in (pod.metadata.annotations, pod.metadata.labels) for key in part or ()
    }
    return sorted(key[:_MAX_KEY] for key in own - theirs)[:_MOST_KEYS]


def _is_of_pods(key: object) -> bool:
    return isinstance(key, str) and (key.startswith(_OF_PODS) or key == POD_GROUP_LABEL) and key != PIPELINE_LABEL


def _template(batch: Batch, priorities: dict[str, int]) -> Pod:
    """A pod with the metadata and spec shared by a batch. Raises KindError."""
    path = f"{batch.path}.metadata" if batch.path else "metadata"
    metadata = read(batch.template.get("metadata") or {}, Metadata, path)
    spec: PodSpec = spec_of(batch)
    where, why = refusal_of(spec)
    if why:
        raise KindError(f"{batch.path}.spec.{where}" if batch.path else f"spec.{where}", why)
    name = batch.template["spec"].get("priorityClassName")
    if spec.priority is None and isinstance(name, str) and name in priorities:
        spec.priority = priorities[name]
    if len(batch.name(batch.num_pods - 1)) > _MAX_NAME:
        raise KindError(batch.path, "the names of its pods would be too long")
    kept = Metadata(labels=metadata.labels, annotations=metadata.annotations)
    return Pod(metadata=kept, spec=spec)


def _named(template: Pod, name: str, namespace: str, stem: str) -> Pod:
    metadata = template.metadata
    named = Metadata(name, namespace, f"{stem}-{name}", labels=metadata.labels, annotations=metadata.annotations)
    spec = template.spec
    if spec.node_name:
        spec = msgspec.structs.replace(spec, node_name=None)
    return Pod(metadata=named, spec=spec)


_MAX_TEXTS: Final = 100
_Text = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
Texts = _Text | Annotated[list[_Text], msgspec.Meta(max_length=_MAX_TEXTS)]
"""YAML or JSON of one or more documents, or a list of such texts."""


def read_given(
    objects: list[dict[str, Any]], manifest: str | list[str], namespace: str, copies: int = 1
) -> GivenObjects:
    """The objects of a request's keys `objects`, `manifest` and `namespace`, with `copies` of each workload.

    Raises DocumentError.
    """
    if not is_name(namespace):
        raise DocumentError(f"namespace: {namespace[:80]!r} is not a valid name")
    documents = given_documents(objects, "objects")
    documents += read_documents(manifest) if isinstance(manifest, str) else read_texts(manifest, "manifest")
    return _read_objects(documents, copies, namespace)
