"""A binder on a cluster in memory, and errors of the API server."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, Transport, UnreachableError
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.binding import Binder, BindError
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import TTL_S, Clock, FaultyTransport, node_manifest, open_fence, pod_manifest, taken

STATUS_PATH = "/api/v1/namespaces/default/pods/p/status"
TIMEOUT = UnreachableError("POST: timed out")
CONFLICT = ApiError(409, "Conflict", "already assigned")
SERVER_ERROR = ApiError(500, "InternalError", "etcdserver: request timed out")
NOT_FOUND = ApiError(404, "NotFound", 'pods "p" not found')
FORBIDDEN = ApiError(403, "Forbidden", "no")


class Rig:
    """A binder on a cluster in memory: nodes "n" (2 T4) and "m" (2 T4), pod "p" as given."""

    def __init__(self, pod: Manifest | None = None) -> None:
        self.clock = Clock()
        self.cluster = MemoryCluster([node_manifest("n", 2), node_manifest("m", 2)])
        self.transport = FaultyTransport(self.cluster)
        self.ledger = Ledger(reservation_ttl_s=TTL_S)
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.fence = open_fence()
        self.resolver = Resolver(self.fence, self.clock)
        self.binder = self.binder_on(self.transport)
        self.events = self.binder.events
        self.cluster.apply(pod or pod_manifest("p", 1, uid="u"))
        self.identity = PodIdentity("default", "p", "u")
        self.sync()

    def binder_on(self, transport: Transport) -> Binder:
        """A binder that writes by a transport, under the fence as it is."""
        return Binder(
            transport,
            self.ledger,
            self.placer,
            EventRecorder(transport),
            self.clock,
            self.fence,
            lambda: 1_800_000_000.0,
            resolver=self.resolver,
        )

    def sync(self) -> None:
        """Take in what the watch would report."""
        for item in msgspec.json.decode(asyncio.run(self.cluster.get(NODES_PATH)))["items"]:
            self.ledger.upsert_node(decode_node(item))
        for item in msgspec.json.decode(asyncio.run(self.cluster.get(PODS_PATH)))["items"]:
            self.ledger.upsert_pod(decode_pod(item), self.clock())

    def filter(self, *nodes: str) -> None:
        """Decide about the pod, reserve and remember, as filter does."""
        pod = decode_pod(self.cluster.pod("default", "p"))
        request = read_pod_request(pod)
        self.placer.remember(self.identity, request)
        self.fence.note(pod.metadata)
        if request.gpus:
            policy = self.placer.policy_of(request)
            self.placer.reserve(self.placer.place(self.identity, request.gpus, policy, nodes or ["m", "n"]))

    def bind(self, node: str = "n", fault: str = "") -> None:
        asyncio.run(self.binder.bind(self.identity, node, fault))

    def fail(self, node: str = "n", fault: str = "") -> str:
        with pytest.raises(BindError) as raised:
            self.bind(node, fault)
        return str(raised.value)

    def settle(self) -> None:
        asyncio.run(self.resolver.resolve_round())

    def annotate(self, **annotations: str) -> None:
        """Change the pod as another client."""
        body = msgspec.json.encode({"metadata": {"annotations": annotations}})
        asyncio.run(self.cluster.patch(STATUS_PATH, body))

    def free(self, node: str) -> set[int]:
        return {0, 1} - taken(self.ledger, node, self.clock())

    def state(self) -> AllocationState | None:
        claim = self.ledger.allocation("u")
        return claim.state if claim else None

    def paths(self) -> list[str]:
        return [f"{verb} {path.rpartition('/')[2]}" for verb, path, _ in self.transport.calls]

    def bindings(self) -> list[Any]:
        return [msgspec.json.decode(body) for _, path, body in self.transport.calls if path.endswith("/binding")]
