"""An API server of nodes, pods and namespaces: it tells each process what has happened as far as a test says, and its
watches and lists break off as a test says, too."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import msgspec

from extender.kube.transport import NAMESPACES_PATH, NODES_PATH, PODS_PATH, ApiError, Query, UnreachableError
from tests.kube.transports import ReadOnly

Manifest = dict[str, Any]
PATHS: Final = (NODES_PATH, PODS_PATH, NAMESPACES_PATH)
PAGE_SIZE: Final = 2
UNREADABLE: Final = 7
"""As labels."""
_MOST_TURNS: Final = 1000


def key_of(manifest: Manifest) -> str:
    return f"{manifest['metadata'].get('namespace', '')}/{manifest['metadata']['name']}"


def finished(manifest: Manifest) -> bool:
    return manifest.get("status", {}).get("phase") in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Event:
    """An event of a watch."""

    version: int
    kind: str
    manifest: Manifest


@dataclass
class ApiServer:
    """Objects and their history. Manifests are never changed in place."""

    selects: bool = True
    """Whether it selects as a real one does: a pod that has finished is neither listed nor told of, and one that
    finishes is told of as deleted, as it was before. The cluster in memory does not."""
    version: int = 0
    objects: dict[str, dict[str, Manifest]] = field(default_factory=lambda: {path: {} for path in PATHS})
    """By path and key."""
    events: dict[str, list[Event]] = field(default_factory=lambda: {path: [] for path in PATHS})
    oldest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    """Events up to there are not known any more."""
    _states: dict[int, dict[str, dict[str, Manifest]]] = field(default_factory=dict)
    """By version, what there was."""

    def put(self, path: str, manifest: Manifest) -> None:
        """Create or change an object."""
        self._begin()
        key = key_of(manifest)
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        before, now = self.objects[path].get(key), {**manifest, "metadata": metadata}
        self.objects[path][key] = now
        known = before if before is not None and self._is_selected(before) else None
        if self._is_selected(now):
            self._tell(path, "ADDED" if known is None else "MODIFIED", now)
        elif known is not None:
            self._tell(path, "DELETED", known)

    def delete(self, path: str, key: str, **last: str) -> None:
        """Delete an object; `last` are metadata of its last version."""
        manifest = self.objects[path][key]
        self._begin()
        del self.objects[path][key]
        if self._is_selected(manifest):
            self._tell(path, "DELETED", {**manifest, "metadata": {**manifest["metadata"], **last}})

    def listed(self, path: str) -> list[Manifest]:
        return [manifest for manifest in self.objects[path].values() if self._is_selected(manifest)]

    def since(self, path: str, version: int) -> list[Event]:
        return [event for event in self.events[path] if event.version > version]

    def forget(self, path: str) -> None:
        """Compact the history, so that watches from before it are expired."""
        self.oldest[path] = self.version

    def unbound_at(self, key: str) -> int | None:
        """The last version at which a pod with a node had none, None if there is none."""
        pod = self.objects[PODS_PATH].get(key)
        if pod is None or "nodeName" not in pod["spec"]:
            return None
        for version in range(self.version - 1, -1, -1):
            before = self._states[version][PODS_PATH].get(key)
            same = before is not None and before["metadata"]["uid"] == pod["metadata"]["uid"]
            if before is not None and same and "nodeName" not in before["spec"]:
                return version
        return None

    def restore(self, version: int) -> None:
        """Return to a version, from which versions count on."""
        if version >= self.version:
            return
        self.version = version
        self.objects = {path: dict(found) for path, found in self._states[version].items()}
        for path, events in self.events.items():
            self.events[path] = [event for event in events if event.version <= self.version]
            self.oldest[path] = min(self.oldest[path], self.version)

    def _is_selected(self, manifest: Manifest) -> bool:
        return not (self.selects and finished(manifest))

    def _begin(self) -> None:
        self._states[self.version] = {path: dict(found) for path, found in self.objects.items()}
        self.version += 1

    def _tell(self, path: str, kind: str, manifest: Manifest) -> None:
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version)}
        self.events[path].append(Event(self.version, kind, {**manifest, "metadata": metadata}))


class End(Enum):
    """How a watch ends."""

    IN_ORDER = auto()
    CUT = auto()
    """The connection is lost, and nothing that happened."""
    FORGOTTEN = auto()
    """It is lost, and what had happened is not known any more."""
    EXPIRED = auto()
    """By an error in the stream."""
    GARBAGE = auto()
    """By a line that can't be read."""


