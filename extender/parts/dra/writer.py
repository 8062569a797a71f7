"""Writes to ResourceClaims, conditional on the resourceVersion that was decided on."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from extender.dra.objects import ResourceClaim
from extender.kube import patches
from extender.kube.client import ApiError, Transport
from extender.kube.commit import Term, is_permanent_refusal
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod

_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim from being deleted; kube-controller-manager removes it."""
_TOUCHED: Final = "kerf.dev/touched"
"""Annotation written only to change a claim, so that writes to earlier versions fail."""

_decoder: Final = Decoder(ResourceClaim)


class ClaimWriter:
    """Writes to claims. Methods return the claim as written; None if it had changed or is gone.

    They raise ClusterError if the API server rejects a write or its outcome is unknown; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Read a claim; None if it is gone."""
        return await patches.read(self._transport, _path(claim), _decoder, claim.metadata.uid)

    async def protect(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Add the finalizer, so that the claim can't be deleted while it is being allocated."""
        if is_protected(claim):
            return claim
        return await self._write(claim, "", {"finalizers": [*(claim.metadata.finalizers or []), _FINALIZER]})

    async def allocate(
        self, claim: ResourceClaim, version: str, pod: Pod, allocation: Mapping[str, Any]
    ) -> ResourceClaim | None:
        """Write the allocation to a protected claim of this resourceVersion.

        The same write reserves the claim for the pod: kube-controller-manager then deallocates it when the pod is gone,
        and kube-scheduler has nothing to write.
        """
        status = {"allocation": allocation, "reservedFor": [_consumer(pod)]}
        return await self._patch(claim, "/status", status=status).send(version)

    async def free(self, claim: ResourceClaim, term: Term) -> ResourceClaim | None:
        """Deallocate a claim that no pod uses. Raises FencedError."""
        return await self._write(claim, "/status", term=term, status={"allocation": None, "reservedFor": None})

    async def secure(self, claim: ResourceClaim, word: str) -> ResourceClaim | None:
        """Change an allocated claim, so that a deallocation based on this version fails."""
        return await self._write(claim, "", {"annotations": {_TOUCHED: word}})

    async def seal(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Change a claim, retrying on conflicts until it succeeds or the claim is allocated.

        Afterwards no write to an earlier version can succeed. Returns the claim; None if it is gone.
        """
        current = await self.read(claim)
        while current is not None and current.status.allocation is None:
            if (touched := await self._touch(current)) is not None:
                return touched
            current = await self.read(claim)
        return current

    async def _touch(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Change an unallocated claim: its annotation, or the finalizer if its annotations are full.

        The finalizer protects nothing yet.
        """
        try:
            return await self.secure(claim, secrets.token_hex(4))
        except ApiError as error:
            if not is_permanent_refusal(error):
                raise
        known = claim.metadata.finalizers or []
        others = [name for name in known if name != _FINALIZER]
        try:
            return await self._write(claim, "", {"finalizers": others if is_protected(claim) else [*known, _FINALIZER]})
        except ApiError as error:
            if not is_permanent_refusal(error):
                raise
        return claim  # too large or being deleted: it can't be allocated, which needs more space or the finalizer

    async def _write(
        self,
        claim: ResourceClaim,
        part: str = "",
        metadata: Mapping[str, Any] | None = None,
        term: Term | None = None,
        **fields: Any,
    ) -> ResourceClaim | None:
        patch = self._patch(claim, part, metadata, **fields)
        return await patches.write(patch, term, claim.metadata.resource_version)

    def _patch(
        self, claim: ResourceClaim, part: str, metadata: Mapping[str, Any] | None = None, **fields: Any
    ) -> patches.Patch[ResourceClaim]:
        uid = claim.metadata.uid
        return patches.Patch(self._transport, _path(claim), _decoder, uid=uid, part=part, metadata=metadata, **fields)


def is_protected(claim: ResourceClaim) -> bool:
    """Whether a claim has the finalizer that Kerf adds before allocating."""
    return _FINALIZER in (claim.metadata.finalizers or ())


def _consumer(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}


def _path(claim: ResourceClaim) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{claim.metadata.namespace}/resourceclaims/{claim.metadata.name}"
