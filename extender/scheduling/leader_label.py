"""The label by which a Service selects the leader among replicas that are all ready.

The leader sets it on its own pod and removes it from all others. A replica that stops leading keeps it, so that the
Service always has an endpoint, if only one that answers why nothing is decided now.

Readiness is no substitute: a standby would never be ready, so no rollout could wait for new replicas, a
PodDisruptionBudget would allow no disruption, and the Deployment would look degraded forever.
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
"""How long a leader that shuts down waits for a successor: less than half of its termination grace period."""
_READY_S: Final = 5.0
"""How long a new leader leaves the label on others while its own pod is not ready; shorter than `_SUCCESSOR_S`."""
_LOOK_AGAIN_S: Final = 5.0
"""Interval of a leader's checks: labels may have been edited, or written late."""


class _Pods(objects.Object):
    items: list[objects.Pod]


_decoder: Final = Decoder(_Pods)


class LeaderLabel(Background):
    """Keeps the label on the leader's pod."""

    def __init__(
        self, transport: Transport, fence: Fence, pod: str, lease: str, look_again_s: float = _LOOK_AGAIN_S
    ) -> None:
        """`pod` is the pod of this process, `namespace/name`."""
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
        """Wait until this pod has lost the label, for `_SUCCESSOR_S` at most."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SUCCESSOR_S
        while await self._has_label():
            if loop.time() > until:
                logger.warning("no other leader within %g s: callers get no answer until there is one", _SUCCESSOR_S)
                return
            await asyncio.sleep(_LOOK_S)

    async def _has_label(self) -> bool:
        try:
            return self._name in await self._labelled()
        except (ClusterError, msgspec.DecodeError):
            return True

    async def _settle(self) -> bool:
        """Set the label on this pod, then remove it from the others; return whether both are done.

        Others keep it until this pod is ready or `_READY_S` have passed: a Service routes to ready pods only. Raises
        ClusterError, DecodeError.
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
        """Return the names of the pods with the label and whether each is ready. Raises ClusterError, DecodeError."""
        answer = await self._transport.get(self._path, {"labelSelector": f"{_LABEL}={self._lease}"})
        return {pod.metadata.name: pod.ready for pod in _decoder.decode(answer).items}

    async def _write(self, name: str, value: str | None) -> None:
        """Set or remove the label through `pods/status`, like all of Kerf's metadata patches."""
        body = msgspec.json.encode({"metadata": {"labels": {_LABEL: value}}})
        await self._transport.patch(f"{self._path}/{name}/status", body)
