"""The mirror of the cluster: two reflectors feed the ledger, and anyone may ask how current it is."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from extender.cluster import objects
from extender.cluster.ledger import Ledger
from extender.cluster.reflectors import Reflector, ReflectorTimes
from extender.cluster.tenants import Tenants
from extender.cluster.transports import ClusterError, Transport

logger = logging.getLogger(__name__)

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
DRA_PATH = "/apis/resource.k8s.io/v1"
SLICES_PATH = f"{DRA_PATH}/resourceslices"
CLAIMS_PATH = f"{DRA_PATH}/resourceclaims"
_ASK_AGAIN_S = 15.0
HOLDING_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Only pods that hold something: what filter is asked about comes with the request, and finished pods hold nothing."""


class Listener(Protocol):
    """Somebody besides the ledger who wants to hear of objects."""

    def node_changed(self, node: objects.Node) -> None:
        """A node was added or changed."""

    def pod_changed(self, pod: objects.Pod) -> None:
        """A pod with a node was added or changed."""


class _Nodes:
    def __init__(self, ledger: Ledger, tenants: Tenants, listeners: Sequence[Listener]) -> None:
        self._ledger = ledger
        self._tenants = tenants
        self._listeners = listeners
        self._names: dict[str, str] = {}  # by uid

    def upsert(self, item: objects.Node) -> None:
        self._names[item.metadata.uid] = item.metadata.name
        self._tenants.upsert_node(item)
        for warning in self._ledger.upsert_node(item):
            logger.warning("node %s: %s", item.metadata.name, warning)
        for listener in self._listeners:
            listener.node_changed(item)

    def remove(self, item: objects.Node) -> None:
        self._names.pop(item.metadata.uid, None)
        self._remove(item.metadata.name)

    def keep(self, items: set[str], list_began: float) -> None:
        for uid in self._names.keys() - items:
            name = self._names.pop(uid)
            if name not in self._names.values():  # deleted and created again under the same name
                self._remove(name)

    def _remove(self, name: str) -> None:
        self._ledger.remove_node(name)
        self._tenants.remove_node(name)


class _Pods:
    def __init__(
        self, ledger: Ledger, tenants: Tenants, clock: Callable[[], float], listeners: Sequence[Listener]
    ) -> None:
        self._ledger = ledger
        self._tenants = tenants
        self._clock = clock
        self._listeners = listeners

    def upsert(self, item: objects.Pod) -> None:
        self._tenants.upsert_pod(item)
        for warning in self._ledger.upsert_pod(item, self._clock()):
            logger.warning("pod %s: %s", item.key, warning)
        for listener in self._listeners:
            listener.pod_changed(item)

    def remove(self, item: objects.Pod) -> None:
        self._ledger.remove_pod(item.metadata.uid)
        self._tenants.remove_pod(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self._ledger.keep_pods(items, list_began)
        self._tenants.keep_pods(items)


class _Slices:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def upsert(self, item: objects.ResourceSlice) -> None:
        self._ledger.upsert_slice(item)

    def remove(self, item: objects.ResourceSlice) -> None:
        self._ledger.remove_slice(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self._ledger.keep_slices(items)


class _Claims:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def upsert(self, item: objects.ResourceClaim) -> None:
        self._ledger.upsert_resource_claim(item)

    def remove(self, item: objects.ResourceClaim) -> None:
        self._ledger.remove_resource_claim(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self._ledger.keep_resource_claims(items)


class Mirror:
    """Keeps a ledger current with an API server, from `start` to `stop`."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        max_age_s: float,
        page_size: int = 500,
        times: ReflectorTimes | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._max_age_s = max_age_s
        self.tenants = Tenants()
        """Who lives on which node."""
        self._reflectors: dict[str, Reflector[Any]] = {
            "nodes": Reflector(
                transport,
                NODES_PATH,
                objects.Node,
                _Nodes(ledger, self.tenants, listeners),
                clock,
                page_size=page_size,
                times=times,
            ),
            "pods": Reflector(
                transport,
                PODS_PATH,
                objects.Pod,
                _Pods(ledger, self.tenants, clock, listeners),
                clock,
                field_selector=HOLDING_PODS,
                page_size=page_size,
                times=times,
            ),
        }
        self._transport = transport
        # What these tell only ranks nodes: kube-scheduler allocates. They hold nothing up, and the API may be missing.
        self._optional: tuple[Reflector[Any], ...] = (
            Reflector(transport, SLICES_PATH, objects.ResourceSlice, _Slices(ledger), clock, page_size=page_size),
            Reflector(transport, CLAIMS_PATH, objects.ResourceClaim, _Claims(ledger), clock, page_size=page_size),
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.running = False
        """Whether it was started, and not stopped."""

    def start(self) -> None:
        """Begin to mirror, in the running event loop."""
        self.running = True
        for name in self._reflectors:
            self._begin(name)
        self._tasks["devices"] = asyncio.create_task(self._mirror_devices(), name="mirror devices")

    async def stop(self) -> None:
        """End mirroring."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.running = False

    async def list_pods_again(self) -> None:
        """Take in all pods as they are now, however far the watch lags. Raises ClusterError, DecodeError."""
        task = self._tasks["pods"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await self._reflectors["pods"].relist()
        finally:
            self._begin("pods")

    def _begin(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._reflectors[name].run(), name=f"mirror {name}")

    async def _mirror_devices(self) -> None:
        """Mirror what is allocated to ResourceClaims, from when the API server serves it."""
        while not await self._serves_devices():  # noqa: ASYNC110 - only the API server knows when
            await asyncio.sleep(_ASK_AGAIN_S)
        async with asyncio.TaskGroup() as group:
            for reflector in self._optional:
                group.create_task(reflector.run())

    async def _serves_devices(self) -> bool:
        try:
            await self._transport.get(DRA_PATH)
        except ClusterError:
            return False
        return True

    @property
    def num_lists(self) -> int:
        """Complete lists made since the start, nodes and pods together."""
        return sum(reflector.num_lists for reflector in self._reflectors.values())

    def age_s(self) -> float:
        """Seconds since nodes and pods were both known to be current, inf before they first were."""
        return max(reflector.age_s() for reflector in self._reflectors.values())

    def fault(self) -> str:
        """Why nothing may be decided from the mirror now, "" when it is fit for use."""
        for task in self._tasks.values():
            if task.done():
                return f"the {task.get_name()} has stopped: {task.exception() if not task.cancelled() else 'cancelled'}"
        for name, reflector in self._reflectors.items():
            if not reflector.synced:
                return f"{name} are not synced yet" + (f": {reflector.last_error}" if reflector.last_error else "")
        for name, reflector in self._reflectors.items():
            if reflector.age_s() > self._max_age_s:
                return f"{name} were last current {reflector.age_s():.0f} s ago: {reflector.last_error}"
        return ""
