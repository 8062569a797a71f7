"""The mirror of the cluster: nodes and pods feed the ledger, and anyone may ask how current it is."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Outline
from extender.kube.stand_ins import stand_in
from extender.kube.watches.feeds import BOUND_PODS, NODES, Feed, WatchHub
from extender.kube.watches.lists import PAGE_SIZE
from extender.kube.watches.reflector import Reflector, ReflectorTimes
from extender.ledger.ledger import Ledger
from extender.ledger.tenants import Tenants

logger = logging.getLogger(__name__)

_ASK_AGAIN_S = 15.0
_MAX_WATCH_S = 300.0


class _Listener(Protocol):
    """Somebody besides the ledger who wants to hear of objects."""

    def node_changed(self, node: objects.Node) -> None:
        """A node was added or changed."""

    def pod_changed(self, pod: objects.Pod) -> None:
        """A pod with a node was added or changed."""


@dataclass(eq=False)
class _Nodes:
    """A node that can't be read is none that anything is placed on, until it can be; its pods keep what they hold."""

    _ledger: Ledger
    _tenants: Tenants
    _listeners: Sequence[_Listener]
    _names: dict[str, str] = field(default_factory=dict, init=False)  # by uid

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


@dataclass(eq=False)
class _Pods:
    """A pod that can't be read holds what it was known to hold; one that was never read, its whole node."""

    _ledger: Ledger
    _tenants: Tenants
    _clock: Callable[[], float]
    _listeners: Sequence[_Listener]
    _stood_in: set[str] = field(default_factory=set, init=False)
    """Pods never read, by UID."""

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


@dataclass(eq=False)
class _Devices:
    """Objects of a device plugin."""

    _ledger: Ledger
    _kind: type

    def upsert(self, item: Any) -> None:
        self._ledger.upsert_device(item)

    def remove(self, item: Any) -> None:
        self._ledger.remove_device(self._kind, item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self._ledger.keep_devices(self._kind, items)


class Mirror:
    """Keeps a ledger current with an API server, from `start` to `stop`."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        max_age_s: float,
        page_size: int = PAGE_SIZE,
        times: ReflectorTimes | None = None,
        nodes_alone: bool = False,
        ignored_resources: Iterable[str] = (),
    ) -> None:
        """With `nodes_alone` nothing is known of who holds what; `ignored_resources` as of `Tenants`."""
        self._transport = transport
        self.listeners: list[_Listener] = []
        """Who else hears of nodes, and of pods that hold something."""
        self._max_age_s = max_age_s
        self.tenants = Tenants(ignored_resources)
        """Who lives on which node."""
        # A live watch is never silent for longer than a third of the age at which nothing is decided any more.
        times = times or ReflectorTimes(watch_timeout_s=min(max(max_age_s / 6, 1.0), _MAX_WATCH_S))
        self.hub = WatchHub(transport, clock, page_size=page_size, times=times)
        """For others who listen to the same; what a mirror needs begins and ends with it."""
        self.tasks = self.hub.tasks
        nodes = _Nodes(ledger, self.tenants, self.listeners)
        self._reflectors: dict[str, Reflector[Any]] = {"nodes": self.hub.subscribe(NODES, nodes, nodes.set_aside)}
        if not nodes_alone:
            pods = _Pods(ledger, self.tenants, clock, self.listeners)
            self._reflectors["pods"] = self.hub.subscribe(BOUND_PODS, pods, pods.set_aside)
        # What these tell only ranks nodes: kube-scheduler allocates. They hold nothing up, and the API may be missing.
        self._optional = {
            feed: self.hub.subscribe(feed, _Devices(ledger, feed.kind))
            for stock in (() if nodes_alone else ledger.rows.stocks)
            for feed in stock.feeds
        }
        self.running = False
        """Whether it was started, and not stopped."""

    def start(self) -> None:
        """Begin to mirror, in the running event loop."""
        self.running = True
        self.hub.begin(NODES, "mirror nodes")
        if "pods" in self._reflectors:
            self.hub.begin(BOUND_PODS, "mirror pods")
        self.tasks.begin("mirror devices", self._mirror_devices, needed=False)

    async def stop(self) -> None:
        """End mirroring."""
        await self.tasks.end()
        self.running = False

    async def list_pods_again(self) -> None:
        """Take in all pods as they are now, however far the watch lags. Raises ClusterError, DecodeError."""
        await self.hub.list_again(BOUND_PODS, "mirror pods")

    async def list_devices_again(self, feed: Feed[Any]) -> None:
        """The same of objects of device plugins, once they are mirrored at all. Raises ClusterError, DecodeError."""
        if (name := _work_on(feed)) in self.tasks.names:
            await self.hub.list_again(feed, name, needed=False)

    async def _mirror_devices(self) -> None:
        """Mirror the objects of device plugins, from when the API server serves them."""
        waiting = list(self._optional)
        while waiting:
            served = {api: await self._serves(api) for api in {feed.served_at for feed in waiting}}
            for feed in [feed for feed in waiting if served[feed.served_at]]:
                self.hub.begin(feed, _work_on(feed), needed=False)
                waiting.remove(feed)
            await asyncio.sleep(_ASK_AGAIN_S if waiting else 0)

    async def _serves(self, api: str) -> bool:
        """Whether an API is there; one that Kerf may not read is, and what mirrors it says so."""
        try:
            await self._transport.get(api)
        except ApiError as error:
            return error.status != 404
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


def _work_on(feed: Feed[Any]) -> str:
    return f"mirror {feed.name}"
