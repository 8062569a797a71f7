"""Assembles the webhook part: `/mutate`, for pods that request GPUs only by annotation or label, and `/gate`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from extender.api.contributions import Contribution, Kernel
from extender.api.openapi import EXAMPLE_POD
from extender.api.posts import Call, Caller
from extender.api.reviews import AdmissionAnswer, AdmissionReview, RewritesRequests, allow
from extender.parts.webhook import assigned_gpus, gate
from extender.parts.webhook.assigned_gpus import Injection
from extender.parts.webhook.node_affinity import AffinityWriter
from extender.parts.webhook.settings import WebhookSettings

_REVIEW: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "0d8ab0d8", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}, "object": EXAMPLE_POD},
}


def build(kernel: Kernel, wanted: WebhookSettings) -> Contribution:
    """The calls `/mutate` and `/gate`."""
    affinity = _affinity_writer(kernel, wanted)

    def injection() -> Injection:
        return assigned_gpus.settled(wanted, kernel.placer.snapshot())

    mutating = Call(
        path="/mutate",
        verb="mutate",
        asks=AdmissionReview,
        answers=AdmissionAnswer,
        answer=lambda body: assigned_gpus.mutate(body, injection, affinity),
        summary="Tells a pod's containers which GPUs they have. Always allows the pod; errors become warnings.",
        fault=partial(allow, ""),
        caller=Caller.API_SERVER,
        example=_REVIEW,
    )
    gating = replace(
        mutating,
        path="/gate",
        verb="gate",
        answer=lambda body: gate.gate(body, kernel.get(RewritesRequests), affinity),
        summary="Adds the queue's scheduling gate to pods that opt in. Always allows the pod; errors become warnings.",
    )
    return Contribution(calls=[mutating, gating])


def _affinity_writer(kernel: Kernel, wanted: WebhookSettings) -> AffinityWriter:
    """Writes node affinity on pods if `write_affinity` is set."""
    rows = kernel.base.ledger.rows

    def labels_of(name: str) -> Mapping[str, str]:
        node = rows.manifest(name)
        return (node.metadata.labels or {}) if node is not None else {}

    return AffinityWriter(
        kernel.placer if wanted.write_affinity else None,
        labels_of=labels_of,
        products=tuple(wanted.products),
        aliases=kernel.settings.models.aliases,
        clock=kernel.base.clock,
    )
