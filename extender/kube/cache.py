"""All objects of one kind as the API server has them: decoded once, derived once for each version, told of in order.

Whoever needs more than the objects subscribes a handler of `(old, new)`: old is None for an object that is new, new is
None for one that is gone. A UID names one object for ever: an object whose name another one has by now is gone first.
So is a pod that does not have its node any more: nobody takes it away, but an etcd that is restored from a backup does.
Handlers are called in the order in which they subscribed, in the event loop, and none of them waits for
anything: what they keep is what all calls so far came to, and nothing else.

An object that can't be read stays what it was known as, unless it has finished; of one that never could be read its
stand-in is kept, which is gone before the first version that can be. Where the kind asks for it, as nodes do, an object
that can't be read is gone.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from extender.kube import objects
from extender.kube.decoding import Outline

logger = logging.getLogger(__name__)

RawT = TypeVar("RawT", bound=objects.Named)
T = TypeVar("T")

_NOBODY: Mapping[str, Any] = MappingProxyType({})

Handler = Callable[[T | None, T | None], None]
Listed = Callable[[set[str], float], None]
"""Hears, when a complete list has been taken in, which UIDs it named and at which monotonic time it was begun."""


@dataclass(frozen=True, eq=False)
class Index(Generic[T]):
    """A way to find objects: `groups` are the groups that an object belongs to, such as its node."""

    name: str
    groups: Callable[[T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class _Subscriber(Generic[T]):
    handler: Handler[T]
    listed: Listed | None
    stand_ins: bool


@dataclass(slots=True)
class _Indexed(Generic[T]):
    index: Index[T]
    members: dict[str, dict[str, T]] = field(default_factory=dict)
    """By group and UID."""

    def move(self, uid: str, old: T | None, new: T | None) -> None:
        before = () if old is None else tuple(self.index.groups(old))
        after = () if new is None else tuple(self.index.groups(new))
        for group in before:
            if group not in after:
                members = self.members[group]
                del members[uid]
                if not members:
                    del self.members[group]
        if new is not None:
            for group in after:
                self.members.setdefault(group, {})[uid] = new


class Cache(Mapping[str, T], Generic[RawT, T]):
    """The objects by UID; the sink of a reflector. Not thread-safe."""

    def __init__(
        self,
        derive: Callable[[RawT], T],
        *,
        indexes: Iterable[Index[T]] = (),
        stand_in: Callable[[Outline], RawT | None] = lambda item: None,
        wanted: Callable[[RawT], bool] = lambda item: True,
        keeps_unread: bool = True,
    ) -> None:
        """`derive` makes of an object what everybody asks of it; `stand_in` an object in place of one that never could
        be read, or None where it counts for nothing. An object that is not `wanted` any more is gone, and so is one
        that can't be read any more where they are not kept."""
        self._derive = derive
        self._stand_in = stand_in
        self._wanted = wanted
        self._keeps_unread = keeps_unread
        self._objects: dict[str, T] = {}
        self._uid_of: dict[str, str] = {}
        self._key_of: dict[str, str] = {}
        self._place_of: dict[str, str] = {}
        """By UID, of those that have one."""
        self._own: dict[str, int] = {}
        """By UID: resourceVersions that this process has written and no watch has told of yet."""
        self._newest = 0
        """The newest version that was told of any of them: up to there all that happened is known."""
        self._indexed = {id(index): _Indexed(index) for index in indexes}
        self._handlers: list[_Subscriber[T]] = []
        self._stood_in: set[str] = set()
        self._filled = False
        self.lists_gone = False
        """Whether what handlers hear of now is gone by what a list says: when and how it went was missed."""

    # Reading

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __getitem__(self, uid: str) -> T:
        return self._objects[uid]

    def named(self, name: str, namespace: str = "") -> T | None:
        """The object of a name, None where there is none."""
        uid = self._uid_of.get(f"{namespace}/{name}")
        return None if uid is None else self._objects[uid]

    def is_stand_in(self, uid: str) -> bool:
        """Whether an object never could be read: what is known of it is made up."""
        return uid in self._stood_in

    def is_untold(self, uid: str) -> bool:
        """Whether no watch has told yet of what this process has written of an object."""
        return uid in self._own

    def part(self, index: Index[T], group: str) -> "Part[T]":
        """The objects of a group as they are at any time. Raises RuntimeError for an index that is new once there are
        objects, which it would not know."""
        if id(index) not in self._indexed:
            if self._objects:
                raise RuntimeError(f"the cache has objects already, which are not by {index.name}")
            self._indexed[id(index)] = _Indexed(index)
        return Part(self, index, group)

    def by(self, index: Index[T], group: str) -> Collection[T]:
        """The objects of a group, in the order in which they came to it. Raises KeyError for an index not declared."""
        return list(self._indexed[id(index)].members.get(group, {}).values())

    def members(self, index: Index[T], group: str) -> Mapping[str, T]:
        """The objects of a group by UID, as they are at any time."""
        return self._indexed[id(index)].members.get(group, _NOBODY)

    def groups(self, index: Index[T]) -> Collection[str]:
        """The groups that have objects."""
        return list(self._indexed[id(index)].members)

    def subscribe(self, handler: Handler[T], *, listed: Listed | None = None, stand_ins: bool = False) -> None:
        """Let a handler hear of every change from now on; of stand-ins, which are made up, if it asks for them.

        Raises RuntimeError once anything was taken in: whoever subscribes then has missed what is there.
        """
        if self._filled:
            raise RuntimeError("the cache has objects already: whoever subscribes now has missed them")
        self._handlers.append(_Subscriber(handler, listed, stand_ins))

    # What a reflector tells, and what this process has written

    def upsert(self, item: RawT) -> None:
        """An object was added or changed."""
        uid, version = item.metadata.uid, _number(item.metadata.resource_version)
        self._newest = max(self._newest, version)
        if version < self._own.get(uid, 0):
            return  # as it was before this process has written it
        self._own.pop(uid, None)
        self._take(item)

    def written(self, item: RawT) -> None:
        """The API server's answer to a write of this process: what a watch tells from before it is no news."""
        version = _number(item.metadata.resource_version)
        if 0 < version <= self._newest:
            return  # a watch was faster, and may have told that it is gone since
        self._own[item.metadata.uid] = version
        self._take(item)

    def set_aside(self, item: Outline) -> None:
        """An object was added or changed, and can't be read."""
        if item.finished or not self._keeps_unread:
            self._drop(item.uid)
        elif item.uid not in self._objects and (raw := self._stand_in(item)) is not None:
            self._enter(item.uid, f"{item.namespace}/{item.name}", item.node)
            self._stood_in.add(item.uid)
            self._change(item.uid, self._derive(raw))

    def remove(self, item: RawT) -> None:
        """An object is gone. Where nobody was told that it was being deleted, that comes first."""
        metadata = item.metadata
        self._newest = max(self._newest, _number(metadata.resource_version))
        if metadata.deletion_timestamp and metadata.uid in self._objects and metadata.uid not in self._stood_in:
            self._change(metadata.uid, self._derive(item))
        self._drop(metadata.uid)

    def keep(self, items: set[str], list_began: float, version: str = "") -> None:
        """A complete list of that version, begun at that monotonic time, names these UIDs: others are gone, but for
        what this process has written later. One that is older than what was told before is of an etcd that was
        restored from a backup: all objects are others now, whatever they share with those that were known."""
        self._filled = True
        number = _number(version) or self._newest
        if number < self._newest:
            self._own.clear()
            for uid in list(self._objects):
                self._begin_anew(uid)
        self._newest = number
        for uid in [uid for uid in self._objects if uid not in items and self._own.get(uid, 0) <= self._newest]:
            self._miss(uid)
        for subscriber in self._handlers:
            if subscriber.listed is not None:
                _call(subscriber.listed, items, list_began)

    def _take(self, item: RawT) -> None:
        uid = item.metadata.uid
        if not self._wanted(item) or uid in self._stood_in:
            self._drop(uid)
        if self._wanted(item):
            self._enter(uid, item.key, item.place)
            self._change(uid, self._derive(item))

    def _enter(self, uid: str, key: str, place: str) -> None:
        """A name is this object's now, and so is its place."""
        if self._place_of.get(uid, place) != place:
            self._miss(uid)
        before = self._uid_of.get(key)
        if before != uid:
            if before is not None:
                self._miss(before)
            self._uid_of[key], self._key_of[uid] = uid, key
        if place:
            self._place_of[uid] = place

    def _begin_anew(self, uid: str) -> None:
        item, key, place = self._objects[uid], self._key_of[uid], self._place_of.get(uid, "")
        made_up = uid in self._stood_in
        self._miss(uid)
        self._enter(uid, key, place)
        if made_up:
            self._stood_in.add(uid)
        self._change(uid, item)

    def _miss(self, uid: str) -> None:
        """An object has gone, and it was missed when and how."""
        self.lists_gone = True
        self._drop(uid)
        self.lists_gone = False

    def _drop(self, uid: str) -> None:
        self._own.pop(uid, None)
        self._place_of.pop(uid, None)
        if (key := self._key_of.pop(uid, None)) is not None:
            del self._uid_of[key]
        self._change(uid, None)
        self._stood_in.discard(uid)

    def _change(self, uid: str, new: T | None) -> None:
        self._filled = True
        old = self._objects.pop(uid, None) if new is None else self._objects.get(uid)
        if new is not None:
            self._objects[uid] = new
        if old is None and new is None:
            return
        for indexed in self._indexed.values():
            indexed.move(uid, old, new)
        for subscriber in self._handlers:
            if subscriber.stand_ins or uid not in self._stood_in:
                _call(subscriber.handler, old, new)


