"""Paged lists, reflectors, and one shared watch of each feed.

Lists are Kerf's only way to read more than one object. A page is limited by its number of objects, whose size their
authors choose. So the first page is small, later ones are sized to a few megabytes, and after a timeout they shrink.
Large pages are decoded in a thread.

A reflector does what client-go's does, on asyncio: it pages the list, resumes the watch where it ended, keeps up by
bookmarks, relists on 410 (in the response or in the stream), and backs off with jitter. The official client's informer
runs in threads and takes 28 s for 20,000 pods that this one decodes in half a second.

An etcd restored from a backup reuses resourceVersions. The API server accepts a watch from a future version, sends
nothing until it is reached, and ends the watch normally. So before resuming a watch that broke off or delivered
nothing, the reflector asks for the current version, and relists if that is older.

An object that can't be decoded affects no other: its outline goes to the sink, which keeps its last known version or
a stand-in.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from extender.core.keys import rank_of
from extender.core.vendors.registry import DEFAULT
from extender.kube import objects
from extender.kube.background import Backoff, Tasks
from extender.kube.cache import Cache, Group, Index
from extender.kube.decoding import Decoder, Outline, outline, shallow
from extender.kube.transport import NODES_PATH, PODS_PATH, ApiError, ClusterError, Query, Transport, UnreachableError

T = TypeVar("T")
logger = logging.getLogger(__name__)

_MORE_GPUS_THAN_ANY_NODE: Final = 2**30


def stand_in(pod: Outline, kind: type[T]) -> T:
    """Return a stand-in for a pod that can't be decoded: it requests more GPUs than any node has.

    So no GPU of its node is allocated, and without a node it counts as a pod that requests GPUs.
    """
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "resourceVersion": pod.resource_version}
    container = {"resources": {"requests": {DEFAULT.resource: str(_MORE_GPUS_THAN_ANY_NODE)}}}
    spec = {"nodeName": pod.node or None, "containers": [container]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": pod.phase}}, kind)


PAGE_SIZE: Final = 500
_FIRST_PAGE_SIZE: Final = 32
_MAX_GROWTH: Final = 2
_PAGE_BYTES: Final = 2 * 2**20
_INLINE_BYTES: Final = 2**17
"""Larger pages are decoded in a thread."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    unread: list[Outline] = field(default_factory=list)
    """Objects that can't be decoded."""
    resource_version: str = ""
    continue_token: str = ""
    """The `continue` token of the next page, "" at the end."""


class ListDecoder(Generic[T]):
    """Decodes pages of one kind of object: in one pass, or one by one if that fails."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """`whole` as in `Decoder`."""
        self._page = msgspec.json.Decoder(objects.ObjectList[kind])  # type: ignore[valid-type]
        self._item = Decoder(kind, whole=whole)

    def decode(self, content: bytes) -> Page[T]:
        """Raises DecodeError for anything but a list."""
        try:
            page = self._page.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._one_by_one(content)
        return Page(page.items or [], [], page.metadata.resource_version, page.metadata.continue_)

    def _one_by_one(self, content: bytes) -> Page[T]:
        flat = shallow(content)
        page = _raw_list.decode(flat)
        result: Page[T] = Page([], [], page.metadata.resource_version, page.metadata.continue_)
        end = 0
        for raw in page.items or ():
            begin = flat.index(raw, end)  # what was removed became spaces: offsets are unchanged
            end = begin + len(bytes(raw))
            item = content[begin:end]
            try:
                result.items.append(self._item.decode(item))
            except msgspec.DecodeError:
                result.unread.append(outline(item))
        return result


class Lister(Generic[T]):
    """Lists the objects at a path of an API server."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        kind: type[T],
        query: Query | None = None,
        page_size: int = PAGE_SIZE,
        *,
        whole: bool = False,
        page_bytes: int = _PAGE_BYTES,
    ) -> None:
        """`page_bytes` is the size to aim for; lower it where decoding a page holds others up."""
        self._transport = transport
        self._path = path
        self._decoder = ListDecoder(kind, whole=whole)
        self._query = dict(query or {})
        self._page_size = page_size
        self._page_bytes = page_bytes
        self._limit = min(page_size, _FIRST_PAGE_SIZE)

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Yield the pages of a consistent list. Raises ClusterError, DecodeError; the list then starts over."""
        more: dict[str, str] = {}
        while True:
            query = {**self._query, "limit": str(self._limit), **more}
            try:
                content = await self._transport.get(self._path, query)
            except UnreachableError:
                self._limit = max(1, self._limit // 4)  # may have been too much for the timeout
                raise
            growth = min(_MAX_GROWTH, self._page_bytes / max(1, len(content)))
            self._limit = max(1, min(self._page_size, int(self._limit * growth)))
            if len(content) <= _INLINE_BYTES:
                page = self._decoder.decode(content)
            else:
                page = await asyncio.to_thread(self._decoder.decode, content)
            yield page
            if not page.continue_token:
                return
            more = {"continue": page.continue_token}

    async def all(self) -> Page[T]:
        """All pages as one. Raises ClusterError, DecodeError."""
        result: Page[T] = Page([])
        async for page in self.pages():
            result.items.extend(page.items)
            result.unread.extend(page.unread)
        return result


_raw_list: Final = Decoder(objects.ObjectList[msgspec.Raw])


_MAX_REPORTED = 1_000
"""Objects that can't be decoded that are remembered, so that each is logged once."""

