"""What is watched, and one watch of each for the whole process, whoever listens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic

from extender.core.keys import rank_of
from extender.kube import objects
from extender.kube.background import Tasks
from extender.kube.cache import Cache, Index, Part
from extender.kube.client import Transport
from extender.kube.decoding import Outline
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.kube.stand_ins import stand_in
from extender.kube.watches.lists import PAGE_SIZE
from extender.kube.watches.reflector import ObjectT, Reflector, ReflectorTimes


def _nothing(item: Outline) -> None:
    """What most kinds count with in place of an object that never could be read."""


def _all(item: Any) -> bool:
    """Whether an object belongs to a feed that takes all that are listed."""
    return True


def _whole(item: ObjectT) -> ObjectT:
    """What is kept of an object of most kinds."""
    return item


_MAX_ANNOTATIONS: Final = 2**15
"""Characters of a pod's annotations that are kept: far more than anything that Kerf and device plugins read."""
_OF_EACH: Final = 64
"""Characters that each counts for beside its own."""


def _within_bounds(pod: objects.Pod) -> objects.Pod:
    """A pod without annotations that are longer than anything that is read: its author chooses how many there are, and
    all pods are kept. Kerf's own come first, whatever else is there, and of each kind the shortest."""
    texts = pod.metadata.annotations
    if not texts or sum(map(len, texts)) + sum(map(len, texts.values())) + _OF_EACH * len(texts) <= _MAX_ANNOTATIONS:
        return pod
    kept, left = dict[str, str](), _MAX_ANNOTATIONS
    for key in sorted(texts, key=lambda key: (rank_of(key), len(key) + len(texts[key]))):
        left -= _OF_EACH + len(key)
        if left <= 0:
            break
        kept[key] = texts[key][:left]
        left -= len(kept[key])
    pod.metadata.annotations = kept
    return pod


@dataclass(frozen=True, slots=True)
class Feed(Generic[ObjectT]):
    """Objects of one kind, all of them or some. Those of devices go to other processes with the ledger: no lambdas."""

    name: str
    path: str
    kind: type[ObjectT]
    field_selector: str = ""
    served_at: str = ""
    """Path of the API, where an API server may lack it."""
    stand_in: Callable[[Outline], Any] = _nothing
    """What is counted with in place of an object that never could be read, None where that is nothing."""
    keeps_unread: bool = True
    """Whether an object that can't be read any more stays what it was known as."""
    wanted: Callable[[Any], bool] = _all
    """Whether an object belongs to it, by what of the selection an object can tell."""
    indexes: tuple[Index[Any], ...] = ()
    kept: Callable[[Any], Any] = _whole
    """What is kept of an object."""


@dataclass(frozen=True, eq=False, slots=True)
class Selection(Generic[ObjectT]):
    """Some of the objects of a feed."""

    feed: Feed[ObjectT]
    index: Index[ObjectT]
    group: str
    field_selector: str
    """By which an API server is asked for them alone."""


_BOUND: Final = "bound"
_WAITING: Final = "waiting"


def _pod(item: Outline) -> objects.Pod:
    return stand_in(item, objects.Pod)


NODES: Final = Feed("nodes", NODES_PATH, objects.Node, keeps_unread=False)
"""A node that can't be read is none that anything is placed on."""
_WITH_OR_WITHOUT: Final[Index[objects.Pod]] = Index(
    "with or without a node", lambda pod: [_BOUND if pod.spec.node_name else _WAITING]
)
PODS: Final = Feed(
    "pods",
    PODS_PATH,
    objects.Pod,
    "status.phase!=Succeeded,status.phase!=Failed",
    stand_in=_pod,
    wanted=lambda pod: not pod.finished,
    indexes=(_WITH_OR_WITHOUT,),
    kept=_within_bounds,
)
"""All pods but those that have finished, of which a cluster may keep 100,000 and which hold nothing."""
BOUND_PODS: Final = Selection(PODS, _WITH_OR_WITHOUT, _BOUND, f"spec.nodeName!=,{PODS.field_selector}")
"""Pods that hold something: filter is told of others by the call."""
PENDING_PODS: Final = Selection(PODS, _WITH_OR_WITHOUT, _WAITING, "spec.nodeName=,status.phase=Pending")
"""Pods without a node."""


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
        self._watches: dict[Feed[Any], tuple[Reflector[Any], Cache[Any, Any]]] = {}
        self.tasks = Tasks()

    def cache(self, feed: Feed[ObjectT]) -> Cache[ObjectT, ObjectT]:
        """All objects of a feed, once it is begun."""
        return self._watch(feed)[1]

    def part(self, selection: Selection[ObjectT]) -> Part[ObjectT]:
        """Some of the objects of a feed, once it is begun."""
        return self.cache(selection.feed).part(selection.index, selection.group)

    def reflector(self, feed: Feed[ObjectT]) -> Reflector[ObjectT]:
        """What fills the cache of a feed."""
        return self._watch(feed)[0]

    def _watch(self, feed: Feed[ObjectT]) -> tuple[Reflector[ObjectT], Cache[ObjectT, ObjectT]]:
        if feed not in self._watches:
            cache = Cache[ObjectT, ObjectT](
                feed.kept,
                indexes=feed.indexes,
                stand_in=feed.stand_in,
                wanted=feed.wanted,
                keeps_unread=feed.keeps_unread,
            )
            reflector = Reflector(
                self._transport,
                feed.path,
                feed.kind,
                cache,
                self._clock,
                field_selector=feed.field_selector,
                page_size=self._page_size,
                times=self._times,
                set_aside=cache.set_aside,
            )
            self._watches[feed] = reflector, cache
        return self._watches[feed]

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
