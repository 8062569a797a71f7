"""What is written on pods of the queue: a pod's node is nominated, then its scheduling gate is opened.

kube-scheduler looks at the nominated node alone, with all its plugins and extenders, and takes it if they agree: its
verdict is final. A gate can't be closed again: a nomination that no longer fits leaves the pod to the normal cycle, in
which its node selector keeps it to the domain of its gang. Where that finds no node either the pod is nominated anew.

A Kerf that starts, or begins to lead, knows pods that were let go by `planned_node` and `nominated_node` alone; nothing
else that is written here is ever read back.
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
"""Node that was nominated last, "" where the gate was opened without one."""
PLANNED_BY: Final = "kerf.dev/planned-by"
"""Name of the planner, or why the gate was opened without one."""
NOMINATION_LOST: Final = "kerf.dev/nomination-lost"
"""How often a node nominated was not to be had, which one the last time, and why."""
FOR_AUTOSCALERS: Final = "let go for autoscalers: no node has room"
"""In `PLANNED_BY` of a pod that was let go without a node: it waits for a plan all the same."""
MAX_TEXT: Final = 500
"""Of `NOMINATION_LOST`."""

_pod_decoder: Final = Decoder(Pod)


def planned_node(pod: Pod) -> str:
    """The node that a pod was nominated for last by its annotation, which its author may write too; "" for none."""
    return (pod.metadata.annotations or {}).get(PLANNED_NODE, "")


def is_for_autoscalers(pod: Pod) -> bool:
    """Whether a pod was let go without a node for autoscalers to see."""
    return (pod.metadata.annotations or {}).get(PLANNED_BY) == FOR_AUTOSCALERS


def nominated_node(pod: Pod) -> str:
    """The node that a Kerf has let a pod go for, as long as kube-scheduler has not refused it; "" for none.

    The nomination beside the annotation takes the right to write `pods/status`.
    """
    planned = planned_node(pod)
    return planned if planned == pod.status.nominated_node_name else ""


def unsaid(pod: Pod) -> dict[str, Any]:
    """What takes a refusal off a pod's status, where that says nothing else: kube-scheduler does not write one again
    that is there in the same words, so without it the next one is news."""
    return {"conditions": None} if pod.refusal and len(pod.status.conditions or ()) == 1 else {}


def written_by_author(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Annotations without what Kerf writes on a pod while it waits."""
    return {key: value for key, value in (annotations or {}).items() if key not in (SKIPPED, SKIPPED_COUNT)}


class PodWriter:
    """Writes to pods that wait. Raises ClusterError; a pod that is gone, or another one by now, is left alone."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def place(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Nominate a node and open the gate; whether the pod is still there."""
        return await self.nominate(pod, node) and await self.open(pod, node, planner, domain)

    async def nominate(self, pod: Pod, node: str) -> bool:
        """Write the node that kube-scheduler is to look at first, "" for none; whether the pod is still there."""
        return await self._patch(pod, "/status", _body(pod, status={"nominatedNodeName": node or None}))

    async def nominate_anew(self, pod: Pod, node: str, lost: str) -> bool:
        """Nominate a node for a pod that was let go, and write why; whether the pod is still there, and as it is known.

        In one write: it is the change of an annotation that makes kube-scheduler ask again.
        """
        notes = {PLANNED_NODE: node, NOMINATION_LOST: lost[:MAX_TEXT], SKIPPED: None, SKIPPED_COUNT: None}
        body = _body(pod, notes, status={"nominatedNodeName": node, **unsaid(pod)})
        body["metadata"]["resourceVersion"] = pod.metadata.resource_version or None
        return await self._patch(pod, "/status", body)

    async def open(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Take Kerf's gate off, and write why; whether the pod is still there.

        `domain` are labels that its nodes must have from now on: the API server takes that from gated pods alone.
        """
        notes = {PLANNED_NODE: node, PLANNED_BY: planner, SKIPPED: None, SKIPPED_COUNT: None}
        selector = {"nodeSelector": domain} if domain else {}

        def body(found: Pod) -> dict[str, Any]:
            others = [{"name": name} for name in other_gates(found)]
            return _body(found, notes, spec={"schedulingGates": others or None, **selector})

        try:
            return await self._patch(pod, "", body(pod))
        except ApiError as error:
            if error.status != 422:
                raise
        # Somebody else's gate has gone meanwhile, and putting it back is forbidden.
        found = await self.read(pod)
        return found is not None and await self._patch(found, "", body(found))

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        """Write on a waiting pod why it waits; whether it is still there. By its status, as all but opening."""
        return await self._patch(pod, "/status", _body(pod, {SKIPPED: reason, SKIPPED_COUNT: str(count)}))

    async def create(self, manifest: dict[str, Any]) -> Pod:
        """Create a pod from its manifest, gated."""
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
            if error.status == 422 and await self.read(pod) is None:
                return False
            raise
        return True

    async def read(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once deleted; one of its name created since makes a patch 422, for its UID."""
        return await read(self._transport, PodIdentity.of(pod))


def gated_by_kerf(spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """The scheduling gates of a pod's spec in a manifest, Kerf's the last of them."""
    return [*(gate for gate in spec.get("schedulingGates") or () if gate.get("name") != GATE), {"name": GATE}]


def _body(pod: Pod, notes: Mapping[str, str | None] | None = None, **parts: Mapping[str, Any]) -> dict[str, Any]:
    """A patch of a pod, and of no other one of its name."""
    return {"metadata": {"uid": pod.metadata.uid} | ({"annotations": notes} if notes else {}), **parts}
