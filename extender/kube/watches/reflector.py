"""List and watch: one kind of object, mirrored from the API server for as long as it runs.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.background import Backoff
from extender.kube.decoding import Decoder, Outline, outline, shallow
from extender.kube.transport import ApiError, ClusterError, Transport
from extender.kube.watches.lists import PAGE_SIZE, Lister

logger = logging.getLogger(__name__)

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
