"""What is written on ResourceClaims, each time on the version that was decided on."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from extender.dra.objects import ResourceClaim
from extender.kube import patches
from extender.kube.client import ApiError, Transport
from extender.kube.commit import Term, refused
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod

_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Keeps a claim that has devices from being deleted; kube-controller-manager takes it off again."""
_TOUCHED: Final = "kerf.dev/touched"
"""Written only to change a claim, so that a write to the version before it fails."""

_decoder: Final = Decoder(ResourceClaim)


class ClaimWriter:
    """Writes to claims. Each method returns the claim as it is then, None where it has changed before or is gone.

    They raise ClusterError where the API server refuses, or where nobody knows what it did; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, claim: ResourceClaim) -> ResourceClaim | None:
        """A claim as it is now, None once it is gone."""
        return await patches.read(self._transport, _path(claim), _decoder, claim.metadata.uid)

    async def protect(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Keep a claim from being deleted with the devices that it is about to get."""
        if is_protected(claim):
            return claim
        return await self._write(claim, "", {"finalizers": [*(claim.metadata.finalizers or []), _FINALIZER]})

    async def allocate(
        self, claim: ResourceClaim, version: str, pod: Pod, allocation: Mapping[str, Any]
    ) -> ResourceClaim | None:
        """Give a claim of that version, which is protected, its devices for a pod; the claim as it is then.

        It is reserved for the pod in the same write: kube-controller-manager frees it when the pod is gone, and
        kube-scheduler has nothing to write.
        """
        status = {"allocation": allocation, "reservedFor": [_consumer(pod)]}
        return await self._patch(claim, "/status", status=status).send(version)

    async def free(self, claim: ResourceClaim, term: Term) -> ResourceClaim | None:
        """Take a claim's devices away that no pod uses. Raises FencedError."""
        return await self._write(claim, "/status", term=term, status={"allocation": None, "reservedFor": None})

    async def secure(self, claim: ResourceClaim, word: str) -> ResourceClaim | None:
        """Change a claim that has its devices, so that nobody can take these away who knows this version of it."""
        return await self._write(claim, "", {"annotations": {_TOUCHED: word}})

    async def seal(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Change a claim until it has devices or no write to a version before this succeeds any more; the claim as it
        is then, None once it is gone."""
        found = await self.read(claim)
        while found is not None and found.status.allocation is None:
            if (touched := await self._touch(found)) is not None:
                return touched
            found = await self.read(claim)
        return found

    async def _touch(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Change a claim that has no devices.

        Its author may have filled its annotations: then the finalizer comes or goes, which guards nothing yet.
        """
        try:
            return await self.secure(claim, secrets.token_hex(4))
        except ApiError as error:
            if not refused(error):
                raise
        known = claim.metadata.finalizers or []
        others = [name for name in known if name != _FINALIZER]
        try:
            return await self._write(claim, "", {"finalizers": others if is_protected(claim) else [*known, _FINALIZER]})
        except ApiError as error:
            if not refused(error):
                raise
        return claim  # too large, or being deleted: nobody can allocate it, for that takes more, or the finalizer

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
    """Whether a claim has the finalizer without which Kerf gives it no devices."""
    return _FINALIZER in (claim.metadata.finalizers or ())


def _consumer(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}


def _path(claim: ResourceClaim) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{claim.metadata.namespace}/resourceclaims/{claim.metadata.name}"
