"""The pending pods, and which of them more nodes may help."""

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.core.annotations import read_priority
from extender.core.resources.requests import RequestError
from extender.dra.pod_claims import claim_keys
from extender.explain.manifests.objects import MAX_PODS
from extender.kube.objects import Pod
from extender.kube.watches import ListDecoder
from extender.parts.what_if.questions import WhatIfError
from extender.planning.wait_reasons import ROOM_CODES
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.objects import is_gated, other_gates

_pods_decoder: Final = ListDecoder(Pod)
_ON_ITS_WAY: Final = "on its way to a node"
"""Pods held for this reason are left out of the answer."""


class PendingState(msgspec.Struct):
    """The queue's state of the pending pods."""

    held: dict[str, str] = {}
    """By UID, why pods wait that no node would help."""
    claims: list[str] = []
    """`namespace/name` of the ResourceClaims that the other pods name."""


def waiting_in(backlog: Backlog | None) -> PendingState:
    """The state of a queue's pods; empty without a queue."""
    result = PendingState({}, [])
    for uid, entry in (backlog.entries if backlog is not None else {}).items():
        why = entry.fault or entry.skips.reason
        if not entry.stage.waits and (entry.node or entry.stage.is_written):
            result.held[uid] = _ON_ITS_WAY
        elif why is not None and why.code not in ROOM_CODES:
            result.held[uid] = str(why)
        else:
            result.claims += claim_keys(entry.pod)
    return result


def waiting_pods(content: bytes, held: Mapping[str, str]) -> tuple[list[Pod], dict[str, str]]:
    """The pods of a PodList that wait for room, in queue order; and why others wait, by `namespace/name`.

    Raises WhatIfError.
    """
    try:
        found = _pods_decoder.decode(content).items
    except msgspec.DecodeError as error:
        raise WhatIfError(f"pending pods can't be read: {error}") from None
    pods = [pod for pod in found if _waits(pod)]
    others = {pod.key: held[pod.metadata.uid] for pod in pods if held.get(pod.metadata.uid, _ON_ITS_WAY) != _ON_ITS_WAY}
    pods = [pod for pod in pods if pod.metadata.uid not in held]
    pods.sort(key=lambda pod: (-_priority(pod), pod.metadata.creation_timestamp, pod.key))
    return pods[:MAX_PODS], others


def _waits(pod: Pod) -> bool:
    """Whether Kerf has a say in the pod's placement and it has neither a node nor a nominated one."""
    if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp or other_gates(pod):
        return False
    if pod.status.nominated_node_name:
        return False
    return is_gated(pod) or _asks_gpus(pod)


def _asks_gpus(pod: Pod) -> bool:
    try:
        return read_pod_request(pod).gpus is not None or bool(pod.spec.resource_claims)
    except RequestError:
        return False


def _priority(pod: Pod) -> int:
    try:
        return read_priority(pod.metadata.labels or {}, pod.spec.priority)
    except RequestError:
        return 0
