"""Bindings whose answer was lost: their GPUs are held until the pod tells, and the pod is made to tell.

A pod without a node may get it yet: a write can stay on its way, in a proxy or in the API server, for longer than any
time-out here. So the pod is changed, which tells at once whether it is bound, and if it is not, a Binding that carries
an older resourceVersion never will take effect.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.fences import Fence
from extender.cluster.ledger import Claim, ClaimState, Ledger
from extender.cluster.placements import PodIdentity
from extender.cluster.transports import ApiError, ClusterError, Transport

logger = logging.getLogger(__name__)

SEALED: Final = "kerf.dev/sealed"
"""Changed to make a pod's older versions unbindable; what it says means nothing."""

_INTERVAL_S: Final = 0.5

_pod_decoder = msgspec.json.Decoder(objects.Pod)


class Settler:
    """Finds out in the background what became of Bindings, from `start` to `stop`."""

    def __init__(self, transport: Transport, ledger: Ledger, fence: Fence, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._ledger = ledger
        self._fence = fence
        self._clock = clock
        self._unsettled: list[tuple[PodIdentity, Claim]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="settler")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def add(self, pod: PodIdentity, claim: Claim) -> None:
        """A Binding that may take effect yet; its claim stands until it is settled."""
        self._unsettled.append((pod, claim))

    async def seal(self, pod: PodIdentity) -> objects.Pod | None:
        """Change a pod so that no Binding sent before can take effect any more; None when it is gone.

        Raises ClusterError, DecodeError.
        """
        metadata = {"uid": pod.uid, "annotations": {SEALED: secrets.token_hex(4)}}
        try:
            answer = await self._transport.patch(f"{pod.path}/status", msgspec.json.encode({"metadata": metadata}))
        except ApiError as error:
            if await self._is_gone(pod, error):
                return None
            raise
        return _pod_decoder.decode(answer)

    async def _is_gone(self, pod: PodIdentity, error: ApiError) -> bool:
        """Whether an error means that the pod was deleted; one of that name that was created since makes it a 422."""
        if error.status != 422:
            return error.status == 404
        return _pod_decoder.decode(await self._transport.get(pod.path)).metadata.uid != pod.uid

    async def settle_round(self) -> None:
        """Settle what can be settled now."""
        unsettled, self._unsettled = self._unsettled, []
        for pod, claim in unsettled:
            if claim.state is not ClaimState.UNDECIDED or self._ledger.claim(pod.uid) is not claim:
                continue  # the watch has told
            if self._fence.standby():
                # A successor seals every pod before it decides; the watch tells what was bound before.
                self._ledger.end_binding(claim, None, self._clock())
                continue
            try:
                found = await self.seal(pod)
            except (ClusterError, msgspec.DecodeError) as error:
                logger.warning("whether pod %s is bound to %s is not known yet: %s", pod.key, claim.node, error)
                self._unsettled.append((pod, claim))
                continue
            bound = found is not None and found.spec.node_name == claim.node and not found.finished
            self._ledger.end_binding(claim, ClaimState.BOUND if bound else None, self._clock())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.settle_round()
            except Exception:
                logger.exception("a round of settling failed")
