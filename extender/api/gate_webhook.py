"""The queue's webhook: pods that opt in get Kerf's scheduling gate when they are created.

The API server asks about those alone that the webhook's selectors choose: by a label of their namespace, one of their
own, or Genius's priority label. Pods that ask by annotation or label alone are marked too, as by `/mutate`. Never in
the way: whatever comes is allowed.
"""

from typing import Final

import msgspec

from extender.api.assigned_gpus_webhook import Operation, allow, mark, read_creation
from extender.core.annotations import GENIUS_PRIORITY
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.queueing.opt_in import BY_LABEL, BY_NAMESPACE, BY_PRIORITY, DISABLED, ENABLED, QUEUE_LABEL, QUEUED_BY
from extender.queueing.pods.objects import GATE, is_gated

_pod_decoder: Final = Decoder(Pod)


def gate(body: bytes) -> bytes:
    """Answer an AdmissionReview."""
    request = read_creation(body)
    if isinstance(request, bytes):
        return request
    try:
        pod = _pod_decoder.decode(request.object)
    except msgspec.DecodeError as error:
        return allow(request.uid, f"the pod can't be read, and does not wait in the queue: {error}")
    marks = mark(pod.metadata, pod.spec)
    by = _opted_in_by(pod)
    if not by or is_gated(pod) or pod.spec.node_name:
        return allow(request.uid, patch=marks)
    return allow(request.uid, patch=[*_patch(pod, by), *marks])


def _opted_in_by(pod: Pod) -> str:
    """What opts a pod in, "" for nothing."""
    labels = pod.metadata.labels or {}
    if labels.get(QUEUE_LABEL) == DISABLED:
        return ""
    if labels.get(QUEUE_LABEL) == ENABLED:
        return BY_LABEL
    return BY_PRIORITY if labels.get(GENIUS_PRIORITY, "").strip() else BY_NAMESPACE


def _patch(pod: Pod, by: str) -> list[Operation]:
    """The gate, and what it is for: a key of an annotation is written with ~1 for its slash."""
    annotation = f"/metadata/annotations/{QUEUED_BY.replace('/', '~1')}"
    return [
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}
        if pod.spec.scheduling_gates is None
        else {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}},
        {"op": "add", "path": "/metadata/annotations", "value": {QUEUED_BY: by}}
        if pod.metadata.annotations is None
        else {"op": "add", "path": annotation, "value": by},
    ]
