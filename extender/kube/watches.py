"""Lists and watches, and who listens to them.

What is watched, and one watch of each for the whole process, whoever listens.

Pods in place of those that can't be read.

Lists, page by page: the one way in which Kerf reads more than one object.

An object that can't be decoded costs that object only: it is set aside, by its outline. Who writes objects settles
their size as well: a page is asked for by number, so the first one asks for few, the next ones for as many as should
come to a few megabytes, and for fewer where the API server is not done in time. A large one
is decoded beside the event loop.

List and watch: one kind of object, mirrored from the API server for as long as it runs.

Pages the list, resumes the watch where it ended, keeps up by bookmarks, lists again on 410 (in the answer or in the
stream), and backs off with jitter. What client-go's Reflector does, on asyncio; the official client's informer runs in
threads and takes 28 s for 20,000 pods that this one decodes in half a second.

An etcd that was restored from a backup counts its versions from there again. The API server takes a watch from a
version that is yet to come, says nothing until then, and ends it in order. So before a watch is resumed that broke off,
or told nothing, the API server is asked for its version: where that is an older one, listing everything again.

An object that can't be read is set aside: it stays what it was known as, unless its sink knows better.
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
from extender.kube.cache import Cache, Index, Part
from extender.kube.decoding import Decoder, Outline, outline, shallow
from extender.kube.transport import NODES_PATH, PODS_PATH, ApiError, ClusterError, Query, Transport, UnreachableError

T = TypeVar("T")
logger = logging.getLogger(__name__)

_MORE_THAN_ANY: Final = 2**30


def stand_in(pod: Outline, kind: type[T]) -> T:
    """What is counted with in place of a pod that can't be read: it asks for more GPUs than any node has.

    So no GPU of its node is given away, or, where it has no node, it is taken for one that asks for GPUs.
    """
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "resourceVersion": pod.resource_version}
    container = {"resources": {"requests": {DEFAULT.resource: str(_MORE_THAN_ANY)}}}
    spec = {"nodeName": pod.node or None, "containers": [container]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": pod.phase}}, kind)


PAGE_SIZE: Final = 500
_FIRST_PAGE_SIZE: Final = 32
_MAX_GROWTH: Final = 2
_PAGE_BYTES: Final = 2 * 2**20
_INLINE_BYTES: Final = 2**17
"""A page of at most so many is decoded at once, another one in a thread."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a list."""

    items: list[T]
    unread: list[Outline] = field(default_factory=list)
    """Objects that can't be decoded."""
    resource_version: str = ""
    more: str = ""
    """The API server's word for where the next page begins, "" at the end."""


