"""ResourceClaims that Kerf creates for pods which asked by an extended resource, as its webhook has written them."""

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
"""That the API server allows in a claim."""
_NAME: Final = re.compile(r"kerf-[0-9a-f]{16}")
_REQUEST: Final = re.compile(r"container-[0-9]{1,3}")
_MAX_CHARS: Final = 8192


class AskedDevices(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """So many devices of a class, for one container."""

    name: str
    device_class: str = msgspec.field(name="class")
    count: int


class AskedClaim(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One claim."""

    name: str
    requests: list[AskedDevices]


_decoder: Final = Decoder(AskedClaim)


def claim_name(random_hex: str) -> str:
    """What a claim is called, of 16 random digits: no other has that name, and the pod has none yet."""
    return f"kerf-{random_hex}"


def request_name(container: int) -> str:
    """What the request for a container is called, by its index."""
    return f"container-{container}"


def _asked_of(pod: Pod, classes: Collection[str]) -> AskedClaim | None:
    """The claim that is to be made for a pod, None for none, or for what no webhook of Kerf's has written.

    Authors can write the annotation, too: they get what an extended resource of these classes would give them.
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
    is_sound = (
        _NAME.fullmatch(asked.name)
        and asked.name in named
        and all(_REQUEST.fullmatch(request.name) and request.device_class in classes for request in asked.requests)
        and len({request.name for request in asked.requests}) == len(counts)
        and min(counts, default=0) >= 1
        and sum(counts) <= MAX_DEVICES
    )
    return asked if is_sound else None


def _manifest_of(asked: AskedClaim, pod: Pod) -> dict[str, Any]:
    """The claim, which goes when its pod does."""
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
_AGAIN_S: Final = 10.0
"""A namespace may be at its quota of claims."""
_CONFLICT: Final = 409


@dataclass(eq=False)
class ClaimMaker:
    """Looks again and again at what waits."""

    transport: Transport
    classes: Collection[str]
    """Device classes that claims may be made of."""
    entries: Callable[[], Iterable[Entry]]
    exists: Callable[[Pod, str], bool]
    """Whether a pod's claim of a name is known."""
    fault: Callable[[], str]
    """Why this process may write nothing now, "" when it may."""
    clock: Callable[[], float]
    _next: dict[str, float] = field(default_factory=dict, init=False)  # by pod: when it is looked at again
    _rests: dict[str, float] = field(default_factory=dict, init=False)  # by namespace that has refused one: until when

    async def run(self) -> None:
        """Until cancelled."""
        await repeat(self.look, _INTERVAL_S, "creating ResourceClaims")

    async def look(self) -> None:
        """Create what is missing, once."""
        if self.fault():
            return
        now = self.clock()
        wanted = [
            (entry.pod, asked)
            for entry in list(self.entries())
            if entry.pod.spec.resource_claims and (asked := _asked_of(entry.pod, self.classes)) is not None
        ]
        known = {pod.metadata.uid for pod, _ in wanted}
        self._rests = {namespace: until for namespace, until in self._rests.items() if now < until}
        self._next = {uid: due for uid, due in self._next.items() if uid in known}
        for pod, asked in wanted:
            namespace = pod.metadata.namespace
            if now < max(self._next.get(pod.metadata.uid, now), self._rests.get(namespace, now)):
                continue
            if self.exists(pod, asked.name):
                continue
            if self.fault():
                return
            self._next[pod.metadata.uid] = now + _AGAIN_S
            if not await self._create(pod, asked):
                self._rests[namespace] = now + _AGAIN_S  # the others of it would hold everybody up

    async def _create(self, pod: Pod, asked: AskedClaim) -> bool:
        """Whether it is there."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{pod.metadata.namespace}/resourceclaims"
        try:
            await self.transport.post(path, msgspec.json.encode(_manifest_of(asked, pod)))
        except ClusterError as error:
            if isinstance(error, ApiError) and error.status == _CONFLICT:
                return True  # created before; the watch is about to tell
            logger.warning("no ResourceClaim was created for pod %s: %s", pod.key, error)
            return False
        return True