ObjectT = TypeVar("ObjectT", bound=objects.Named)
ItemT_contra = TypeVar("ItemT_contra", bound=objects.Named, contravariant=True)


class Sink(Protocol[ItemT_contra]):
    """Receives a reflector's objects."""

    def upsert(self, item: ItemT_contra) -> None:
        """An object was added or changed."""

    def remove(self, item: ItemT_contra) -> None:
        """An object was deleted."""

    def retain_only(self, items: set[str], list_began: float, version: str) -> None:
        """A complete list of that version, begun at that monotonic time, has these UIDs; others are gone."""


@dataclass(frozen=True, slots=True)
class ReflectorTimes:
    """Times of a reflector, in seconds."""

    watch_timeout_s: float = 300.0
    """Requested duration of a watch, jittered up to twice that. The server sends a bookmark shortly before the end, so
    a live watch is never silent for longer."""
    first_backoff_s: float = 0.2
    max_backoff_s: float = 3.0
    """Longest pause between attempts, before jitter of up to half of it. After an outage, pods may be bound by stale
    data until the next attempt."""


class Reflector(Generic[ObjectT]):
    """Mirrors one kind of object into a sink."""

    def __init__(  # noqa: PLR0913
        self,
        transport: Transport,
        path: str,
        kind: type[ObjectT],
        sink: Sink[ObjectT],
        clock: Callable[[], float],
        *,
        field_selector: str = "",
        label_selector: str = "",
        page_size: int = PAGE_SIZE,
        times: ReflectorTimes | None = None,
        on_unreadable: Callable[[Outline], None] = lambda item: None,
        whole: bool = False,
    ) -> None:
        """`on_unreadable` is called for objects that can't be decoded; `whole` as in `Decoder`."""
        self._transport = transport
        self._path = path
        self._kind = kind
        self._sink: Sink[ObjectT] = sink
        self._clock = clock
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selection = {name: text for name, text in selectors.items() if text}
        self._times = times or ReflectorTimes()
        self._lister = Lister(transport, path, kind, self._selection, page_size, whole=whole)
        self._version_lister = Lister(transport, path, kind, self._selection, 1, whole=whole)
        self._item_decoder = Decoder(kind, whole=whole)
        self._event_decoder = msgspec.json.Decoder(objects.WatchEvent)
        self._status_decoder = Decoder(objects.Status)
        self._on_unread = on_unreadable
        self._reported: set[str] = set()
        self._resource_version = ""
        self._watch_succeeded = True
        """Whether the last watch delivered something and ended normally."""
        self._last_contact: float | None = None
        self.last_error = ""
        """The last error, "" while the watch works."""
        self.num_lists = 0
        """Number of complete lists."""
        self.num_unread = 0
        """Number of times an object could not be decoded."""

    @property
    def synced(self) -> bool:
        """Whether at least one list was completed."""
        return self.num_lists > 0

    def age_s(self) -> float:
        """Seconds since the mirror was last known to be current, inf before the first list.

        Lists, lines of a watch, and its opening and normal end count. An open watch proves nothing: its connection may
        be dead, and a live one is silent for up to twice `ReflectorTimes.watch_timeout_s`.
        """
        return float("inf") if self._last_contact is None else self._clock() - self._last_contact

    async def run(self) -> None:
        """Mirror until cancelled."""
        backoff = Backoff(self._times.first_backoff_s, self._times.max_backoff_s)
        while True:
            began = self._clock()
            try:
                if self._resource_version and not self._watch_succeeded:
                    await self._check_version()
                if not self._resource_version:
                    await self.relist()
                self._watch_succeeded = False
                self._watch_succeeded = await self._watch()
                if self._clock() - began > 1.0:
                    backoff.succeeded()
                    continue
                self.last_error = "the API server closed the watch immediately"
            except ApiError as error:
                if error.status == 410:  # the version to resume from was compacted
                    self._resource_version = ""
                self.last_error = str(error)
            except ClusterError as error:
                self.last_error = str(error)
            except msgspec.DecodeError as error:
                self._resource_version = ""  # resuming would deliver the same line again
                self.last_error = f"can't be read: {error}"
            except Exception as error:
                self._resource_version = ""  # a restarted task begins with a list
                self.last_error = str(error) or type(error).__name__
                raise
            if self._clock() - began > self._times.max_backoff_s:
                backoff.succeeded()  # it worked for a while before
            wait_s = backoff.failed()
            logger.warning("mirror of %s interrupted, retrying in %.1f s: %s", self._path, wait_s, self.last_error)
            await asyncio.sleep(wait_s)

    async def relist(self) -> None:
        """Take in a new complete list, while `run` is not running. Raises ClusterError, DecodeError."""
        began = self._clock()
        listed: set[str] = set()
        async for page in self._lister.pages():
            for item in page.items:
                self._take(self._sink.upsert, item)
                listed.add(item.metadata.uid)
            for unread in page.unread:
                if not unread.uid:
                    raise msgspec.DecodeError("an object without a UID can't be matched to a known one")
                self._skip_unread(unread)
                listed.add(unread.uid)
        self._sink.retain_only(listed, began, page.resource_version)
        self._resource_version = page.resource_version
        self._last_contact = self._clock()
        self.num_lists += 1
        self.last_error = ""

    async def _check_version(self) -> None:
        """Forget the version to resume from if the API server is behind it, as after a restore of etcd."""
        async for page in self._version_lister.pages():
            now, known = page.resource_version, self._resource_version
            if now.isdecimal() and known.isdecimal() and int(now) < int(known):
                logger.warning("%s: resourceVersions went back from %s to %s, relisting", self._path, known, now)
                self._resource_version = ""
            return

    async def _watch(self) -> bool:
        """Take in events until the API server ends the watch normally; return whether there were any."""
        timeout_s = self._times.watch_timeout_s * random.uniform(1, 2)
        query = {
            **self._selection,
            "watch": "true",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(timeout_s)),
        }
        last_good, version = self._last_contact, self._resource_version
        try:
            async for lines in self._transport.watch(self._path, query):
                self._last_contact = self._clock()
                for line in lines:
                    if line:
                        self._apply(line)
                        last_good = self._last_contact
                self.last_error = ""
            self._last_contact = self._clock()  # ended normally: nothing was missed
        except (ApiError, msgspec.DecodeError):
            self._last_contact = last_good  # events were missed: opening a watch does not count as contact
            raise
        return self._resource_version != version

    def _apply(self, line: bytes) -> None:
        kind, content = self._event(line)
        if kind == "ERROR":
            status = self._status_decoder.decode(content)
            raise ApiError(status.code, status.reason, status.message)
        try:
            item = self._item_decoder.decode(content)
        except msgspec.DecodeError:
            self._apply_unread(kind, outline(content))
            return
        if kind in ("ADDED", "MODIFIED"):
            self._take(self._sink.upsert, item)
        elif kind == "DELETED":
            self._take(self._sink.remove, item)
        self._resource_version = item.metadata.resource_version

    def _event(self, line: bytes) -> tuple[str, bytes | msgspec.Raw]:
        """Return type and object of a line. Raises DecodeError."""
        try:
            event = self._event_decoder.decode(line)
        except RecursionError:
            flat = shallow(line)
            event = self._event_decoder.decode(flat)
            begin = flat.index(event.object)  # what was removed became spaces: offsets are unchanged
            return event.type, line[begin : begin + len(bytes(event.object))]
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
        return event.type, event.object

    def _apply_unread(self, kind: str, item: Outline) -> None:
        """Take in an event of an object that can't be decoded. Raises DecodeError without its UID or version."""
        if not item.uid or not item.resource_version:
            raise msgspec.DecodeError("an object without UID or resourceVersion")
        if kind == "DELETED":
            self._take(self._sink.remove, self._kind(metadata=item.metadata))
        else:
            self._skip_unread(item)
        self._resource_version = item.resource_version

    def _take(self, into: Callable[[ObjectT], None], item: ObjectT) -> None:
        """Pass an object to the sink; an exception there must not stop the mirror."""
        try:
            into(item)
        except Exception:
            logger.exception("%s %s could not be processed", self._path, item.metadata.name)

    def _skip_unread(self, item: Outline) -> None:
        """Count an object that can't be decoded, and log it once."""
        self.num_unread += 1
        if item.uid not in self._reported:
            if len(self._reported) >= _MAX_REPORTED:
                self._reported.clear()
            self._reported.add(item.uid)
            logger.warning("%s %s can't be read and is ignored", self._path, item.key or "without a name")
        try:
            self._on_unread(item)
        except Exception:
            logger.exception("%s %s: the sink failed on an object that can't be read", self._path, item.key)


