"""What documents hold: objects that make pods, and what goes with these.

Objects as requests name them: as data, as text, or as several texts.

What the API server refuses of a pod's resources: `validateResourceRequirements` of kubernetes 1.37
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
_MAX_TOLD_NAME: Final = 80


def refusal_of(spec: PodSpec) -> tuple[str, str]:
    """Where in a pod's spec something is that is refused, and why; ("", "") where nothing is."""
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
            return f"{name[:_MAX_TOLD_NAME]}: {why}"
    asked = {*limits, *requests}
    if any(name.startswith(_HUGE_PAGES) for name in asked) and asked.isdisjoint(("cpu", "memory")):
        return "huge pages need cpu or memory beside them"
    return ""


def _of_name(name: str) -> str:
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
        return f"no standard resource; one of a device plugin has a domain, such as {DEFAULT.resource}"
    domain, _, rest = name.rpartition("/")
    return "no name of a resource" if "/" in domain or ("/" in name and not (domain and rest)) else ""


def _of_amounts(name: str, limits: Quantities, requests: Quantities) -> str:
    limit, request = limits.get(name), requests.get(name)
    try:
        amounts = [parse_quantity(str(value)) for value in (limit, request) if value is not None]
    except ValueError:
        return ""  # told by who reads it
    if any(amount < 0 for amount in amounts):
        return "is negative"
    counted = "/" in name and "kubernetes.io/" not in name
    if counted and name not in managed_names() and any(amount.denominator != 1 for amount in amounts):
        return "must be a whole number"
    if len(amounts) == 2 and (
        amounts[0] != amounts[1] if counted or name.startswith(_HUGE_PAGES) else amounts[1] > amounts[0]
    ):
        return f"its request {request} is {'not its' if counted else 'above its'} limit {limit}"
    if (counted or name.startswith(_HUGE_PAGES)) and limit is None:
        return "is requested without a limit, which has to be the same"
    return ""


MAX_PODS: Final = 10_000
_MAX_NAME: Final = 400
_OF_PODS: Final = ("kerf.dev/", "genius/")
_OWN_KINDS: Final = frozenset({"Pod", "Pipeline", "MLFlow"})
"""Of which Kerf reads keys as they are."""
_MAX_KEY: Final = 80
_MOST_KEYS: Final = 8
_NATIVE, _PLUGINS = "scheduling.k8s.io/", "scheduling.x-k8s.io/"


@dataclass(frozen=True, slots=True)
class Workload:
    """One object that makes pods, or one copy of it."""

    name: str
    """`Job default/train`"""
    place: str
    """Where it was written."""
    pods: Sequence[Pod]
    notes: Sequence[str] = ()
    copy: int = 0
    """Its number where several are asked about, from 1: each is a gang of its own."""


@dataclass(slots=True)
class Given:
    """All that documents hold."""

    workloads: list[Workload] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    """PodGroups, by the key that `group_key` gives."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    claim_templates: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Objects that make no pods."""

    @property
    def pods(self) -> list[Pod]:
        """Of all workloads."""
        return [pod for workload in self.workloads for pod in workload.pods]


class _PriorityClass(msgspec.Struct):
    value: int = 0


def _read_objects(documents: Sequence[Document], copies: int = 1, namespace: str = "default") -> Given:
    """What documents hold, each workload so many times; `namespace` is of what names none. Raises DocumentError."""
    given = Given()
    priorities: dict[str, int] = {}
    making: list[Document] = []
    for document in documents:
        _settle(document.manifest, namespace)
        try:
            if not _took(given, document, priorities):
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
        raise documents[0].fault("it makes no pods, nor does anything beside it")
    return given


def renamed(workloads: Iterable[Workload], taken: Iterable[str]) -> list[list[Pod]]:
    """The pods of each workload, no two of them under one `namespace/name`, nor under one that is taken."""
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


def _settle(manifest: dict[str, Any], namespace: str) -> None:
    """Give an object the namespace that it does not name: what has none, such as a Node, is not harmed by it."""
    metadata = manifest.setdefault("metadata", {})
    if isinstance(metadata, dict):
        metadata.setdefault("namespace", namespace)


def _took(given: Given, document: Document, priorities: dict[str, int]) -> bool:
    """Take what makes no pods; whether it was that. Raises DocumentError, KindError."""
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
        raise KindError("kind", f"{kind[:80]} is not known here; write {', '.join(MAKES)}, or the pods themselves")
    return True


def _add_workload(
    given: Given, document: Document, number: int, copies: int, num_before: int, priorities: dict[str, int]
) -> int:
    """The number of its pods. Raises DocumentError, KindError."""
    manifest = document.manifest
    kind = manifest["kind"]
    metadata = read(manifest["metadata"], Metadata, "metadata")
    prefix = manifest["metadata"].get("generateName")
    prefix = prefix.rstrip("-") if isinstance(prefix, str) else ""
    name, namespace = metadata.name or prefix or f"{kind.lower()}-{number}", metadata.namespace
    for text, path in ((name, "metadata.name"), (namespace, "metadata.namespace")):
        if not is_name(text):
            raise KindError(path, f"{text[:80]!r} is no name")
    made = read_made(manifest, name)
    namespace = made.namespace or namespace
    count = copies * sum(batch.num_pods for batch in made.batches)
    if num_before + count > MAX_PODS:
        before = f" beside {num_before:,} others" if num_before else ""
        most = max(made.batches, key=lambda batch: batch.num_pods)
        raise document.fault(f"{count:,} pods{before} are more than {MAX_PODS:,}", most.path)
    read_batches = [(batch, _template(batch, priorities)) for batch in made.batches if batch.num_pods]
    notes = list(made.notes) if count else [*made.notes, "it makes no pods as it is written"]
    if stray := _stray_keys(manifest, [pod for _, pod in read_batches]):
        notes.append(f"{', '.join(stray)}: read in the template of its pods alone, not on the {kind} itself")
    notes += unknown_fields(manifest, made.batches)
    if any(pod.spec.node_name for _, pod in read_batches):
        notes.append("spec.nodeName is left out: it is placed anew")
    for copy in range(copies):
        suffix = f"-{copy}" if copies > 1 else ""
        pods = [
            _named(template, f"{name}{suffix}{batch.name(position)[len(name) :]}", namespace, f"{number}.{copy}")
            for batch, template in read_batches
            for position in range(batch.num_pods)
        ]
        label = f"{kind} {namespace}/{name}{suffix}"
        # Pods by themselves are of the gang that they name, however many there are.
        of = 0 if kind == "Pod" or copies == 1 else copy + 1
        given.workloads.append(Workload(label, document.place, pods, tuple(notes), of))
    return count


def _stray_keys(manifest: dict[str, Any], templates: Sequence[Pod]) -> list[str]:
    """Keys of pods that are on what makes them, and on none of these."""
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
    """What the pods of a batch have in common. Raises KindError."""
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
"""YAML or JSON, of one document or several; or several texts."""


def read_given(objects: list[dict[str, Any]], manifest: str | list[str], namespace: str, copies: int = 1) -> Given:
    """What the keys `objects`, `manifest` and `namespace` of a request hold, each object that makes pods so many times.

    Raises DocumentError.
    """
    if not is_name(namespace):
        raise DocumentError(f"namespace: {namespace[:80]!r} is no name")
    documents = given_documents(objects, "objects")
    documents += read_documents(manifest) if isinstance(manifest, str) else read_texts(manifest, "manifest")
    return _read_objects(documents, copies, namespace)
