"""Bindings whose answer was lost: their GPUs are held until the pod tells, and the pod is made to tell.

A pod without a node may get it yet: a write can stay on its way, in a proxy or in the API server, for longer than any
time-out here. So the pod is changed, which tells at once whether it is bound, and if it is not, a Binding that carries
an older resourceVersion never will take effect.

A standby writes nothing, and forgets nothing: nobody may have taken over, and nobody need to. It reads the pods. One
that has another version by now than the Binding carries, since a successor has marked it or for any other reason, can't
be bound by that any more; whether this process ever leads again or not, only the pod settles what it holds.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.pauses import Pauses
from extender.ledger.ledger import Claim, ClaimState, Ledger
from extender.scheduling.binding.marks import change, read, refused
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity

logger = logging.getLogger(__name__)

SEALED: Final = "kerf.dev/sealed"
"""Changed to make a pod's older versions unbindable; what it says means nothing."""

_INTERVAL_S: Final = 0.5

_pod_decoder = Decoder(objects.Pod)


@dataclass(frozen=True, slots=True, eq=False)
class _Unsettled:
    pod: PodIdentity
    claim: Claim
    version: str
    """The resourceVersion that the Binding carries, "" when none was sent."""


class Settler(Background):
    """Finds out in the background what became of Bindings, from `start` to `stop`."""

    def __init__(self, transport: Transport, ledger: Ledger, fence: Fence, clock: Callable[[], float]) -> None:
        super().__init__("settler")
        self._transport = transport
        self._ledger = ledger
        self._fence = fence
        self._clock = clock
        self._unsettled: list[_Unsettled] = []
        self._pauses = Pauses()

    def add(self, pod: PodIdentity, claim: Claim, version: str) -> None:
        """A Binding of this version of a pod may take effect yet; its claim stands until it is settled."""
        self._unsettled.append(_Unsettled(pod, claim, version))

    async def seal(self, pod: PodIdentity) -> objects.Pod | None:
        """Change a pod so that no Binding sent before can take effect any more; None when it is gone.

        Raises ClusterError, DecodeError.
        """
        answer = await change(self._transport, pod, SEALED, secrets.token_hex(4))
        return None if answer is None else _pod_decoder.decode(answer)

    async def run(self) -> None:
        await repeat(self.settle_round, _INTERVAL_S, "a round of settling")

    async def settle_round(self) -> None:
        """Settle what can be settled now."""
        for unsettled in tuple(self._unsettled):
            pod, node = unsettled.pod, unsettled.claim.node
            namespace = pod.key.partition("/")[0]
            if self._pauses.why(namespace, pod.uid, self._clock()) is not None:
                continue
            try:
                if await self._settle(unsettled):
                    self._unsettled.remove(unsettled)
                self._pauses.succeeded(namespace, pod.uid)
            except (ClusterError, msgspec.DecodeError) as error:
                self._pauses.failed(namespace, pod.uid, error, self._clock())
                logger.warning("whether pod %s is bound to %s is not known yet: %s", pod.key, node, error)
            except Exception:
                logger.exception("could not find out whether pod %s is bound", unsettled.pod.key)

    async def _settle(self, unsettled: _Unsettled) -> bool:
        """Whether it is known by now what became of a Binding. Raises ClusterError, DecodeError."""
        pod, claim = unsettled.pod, unsettled.claim
        if self._is_told(pod, claim):
            return True
        found = await self._ask(pod)
        if self._is_told(pod, claim):
            return True
        if found is None or found.finished:
            self._ledger.end_binding(claim, None, self._clock())
        elif not found.spec.node_name:
            if found.metadata.resource_version == unsettled.version:
                return False  # it may get its node yet
            self._ledger.end_binding(claim, None, self._clock())
        elif found.spec.node_name == claim.node:
            self._ledger.end_binding(claim, ClaimState.BOUND, self._clock())
        else:
            held = self._ledger.hold_as_read(found, self._clock())
            if held is not None:
                self.add(pod, held, "")
        return True

    def _is_told(self, pod: PodIdentity, claim: Claim) -> bool:
        """Whether the watch has told what became of a pod."""
        return claim.state is not ClaimState.UNDECIDED or self._ledger.claim(pod.uid) is not claim

    async def _ask(self, pod: PodIdentity) -> objects.Pod | None:
        """A pod after it was changed, or as it is where it must not or can't be changed; None when it is gone."""
        if not self._fence.standby():
            try:
                return await self.seal(pod)
            except ApiError as error:
                if not refused(error):
                    raise
        return await read(self._transport, pod)
