"""Corrects the GPU annotations of pods to which the kubelet gave other GPUs.

A device plugin may pick GPUs by itself, and the node agent reports which (`extender.plugins.kerf`). The ledger counts
those at once; the annotations follow, for other readers.
"""

import logging
import time
from typing import Final

import msgspec

from extender.kube.background import Background, repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.events import EventRecorder
from extender.kube.turns import Backoffs
from extender.ledger.ledger import Ledger, PodAllocation
from extender.plugins.holdings import Holding
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, EXPLANATION, format_gpus
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_MAX_PER_ROUND: Final = 50
_GONE: Final = (404, 409)
"""Statuses for a pod that is gone, or another one of its name."""
_REFUSED: Final = (400, 403, 413, 422)
"""Statuses for a pod that is too large or can't be changed."""


class Corrections(Background):
    """Corrects pods in the background, from `start` to `stop`."""

    def __init__(self, transport: Transport, ledger: Ledger, events: EventRecorder, fence: Fence) -> None:
        super().__init__("corrections", needed=False)
        self._transport = transport
        self._ledger = ledger
        self._events = events
        self._fence = fence
        self._refused: dict[str, Holding | None] = {}  # by UID: the correction that was refused
        self._pauses = Backoffs()
        self.num_corrected = 0
        """Pods whose annotations were corrected."""

    async def run(self) -> None:
        """Correct pods until cancelled."""
        await repeat(self.correct, _INTERVAL_S, "correcting assignments")

    async def correct(self) -> None:
        """Correct up to `_MAX_PER_ROUND` pods."""
        mistaken = self._ledger.mistaken()
        self._refused = {held.uid: self._refused[held.uid] for held in mistaken if held.uid in self._refused}
        if self._fence.fault():
            return
        due = (
            allocation
            for allocation in mistaken
            if self._refused.get(allocation.uid) != allocation.given_by_kubelet
            and self._pauses.why(allocation.pod.partition("/")[0], allocation.uid, time.monotonic()) is None
        )
        for _, allocation in zip(range(_MAX_PER_ROUND), due, strict=False):
            await self._correct(allocation)

    async def _correct(self, allocation: PodAllocation) -> None:
        namespace, name = allocation.pod.split("/", 1)
        given, assigned = format_gpus(allocation.gpus), format_gpus(allocation.holding.gpus)
        uuids = ",".join(part.uuid for part in allocation.held.parts)
        text = f"GPUs {given} of node {allocation.node} by its device plugin; GPUs {assigned} had been chosen"
        annotations = {ASSIGNED_GPUS: given, ASSIGNED_UUIDS: uuids, EXPLANATION: f"placed: {text}"}
        patch = {"metadata": {"uid": allocation.uid, "annotations": annotations}}
        try:
            await self._transport.patch(
                f"/api/v1/namespaces/{namespace}/pods/{name}/status", msgspec.json.encode(patch)
            )
        except ClusterError as error:
            lacks_right = isinstance(error, ApiError) and error.missing_right is not None
            status = error.status if isinstance(error, ApiError) and not lacks_right else 0
            self._pauses.failed(namespace, allocation.uid, error, time.monotonic())
            if status in _REFUSED:
                self._refused[allocation.uid] = allocation.given_by_kubelet  # a retry would be refused, too
            if status not in _GONE:
                logger.warning("pod %s: its GPU annotations were not corrected to %s: %s", allocation.pod, text, error)
            return
        self.num_corrected += 1
        self._pauses.succeeded(namespace, allocation.uid)
        self._events.emit(namespace, name, allocation.uid, reason="GPUsCorrected", message=f"Given {text}")
