"""Settling Bindings whose answer was lost: they may take effect yet, however late, so no TTL may give their GPUs away.

To change the pod settles it. A Binding carries the resourceVersion of the pod as it was before, so that one that has
not taken effect by then is refused for ever; the answer to the change tells whether it had. The patch goes to
`pods/status`, so that no right to change a pod's spec is needed.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.ledger import Claim, ClaimState, Ledger
from extender.cluster.placements import PodIdentity
from extender.cluster.transports import ApiError, ClusterError, Transport

logger = logging.getLogger(__name__)

SETTLED: Final = "kerf.dev/settled"
"""Never the same twice: a patch that changes nothing would not change the resourceVersion."""

_INTERVAL_S: Final = 0.25
_FIRST_WAIT_S: Final = 0.25
_MAX_WAIT_S: Final = 10.0

_pod_decoder = msgspec.json.Decoder(objects.Pod)


@dataclass(slots=True)
class _Open:
    pod: PodIdentity
    claim: Claim
    due: float
    """Monotonic time of the next attempt."""
    wait_s: float = _FIRST_WAIT_S


class Settler:
    """Settles undecided Bindings in the background, from `start` to `stop`."""

    def __init__(self, transport: Transport, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._ledger = ledger
        self._clock = clock
        self._open: dict[str, _Open] = {}
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

    def undecided(self, pod: PodIdentity, claim: Claim) -> None:
        """A Binding may have been written, or may be yet."""
        self._open[pod.uid] = _Open(pod, claim, self._clock())

    async def settle_round(self) -> None:
        """Settle what is due; what the API server does not answer stays open."""
        now = self._clock()
        for entry in [entry for entry in self._open.values() if entry.due <= now]:
            if not self._stands(entry):
                self._close(entry)  # the watch has told
                continue
            try:
                await self._settle(entry)
            except (ClusterError, msgspec.DecodeError) as error:
                entry.due, entry.wait_s = self._clock() + entry.wait_s, min(2 * entry.wait_s, _MAX_WAIT_S)
                logger.warning("whether pod %s is bound is not known yet: %s", entry.pod.key, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.settle_round()
            except Exception:
                logger.exception("a round of settling failed")

    async def _settle(self, entry: _Open) -> None:
        """Find out, and see to it that it stays so. Raises ClusterError, msgspec.DecodeError."""
        pod = entry.pod
        body = {"metadata": {"uid": pod.uid, "annotations": {SETTLED: secrets.token_hex(4)}}}
        try:
            found = _pod_decoder.decode(await self._transport.patch(f"{pod.path}/status", msgspec.json.encode(body)))
            bound = bool(found.spec.node_name)
        except ApiError as error:
            if not await self._is_gone(pod, error):
                raise
            bound = False  # a Binding names the UID
        self._ledger.settle(entry.claim, bound=bound, now=self._clock())
        self._close(entry)

    async def _is_gone(self, pod: PodIdentity, error: ApiError) -> bool:
        """Whether an error means that the pod was deleted; one of that name that was created since makes it a 422."""
        if error.status != 422:
            return error.status == 404
        return _pod_decoder.decode(await self._transport.get(pod.path)).metadata.uid != pod.uid

    def _stands(self, entry: _Open) -> bool:
        claim = self._ledger.claim(entry.pod.uid)
        return claim is entry.claim and claim.state is ClaimState.UNDECIDED

    def _close(self, entry: _Open) -> None:
        if self._open.get(entry.pod.uid) is entry:
            del self._open[entry.pod.uid]
