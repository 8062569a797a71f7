"""ResourceClaims of a question's pods: given with the question, made from its templates, or in the cluster."""

import contextlib
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from extender.core.clusters import Cluster
from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.fit.device_fits import possible_on
from extender.core.resources.requests import RequestError
from extender.dra.asks import read_asks
from extender.dra.objects import ClaimMetadata, DeviceClass, ResourceClaim, ResourceClaimSpec
from extender.dra.pod_claims import PodClaims
from extender.kube.decoding import Decoder, convert
from extender.kube.objects import Pod
from extender.plugins.pods import read_pod_request

_NOT_HERE: Final = "requests devices by ResourceClaim, but Kerf allocates none here (setting dra.allocate)"

_GPU_CLASS: Final = re.compile(r"(^|[^a-z])(gpu|mig)([^a-z]|$)")
"""Matches names of device classes that may be GPUs."""

PackedDevices = tuple[bytes, int, Any, Any]
"""A node's devices for another process: the pickled inventory, and what is in use."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The devices and claims of the cluster that a plan needs."""

    devices: Mapping[str, PackedDevices]
    """By node."""
    claims: Mapping[str, ResourceClaim]
    """Claims that the pods name, by `namespace/name`."""
    classes: Mapping[str, DeviceClass]


def pack(devices: NodeDevices, inventory: bytes) -> PackedDevices:
    """A node's devices; `inventory` is its pickled inventory."""
    return inventory, devices.taken, devices.parts, devices.left


def with_devices(cluster: Cluster, facts: DeviceFacts, likes: Mapping[str, str]) -> Cluster:
    """The cluster with its nodes' devices. `likes` maps added nodes to the node that each copies; all devices of an
    added node are free."""
    known: dict[bytes, Inventory] = {}
    column = np.full(cluster.num_nodes, None, np.object_)
    for name, row in cluster.row_of.items():
        packed = facts.devices.get(likes.get(name, name))
        if packed is None:
            continue
        content, taken, parts, left = packed
        inventory = known.get(content)
        if inventory is None:
            inventory = known[content] = pickle.loads(content)  # noqa: S301 - written by the service
        column[row] = NodeDevices.of(inventory) if name in likes else NodeDevices(inventory, taken, parts, left)
    return replace(cluster, devices=column)


