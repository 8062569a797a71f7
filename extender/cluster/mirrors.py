"""The mirror of the cluster: two reflectors feed the ledger, and anyone may ask how current it is."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from extender.cluster import objects
from extender.cluster.decoding import Outline, stand_in
from extender.cluster.ledger import Ledger
from extender.cluster.reflectors import Reflector, ReflectorTimes
from extender.cluster.tasks import Tasks
from extender.cluster.tenants import Tenants
from extender.cluster.transports import ClusterError, Transport

logger = logging.getLogger(__name__)

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
DRA_PATH = "/apis/resource.k8s.io/v1"
SLICES_PATH = f"{DRA_PATH}/resourceslices"
CLAIMS_PATH = f"{DRA_PATH}/resourceclaims"
_ASK_AGAIN_S = 15.0
_MAX_WATCH_S = 300.0
HOLDING_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Only pods that hold something: what filter is asked about comes with the request, and finished pods hold nothing."""


class Listener(Protocol):
    """Somebody besides the ledger who wants to hear of objects."""

    def node_changed(self, node: objects.Node) -> None:
        """A node was added or changed."""

    def pod_changed(self, pod: objects.Pod) -> None:
        """A pod with a node was added or changed."""


class _Nodes:
    """A node that can't be read is none that anything is placed on, until it can be; its pods keep what they hold."""

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

    def set_aside(self, item: Outline) -> None:
        self._names.pop(item.uid, None)
        self._remove(item.name)

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
    """A pod that can't be read holds what it was known to hold; one that was never read, its whole node."""

    def __init__(
        self, ledger: Ledger, tenants: Tenants, clock: Callable[[], float], listeners: Sequence[Listener]
    ) -> None:
        self._stood_in: set[str] = set()
        """Pods never read, by UID."""
        self._ledger = ledger
        self._tenants = tenants
        self._clock = clock
        self._listeners = listeners

    def upsert(self, item: objects.Pod) -> None:
        if item.metadata.uid in self._stood_in:
            self.remove(item)
        self._tenants.upsert_pod(item)
        for warning in self._ledger.upsert_pod(item, self._clock()):
            logger.warning("pod %s: %s", item.key, warning)
        for listener in self._listeners:
            listener.pod_changed(item)

    def set_aside(self, item: Outline) -> None:
        if self._tenants.knows(item.uid) and not item.finished:
            return
        self.upsert(stand_in(item, objects.Pod))
        self._stood_in.add(item.uid)

    def remove(self, item: objects.Pod) -> None:
        self._stood_in.discard(item.metadata.uid)
        self._ledger.remove_pod(item.metadata.uid)
        self._tenants.remove_pod(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self._stood_in &= items
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
        # A live watch is never silent for longer than a third of the age at which nothing is decided any more.
        times = times or ReflectorTimes(watch_timeout_s=min(max(max_age_s / 6, 1.0), _MAX_WATCH_S))
        nodes = _Nodes(ledger, self.tenants, listeners)
        pods = _Pods(ledger, self.tenants, clock, listeners)
        self._reflectors: dict[str, Reflector[Any]] = {
            "nodes": Reflector(
                transport,
                NODES_PATH,
                objects.Node,
                nodes,
                clock,
                page_size=page_size,
                times=times,
                set_aside=nodes.set_aside,
            ),
            "pods": Reflector(
                transport,
                PODS_PATH,
                objects.Pod,
                pods,
                clock,
                field_selector=HOLDING_PODS,
                page_size=page_size,
                times=times,
                set_aside=pods.set_aside,
            ),
        }
        self._transport = transport
        # What these tell only ranks nodes: kube-scheduler allocates. They hold nothing up, and the API may be missing.
        self._optional: dict[str, Reflector[Any]] = {
            "slices": Reflector(
                transport, SLICES_PATH, objects.ResourceSlice, _Slices(ledger), clock, page_size=page_size
            ),
            "claims": Reflector(
                transport, CLAIMS_PATH, objects.ResourceClaim, _Claims(ledger), clock, page_size=page_size
            ),
        }
        self.tasks = Tasks()
        self.running = False
        """Whether it was started, and not stopped."""

    def start(self) -> None:
        """Begin to mirror, in the running event loop."""
        self.running = True
        for name in self._reflectors:
            self._begin(name)
        self.tasks.begin("mirror devices", self._mirror_devices, needed=False)

    async def stop(self) -> None:
        """End mirroring."""
        await self.tasks.end()
        self.running = False

    async def list_pods_again(self) -> None:
        """Take in all pods as they are now, however far the watch lags. Raises ClusterError, DecodeError."""
        await self.tasks.end("mirror pods")
        try:
            await self._reflectors["pods"].relist()
        finally:
            self._begin("pods")

    def _begin(self, name: str) -> None:
        self.tasks.begin(f"mirror {name}", self._reflectors[name].run)

    async def _mirror_devices(self) -> None:
        """Mirror what is allocated to ResourceClaims, from when the API server serves it."""
        while not await self._serves_devices():  # noqa: ASYNC110 - only the API server knows when
            await asyncio.sleep(_ASK_AGAIN_S)
        for name, reflector in self._optional.items():
            self.tasks.begin(f"mirror {name}", reflector.run, needed=False)

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

    @property
    def num_unread(self) -> int:
        """Objects set aside because they can't be read, counted each time that they came."""
        return sum(reflector.num_unread for reflector in (*self._reflectors.values(), *self._optional.values()))

    def age_s(self) -> float:
        """Seconds since the API server has last told how nodes and pods are, both of them; inf before it first did."""
        return max(reflector.age_s() for reflector in self._reflectors.values())

    def fault(self) -> str:
        """Why nothing may be decided from the mirror now, "" when it is fit for use."""
        if stopped := self.tasks.fault():
            return stopped
        for name, reflector in self._reflectors.items():
            if not reflector.synced:
                return f"{name} are not synced yet" + (f": {reflector.last_error}" if reflector.last_error else "")
        for name, reflector in self._reflectors.items():
            if reflector.age_s() > self._max_age_s:
                why = reflector.last_error or "the watch is silent"
                return f"{name} were last current {reflector.age_s():.0f} s ago: {why}"
        return ""
