"""A waker on a cluster in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube.client import ClusterError
from extender.ledger.ledger import Ledger
from extender.plugins.kerf import EXPLANATION
from extender.plugins.pods import read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import Waker
from tests.ledger.builders import Clock, FaultyTransport, node_object, open_fence, pod_manifest, pod_object


@dataclass
class RefusingTransport(FaultyTransport):
    """Refuses every patch with an error, when it has one."""

    error: ClusterError | None = None

    async def patch(self, path: str, body: bytes) -> bytes:
        answer = await super().patch(path, body)
        if self.error:
            raise self.error
        return answer


class CountingPlacer(Placer):
    """Remembers which requests were looked at."""

    looks: tuple[PodRequest, ...] = ()

    def fits_somewhere(self, request: PodRequest) -> bool:
        self.looks = (*self.looks, request)
        return super().fits_somewhere(request)


@dataclass
class Rig:
    """A waker on a node "n" of 2 GPUs."""

    clock: Clock = field(default_factory=Clock)
    transport: RefusingTransport = field(default_factory=RefusingTransport)
    why: Callable[[PodIdentity], str] = lambda pod: ""

    def __post_init__(self) -> None:
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.ledger.upsert_node(node_object("n", 2))
        self.placer = CountingPlacer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.unbound = UnboundPods(read_pod_request, self.clock)
        self.waker = Waker(
            *(self.transport, self.ledger, self.placer, self.unbound, self.clock, open_fence()),
            queue=QueueRules(),
            why=lambda pod: self.why(pod),  # noqa: PLW0108 - tests change it
            explain_after_s=60.0,
        )

    def reject(self, name: str = "p", gpus: int = 1, priority: int = 0) -> None:
        """Filter found no node for a pod that exists."""
        self.transport.inner.apply(pod_manifest(name, gpus))
        self.ledger.upsert_pod(pod_object(name, gpus), self.clock())
        request = PodRequest(GpuRequest(gpus), priority=priority)
        self.waker.rejected(PodIdentity("default", name, f"uid-{name}"), request)

    def explained(self, after_s: float = 0.0) -> list[str]:
        """The explanations written in a round after some time."""
        self.woken(after_s)
        notes = (msgspec.json.decode(body)["metadata"]["annotations"] for _, _, body in self.transport.calls)
        return [note[EXPLANATION] for note in notes if EXPLANATION in note]

    def woken(self, after_s: float = 0.0) -> list[str]:
        """Names of the pods woken in a round after some time."""
        self.clock.now += after_s
        self.transport.calls.clear()
        asyncio.run(self.waker.wake_round())
        return [path.split("/")[6] for _, path, _ in self.transport.calls]
