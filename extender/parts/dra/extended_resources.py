"""Rewrites pods' extended resources to ResourceClaims, in the queue's webhook.

kube-scheduler would create its own claim for a DeviceClass's extended resource, which can't get devices of Kerf's
pools. So the webhook, which may have no side effects, adds a claim's name and an annotation with its requests to the
pod. Kerf's leader creates the claim when it sees the pod in the queue.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.api.reviews import Operation
from extender.core.annotations import CLAIM
from extender.core.resources.quantities import parse_quantity
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.parts.dra.maker import MAX_DEVICES, AskedClaim, AskedDevices, claim_name, request_name


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Implements RewritesRequests. `classes` are device classes by extended resource."""

    classes: Mapping[str, str]

    def operations(self, body: msgspec.Raw, *, annotated: bool) -> tuple[list[Operation], list[str]]:
        """The JSON patch that rewrites a pod's extended resources, and warnings."""
        try:
            pod = _asking_decoder.decode(body)
        except msgspec.DecodeError as error:
            return [], [f"the containers' resources can't be read: {error}"]
        patch, fault = _rewritten(pod, self.classes, claim_name(secrets.token_hex(8)), annotated=annotated)
        return patch, [f"extended resources are not replaced by a ResourceClaim: {fault}"] if fault else []


class _Resources(objects.Resources):
    claims: list[Any] | None = None


class _Container(objects.Object):
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(objects.Object, rename="camel"):
    containers: list[_Container] = msgspec.field(default_factory=list)
    init_containers: list[_Container] | None = None
    resource_claims: list[Any] | None = None


class _AskingPod(objects.Named):
    """The fields of a pod that rewriting reads."""

    spec: _Spec = msgspec.field(default_factory=_Spec)


_asking_decoder: Final = Decoder(_AskingPod)


def _rewritten(
    pod: _AskingPod, classes: Mapping[str, str], name: str, *, annotated: bool
) -> tuple[list[Operation], str]:
    """The JSON patch that makes containers use the claim `name`, or why their resources can't be rewritten.

    `annotated`: earlier operations of the same patch create `metadata.annotations`.
    """
    asked, fault = _asked(pod, classes)
    if fault or not asked:
        return [], fault
    claim = AskedClaim(name, [AskedDevices(request_name(at), classes[key], n) for at, key, n in asked])
    patch: list[Operation] = []
    for at, key, _ in asked:
        patch += _moved(pod.spec.containers[at].resources, at, key, name)
    entry = {"name": name, "resourceClaimName": name}
    patch.append(_appended("/spec/resourceClaims", pod.spec.resource_claims is None, entry))
    value = msgspec.json.encode(claim).decode()
    if pod.metadata.annotations is None and not annotated:
        return [*patch, {"op": "add", "path": "/metadata/annotations", "value": {CLAIM: value}}], ""
    return [*patch, {"op": "add", "path": f"/metadata/annotations/{_escaped(CLAIM)}", "value": value}], ""


def _asked(pod: _AskingPod, classes: Mapping[str, str]) -> tuple[list[tuple[int, str, int]], str]:
    """(container index, resource, count) of each request, or why the requests can't be rewritten."""
    asked: list[tuple[int, str, int]] = []
    if any(classes.keys() & objects.requests_of(item.resources).keys() for item in pod.spec.init_containers or ()):
        return [], "init containers request them"  # unlike a claim's devices, they are free once the container ends
    for at, container in enumerate(pod.spec.containers):
        wanted = objects.requests_of(container.resources)
        keys = sorted(set(wanted) & set(classes))
        if len(keys) > 1:
            return [], f"a container requests {' and '.join(keys)}"
        for key in keys:
            try:
                count = int(parse_quantity(str(wanted[key])))
            except ValueError:
                return [], f"{key} is not a number"
            if count > 0:
                asked.append((at, key, count))
    if asked and CLAIM in (pod.metadata.annotations or {}):
        return [], f"annotation {CLAIM} exists already"
    if sum(count for _, _, count in asked) > MAX_DEVICES:
        return [], f"more than {MAX_DEVICES} devices"
    return asked, ""


def _moved(resources: _Resources, at: int, key: str, name: str) -> Iterator[Operation]:
    path = f"/spec/containers/{at}/resources"
    for part, quantities in (("limits", resources.limits), ("requests", resources.requests)):
        if key in (quantities or {}):
            yield {"op": "remove", "path": f"{path}/{part}/{_escaped(key)}"}
    entry = {"name": name, "request": request_name(at)}
    yield _appended(f"{path}/claims", resources.claims is None, entry)


def _appended(path: str, is_first: bool, entry: Operation) -> Operation:
    return (
        {"op": "add", "path": path, "value": [entry]}
        if is_first
        else {"op": "add", "path": f"{path}/-", "value": entry}
    )


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
