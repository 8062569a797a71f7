"""What is watched, and one watch of each for the whole process, whoever listens."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic

from extender.kube import objects
from extender.kube.background import Tasks
from extender.kube.client import Transport
from extender.kube.decoding import Outline
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.kube.watches.lists import PAGE_SIZE
from extender.kube.watches.reflector import ObjectT, Reflector, ReflectorTimes, Sink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feed(Generic[ObjectT]):
    """Objects of one kind, all of them or some."""

    name: str
    path: str
    kind: type[ObjectT]
    field_selector: str = ""
    served_at: str = ""
    """Path of the API, where an API server may lack it."""


NODES: Final = Feed("nodes", NODES_PATH, objects.Node)
BOUND_PODS: Final = Feed("pods", PODS_PATH, objects.Pod, "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")
"""Pods that hold something: filter is told of others by the call, and finished ones, of which a cluster may keep
100,000, hold nothing. That is why pods are watched twice."""
PENDING_PODS: Final = Feed("pending pods", PODS_PATH, objects.Pod, "spec.nodeName=,status.phase=Pending")
"""Pods without a node: one that gets its node leaves the selection, which the watch tells as a deletion."""

SetAside = Callable[[Outline], None]


class _Subscribers(Generic[ObjectT]):
    """Hands objects to each of those who listen; one that fails costs the others nothing."""

    def __init__(self, *sinks: Sink[ObjectT]) -> None:
        self._sinks: list[tuple[Sink[ObjectT], SetAside | None]] = [(sink, None) for sink in sinks]

    def add(self, sink: Sink[ObjectT], set_aside: SetAside | None) -> None:
        """One more, and what hears of objects that can't be read."""
        self._sinks.append((sink, set_aside))

    def upsert(self, item: ObjectT) -> None:
        for sink, _ in self._sinks:
            self._tell(sink.upsert, item)

    def remove(self, item: ObjectT) -> None:
        for sink, _ in self._sinks:
            self._tell(sink.remove, item)

    def keep(self, items: set[str], list_began: float) -> None:
        for sink, _ in self._sinks:
            sink.keep(items, list_began)

    def set_aside(self, item: Outline) -> None:
        for _, set_aside in self._sinks:
            if set_aside is not None:
                self._tell(set_aside, item)

    def _tell(self, take: Callable[[Any], None], item: Any) -> None:
        try:
            take(item)
        except Exception:
            logger.exception("%s %s could not be processed", type(item).__name__, item.metadata.name)


class WatchHub:
    """Watches each feed once."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        *,
        page_size: int = PAGE_SIZE,
        times: ReflectorTimes | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._page_size = page_size
        self._times = times
        self._watches: dict[Feed[Any], tuple[Reflector[Any], _Subscribers[Any]]] = {}
        self.tasks = Tasks()

    def subscribe(
        self, feed: Feed[ObjectT], sink: Sink[ObjectT], set_aside: SetAside | None = None
    ) -> Reflector[ObjectT]:
        """Let a sink hear of a feed, and `set_aside` of its objects that can't be read; before the feed is begun."""
        reflector, subscribers = self._watches.get(feed) or (None, _Subscribers())
        if reflector is None:
            reflector = Reflector(
                self._transport,
                feed.path,
                feed.kind,
                subscribers,
                self._clock,
                field_selector=feed.field_selector,
                page_size=self._page_size,
                times=self._times,
                set_aside=subscribers.set_aside,
            )
            self._watches[feed] = reflector, subscribers
        if reflector.num_lists:
            raise RuntimeError(f"{feed.path} is watched already: who subscribes now would miss what is there")
        subscribers.add(sink, set_aside)
        return reflector

    def begin(self, feed: Feed[Any], name: str, *, needed: bool = True) -> None:
        """Watch a feed in the background, in the running event loop."""
        self.tasks.begin(name, self._watches[feed][0].run, needed=needed)

    async def list_again(self, feed: Feed[Any], name: str, *, needed: bool = True) -> None:
        """Take in all of a feed as it is now, however far its watch lags; `name` is that of its work. Raises
        ClusterError, DecodeError."""
        await self.tasks.end(name)
        try:
            await self._watches[feed][0].relist()
        finally:
            self.begin(feed, name, needed=needed)
