"""The label by which a Service finds the leader among replicas that are all ready.

It moves: whoever leads gives it to its own pod and takes it off all others. Nobody takes it off just because it has
stopped leading, so there is always somebody who answers, if only with the reason why nothing is decided now.

Readiness could tell the same, and once did. But then a standby never gets ready: no rollout can wait for new replicas,
a disruption budget allows nobody to go, and whoever watches the Deployment sees it half broken for ever.
"""

import asyncio
import logging
import time
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.background import Background, Backoff
from extender.kube.client import ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_LABEL: Final = "kerf.dev/leads"
_LOOK_S: Final = 0.05
_FIRST_RETRY_S: Final = 0.5
_MAX_RETRY_S: Final = 5.0
_SUCCESSOR_S: Final = 10.0
"""For which a leader that goes waits for the next one: less than half of what a kubelet gives it to end."""
_READY_S: Final = 5.0
"""For which a new leader leaves the label to others while its own pod is not ready; less than these wait."""
_LOOK_AGAIN_S: Final = 5.0
"""Between two looks of a leader that leads on: somebody may have edited labels, or written late."""


class _Pods(objects.Object):
    items: list[objects.Pod]


_decoder: Final = Decoder(_Pods)


class LeaderLabel(Background):
    """Keeps the label where it belongs."""

    def __init__(
        self, transport: Transport, fence: Fence, pod: str, lease: str, look_again_s: float = _LOOK_AGAIN_S
    ) -> None:
        """`pod` is this process's own, as namespace/name."""
        super().__init__("leader's label")
        self._transport = transport
        self._fence = fence
        namespace, _, self._name = pod.partition("/")
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._lease = lease
        self._look_again_s = look_again_s
        self._backoff = Backoff(_FIRST_RETRY_S, _MAX_RETRY_S)
        self._labelled_at = float("-inf")

    async def run(self) -> None:
        loop, looked_at = asyncio.get_running_loop(), float("-inf")
        while True:
            pause_s = _LOOK_S
            if self._fence.fault():
                looked_at = float("-inf")
            elif loop.time() > looked_at + self._look_again_s:
                try:
                    looked_at = loop.time() if await self._settle() else float("-inf")
                    self._backoff.succeeded()
                except (ClusterError, msgspec.DecodeError) as error:
                    pause_s, looked_at = self._backoff.failed(error), float("-inf")
                    if self._backoff.is_news:
                        message = "the label %s could not be set, callers may not find this leader: %s"
                        logger.warning(message, _LABEL, error)
            await asyncio.sleep(pause_s)

    async def taken_off(self) -> None:
        """Wait while callers are led to this pod, for as long as another leader may be expected to come."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SUCCESSOR_S
        while await self._leads_here():
            if loop.time() > until:
                logger.warning("no other leader has come in %g s: callers are left without an answer", _SUCCESSOR_S)
                return
            await asyncio.sleep(_LOOK_S)

    async def _leads_here(self) -> bool:
        try:
            return self._name in await self._labelled()
        except (ClusterError, msgspec.DecodeError):
            return True

    async def _settle(self) -> bool:
        """Give the label to this pod, then take it off all others. Raises ClusterError, DecodeError.

        That is when it is ready, or has had its time to be: a Service leads to no other. Returns whether all is done.
        """
        ready = await self._labelled()
        if self._name not in ready:
            await self._write(self._name, self._lease)
            logger.info("pod %s is labelled as the leader", self._name)
            self._labelled_at = time.monotonic()
        others = ready.keys() - {self._name}
        if others and not ready.get(self._name) and time.monotonic() < self._labelled_at + _READY_S:
            return False
        for name in sorted(others):
            await self._write(name, None)
        return True

    async def _labelled(self) -> dict[str, bool]:
        """The pods that have the label, by name, and whether each is ready. Raises ClusterError, DecodeError."""
        answer = await self._transport.get(self._path, {"labelSelector": f"{_LABEL}={self._lease}"})
        return {pod.metadata.name: pod.ready for pod in _decoder.decode(answer).items}

    async def _write(self, name: str, value: str | None) -> None:
        """By way of the status, as all of Kerf's notes on pods."""
        body = msgspec.json.encode({"metadata": {"labels": {_LABEL: value}}})
        await self._transport.patch(f"{self._path}/{name}/status", body)
