"""Creates the ResourceClaims that the webhook wrote in an annotation in place of pods' extended resources."""

import logging
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from extender.core.annotations import CLAIM
from extender.kube.background import repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.queueing.pods.entries import Entry

logger = logging.getLogger(__name__)

MAX_DEVICES: Final = 32
"""Most devices that the API server allows in a claim."""
_NAME: Final = re.compile(r"kerf-[0-9a-f]{16}")
_REQUEST: Final = re.compile(r"container-[0-9]{1,3}")
_MAX_CHARS: Final = 8192


class AskedDevices(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A number of devices of a class for one container."""

    name: str
    device_class: str = msgspec.field(name="class")
    count: int


class AskedClaim(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A claim to create, as in the annotation."""

    name: str
    requests: list[AskedDevices]


_decoder: Final = Decoder(AskedClaim)


def claim_name(random_hex: str) -> str:
    """A claim's name, from 16 random hex digits, since the pod has no name yet at admission."""
    return f"kerf-{random_hex}"


def request_name(container: int) -> str:
    """The name of the request for a container, by the container's index."""
    return f"container-{container}"


def _asked_of(pod: Pod, classes: Collection[str]) -> AskedClaim | None:
    """The claim to create for a pod; None if there is no valid annotation.

    A pod's author can write the annotation too, and gets no more than an extended resource of these classes gives.
    """
    text = (pod.metadata.annotations or {}).get(CLAIM, "")
    if not text or len(text) > _MAX_CHARS:
        return None
    try:
        asked = _decoder.decode(text.encode())
    except msgspec.DecodeError:
        return None
    named = {claim.resource_claim_name for claim in pod.spec.resource_claims or ()}
    counts = [request.count for request in asked.requests]
    is_valid = (
        _NAME.fullmatch(asked.name)
        and asked.name in named
        and all(_REQUEST.fullmatch(request.name) and request.device_class in classes for request in asked.requests)
        and len({request.name for request in asked.requests}) == len(counts)
        and min(counts, default=0) >= 1
        and sum(counts) <= MAX_DEVICES
    )
    return asked if is_valid else None


def _manifest_of(asked: AskedClaim, pod: Pod) -> dict[str, Any]:
    """The claim's manifest; the pod owns the claim."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True}
    requests = [
        {
            "name": request.name,
            "exactly": {
                "deviceClassName": request.device_class,
                "allocationMode": "ExactCount",
                "count": request.count,
            },
        }
        for request in asked.requests
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": asked.name, "namespace": pod.metadata.namespace, "ownerReferences": [owner]},
        "spec": {"devices": {"requests": requests}},
    }


_INTERVAL_S: Final = 0.25
_RETRY_S: Final = 10.0
"""Also the back-off of a namespace, which may be at its quota of claims."""
_CONFLICT: Final = 409


@dataclass(eq=False)
class ClaimMaker:
    """Periodically creates missing claims of queued pods."""

    transport: Transport
    classes: Collection[str]
    """Device classes that claims may use."""
    entries: Callable[[], Iterable[Entry]]
    exists: Callable[[Pod, str], bool]
    """Whether a pod's claim with this name exists."""
    fault: Callable[[], str]
    """Why this process may not write now; "" if it may."""
    clock: Callable[[], float]
    _next: dict[str, float] = field(default_factory=dict, init=False)  # time of the next attempt, by pod UID
    _backoffs: dict[str, float] = field(default_factory=dict, init=False)  # end of the back-off, by namespace

    async def run(self) -> None:
        """Create missing claims until cancelled."""
        await repeat(self.look, _INTERVAL_S, "creating ResourceClaims")

    async def look(self) -> None:
        """Create missing claims once."""
        if self.fault():
            return
        now = self.clock()
        wanted = [
            (entry.pod, asked)
            for entry in list(self.entries())
            if entry.pod.spec.resource_claims and (asked := _asked_of(entry.pod, self.classes)) is not None
        ]
        known = {pod.metadata.uid for pod, _ in wanted}
        self._backoffs = {namespace: until for namespace, until in self._backoffs.items() if now < until}
        self._next = {uid: due for uid, due in self._next.items() if uid in known}
        for pod, asked in wanted:
            namespace = pod.metadata.namespace
            if now < max(self._next.get(pod.metadata.uid, now), self._backoffs.get(namespace, now)):
                continue
            if self.exists(pod, asked.name):
                continue
            if self.fault():
                return
            self._next[pod.metadata.uid] = now + _RETRY_S
            if not await self._create(pod, asked):
                self._backoffs[namespace] = now + _RETRY_S  # its other pods would delay other namespaces

    async def _create(self, pod: Pod, asked: AskedClaim) -> bool:
        """Create a claim; return whether it exists."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{pod.metadata.namespace}/resourceclaims"
        try:
            await self.transport.post(path, msgspec.json.encode(_manifest_of(asked, pod)))
        except ClusterError as error:
            if isinstance(error, ApiError) and error.status == _CONFLICT:
                return True  # created before; the watch lags
            logger.warning("no ResourceClaim was created for pod %s: %s", pod.key, error)
            return False
        return True
