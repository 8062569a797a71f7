"""Lists, page by page: the one way in which Kerf reads more than one object.

An object that can't be decoded costs that object only: it is set aside, by its outline. Who writes objects settles
their size as well: a page is asked for by number, so the first one asks for few, the next ones for as many as should
come to a few megabytes, and for fewer where the API server is not done in time. A large one
is decoded beside the event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from extender.kube import objects
from extender.kube.decoding import Decoder, Outline, outline, shallow
from extender.kube.transport import Query, Transport, UnreachableError

T = TypeVar("T")

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
