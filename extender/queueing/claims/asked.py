"""ResourceClaims that Kerf creates for pods which asked by an extended resource, as its webhook has written them."""

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from extender.core.annotations import CLAIM
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod

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


def asked_of(pod: Pod, classes: Collection[str]) -> AskedClaim | None:
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


def manifest_of(asked: AskedClaim, pod: Pod) -> dict[str, Any]:
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
