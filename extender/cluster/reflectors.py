"""List and watch: one kind of object, mirrored from the API server for as long as it runs.

Pages the list, resumes the watch where it ended, keeps up by bookmarks, lists again on 410 (in the answer or in the
stream), and backs off with jitter. What client-go's Reflector does, on asyncio.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from extender.cluster import objects
from extender.cluster.transports import ApiError, ClusterError, Transport

logger = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT", bound=objects.Named)
ItemT_contra = TypeVar("ItemT_contra", bound=objects.Named, contravariant=True)


class Sink(Protocol[ItemT_contra]):
    """Where a reflector's objects go."""

    def upsert(self, item: ItemT_contra) -> None:
        """An object was added or changed."""

    def remove(self, item: ItemT_contra) -> None:
        """An object is gone."""

    def keep(self, items: set[str], list_began: float) -> None:
        """A complete list, begun at that monotonic time, names these uids; others are gone."""


@dataclass(frozen=True, slots=True)
class ReflectorTimes:
    """Times of a reflector, in seconds."""

    watch_timeout_s: float = 300.0
    """How long the server is asked to keep a watch open; jittered up to twice that."""
    first_backoff_s: float = 0.2
    max_backoff_s: float = 15.0


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
        page_size: int = 500,
        times: ReflectorTimes | None = None,
    ) -> None:
        self._transport = transport
        self._path = path
        self._sink: Sink[ObjectT] = sink
        self._clock = clock
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selection = {name: text for name, text in selectors.items() if text}
        self._page_size = page_size
        self._times = times or ReflectorTimes()
        self._list_decoder: msgspec.json.Decoder[objects.ObjectList[ObjectT]] = msgspec.json.Decoder(
            objects.ObjectList[kind]  # type: ignore[valid-type]
        )
        self._item_decoder: msgspec.json.Decoder[ObjectT] = msgspec.json.Decoder(kind)
        self._event_decoder = msgspec.json.Decoder(objects.WatchEvent)
        self._status_decoder = msgspec.json.Decoder(objects.Status)
        self._resource_version = ""
        self._watching = False
        self._last_contact: float | None = None
        self.last_error = ""
        """What went wrong last, "" while all is well."""
        self.num_lists = 0
        """How many complete lists were made."""

    @property
    def synced(self) -> bool:
        """Whether a complete list was taken in at least once."""
        return self.num_lists > 0

    def age_s(self) -> float:
        """Seconds since the mirror was last known to be current; 0 while a watch is open, inf before the first list.

        An open watch that has died unnoticed is ended by its own time-out, since bookmarks keep a live one busy.
        """
        if self._last_contact is None:
            return float("inf")
        return 0.0 if self._watching else self._clock() - self._last_contact

    async def run(self) -> None:
        """Mirror until cancelled."""
        backoff_s = self._times.first_backoff_s
        while True:
            began = self._clock()
            try:
                if not self._resource_version:
                    await self.relist()
                await self._watch()
                if self._clock() - began > 1.0:
                    backoff_s = self._times.first_backoff_s
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
            if self._clock() - began > self._times.max_backoff_s:
                backoff_s = self._times.first_backoff_s  # it had worked for a while
            wait_s = backoff_s * random.uniform(0.5, 1.5)
            logger.warning("mirror of %s interrupted, again in %.1f s: %s", self._path, wait_s, self.last_error)
            await asyncio.sleep(wait_s)
            backoff_s = min(2 * backoff_s, self._times.max_backoff_s)

    async def relist(self) -> None:
        """Take in a complete list, begun now; not while `run` does. Raises ClusterError, DecodeError."""
        began = self._clock()
        listed: set[str] = set()
        query = {**self._selection, "limit": str(self._page_size)}
        while True:
            page = self._list_decoder.decode(await self._transport.get(self._path, query))
            for item in page.items or ():
                self._take(self._sink.upsert, item)
                listed.add(item.metadata.uid)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._sink.keep(listed, began)
        self._resource_version = page.metadata.resource_version
        self._last_contact = self._clock()
        self.num_lists += 1
        self.last_error = ""

    async def _watch(self) -> None:
        timeout_s = self._times.watch_timeout_s * random.uniform(1, 2)
        query = {
            **self._selection,
            "watch": "true",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(timeout_s)),
        }
        last_good = self._last_contact
        try:
            async for lines in self._transport.watch(self._path, query):
                self._watching = True
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
        finally:
            self._watching = False

    def _apply(self, line: bytes) -> None:
        event = self._event_decoder.decode(line)
        if event.type == "ERROR":
            status = self._status_decoder.decode(event.object)
            raise ApiError(status.code, status.reason, status.message)
        item = self._item_decoder.decode(event.object)
        if event.type in ("ADDED", "MODIFIED"):
            self._take(self._sink.upsert, item)
        elif event.type == "DELETED":
            self._take(self._sink.remove, item)
        self._resource_version = item.metadata.resource_version

    def _take(self, into: Callable[[ObjectT], None], item: ObjectT) -> None:
        """Hand an object to the sink; one that breaks it must not stop the mirror of all others."""
        try:
            into(item)
        except Exception:
            logger.exception("%s %s could not be taken in", self._path, item.metadata.name)
