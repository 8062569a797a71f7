"""Pods that no decision is kept of: what Kerf would decide of them now.

Where too few GPUs are left, or nodes are tainted, kube-scheduler's own plugins rule out every node, and
Kerf is never asked about the pod. Whoever wants to know why it is pending still gets an answer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from extender.core.resources.requests import PodRequest, RequestError
from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.paths import is_name
from extender.plugins.pods import owner_of
from extender.queueing.pods.batches import devices_of
from extender.scheduling.placer import Placement, Placer, PodIdentity

_NOT_FOUND: Final = 404
_MAX_CLAIMS: Final = 8
_decoder = Decoder(objects.Pod)


class UndecidedError(Exception):
    """Nothing can be said of a pod; the sentence says why."""


class UndecidedPods:
    """Asks the API server for the pod, and the placer for a decision; nothing is reserved or kept."""

    def __init__(
        self,
        transport: Transport,
        placer: Placer,
        claims_of: Callable[[objects.Pod], PodClaims] = lambda pod: NO_CLAIMS,
    ) -> None:
        """`claims_of`: the ResourceClaims of a pod that Kerf allocates devices to. Raises RequestError."""
        self._transport = transport
        self._placer = placer
        self._claims_of = claims_of

    def consider(self, pod: objects.Pod) -> Placement:
        """What would be decided of a pod without a node, among all nodes. Raises UndecidedError, RequestError."""
        kept = _not_kept(pod.key)
        request = self._read_request(pod, kept)
        policy = self._placer.policy_of(request)
        asked = policy.asked(request) or request.gpus
        if asked is None:
            raise UndecidedError(f"{kept}. It requests no GPUs, so kube-scheduler places it without Kerf")
        identity = replace(PodIdentity.of(pod), owner=owner_of(pod.metadata))
        return self._placer.consider(identity, asked, policy)

    def _read_request(self, pod: objects.Pod, kept: str) -> PodRequest:
        """What a pod asks, by ResourceClaims too. Raises RequestError, and UndecidedError where its claims say all."""
        request = self._placer.read_request(pod)
        claims = self._claims_of(pod) if pod.spec.resource_claims else NO_CLAIMS
        if unsettled := claims.missing or claims.undecided:
            raise UndecidedError(f"{kept}. Its ResourceClaim {unsettled} does not exist yet, or is being changed")
        if claims.asked is not None:
            return replace(request, gpus=devices_of(claims.asked))
        if request.gpus is None and claims.allocated:
            have = "; ".join(_allocation(claim) for claim in claims.allocated[:_MAX_CLAIMS])
            raise UndecidedError(f"{kept}. Its ResourceClaims have their devices: {have}")
        return request

    def request_of(self, pod: objects.Pod) -> str:
        """What a pod asks for in words, "" where that can't be understood, or its ResourceClaims say it."""
        try:
            return str(self._placer.read_request(pod).gpus or "")
        except RequestError:
            return ""

    async def read(self, namespace: str, name: str) -> objects.Pod:
        """A pod of that name. Raises UndecidedError."""
        kept = _not_kept(f"{namespace}/{name}")
        if not is_name(namespace) or not is_name(name):
            raise UndecidedError(kept)
        try:
            return _decoder.decode(await self._transport.get(PodIdentity(namespace, name, "").path))
        except ApiError as error:
            found = "there is no pod of that name" if error.status == _NOT_FOUND else str(error)
            raise UndecidedError(f"{kept}; {found}") from None
        except (ClusterError, msgspec.DecodeError) as error:
            raise UndecidedError(f"{kept}; the pod can't be read: {error}") from None


def without_gpus(pod: objects.Pod) -> UndecidedError:
    """Of a pod with a node that has no GPUs there."""
    has = "and has ended" if pod.finished else "and has no GPUs there"
    return UndecidedError(f"{_not_kept(pod.key)}. It is on node {pod.spec.node_name}, {has}")


def _not_kept(pod: str) -> str:
    return f"no recent decision about pod {pod}"


def _allocation(claim: ResourceClaim) -> str:
    """What a claim has, and where."""
    found = claim.status.allocation
    devices = ", ".join(result.device for result in claim.results[:_MAX_CLAIMS])
    return f"{claim.metadata.name} has {devices}" + (f" of node {found.node}" if found and found.node else "")
