"""Writes to pods of the queue: the node is nominated, then the scheduling gate is opened.

kube-scheduler first tries the nominated node alone, with all its plugins and extenders, and takes it if it fits. A gate
can't be closed again: if the nominated node no longer fits, the pod goes through a normal scheduling cycle, in which
its node selector keeps it to its gang's domain. If that finds no node either, the pod is renominated.

A new leader recognizes released pods by `planned_node`, `nominated_node` and `is_for_autoscalers`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.kube.client import ApiError, Transport
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.queueing.pods.objects import GATE, other_gates
from extender.scheduling.binding import read
from extender.scheduling.placer import PodIdentity
from extender.scheduling.skips import SKIPPED, SKIPPED_COUNT

PLANNED_NODE: Final = "kerf.dev/planned-node"
"""Node nominated last, "" if the gate was opened without one."""
PLANNED_BY: Final = "kerf.dev/planned-by"
"""Name of the planner, or why the gate was opened without a plan."""
NOMINATION_LOST: Final = "kerf.dev/nomination-lost"
"""Number of lost nominations, the node of the last one, and why it was lost."""
FOR_AUTOSCALERS: Final = "let go for autoscalers: no node has room"
"""`PLANNED_BY` of a pod that was released without a node and still waits for a plan. Read back from pods."""
MAX_TEXT: Final = 500
"""Longest `NOMINATION_LOST`."""

_pod_decoder: Final = Decoder(Pod)


def planned_node(pod: Pod) -> str:
    """Return the node of a pod's annotation, "" for none. The pod's author may write it, too."""
    return (pod.metadata.annotations or {}).get(PLANNED_NODE, "")


def is_for_autoscalers(pod: Pod) -> bool:
    """Whether a pod was released without a node for autoscalers to see."""
    return (pod.metadata.annotations or {}).get(PLANNED_BY) == FOR_AUTOSCALERS


def nominated_node(pod: Pod) -> str:
    """Return the node that Kerf released a pod to, "" for none or once kube-scheduler has rejected it.

    Unlike the annotation alone, the nomination needs the right to write `pods/status`.
    """
    planned = planned_node(pod)
    return planned if planned == pod.status.nominated_node_name else ""


def unsaid(pod: Pod) -> dict[str, Any]:
    """Return status fields that remove a rejection if it is the only condition, so that the next one is noticed:
    kube-scheduler does not rewrite an identical condition."""
    return {"conditions": None} if pod.refusal and len(pod.status.conditions or ()) == 1 else {}


def written_by_author(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Return the annotations without those that Kerf writes on waiting pods."""
    return {key: value for key, value in (annotations or {}).items() if key not in (SKIPPED, SKIPPED_COUNT)}


class PodWriter:
    """Writes to pods of the queue. Methods raise ClusterError, and return False if the pod is gone or has changed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def place(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Nominate a node and open the gate."""
        return await self.nominate(pod, node) and await self.open(pod, node, planner, domain)

    async def nominate(self, pod: Pod, node: str) -> bool:
        """Write the node that kube-scheduler should try first, "" for none."""
        return await self._patch(pod, "/status", _body(pod, status={"nominatedNodeName": node or None}))

    async def nominate_anew(self, pod: Pod, node: str, lost: str) -> bool:
        """Nominate a node for a released pod, and write the `lost` one, on the known version of the pod.

        In one write, since the change of an annotation makes kube-scheduler retry.
        """
        notes = {PLANNED_NODE: node, NOMINATION_LOST: lost[:MAX_TEXT], SKIPPED: None, SKIPPED_COUNT: None}
        body = _body(pod, notes, status={"nominatedNodeName": node, **unsaid(pod)})
        body["metadata"]["resourceVersion"] = pod.metadata.resource_version or None
        return await self._patch(pod, "/status", body)

    async def open(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Remove Kerf's gate and write the planner's name or the reason.

        `domain` is added to the node selector, which the API server allows for gated pods only.
        """
        notes = {PLANNED_NODE: node, PLANNED_BY: planner, SKIPPED: None, SKIPPED_COUNT: None}
        selector = {"nodeSelector": domain} if domain else {}

        def body(pod: Pod) -> dict[str, Any]:
            others = [{"name": name} for name in other_gates(pod)]
            return _body(pod, notes, spec={"schedulingGates": others or None, **selector})

        try:
            return await self._patch(pod, "", body(pod))
        except ApiError as error:
            if error.status != 422:
                raise
        # Another gate was removed meanwhile, and adding it back is forbidden.
        current = await self.read(pod)
        return current is not None and await self._patch(current, "", body(current))

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        """Write on a pod why it waits."""
        return await self._patch(pod, "/status", _body(pod, {SKIPPED: reason, SKIPPED_COUNT: str(count)}))

    async def create(self, manifest: dict[str, Any]) -> Pod:
        """Create a pod from its manifest with Kerf's gate."""
        spec = manifest.get("spec") or {}
        gated = {**manifest, "spec": {**spec, "schedulingGates": gated_by_kerf(spec)}}
        namespace = (manifest.get("metadata") or {}).get("namespace") or "default"
        created = await self._transport.post(f"/api/v1/namespaces/{namespace}/pods", msgspec.json.encode(gated))
        return _pod_decoder.decode(created)

    async def _patch(self, pod: Pod, part: str, body: dict[str, Any]) -> bool:
        try:
            await self._transport.patch(PodIdentity.of(pod).path + part, msgspec.json.encode(body))
        except ApiError as error:
            if error.status in (404, 409):
                return False
            if error.status == 422 and await self.read(pod) is None:  # a UID mismatch
                return False
            raise
        return True

    async def read(self, pod: Pod) -> Pod | None:
        """Return the current pod, None once this UID is gone."""
        return await read(self._transport, PodIdentity.of(pod))


def gated_by_kerf(spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the scheduling gates of a pod's spec with Kerf's added as the last."""
    return [*(gate for gate in spec.get("schedulingGates") or () if gate.get("name") != GATE), {"name": GATE}]


def _body(pod: Pod, notes: Mapping[str, str | None] | None = None, **parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch with the pod's UID as a precondition."""
    return {"metadata": {"uid": pod.metadata.uid} | ({"annotations": notes} if notes else {}), **parts}