@dataclass(eq=False)
class AskedClaims:
    """The claims of one question's pods. A claim is allocated for the first pod that names it."""

    facts: DeviceFacts | None
    """None if Kerf allocates no devices."""
    given: Mapping[str, ResourceClaim]
    """By `namespace/name`."""
    templates: Mapping[str, ResourceClaimSpec]
    unchecked: set[str] = field(default_factory=set, init=False)
    """Keys of pods with claims that Kerf does not allocate and therefore does not check."""
    _possible: dict[DeviceClaims, bool] = field(default_factory=dict, init=False)
    _first: dict[str, str] = field(default_factory=dict, init=False)
    """By claim: the first pod that names it."""

    def of(self, pod: Pod) -> PodClaims:
        """The claims of a pod. Those of a bound pod are allocated again, as it has to leave its node. Raises
        RequestError."""
        names = pod.spec.resource_claims or ()
        if not names:
            return PodClaims()
        by_resource = read_pod_request(pod).gpus is not None
        if self.facts is None:
            if not by_resource and not self._are_of_others(pod):
                raise RequestError(_NOT_HERE)
            self.unchecked.add(pod.key)
            return PodClaims()
        allocated, unallocated = list[ResourceClaim](), list[ResourceClaim]()
        made = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses or ()}
        for item in names:
            name = item.resource_claim_name or made.get(item.name) or ""
            template = item.resource_claim_template_name or ""
            try:
                claim = self._named(pod, name) if name or not template else self._made(pod, item.name, template)
            except RequestError:
                if not by_resource:
                    raise
                self.unchecked.add(pod.key)  # it requests GPUs by resource
                continue
            keeps = claim.status.allocation is not None and not pod.spec.node_name
            (allocated if keeps else unallocated).append(claim)
        if by_resource and not all(self._is_kerfs(claim) for claim in unallocated):
            self.unchecked.add(pod.key)
            unallocated = [claim for claim in unallocated if self._is_kerfs(claim)]
        demand = read_asks(unallocated, self.facts.classes) if unallocated else None
        return PodClaims(tuple(allocated), tuple(unallocated), demand)

    def _is_kerfs(self, claim: ResourceClaim) -> bool:
        """Whether some node has devices for a claim that Kerf allocates."""
        if self.facts is None:
            return False
        try:
            demand = read_asks([claim], self.facts.classes)
        except RequestError:
            return False
        if demand not in self._possible:
            contents = {packed[0] for packed in self.facts.devices.values()}
            self._possible[demand] = any(
                possible_on(pickle.loads(content), demand)  # noqa: S301 - written by the service
                for content in contents
            )
        return self._possible[demand]

    def _are_of_others(self, pod: Pod) -> bool:
        """Whether all claims of a pod are known and none requests a GPU."""
        classes: list[str] = []
        for item in pod.spec.resource_claims or ():
            at = f"{pod.metadata.namespace}/"
            claim = self.given.get(at + (item.resource_claim_name or ""))
            spec = (
                claim.spec if claim is not None else self.templates.get(at + (item.resource_claim_template_name or ""))
            )
            if spec is None:
                return False
            for request in spec.devices.requests or ():
                alternatives = [request.exactly] if request.exactly is not None else request.first_available or ()
                classes += [one.device_class_name for one in alternatives]
        return bool(classes) and not any(_GPU_CLASS.search(name) for name in classes)

    def _named(self, pod: Pod, name: str) -> ResourceClaim:
        key = f"{pod.metadata.namespace}/{name}"
        claim = self.given.get(key) or (self.facts.claims.get(key) if self.facts else None)
        if claim is None:
            raise RequestError(f"its ResourceClaim {name} is neither in the cluster nor given")
        if claim.status.allocation is None or pod.spec.node_name:
            first = self._first.setdefault(key, pod.key)
            if first != pod.key:
                raise RequestError(f"its ResourceClaim {name} is allocated for {first}: it must go to these devices")
        return claim

    def _made(self, pod: Pod, item: str, template: str) -> ResourceClaim:
        spec = self.templates.get(f"{pod.metadata.namespace}/{template}")
        if spec is None:
            raise RequestError(f"its ResourceClaimTemplate {template} is not given")
        name = f"{pod.metadata.name}-{item}"
        return ResourceClaim(ClaimMetadata(name, pod.metadata.namespace, f"{pod.metadata.uid}/{item}"), spec)


def read_claims(manifests: Sequence[Mapping[str, Any]]) -> dict[str, ResourceClaim]:
    """Claims by `namespace/name`. Raises msgspec.ValidationError."""
    claims = Decoder(list[ResourceClaim]).decode(msgspec.json.encode(manifests))  # configs stay as bytes
    for claim in claims:
        claim.metadata.namespace = claim.metadata.namespace or "default"
        claim.metadata.uid = claim.metadata.uid or f"given/{claim.key}"
    return {claim.key: claim for claim in claims}


class _Template(msgspec.Struct):
    spec: ResourceClaimSpec


class _NamedTemplate(msgspec.Struct):
    metadata: ClaimMetadata
    spec: _Template


def read_templates(manifests: Sequence[Mapping[str, Any]]) -> dict[str, ResourceClaimSpec]:
    """Claim specs of the templates, by the template's `namespace/name`. Raises msgspec.ValidationError."""
    templates = Decoder(list[_NamedTemplate]).decode(msgspec.json.encode(manifests))
    return {f"{item.metadata.namespace or 'default'}/{item.metadata.name}": item.spec.spec for item in templates}


def names_of(manifests: Iterable[Any]) -> list[str]:
    """`namespace/name` of the claims that pod manifests name; invalid manifests are skipped."""
    return claims_of(pods_of(manifests))


def pods_of(manifests: Iterable[Any]) -> list[Pod]:
    """The pods of manifests; invalid manifests are skipped."""
    pods: list[Pod] = []
    for manifest in manifests:
        with contextlib.suppress(msgspec.ValidationError):
            pods.append(convert(manifest, Pod))
    return pods


def claims_of(pods: Iterable[Pod]) -> list[str]:
    """`namespace/name` of the claims that pods name; the name is "" for claims made from a template."""
    found: dict[str, None] = {}
    for pod in pods:
        for item in pod.spec.resource_claims or ():
            found[f"{pod.metadata.namespace or 'default'}/{item.resource_claim_name or ''}"] = None
    return list(found)