class ListDecoder(Generic[T]):
    """Decodes pages of one kind of object; in one pass, as long as every object can be."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """`whole` as of `Decoder`."""
        self._page = msgspec.json.Decoder(objects.ObjectList[kind])  # type: ignore[valid-type]
        self._item = Decoder(kind, whole=whole)

    def decode(self, content: bytes) -> Page[T]:
        """Raises DecodeError for what is no list."""
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
            begin = flat.index(raw, end)  # what is left out is spaces: everything else stays where it was
            end = begin + len(bytes(raw))
            item = content[begin:end]
            try:
                result.items.append(self._item.decode(item))
            except msgspec.DecodeError:
                result.unread.append(outline(item))
        return result


class Lister(Generic[T]):
    """Lists what is at a path of an API server."""

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
        """`page_bytes` are what a page should come to: where others wait while one is decoded, fewer."""
        self._transport = transport
        self._path = path
        self._decoder = ListDecoder(kind, whole=whole)
        self._query = dict(query or {})
        self._page_size = page_size
        self._page_bytes = page_bytes
        self._limit = min(page_size, _FIRST_PAGE_SIZE)

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Page by page, of one moment. Raises ClusterError, DecodeError; after that one begins anew."""
        more: dict[str, str] = {}
        while True:
            query = {**self._query, "limit": str(self._limit), **more}
            try:
                content = await self._transport.get(self._path, query)
            except UnreachableError:
                self._limit = max(1, self._limit // 4)  # too much for one time-out, maybe
                raise
            growth = min(_MAX_GROWTH, self._page_bytes / max(1, len(content)))
            self._limit = max(1, min(self._page_size, int(self._limit * growth)))
            if len(content) <= _INLINE_BYTES:
                page = self._decoder.decode(content)
            else:
                page = await asyncio.to_thread(self._decoder.decode, content)
            yield page
            if not page.more:
                return
            more = {"continue": page.more}

    async def all(self) -> Page[T]:
        """All pages as one. Raises ClusterError, DecodeError."""
        found: Page[T] = Page([])
        async for page in self.pages():
            found.items.extend(page.items)
            found.unread.extend(page.unread)
        return found


_raw_list: Final = Decoder(objects.ObjectList[msgspec.Raw])


_MAX_TOLD = 1_000
"""Objects that can't be read that are remembered, so as to be told of once."""

ObjectT = TypeVar("ObjectT", bound=objects.Named)
ItemT_contra = TypeVar("ItemT_contra", bound=objects.Named, contravariant=True)


class Sink(Protocol[ItemT_contra]):
    """Where a reflector's objects go."""

    def upsert(self, item: ItemT_contra) -> None:
        """An object was added or changed."""

    def remove(self, item: ItemT_contra) -> None:
        """An object is gone."""

    def keep(self, items: set[str], list_began: float, version: str) -> None:
        """A complete list of that version, begun at that monotonic time, names these uids; others are gone."""


@dataclass(frozen=True, slots=True)
class ReflectorTimes:
    """Times of a reflector, in seconds."""

    watch_timeout_s: float = 300.0
    """How long the server is asked to keep a watch open; jittered up to twice that. Where nothing happens it tells of
    that shortly before the end, by a bookmark: a live watch is never silent for longer."""
    first_backoff_s: float = 0.2
    max_backoff_s: float = 3.0
    """How long what the API server told meanwhile may be missed, once it can be reached again, and half as long again:
    until then pods are still bound to what a node had."""


class Reflector(Generic[ObjectT]):
    """Mirrors one kind of object into a sink."""

    def __init__(  # noqa: PLR0913 - what it mirrors, and how
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
        set_aside: Callable[[Outline], None] = lambda item: None,
        whole: bool = False,
    ) -> None:
        """`set_aside` hears of objects that can't be read; `whole` is as of `Decoder`."""
        self._transport = transport
        self._path = path
        self._kind = kind
        self._sink: Sink[ObjectT] = sink
        self._clock = clock
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selection = {name: text for name, text in selectors.items() if text}
        self._times = times or ReflectorTimes()
        self._lister = Lister(transport, path, kind, self._selection, page_size, whole=whole)
        self._glance = Lister(transport, path, kind, self._selection, 1, whole=whole)
        self._item_decoder = Decoder(kind, whole=whole)
        self._event_decoder = msgspec.json.Decoder(objects.WatchEvent)
        self._status_decoder = Decoder(objects.Status)
        self._set_aside = set_aside
        self._told: set[str] = set()
        self._resource_version = ""
        self._went_on = True
        """Whether the last watch told something and ended in order."""
        self._last_contact: float | None = None
        self.last_error = ""
        """What went wrong last, "" while all is well."""
        self.num_lists = 0
        """How many complete lists were made."""
        self.num_unread = 0
        """Objects set aside, counted each time that they came."""

    @property
    def synced(self) -> bool:
        """Whether a complete list was taken in at least once."""
        return self.num_lists > 0

    def age_s(self) -> float:
        """Seconds since the API server has last told how things are, inf before the first list.

        By a list, a line of a watch, or opening or ending one in order. An open watch alone proves nothing: its
        connection may be dead. It is silent for up to twice `ReflectorTimes.watch_timeout_s`.
        """
        return float("inf") if self._last_contact is None else self._clock() - self._last_contact

    async def run(self) -> None:
        """Mirror until cancelled."""
        backoff = Backoff(self._times.first_backoff_s, self._times.max_backoff_s)
        while True:
            began = self._clock()
            try:
                if self._resource_version and not self._went_on:
                    await self._check_version()
                if not self._resource_version:
                    await self.relist()
                self._went_on = False
                self._went_on = await self._watch()
                if self._clock() - began > 1.0:
                    backoff.succeeded()
                    continue
                self.last_error = "the API server ends the watch at once"
            except ApiError as error:
                if error.status == 410:  # the server no longer has what the watch would resume from
                    self._resource_version = ""
                self.last_error = str(error)
            except ClusterError as error:
                self.last_error = str(error)
            except msgspec.DecodeError as error:
                self._resource_version = ""  # asked from there again, the watch would begin with the same line
                self.last_error = f"can't be read: {error}"
            except Exception as error:
                self._resource_version = ""  # whoever begins anew begins with a list
                self.last_error = str(error) or type(error).__name__
                raise
            if self._clock() - began > self._times.max_backoff_s:
                backoff.succeeded()  # it had worked for a while
            wait_s = backoff.failed()
            logger.warning("mirror of %s interrupted, retrying in %.1f s: %s", self._path, wait_s, self.last_error)
            await asyncio.sleep(wait_s)

    async def relist(self) -> None:
        """Take in a complete list, begun now; not while `run` does. Raises ClusterError, DecodeError."""
        began = self._clock()
        listed: set[str] = set()
        async for page in self._lister.pages():
            for item in page.items:
                self._take(self._sink.upsert, item)
                listed.add(item.metadata.uid)
            for unread in page.unread:
                if not unread.uid:
                    raise msgspec.DecodeError("an object without a UID: which of those known is it?")
                self._put_aside(unread)
                listed.add(unread.uid)
        self._sink.keep(listed, began, page.resource_version)
        self._resource_version = page.resource_version
        self._last_contact = self._clock()
        self.num_lists += 1
        self.last_error = ""

    async def _check_version(self) -> None:
        """Forget where to resume from if the API server has not come that far: it began anew from an older state."""
        async for page in self._glance.pages():
            now, known = page.resource_version, self._resource_version
            if now.isdecimal() and known.isdecimal() and int(now) < int(known):
                logger.warning("%s: versions went back from %s to %s, listing everything again", self._path, known, now)
                self._resource_version = ""
            return

    async def _watch(self) -> bool:
        """Take in what happens, until the API server ends that in order; whether it told of anything."""
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
            self._last_contact = self._clock()  # the server ended it in order: nothing was missed
        except (ApiError, msgspec.DecodeError):
            self._last_contact = last_good  # something was missed: to open a watch again and again is not to be current
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
        """Type and object of a line. Raises DecodeError."""
        try:
            event = self._event_decoder.decode(line)
        except RecursionError:
            flat = shallow(line)
            event = self._event_decoder.decode(flat)
            begin = flat.index(event.object)  # what is left out is spaces: everything else stays where it was
            return event.type, line[begin : begin + len(bytes(event.object))]
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
        return event.type, event.object

    def _apply_unread(self, kind: str, item: Outline) -> None:
        """An event about an object that can't be read. Raises DecodeError where not even its version can be."""
        if not item.uid or not item.resource_version:
            raise msgspec.DecodeError("an object without UID and version")
        if kind == "DELETED":
            self._take(self._sink.remove, self._kind(metadata=item.metadata))
        else:
            self._put_aside(item)
        self._resource_version = item.resource_version

    def _take(self, into: Callable[[ObjectT], None], item: ObjectT) -> None:
        """Hand an object to the sink; one that breaks it must not stop the mirror of all others."""
        try:
            into(item)
        except Exception:
            logger.exception("%s %s could not be processed", self._path, item.metadata.name)

    def _put_aside(self, item: Outline) -> None:
        """Count an object that can't be read, and tell of it once."""
        self.num_unread += 1
        if item.uid not in self._told:
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add(item.uid)
            logger.warning("%s %s can't be read and is left out", self._path, item.key or "without a name")
        try:
            self._set_aside(item)
        except Exception:
            logger.exception("%s %s could not be left out", self._path, item.key)


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
