"""Evicting one pod, under the term of the leader who decided it.

Like a Binding, an eviction carries the version of the pod that it was decided on, and is sent only after it was seen
that nobody else leads. Whoever leads next changes the pods that may be about to be evicted: a late one is refused.
"""

import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.queueing.defrag.plan import PlannedMove
from extender.scheduling.binding.marks import change, read, refused
from extender.scheduling.binding.unanswered_bindings import SEALED
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity

_MOST_CHANGES: Final = 5
"""How often a pod may change under the hands of who would evict it: its kubelet writes its status."""
_CONFLICT, _TOO_MANY = 409, 429
_pod_decoder: Final = Decoder(Pod)


class EvictionError(Exception):
    """A pod was not evicted, and will not be by what was sent; says why."""


class BudgetError(EvictionError):
    """A PodDisruptionBudget keeps it for now."""


@dataclass(eq=False)
class Evictor:
    """Evicts pods that are still where a plan found them."""

    transport: Transport
    fence: Fence

    async def evict(self, move: PlannedMove, epoch: str) -> None:
        """Have a pod go. Raises EvictionError, BudgetError, FencedError; ClusterError where nobody knows what became of
        it, nor can see to it that nothing will."""
        pod = identity_of(move)
        for _ in range(_MOST_CHANGES):
            found = await read(self.transport, pod)
            if found is None or found.finished:
                raise EvictionError(f"pod {move.pod} is gone")
            if found.metadata.deletion_timestamp:
                raise EvictionError(f"pod {move.pod} is going already")
            await self.fence.confirm_now()
            self.fence.check(epoch)
            try:
                await self._post(pod, found.metadata.resource_version)
            except ApiError as error:
                if error.status == _CONFLICT:
                    continue
                if error.status == _TOO_MANY:
                    raise BudgetError(f"pod {move.pod} can't be evicted now: {error.message}") from error
                if error.status < 500:
                    raise EvictionError(f"pod {move.pod} can't be evicted: {error}") from error
                await self._find_out(move, error)
            except ClusterError as error:
                await self._find_out(move, error)
            return
        raise EvictionError(f"pod {move.pod} changes too fast to be evicted")

    async def seal(self, move: PlannedMove) -> bool:
        """See to it that no eviction which was sent before takes effect any more; whether one has, as far as anybody
        knows. Raises ClusterError, DecodeError."""
        try:
            found = await change(self.transport, identity_of(move), SEALED, secrets.token_hex(4))
        except ApiError as error:
            if error.status != _CONFLICT and not refused(error):  # another one of its name, or too large for a mark
                raise
            return True
        return found is None or bool(_pod_decoder.decode(found).metadata.deletion_timestamp)

    async def _find_out(self, move: PlannedMove, cause: ClusterError) -> None:
        """What became of an eviction without an answer. Raises EvictionError where nothing did, and nothing will."""
        if not await self.seal(move):
            raise EvictionError(f"pod {move.pod} was not evicted: {cause}") from cause

    async def _post(self, pod: PodIdentity, version: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": version}},
        }
        await self.transport.post(f"{pod.path}/eviction", msgspec.json.encode(body))


def identity_of(move: PlannedMove) -> PodIdentity:
    """The pod that a move evicts."""
    namespace, _, name = move.pod.partition("/")
    return PodIdentity(namespace, name, move.uid)
