"""The mirror of the cluster: watches of nodes and pods feed the ledger, and report how current it is."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.watches import BOUND_PODS, NODES, PAGE_SIZE, PODS, Feed, Reflector, ReflectorTimes, WatchHub
from extender.ledger.bound_pods import BoundPods
from extender.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

_RETRY_S = 15.0
_PODS_TASK = "mirror pods"
_MAX_WATCH_S = 300.0


@dataclass(eq=False)
class _Nodes:
    """Feeds node changes to the ledger and the bound pods."""

    _ledger: Ledger
    _bound_pods: BoundPods

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        if new is not None:
            self._bound_pods.upsert_node(new)
            for warning in self._ledger.upsert_node(new):
                logger.warning("node %s: %s", new.metadata.name, warning)
        elif old is not None:
            self._ledger.remove_node(old.metadata.name)
            self._bound_pods.remove_node(old.metadata.name)


@dataclass(eq=False)
class _Pods:
    """Feeds changes of pods with a node to the ledger and the bound pods."""

    _ledger: Ledger
    _bound_pods: BoundPods
    _clock: Callable[[], float]

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        if new is not None:
            self._bound_pods.upsert_pod(new)
            for warning in self._ledger.upsert_pod(new, self._clock()):
                logger.warning("pod %s: %s", new.key, warning)
        elif old is not None:
            self._ledger.remove_pod(old.metadata.uid)
            self._bound_pods.remove_pod(old.metadata.uid)


class Mirror:
    """Mirrors nodes, pods and devices of an API server into a ledger, from `start` to `stop`."""

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
        """With `nodes_alone` pods and devices are not mirrored; `ignored_resources` as in `BoundPods`."""
        self._transport = transport
        self._max_age_s = max_age_s
        self.bound_pods = BoundPods(ignored_resources)
        """The bound pods by node."""
        # A live watch is never silent for longer than a third of the age at which Kerf stops deciding.
        times = times or ReflectorTimes(watch_timeout_s=min(max(max_age_s / 6, 1.0), _MAX_WATCH_S))
        self.hub = WatchHub(transport, clock, page_size=page_size, times=times)
        """The watches, shared with other subscribers."""
        self.tasks = self.hub.tasks
        self.hub.cache(NODES).subscribe(_Nodes(ledger, self.bound_pods).changed)
        self._reflectors: dict[str, Reflector[Any]] = {"nodes": self.hub.reflector(NODES)}
        if not nodes_alone:
            pods = _Pods(ledger, self.bound_pods, clock)
            self.hub.group(BOUND_PODS).subscribe(pods.changed, on_list=ledger.keep_pods, stand_ins=True)
            self._reflectors["pods"] = self.hub.reflector(PODS)
        # These only rank nodes, since kube-scheduler allocates: they block nothing, and their API may be missing.
        stocks = () if nodes_alone else ledger.rows.stocks
        self._optional = {feed: self.hub.reflector(feed) for stock in stocks for feed in stock.feeds}
        for feed in self._optional:
            self.hub.cache(feed).subscribe(ledger.device_changed)
        self.running = False
        """Whether it was started and not stopped."""

    def start(self) -> None:
        """Start mirroring in the running event loop."""
        self.running = True
        self.hub.begin(NODES, "mirror nodes")
        if "pods" in self._reflectors:
            self.hub.begin(PODS, _PODS_TASK)
        self.tasks.begin("mirror devices", self._mirror_devices, needed=False)

    async def stop(self) -> None:
        """Stop mirroring."""
        await self.tasks.end()
        self.running = False

    @asynccontextmanager
    async def pods_held(self) -> AsyncIterator[None]:
        """Pause the pod watch, and list all pods again at the end, however far the watch lags.

        Starts mirroring if not started yet. Not reentrant. Raises ClusterError, DecodeError.
        """
        if self.running:
            await self.tasks.end(_PODS_TASK)
        try:
            yield
            await self.hub.reflector(PODS).relist()
        finally:
            if self.running:
                self.hub.begin(PODS, _PODS_TASK)
        if not self.running:
            self.start()

    async def list_devices_again(self, feed: Feed[Any]) -> None:
        """List the objects of a device plugin again, if they are mirrored. Raises ClusterError, DecodeError."""
        if (name := _task_name(feed)) in self.tasks.names:
            await self.hub.list_again(feed, name, needed=False)

    async def _mirror_devices(self) -> None:
        """Mirror the objects of device plugins once the API server serves them."""
        waiting = list(self._optional)
        while waiting:
            served = {api: await self._serves(api) for api in {feed.served_at for feed in waiting}}
            for feed in [feed for feed in waiting if served[feed.served_at]]:
                self.hub.begin(feed, _task_name(feed), needed=False)
                waiting.remove(feed)
            await asyncio.sleep(_RETRY_S if waiting else 0)

    async def _serves(self, api: str) -> bool:
        """Whether an API is served. One that Kerf may not read counts as served; its reflector reports the error."""
        try:
            await self._transport.get(api)
        except ApiError as error:
            return error.status != 404
        except ClusterError:
            return False
        return True

    @property
    def num_lists(self) -> int:
        """Complete lists of nodes and pods since the start."""
        return sum(reflector.num_lists for reflector in self._reflectors.values())

    @property
    def num_unread(self) -> int:
        """Objects skipped because they can't be decoded, counted at each receipt."""
        return sum(reflector.num_unread for reflector in (*self._reflectors.values(), *self._optional.values()))

    def age_s(self) -> float:
        """Return the seconds since both nodes and pods were last known to be current, inf before the first lists."""
        return max(reflector.age_s() for reflector in self._reflectors.values())

    def fault(self) -> str:
        """Return why nothing may be decided on the mirror now, "" when it is usable."""
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


def _task_name(feed: Feed[Any]) -> str:
    return f"mirror {feed.name}"
