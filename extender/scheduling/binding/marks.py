"""Changing a pod, so that no Binding which carries an older resourceVersion can take effect any more.

An annotation does it, where the API server takes it. It does not take it of a pod with almost 256 KiB of annotations
(422), or of almost 1.5 MiB (500, in etcd's words): its author may have seen to that. Then the pod loses what a Binding
would replace, and its status gets a message of a few bytes instead, which count for no limit but etcd's. A Binding with
GPUs always makes of a pod something larger than that: whoever is too large for this change can't be bound either.
"""

import secrets
from typing import Any, Final

import msgspec

from extender.kube import objects, patches
from extender.kube.client import ApiError, Transport
from extender.kube.commit import refused
from extender.kube.decoding import Decoder
from extender.plugins.kerf import ASSIGNMENT, EXPLANATION
from extender.plugins.registry import plugins
from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking.skips import SKIPPED, SKIPPED_COUNT

_WRITTEN_BY_KERF: Final = frozenset({*ASSIGNMENT, EXPLANATION, SKIPPED, SKIPPED_COUNT, "kerf.dev/nomination-lost"})
"""What a Binding may set, besides what it sets for device plugins."""
SEALED: Final = "kerf.dev/sealed"
"""Changed to make a pod's older versions unbindable; what it says means nothing."""

_pod_decoder = Decoder(objects.Pod)


async def read(transport: Transport, pod: PodIdentity) -> objects.Pod | None:
    """A pod as it is; None when it is gone, whoever has its name by now. Raises ClusterError, DecodeError."""
    return await patches.read(transport, pod.path, _pod_decoder, pod.uid)


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


async def seal(transport: Transport, pod: PodIdentity) -> objects.Pod | None:
    """Change a pod so that nothing sent before takes effect on it any more, unless it has; the pod after that, None
    when it is gone. Raises ClusterError, DecodeError."""
    answer = await change(transport, pod, SEALED, secrets.token_hex(4))
    return None if answer is None else _pod_decoder.decode(answer)


async def _patch(transport: Transport, pod: PodIdentity, body: dict[str, Any]) -> bytes | None:
    try:
        return await transport.patch(f"{pod.path}/status", msgspec.json.encode(body))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