def _no_stand_in(item: Outline) -> None:
    """The default `Feed.stand_in`."""


def _always(item: Any) -> bool:
    """The default `Feed.wanted`."""
    return True


def _unchanged(item: ObjectT) -> ObjectT:
    """The default `Feed.kept`."""
    return item


_MAX_ANNOTATIONS: Final = 2**15
"""Characters of a pod's annotations that are kept: far more than Kerf and device plugins read."""
_OVERHEAD: Final = 64
"""Characters that each annotation counts for besides its own."""


def _within_bounds(pod: objects.Pod) -> objects.Pod:
    """Bound a pod's annotations, whose author chooses their number and length: all pods are kept in memory.

    Kerf's own annotations are kept first, then the shortest ones."""
    texts = pod.metadata.annotations
    if not texts or sum(map(len, texts)) + sum(map(len, texts.values())) + _OVERHEAD * len(texts) <= _MAX_ANNOTATIONS:
        return pod
    kept, left = dict[str, str](), _MAX_ANNOTATIONS
    for key in sorted(texts, key=lambda key: (rank_of(key), len(key) + len(texts[key]))):
        left -= _OVERHEAD + len(key)
        if left <= 0:
            break
        kept[key] = texts[key][:left]
        left -= len(kept[key])
    pod.metadata.annotations = kept
    return pod


