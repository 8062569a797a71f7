"""The queue's webhook: adds Kerf's scheduling gate to pods that opt in when they are created.

The webhook's selectors limit it to pods that opt in by a label of their namespace, of their own, or Genius's priority
label. It also marks pods that request GPUs only by annotation or label, as `/mutate` does. All pods are allowed.
"""

from typing import Final

import msgspec

from extender.api.reviews import Operation, RewritesRequests, allow, read_creation
from extender.core.annotations import GENIUS_PRIORITY
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.parts.webhook.assigned_gpus import mark
from extender.parts.webhook.node_affinity import NO_AFFINITY, AffinityWriter
from extender.queueing.pods.objects import (
    BY_LABEL,
    BY_NAMESPACE,
    BY_PRIORITY,
    DISABLED,
    ENABLED,
    GATE,
    QUEUE_LABEL,
    QUEUED_BY,
    is_gated,
)

_pod_decoder: Final = Decoder(Pod)


def gate(body: bytes, rewrites: RewritesRequests | None = None, affinity: AffinityWriter = NO_AFFINITY) -> bytes:
    """Answer an AdmissionReview; `rewrites` changes the requests of pods that opt in."""
    request = read_creation(body)
    if isinstance(request, bytes):
        return request
    try:
        pod = _pod_decoder.decode(request.object)
    except msgspec.DecodeError as error:
        return allow(request.uid, f"the pod can't be read, and does not wait in the queue: {error}")
    marks = mark(pod.metadata, pod.spec)
    by = _opted_in_by(pod)
    if not by or pod.spec.node_name:
        return allow(request.uid, patch=marks)
    gates = [] if is_gated(pod) else _patch(pod, by)
    claims, warnings = rewrites.operations(request.object, annotated=bool(gates)) if rewrites else ([], [])
    kept, more = affinity.patch(pod, request.object) if not claims else ([], [])
    return allow(request.uid, *warnings, *more, patch=[*gates, *claims, *marks, *kept])


def _opted_in_by(pod: Pod) -> str:
    """By which means a pod opts in, "" if it doesn't."""
    labels = pod.metadata.labels or {}
    if labels.get(QUEUE_LABEL) == DISABLED:
        return ""
    if labels.get(QUEUE_LABEL) == ENABLED:
        return BY_LABEL
    return BY_PRIORITY if labels.get(GENIUS_PRIORITY, "").strip() else BY_NAMESPACE


def _patch(pod: Pod, by: str) -> list[Operation]:
    """Operations that add the gate and the annotation of how the pod opted in; ~1 is a slash in a JSON pointer."""
    annotation = f"/metadata/annotations/{QUEUED_BY.replace('/', '~1')}"
    return [
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}
        if pod.spec.scheduling_gates is None
        else {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}},
        {"op": "add", "path": "/metadata/annotations", "value": {QUEUED_BY: by}}
        if pod.metadata.annotations is None
        else {"op": "add", "path": annotation, "value": by},
    ]
