"""Changing a pod, so that no Binding which carries an older resourceVersion can take effect any more.

An annotation does it, where the API server takes it. It does not take it of a pod with almost 256 KiB of annotations
(422), or of almost 1.5 MiB (500, in etcd's words): its author may have seen to that. Then the pod loses what a Binding
would replace, and its status gets a message of a few bytes instead, which count for no limit but etcd's. A Binding with
GPUs always makes of a pod something larger than that: whoever is too large for this change can't be bound either.
"""

import secrets
from typing import Any, Final

import msgspec

from extender.kube import objects
from extender.kube.client import ApiError, Transport
from extender.kube.decoding import Decoder
from extender.plugins.kerf import ASSIGNMENT, EXPLANATION
from extender.plugins.registry import plugins
from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking.skips import SKIPPED, SKIPPED_COUNT

_WRITTEN_BY_KERF: Final = frozenset({*ASSIGNMENT, EXPLANATION, SKIPPED, SKIPPED_COUNT, "kerf.dev/nomination-lost"})
"""What a Binding may set, besides what it sets for device plugins."""
_TOO_LARGE: Final = "request is too large"
_NO_RIGHT: Final = "cannot patch resource"
"""What the API server says, with 403, of a user who may not; admission has other words."""
_PASSING: Final = (401, 404, 408, 409, 429)

_pod_decoder = Decoder(objects.Pod)


def refused(error: Exception) -> bool:
    """Whether a pod can't be changed as it is: to try again would end in the same way, for reasons of its own."""
    if not isinstance(error, ApiError):
        return False
    if error.status >= 500:
        return _TOO_LARGE in error.message
    return error.status not in _PASSING and not (error.status == 403 and _NO_RIGHT in error.message)


async def read(transport: Transport, pod: PodIdentity) -> objects.Pod | None:
    """A pod as it is; None when it is gone, whoever has its name by now. Raises ClusterError, DecodeError."""
    try:
        found = _pod_decoder.decode(await transport.get(pod.path))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found if found.metadata.uid == pod.uid else None


async def change(transport: Transport, pod: PodIdentity, key: str, value: str) -> bytes | None:
    """Change a pod by an annotation, or, where that is refused, in the way that adds least.

    Returns the pod as it is then, None when it is gone. Raises ClusterError, DecodeError.
    """
    try:
        return await _patch(transport, pod, {"metadata": {"uid": pod.uid, "annotations": {key: value}}})
    except ApiError as error:
        if not refused(error):
            raise
    found = await read(transport, pod)  # a UID that is another's is refused, too
    if found is None:
        return None
    written = _WRITTEN_BY_KERF.union(*(plugin.written for plugin in plugins()))
    gone = dict.fromkeys(written & (found.metadata.annotations or {}).keys())
    status = {"message": f"Kerf {secrets.token_hex(4)}"}
    return await _patch(transport, pod, {"metadata": {"uid": pod.uid, "annotations": gone}, "status": status})


async def _patch(transport: Transport, pod: PodIdentity, body: dict[str, Any]) -> bytes | None:
    try:
        return await transport.patch(f"{pod.path}/status", msgspec.json.encode(body))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
