"""Carrying out a plan: a pod's node is nominated, then its scheduling gate is opened.

kube-scheduler looks at the nominated node alone, with all its plugins and extenders, and takes it if they agree: its
verdict is final. A gate can't be closed again: a nomination that no longer fits leaves the pod to the normal cycle, in
which its node selector keeps it to the domain of its gang. Where that finds no node either the pod is nominated anew.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.cluster.decoding import Decoder
from extender.cluster.placements import PodIdentity
from extender.cluster.skips import SKIPPED, SKIPPED_COUNT
from extender.cluster.transports import ApiError, Transport
from extender.queueing.manifests import GATE, Pod

PLANNED_NODE: Final = "kerf.dev/planned-node"
"""Node that was nominated last, "" where the gate was opened without one."""
PLANNED_BY: Final = "kerf.dev/planned-by"
"""Name of the planner, or why the gate was opened without one."""
NOMINATION_LOST: Final = "kerf.dev/nomination-lost"
"""How often a node nominated was not to be had, which one the last time, and why."""
_MAX_TEXT: Final = 500

_pod_decoder: Final = Decoder(Pod)
_CONFLICT: Final = 409
_INVALID: Final = 422
_GONE: Final = 404


class Realiser:
    """Writes to pods that wait. Raises ClusterError; a pod that is gone, or another one by now, is left alone."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def place(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Nominate a node and open the gate; whether the pod is still there."""
        return await self.nominate(pod, node) and await self.open(pod, node, planner, domain)

    async def nominate(self, pod: Pod, node: str) -> bool:
        """Write the node that kube-scheduler is to look at first; whether the pod is still there."""
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node or None}}
        return await self._patch(pod, "/status", body)

    async def nominate_anew(self, pod: Pod, node: str, lost: str) -> bool:
        """Nominate a node for a pod that was let go, and write why; whether the pod is still there.

        In one write: it is the change of an annotation that makes kube-scheduler ask again.
        """
        told = {PLANNED_NODE: node, NOMINATION_LOST: lost[:_MAX_TEXT], SKIPPED: None, SKIPPED_COUNT: None}
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": told}, "status": {"nominatedNodeName": node}}
        return await self._patch(pod, "/status", body)

    async def open(self, pod: Pod, node: str, planner: str, domain: Mapping[str, str] | None = None) -> bool:
        """Take Kerf's gate off, and write why; whether the pod is still there.

        `domain` are labels that its nodes must have from now on: the API server takes that from gated pods alone.
        """
        annotations = {PLANNED_NODE: node, PLANNED_BY: planner, SKIPPED: None, SKIPPED_COUNT: None}
        try:
            return await self._patch(pod, "", _opened(pod, annotations, domain))
        except ApiError as error:
            if error.status != _INVALID:
                raise
        # Somebody else's gate has gone meanwhile, and putting it back is forbidden.
        found = await self._find(pod)
        return found is not None and await self._patch(found, "", _opened(found, annotations, domain))

    async def note(self, pod: Pod, reason: str, count: int) -> bool:
        """Write on a waiting pod why it waits; whether it is still there. By its status, as all but opening."""
        annotations = {SKIPPED: reason, SKIPPED_COUNT: str(count)}
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}
        return await self._patch(pod, "/status", body)

    async def create(self, manifest: dict[str, Any]) -> Pod:
        """Create a pod from its manifest, gated."""
        spec = dict(manifest.get("spec") or {})
        gates = [gate for gate in spec.get("schedulingGates") or () if gate.get("name") != GATE]
        gated = {**manifest, "spec": {**spec, "schedulingGates": [*gates, {"name": GATE}]}}
        namespace = (manifest.get("metadata") or {}).get("namespace") or "default"
        created = await self._transport.post(f"/api/v1/namespaces/{namespace}/pods", msgspec.json.encode(gated))
        return _pod_decoder.decode(created)

    async def _patch(self, pod: Pod, part: str, body: dict[str, Any]) -> bool:
        try:
            await self._transport.patch(_path(pod) + part, msgspec.json.encode(body))
        except ApiError as error:
            if error.status in (_GONE, _CONFLICT):
                return False
            if error.status == _INVALID and await self._find(pod) is None:
                return False
            raise
        return True

    async def _find(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once deleted; one of its name created since makes a patch 422, for its UID."""
        try:
            found = _pod_decoder.decode(await self._transport.get(_path(pod)))
        except ApiError as error:
            if error.status != _GONE:
                raise
            return None
        return found if found.metadata.uid == pod.metadata.uid else None


def _opened(pod: Pod, annotations: Mapping[str, str | None], domain: Mapping[str, str] | None) -> dict[str, Any]:
    others = [{"name": name} for name in pod.other_gates]
    metadata = {"uid": pod.metadata.uid, "annotations": annotations}
    spec = {"schedulingGates": others or None} | ({"nodeSelector": domain} if domain else {})
    return {"metadata": metadata, "spec": spec}


def _path(pod: Pod) -> str:
    return PodIdentity.of(pod).path
