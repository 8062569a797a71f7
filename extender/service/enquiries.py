"""Pods that no decision is kept of: what Kerf would decide of them now.

Where too few `nvidia.com/gpu` are left, or nodes are tainted, kube-scheduler's own plugins rule out every node, and
Kerf is never asked about the pod. Whoever wants to know why it is pending still gets an answer.
"""

from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.decoding import Decoder
from extender.cluster.placements import Placement, Placer, PodIdentity
from extender.cluster.pods import owner_of
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.core.requests import RequestError
from extender.service import wire

_NOT_FOUND: Final = 404
_decoder = Decoder(objects.Pod)


class EnquiryError(Exception):
    """Nothing can be said of a pod; the sentence says why."""


class Enquiries:
    """Asks the API server for the pod, and the placer for a decision; nothing is reserved or kept."""

    def __init__(self, transport: Transport, placer: Placer) -> None:
        self._transport = transport
        self._placer = placer

    async def consider(self, namespace: str, name: str) -> Placement:
        """What would be decided of a pending pod, among all nodes. Raises EnquiryError."""
        kept = f"no decision about pod {namespace}/{name} is kept; only the newest are"
        pod = await self._read(namespace, name, kept)
        if pod.spec.node_name:
            raise EnquiryError(f"{kept}. It is on node {pod.spec.node_name}")
        try:
            request = self._placer.read_request(pod)
            policy = self._placer.policy_of(request)
        except RequestError as error:
            raise EnquiryError(f"{kept}. What it asks can't be understood: {error}") from None
        asked = policy.asked(request) or request.gpus
        if asked is None:
            raise EnquiryError(f"{kept}. It asks for no GPUs: kube-scheduler places it alone")
        identity = PodIdentity(namespace, name, pod.metadata.uid, owner_of(pod.metadata))
        return self._placer.consider(identity, asked, policy)

    async def _read(self, namespace: str, name: str, kept: str) -> objects.Pod:
        try:
            wire.check_name("namespace", namespace)
            wire.check_name("name", name)
            return _decoder.decode(await self._transport.get(PodIdentity(namespace, name, "").path))
        except wire.WireError:
            raise EnquiryError(kept) from None
        except ApiError as error:
            found = "there is no pod of that name" if error.status == _NOT_FOUND else str(error)
            raise EnquiryError(f"{kept}, and {found}") from None
        except (ClusterError, msgspec.DecodeError) as error:
            raise EnquiryError(f"{kept}, and the pod can't be read: {error}") from None