@dataclass(frozen=True)
class Say:
    """A watch sends so many events, and a bookmark after the last one."""

    most: int = 1_000_000


@dataclass(eq=False)
class Line(ReadOnly):
    """The transport of one process."""

    server: ApiServer
    heard: Callable[[str, str, Manifest], None]
    """Hears path, kind and object of what the process is told, before that takes it in."""
    complete: Callable[[str, set[str], int], None]
    """Hears of complete lists: path, UIDs and version."""
    breaks: set[str] = field(default_factory=set)
    """Paths of which the next list breaks off after its first page."""
    told_up_to: dict[str, int] = field(default_factory=dict)
    """Versions that the watches have come to, by path."""
    _orders: dict[str, asyncio.Queue[Say | End]] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    """Paths whose watches wait for what to tell."""
    _lists: dict[str, tuple[list[Manifest], list[Manifest]]] = field(default_factory=dict)
    """All that a list names and what is left of it, by where it goes on."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if path in PATHS:
            return self._page(path, query or {})
        namespace, _, name = path.removeprefix(f"{NAMESPACES_PATH}/").partition("/pods/")
        if (found := self.server.objects[PODS_PATH].get(f"{namespace}/{name}")) is None:
            raise ApiError(404, "NotFound", path)
        return msgspec.json.encode(found)

    def _page(self, path: str, query: Query) -> bytes:
        limit, token = int(query["limit"]), query.get("continue", "")
        if token and path in self.breaks:
            self.breaks.discard(path)
            raise ApiError(500, "InternalError", "the list broke off")
        named = self.server.listed(path)
        named, left = self._lists.pop(token) if token else (named, named)
        version = token.rpartition(" ")[2] or str(self.server.version)
        page, left = left[:limit], left[limit:]
        following = f"{path} {len(left)} {version}" if left else ""
        if limit == PAGE_SIZE:  # else it is a look at the version alone
            self._lists[following] = named, left
            for manifest in sorted(page, key=is_unreadable):
                self.heard(path, "LISTED", manifest)
            if not left:
                self.complete(path, {manifest["metadata"]["uid"] for manifest in named}, int(version))
        metadata = {"resourceVersion": version, "continue": following}
        return msgspec.json.encode({"metadata": metadata, "items": page})

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        version, orders = int(query["resourceVersion"]), self._orders.setdefault(path, asyncio.Queue())
        if version < self.server.oldest[path]:
            raise ApiError(410, "Expired", "too old resource version")
        yield []
        while True:
            self.told_up_to[path] = version
            self._waiting.add(path)
            order = await orders.get()
            self._waiting.discard(path)
            match order:
                case Say(most):
                    events = self.server.since(path, version)
                    for event in events[:most]:
                        self.heard(path, event.kind, event.manifest)
                        version = event.version
                    lines = [_line(event.kind, event.manifest) for event in events[:most]]
                    if len(events) <= most and version <= self.server.version:
                        version = self.server.version
                        lines.append(_line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}}))
                    yield lines
                case End.IN_ORDER:
                    return
                case End.CUT | End.FORGOTTEN:
                    raise UnreachableError("the connection is lost")
                case End.EXPIRED:
                    yield [_line("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})]
                case End.GARBAGE:
                    yield [b"{"]

    async def tell(self, path: str, order: Say | End) -> None:
        """Have a watch send something or end, and wait until the process has handled it."""
        if order is End.FORGOTTEN:
            self.server.forget(path)
        self._orders[path].put_nowait(order)
        self._waiting.discard(path)
        await self.settle([path])

    async def settle(self, paths: Iterable[str]) -> None:
        """Wait until watches of these paths are idle."""
        for _ in range(_MOST_TURNS):
            if self._waiting.issuperset(paths):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"of {paths} not all are watched")


def is_unreadable(manifest: Manifest) -> bool:
    """Whether it can't be decoded."""
    return bool(manifest["metadata"].get("labels") == UNREADABLE)


def _line(kind: str, item: Manifest) -> bytes:
    return msgspec.json.encode({"type": kind, "object": item})