@dataclass(frozen=True, slots=True)
class Feed(Generic[ObjectT]):
    """Objects of one kind to watch. Feeds of devices are pickled with the ledger: no lambdas."""

    name: str
    path: str
    kind: type[ObjectT]
    field_selector: str = ""
    served_at: str = ""
    """Path of an API that a server may lack."""
    stand_in: Callable[[Outline], Any] = _no_stand_in
    """Returns what the cache keeps in place of an object that never could be decoded, or None."""
    keeps_unread: bool = True
    """Whether an object that can no longer be decoded keeps its last known version."""
    wanted: Callable[[Any], bool] = _always
    """Whether an object still matches the field selector."""
    indexes: tuple[Index[Any], ...] = ()
    kept: Callable[[Any], Any] = _unchanged
    """Returns what the cache keeps of an object."""


@dataclass(frozen=True, eq=False, slots=True)
class Selection(Generic[ObjectT]):
    """A subset of a feed."""

    feed: Feed[ObjectT]
    index: Index[ObjectT]
    group: str
    field_selector: str
    """Field selector that lists exactly this subset."""


_BOUND: Final = "bound"
_WAITING: Final = "waiting"


def _pod(item: Outline) -> objects.Pod:
    return stand_in(item, objects.Pod)


NODES: Final = Feed("nodes", NODES_PATH, objects.Node, keeps_unread=False)
"""Nothing is placed on a node that can't be decoded."""
_BOUND_OR_WAITING: Final[Index[objects.Pod]] = Index(
    "bound or waiting", lambda pod: [_BOUND if pod.spec.node_name else _WAITING]
)
PODS: Final = Feed(
    "pods",
    PODS_PATH,
    objects.Pod,
    "status.phase!=Succeeded,status.phase!=Failed",
    stand_in=_pod,
    wanted=lambda pod: not pod.finished,
    indexes=(_BOUND_OR_WAITING,),
    kept=_within_bounds,
)
"""All unfinished pods. A cluster may keep 100,000 finished ones, which hold nothing."""
BOUND_PODS: Final = Selection(PODS, _BOUND_OR_WAITING, _BOUND, f"spec.nodeName!=,{PODS.field_selector}")
"""Pods with a node."""
PENDING_PODS: Final = Selection(PODS, _BOUND_OR_WAITING, _WAITING, "spec.nodeName=,status.phase=Pending")
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
        """Return the cache of a feed, which fills after `begin`."""
        return self._watch(feed)[1]

    def group(self, selection: Selection[ObjectT]) -> Group[ObjectT]:
        """Return a subset of a feed, which fills after `begin`."""
        return self.cache(selection.feed).group(selection.index, selection.group)

    def reflector(self, feed: Feed[ObjectT]) -> Reflector[ObjectT]:
        """Return the reflector that fills the cache of a feed."""
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
                on_unreadable=cache.upsert_unreadable,
            )
            self._watches[feed] = reflector, cache
        return self._watches[feed]

    def begin(self, feed: Feed[Any], name: str, *, needed: bool = True) -> None:
        """Start watching a feed as a background task `name` of the running event loop."""
        self.tasks.begin(name, self._watches[feed][0].run, needed=needed)

    async def list_again(self, feed: Feed[Any], name: str, *, needed: bool = True) -> None:
        """Relist a feed, however far its watch lags; `name` is its task's. Raises ClusterError, DecodeError."""
        await self.tasks.end(name)
        try:
            await self._watches[feed][0].relist()
        finally:
            self.begin(feed, name, needed=needed)