class Part(Mapping[str, T]):
    """The objects of one group of an index, by UID, as if there were no others: one that leaves the group is gone."""

    def __init__(self, cache: Cache[Any, T], index: Index[T], group: str) -> None:
        self._cache, self._index, self._group = cache, index, group

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __getitem__(self, uid: str) -> T:
        return self._members[uid]

    @property
    def lists_gone(self) -> bool:
        """As of `Cache`."""
        return self._cache.lists_gone

    @property
    def _members(self) -> Mapping[str, T]:
        return self._cache.members(self._index, self._group)

    def subscribe(self, handler: Handler[T], *, listed: Listed | None = None, stand_ins: bool = False) -> None:
        """As of `Cache`; a list names the objects of all groups."""

        def changed(old: T | None, new: T | None) -> None:
            old, new = self._of_group(old), self._of_group(new)
            if old is not None or new is not None:
                handler(old, new)

        self._cache.subscribe(changed, listed=listed, stand_ins=stand_ins)

    def _of_group(self, item: T | None) -> T | None:
        return item if item is not None and self._group in self._index.groups(item) else None


def _call(handler: Callable[..., None], *arguments: Any) -> None:
    """Call a handler; one that fails stops nobody else."""
    try:
        handler(*arguments)
    except Exception:
        logger.exception("a change was not taken in by %s", getattr(handler, "__qualname__", handler))


def _number(version: str) -> int:
    """The number of a version, 0 where it is none."""
    return int(version) if version.isdecimal() else 0
