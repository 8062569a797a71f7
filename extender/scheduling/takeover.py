"""Taking over: what a process does between winning an election and its first decision.

1. It marks every unbound pod that requests GPUs with an annotation of the new epoch. A predecessor's late write carries
   an older resourceVersion and is refused; what it wrote before is on the pod.
2. It lists the bound pods again: a watch may lag behind the predecessor's writes.

A term that directly follows one of its own needs neither: all writes under way are its own, and the ledger holds what
may still take effect (`commit.Resolver`).

A process without election does the same at its start, since the previous process may have been killed with Bindings
under way. The patches go to `pods/status`, so that Kerf needs no right to change a pod's spec. A pod that can't be
changed (see `binding`) does not block the take-over.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.background import Backoff, Tasks
from extender.kube.client import ClusterError, Transport
from extender.kube.commit import is_permanent_refusal
from extender.kube.leadership import Election
from extender.kube.transport import PODS_PATH
from extender.kube.watches import PENDING_PODS, Lister, stand_in
from extender.ledger.mirror import Mirror
from extender.plugins.pods import read_pod_request
from extender.scheduling.binding import change
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity

logger = logging.getLogger(__name__)

_EPOCH: Final = "kerf.dev/epoch"

_NUM_WRITERS: Final = 64
"""Concurrent patches. Kerf decides nothing before the last of thousands of pods is marked, and all may be of one
author; the lease renewal still has to get a connection."""
_FIRST_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 3.0


def epoch_key(lease: str = "") -> str:
    """Return the annotation key with which the leaders of a lease, or a single process without one, mark pods."""
    return f"{_EPOCH}-{lease}" if lease else _EPOCH


class Leadership:
    """Opens the fence while this process leads, from `start` to `stop`."""

    def __init__(
        self,
        transport: Transport,
        election: Election,
        fence: Fence,
        mirror: Mirror,
        clock: Callable[[], float],
        *,
        key: str = _EPOCH,
        marks_gated: bool = False,
        catch_ups: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """`marks_gated` also marks gated pods, in every term: a predecessor may be about to assign GPUs to them and
        open the gate, and a standby's ledger holds nothing of that. `catch_ups` run after marking, before the list."""
        self._marks_gated, self._catch_ups = marks_gated, catch_ups
        self._transport = transport
        self._election = election
        self._fence = fence
        self._mirror = mirror
        self._clock = clock
        self._key = key
        self._unbound_pods = Lister(transport, PODS_PATH, objects.Pod, {"fieldSelector": PENDING_PODS.field_selector})
        self._tenure = ""
        self._epoch = ""  # the mark of this tenure
        self._taken_over = False
        self.tasks = Tasks()
        self.num_terms = 0
        """Take-overs of this process."""
        self.num_marked = 0
        """Unbound pods marked in all take-overs."""
        self.num_unmarkable = 0
        """Unbound pods that could not be marked in all take-overs."""

    def start(self) -> None:
        """Start mirroring and take part in the election, in the running event loop."""
        self._tenure = ""  # others may have led since the last stop
        if self._election.contested:
            self._mirror.start()  # warms up; without election it has to start after the marks
        self._fence.shut(self._election.standing)
        self.tasks.begin("election", self._election.run)
        self.tasks.begin("leadership", self._lead)

    async def stop(self) -> None:
        """Shut the fence and let others lead."""
        await self.tasks.end()
        self._fence.shut(lambda: "shutting down")
        await self._election.resign()

    async def _lead(self) -> None:
        while True:
            term = self._election.term
            if not term:
                self._fence.shut(self._election.standing)
                await self._election.wait_for_change()
                continue
            taking_over = asyncio.create_task(self._take_over(term), name="take-over")
            try:
                await self._election.wait_for_change()
            finally:
                self._fence.shut(self._election.standing)
                taking_over.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await taking_over

    async def _take_over(self, term: str) -> None:
        began = self._clock()
        if self._tenure != self._election.tenure or self._marks_gated:
            # Unique, since a patch that changes nothing would not change the resourceVersion.
            self._epoch = f"{self._election.tenure}.{secrets.token_hex(4)}"
            self._tenure, self._taken_over = self._election.tenure, False
        step = "taking over from the previous leader" if self._election.contested else "pods are not synced yet"
        progress, num_marked, backoff = step, 0, Backoff(_FIRST_RETRY_S, _MAX_RETRY_S)

        def deadline() -> float:
            # Another term may have begun, with another leader in between, before this task is cancelled.
            return self._election.deadline() if self._election.term == term else float("-inf")

        self._fence.take_over(progress, deadline, self._election.standing)
        while not self._taken_over:
            try:
                num_marked = await self._mark(self._epoch)
                await self._catch_up()
                self._taken_over = True
                break
            except (ClusterError, msgspec.DecodeError) as error:
                pause_s, progress = backoff.failed(error), f"{step}: {error}"
                if backoff.is_news:
                    logger.warning("pods being placed were not marked, trying again: %s", error)
            except Exception:
                logger.exception("pods being placed were not marked")
                pause_s, progress = backoff.failed(), f"{step}: see the log"
            self._fence.take_over(progress, deadline, self._election.standing)
            await asyncio.sleep(pause_s)
        self._fence.open(term)
        self.num_terms += 1
        if self._election.contested:
            took_s = self._clock() - began
            logger.info("leading as epoch %s after %.2f s, %d unbound pods marked", self._epoch, took_s, num_marked)

    async def _catch_up(self) -> None:
        """Run the catch-ups and list the pods again while their watch is stopped."""
        async with self._mirror.pods_held():
            for catch_up in self._catch_ups:
                await catch_up()

    async def _mark(self, epoch: str) -> int:
        """Mark every unbound pod that a predecessor may be about to bind; return how many. Raises ClusterError."""
        marked = {self._key: epoch}.items()  # by an earlier attempt
        unmarked = [pod for pod in await self._unbound() if not marked <= (pod.metadata.annotations or {}).items()]
        pods = iter([pod for pod in unmarked if _may_be_under_way(pod, gated=self._marks_gated)])
        num_marked = 0
        unmarkable: list[str] = []
        faults: list[Exception] = []

        async def write() -> None:
            nonlocal num_marked
            for pod in pods:  # shared by all writers
                identity = PodIdentity.of(pod)
                try:
                    num_marked += await change(self._transport, identity, self._key, epoch) is not None
                except (ClusterError, msgspec.DecodeError) as error:
                    if is_permanent_refusal(error):
                        unmarkable.append(f"{pod.key}: {error}")
                        continue
                    faults.append(error)
                    if len(faults) >= _NUM_WRITERS:
                        return

        await asyncio.gather(*(write() for _ in range(_NUM_WRITERS)))
        self.num_marked += num_marked
        if faults:
            raise faults[0]
        if unmarkable:
            self.num_unmarkable += len(unmarkable)
            logger.warning("%d pods can't be marked, such as %s", len(unmarkable), unmarkable[0])
        return num_marked

    async def _unbound(self) -> list[objects.Pod]:
        """List the pods without a node, without a resourceVersion: the API server returns the most recent state."""
        found = await self._unbound_pods.all()
        return found.items + [stand_in(pod, objects.Pod) for pod in found.unread]


def _may_be_under_way(pod: objects.Pod, *, gated: bool) -> bool:
    """Whether a Binding with GPUs may be under way for a pod, or with `gated` an assignment.

    The API server refuses to bind a gated pod, and opening the gate changes the pod.
    """
    if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
        return False
    if pod.spec.scheduling_gates and not gated:
        return False
    try:
        return read_pod_request(pod).gpus is not None
    except RequestError:
        return True  # another version of Kerf may have parsed it
