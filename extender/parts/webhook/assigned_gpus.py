"""The opt-in webhook `/mutate`: shows containers of pods that request GPUs only by annotation or label their GPUs.

Device plugins don't see such requests. If nodes have the vendor's plugin, and the pod requests a number of whole GPUs,
the webhook adds a limit of the plugin's resource. Otherwise it sets the environment variable of the vendor's container
runtime, from the assignment annotation by the downward API. The kubelet resolves it when the container starts, after
the Binding has written the annotation.

The webhook also gives such pods the marker resource, by which kube-scheduler calls Kerf or waits for it.

All pods are allowed; errors become warnings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.api.reviews import Operation, allow, read_creation
from extender.core.annotations import MARKER, requests_by_metadata
from extender.core.clusters import Cluster
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.core.vendors.registry import DEFAULT, DOMAINS
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.parts.webhook.node_affinity import NO_AFFINITY, AffinityWriter
from extender.parts.webhook.settings import Devices, WebhookSettings
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS
from extender.plugins.pod_resources import is_managed, managed_names
from extender.plugins.pods import read_pod_request

_VISIBLE_DEVICES: Final = DEFAULT.visible_devices
_INJECT_LABEL: Final = "kerf.dev/inject"
"""On a namespace or a pod: "enabled" opts in (by the webhook's selector), "disabled" on a pod opts out."""
_CONTAINERS: Final = "kerf.dev/gpu-containers"
"""Comma-separated names of the containers that get the GPUs; by default all but init containers."""

_VOID: Final = "void"
_NO_GPU: Final[dict[str, Any]] = {"name": _VISIBLE_DEVICES, "value": _VOID}
_NOTHING: Final = frozenset((_VOID, "none", ""))
_FIELDS: Final = {name: f"metadata.annotations['{name}']" for name in (ASSIGNED_GPUS, ASSIGNED_UUIDS)}


class _FieldRef(objects.Object, rename="camel"):
    field_path: str = ""


class _ValueFrom(objects.Object, rename="camel"):
    field_ref: _FieldRef | None = None


class _Variable(objects.Object, rename="camel"):
    name: str = ""
    value: str | None = None
    value_from: _ValueFrom | None = None


class _Container(objects.Object):
    name: str = ""
    env: list[_Variable] | None = None
    resources: objects.Resources | None = None


class _Spec(objects.Object, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[Any] | None = None


class _Pod(objects.Object):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_pod_decoder: Final = Decoder(objects.Pod)
_containers_decoder: Final = Decoder(_Pod)


@dataclass(frozen=True, slots=True)
class Injection:
    """How containers get their GPUs."""

    devices: Devices
    """UUIDS or INDICES."""
    resource: bool = False
    """Whether whole GPUs are requested from the device plugin instead."""


def settled(settings: WebhookSettings, cluster: Cluster) -> Injection:
    """The settings with AUTO resolved: UUIDs only if the cluster's GPUs all have one, as indices are always known."""
    devices = settings.devices
    if devices is Devices.AUTO:
        known = [all(uuids) for uuids in cluster.gpu_uuids if uuids]
        devices = Devices.UUIDS if known and all(known) else Devices.INDICES
    return Injection(devices, settings.resource and bool(cluster.plugin_picks.any()))


def mutate(body: bytes, injection: Callable[[], Injection], affinity: AffinityWriter = NO_AFFINITY) -> bytes:
    """Answer an AdmissionReview; `injection` is called only if something is injected."""
    request = read_creation(body)
    if isinstance(request, bytes):
        return request
    try:
        pod, containers = _pod_decoder.decode(request.object), _containers_decoder.decode(request.object)
    except msgspec.DecodeError as error:
        return allow(request.uid, f"the pod can't be read: {error}")
    marks = mark(pod.metadata, pod.spec)
    try:
        gpus = read_pod_request(pod).gpus
    except RequestError as error:
        return allow(request.uid, str(error), patch=marks)
    if (pod.metadata.labels or {}).get(_INJECT_LABEL) == "disabled":
        return allow(request.uid, patch=marks)
    kept, warnings = affinity.patch(pod, request.object)
    marks = [*marks, *kept]
    if gpus is None or gpus.unit is not AskedUnit.WHOLE or _served_by_plugin(containers.spec):
        return allow(request.uid, *warnings, patch=marks)
    injected = injection()
    places = list(_places(containers.spec, pod.metadata.annotations or {}, warnings))
    if injected.resource and gpus.count and not gpus.milli and any(chosen for _, _, chosen in places):
        patch = list(_request(places, gpus, warnings))
        return allow(request.uid, *warnings, patch=[*patch, *kept])
    field = _FIELDS[ASSIGNED_UUIDS if injected.devices is Devices.UUIDS else ASSIGNED_GPUS]
    patch = list(_patch(places, field, warnings))
    return allow(request.uid, *warnings, patch=[*patch, *marks])


def mark(metadata: objects.Metadata, spec: objects.PodSpec) -> list[Operation]:
    """The operation that adds the marker to a pod that requests GPUs only by annotation or label; [] for others."""
    if spec.node_name or is_managed(spec) or not spec.containers:
        return []
    if not requests_by_metadata(metadata.annotations or {}, metadata.labels or {}):
        return []
    return [_limit("/spec/containers/0", spec.containers[0].resources, MARKER, 1)]


def _served_by_plugin(spec: _Spec) -> bool:
    """Whether a device plugin or DRA driver allocates the pod's GPUs, and so shows them to the container."""
    names = {
        name
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
        if container.resources is not None
        for name in (*(container.resources.limits or ()), *(container.resources.requests or ()))
    }
    return bool(spec.resource_claims) or any(
        name.startswith(DOMAINS) or (name in managed_names() and name != MARKER) for name in names
    )


_Place = tuple[str, _Container, bool]
"""Path of a container, the container, and whether it gets the GPUs."""


def _places(spec: _Spec, annotations: Mapping[str, str], warnings: list[str]) -> Iterator[_Place]:
    """The place of each container; appends to `warnings`."""
    text = annotations.get(_CONTAINERS, "").strip()
    chosen = {name.strip() for name in text.split(",")} if text else {item.name for item in spec.containers or ()}
    lists = (("containers", spec.containers or []), ("initContainers", spec.init_containers or []))
    missing = chosen - {container.name for _, containers in lists for container in containers}
    if missing:
        warnings.append(f'{_CONTAINERS}: the pod has no container "{min(missing)}"')
    for key, containers in lists:
        for index, container in enumerate(containers):
            yield f"/spec/{key}/{index}", container, container.name in chosen


def _request(places: Sequence[_Place], gpus: GpuRequest, warnings: list[str]) -> Iterator[Operation]:
    """Operations that make the first of the chosen containers request the GPUs from the device plugin, and hide GPUs
    from the others."""
    first, *others = (container for _, container, chosen in places if chosen)
    if others:
        warnings.append(f"only container {first.name} gets the GPUs; {_CONTAINERS} can name another")
    for path, container, _ in places:
        if container is not first:
            yield from _show(path, container, _NO_GPU, warnings)
            continue
        own = [at for at, variable in enumerate(container.env or ()) if variable.name == _VISIBLE_DEVICES]
        if own:
            warnings.append(f"{_VISIBLE_DEVICES} of container {container.name} is left to the device plugin")
        for at in reversed(own):
            yield {"op": "remove", "path": f"{path}/env/{at}"}
        yield _limit(path, container.resources, DEFAULT.resource, gpus.count)


def _limit(container: str, resources: objects.Resources | None, resource: str, count: int) -> Operation:
    """The operation that adds a limit, and so a request, to a container."""
    path, limits = f"{container}/resources", {resource: str(count)}
    if resources is None:
        return {"op": "add", "path": path, "value": {"limits": limits}}
    if resources.limits is None:
        return {"op": "add", "path": f"{path}/limits", "value": limits}
    return {"op": "add", "path": f"{path}/limits/{resource.replace('/', '~1')}", "value": str(count)}


def _patch(places: Iterable[_Place], field: str, warnings: list[str]) -> Iterator[Operation]:
    """Operations that set the containers' variables; none if they are right already."""
    assigned = {"name": _VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}
    for path, container, chosen in places:
        yield from _show(path, container, assigned if chosen else _NO_GPU, warnings)


def _show(path: str, container: _Container, wanted: Operation, warnings: list[str]) -> Iterator[Operation]:
    """The operation that sets a container's variable unless it is right already."""
    path = f"{path}/env"
    own = [at for at, variable in enumerate(container.env or ()) if variable.name == _VISIBLE_DEVICES]
    if container.env is None:
        yield {"op": "add", "path": path, "value": [wanted]}
    elif not own:
        # First, as other variables may refer to it.
        yield {"op": "add", "path": f"{path}/0", "value": wanted}
    elif not _is_as_wanted(container.env[own[-1]], chosen=wanted is not _NO_GPU):
        # The last of several counts.
        warnings.append(f"{_VISIBLE_DEVICES} of container {container.name} is replaced by the GPUs that Kerf assigns")
        yield {"op": "replace", "path": f"{path}/{own[-1]}", "value": wanted}


def _is_as_wanted(variable: _Variable, *, chosen: bool) -> bool:
    """Whether a container's own variable shows no GPU, or, if `chosen`, the assigned ones."""
    source = variable.value_from
    if source is None:
        return (variable.value or "") in _NOTHING
    return chosen and source.field_ref is not None and source.field_ref.field_path in _FIELDS.values()
