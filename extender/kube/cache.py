"""A cache of all objects of one kind, decoded once and derived once for each version.

Subscribers get `(old, new)`: old is None for a new object, new is None for a removed one. A UID names one object
forever: if another object has its name, the first is removed beforehand. So is a pod that no longer has its node:
only an etcd restored from a backup unbinds one. Handlers are called in the order of their subscription, in the event
loop, and never wait: their state depends on the calls so far and nothing else.

An object that can't be decoded keeps its last known version, unless it has finished. One that never could be decoded
gets a stand-in, which is removed before the first version that can be. Kinds with `keeps_unread=False`, such as
nodes, remove an object that can't be decoded.
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

_NO_MEMBERS: Mapping[str, Any] = MappingProxyType({})

Handler = Callable[[T | None, T | None], None]
Listed = Callable[[set[str], float], None]
"""Called after a complete list with its UIDs and the monotonic time at which it was begun."""


@dataclass(frozen=True, eq=False)
class Index(Generic[T]):
    """A lookup of objects; `groups` returns the groups of an object, such as its node."""

    name: str
    groups: Callable[[T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class _Subscriber(Generic[T]):
    handler: Handler[T]
    listed: Listed | None
    stand_ins: bool
    index: int | None = None
    """The `id` of the index, if it is told of one group alone."""
    group: str = ""


@dataclass(slots=True)
class _Indexed(Generic[T]):
    index: Index[T]
    members: dict[str, dict[str, T]] = field(default_factory=dict)
    """By group and UID."""

    def move(self, uid: str, old: T | None, new: T | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the groups before and after."""
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
        return before, after


class Cache(Mapping[str, T], Generic[RawT, T]):
    """Objects by UID; the sink of a reflector. Not thread-safe."""

    def __init__(
        self,
        derive: Callable[[RawT], T],
        *,
        indexes: Iterable[Index[T]] = (),
        stand_in: Callable[[Outline], RawT | None] = lambda item: None,
        wanted: Callable[[RawT], bool] = lambda item: True,
        keeps_unread: bool = True,
    ) -> None:
        """`derive` returns what the cache keeps of an object. `stand_in` returns the object kept in place of one that
        never could be decoded, or None. Objects no longer `wanted` are removed, and without `keeps_unread` those that
        can't be decoded."""
        self._derive = derive
        self._stand_in = stand_in
        self._wanted = wanted
        self._keeps_unread = keeps_unread
        self._objects: dict[str, T] = {}
        self._uid_of: dict[str, str] = {}
        self._key_of: dict[str, str] = {}
        self._place_of: dict[str, str] = {}
        """By UID, of objects that have a place."""
        self._own: dict[str, int] = {}
        """By UID: resourceVersions written by this process that the watch has not delivered yet."""
        self._newest = 0
        """The newest version received: all changes up to it are known."""
        self._indexed = {id(index): _Indexed(index) for index in indexes}
        self._handlers: list[_Subscriber[T]] = []
        self._stood_in: set[str] = set()
        self._filled = False
        self.removals_missed = False
        """Whether the removals now passed to handlers were revealed by a list: their events were missed."""

    # Reading

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __getitem__(self, uid: str) -> T:
        return self._objects[uid]

    def find(self, name: str, namespace: str = "") -> T | None:
        """Return the object of a name, or None."""
        uid = self._uid_of.get(f"{namespace}/{name}")
        return None if uid is None else self._objects[uid]

    def is_stand_in(self, uid: str) -> bool:
        """Whether an object is a stand-in for one that never could be decoded."""
        return uid in self._stood_in

    def is_unconfirmed(self, uid: str) -> bool:
        """Whether the watch has not delivered this process's last write of an object yet."""
        return uid in self._own

    def group(self, index: Index[T], group: str) -> "Group[T]":
        """Return a live view of a group. Raises RuntimeError for a new index once the cache has objects."""
        if id(index) not in self._indexed:
            if self._objects:
                raise RuntimeError(f"the cache already has objects, which {index.name} does not index")
            self._indexed[id(index)] = _Indexed(index)
        return Group(self, index, group)

    def by_group(self, index: Index[T], group: str) -> Collection[T]:
        """Return the objects of a group, in order of arrival. Raises KeyError for an undeclared index."""
        return list(self._indexed[id(index)].members.get(group, {}).values())

    def members(self, index: Index[T], group: str) -> Mapping[str, T]:
        """Return a live view of a group by UID."""
        return self._indexed[id(index)].members.get(group, _NO_MEMBERS)

    def groups(self, index: Index[T]) -> Collection[str]:
        """Return the groups that have objects."""
        return list(self._indexed[id(index)].members)

    def subscribe(self, handler: Handler[T], *, on_list: Listed | None = None, stand_ins: bool = False) -> None:
        """Call a handler for every change from now on, with `stand_ins` also for those of stand-ins.

        Raises RuntimeError once the cache has had objects, which the handler would have missed.
        """
        self._subscribe(_Subscriber(handler, on_list, stand_ins))

    def subscribe_to(
        self,
        index: Index[T],
        group: str,
        handler: Handler[T],
        *,
        on_list: Listed | None = None,
        stand_ins: bool = False,
    ) -> None:
        """The same for the objects of one group; one that leaves it counts as removed."""
        self._subscribe(_Subscriber(handler, on_list, stand_ins, id(index), group))

    def _subscribe(self, subscriber: _Subscriber[T]) -> None:
        if self._filled:
            raise RuntimeError("the cache already has objects, which a new subscriber would miss")
        self._handlers.append(subscriber)

    # Changes from the reflector and this process's writes

    def upsert(self, item: RawT) -> None:
        """An object was added or changed."""
        uid, version = item.metadata.uid, _number(item.metadata.resource_version)
        self._newest = max(self._newest, version)
        if version < self._own.get(uid, 0):
            return  # from before this process's write
        self._own.pop(uid, None)
        self._take(item)

    def written(self, item: RawT) -> None:
        """Take in the response to this process's write; older versions from the watch are then ignored."""
        version = _number(item.metadata.resource_version)
        if 0 < version <= self._newest:
            return  # the watch was faster, and may have removed it since
        self._own[item.metadata.uid] = version
        self._take(item)

    def upsert_unreadable(self, item: Outline) -> None:
        """An object was added or changed, and can't be decoded."""
        if item.finished or not self._keeps_unread:
            self._drop(item.uid)
        elif item.uid not in self._objects and (raw := self._stand_in(item)) is not None:
            self._enter(item.uid, f"{item.namespace}/{item.name}", item.node)
            self._stood_in.add(item.uid)
            self._change(item.uid, self._derive(raw))

    def remove(self, item: RawT) -> None:
        """An object was deleted. A last version with a deletion timestamp is taken in first."""
        metadata = item.metadata
        self._newest = max(self._newest, _number(metadata.resource_version))
        if metadata.deletion_timestamp and metadata.uid in self._objects and metadata.uid not in self._stood_in:
            self._change(metadata.uid, self._derive(item))
        self._drop(metadata.uid)

    def retain_only(self, items: set[str], list_began: float, version: str = "") -> None:
        """Remove all objects but these UIDs of a complete list, and what this process has written since.

        `list_began` is in monotonic seconds. A version older than the newest one comes from an etcd restored from a
        backup: all objects are then removed and added again.
        """
        self._filled = True
        number = _number(version) or self._newest
        if number < self._newest:
            self._own.clear()
            for uid in list(self._objects):
                self._readd(uid)
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
        """Record an object's name and place. A new place, or another object of that name, is a missed removal."""
        if self._place_of.get(uid, place) != place:
            self._miss(uid)
        before = self._uid_of.get(key)
        if before != uid:
            if before is not None:
                self._miss(before)
            self._uid_of[key], self._key_of[uid] = uid, key
        if place:
            self._place_of[uid] = place

    def _readd(self, uid: str) -> None:
        item, key, place = self._objects[uid], self._key_of[uid], self._place_of.get(uid, "")
        is_stand_in = uid in self._stood_in
        self._miss(uid)
        self._enter(uid, key, place)
        if is_stand_in:
            self._stood_in.add(uid)
        self._change(uid, item)

    def _miss(self, uid: str) -> None:
        """Remove an object whose deletion was missed."""
        self.removals_missed = True
        self._drop(uid)
        self.removals_missed = False

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
        moved = {index: indexed.move(uid, old, new) for index, indexed in self._indexed.items()}
        stands_in = uid in self._stood_in
        for subscriber in self._handlers:
            if stands_in and not subscriber.stand_ins:
                continue
            if subscriber.index is None:
                _call(subscriber.handler, old, new)
                continue
            before, after = moved[subscriber.index]
            if subscriber.group in before or subscriber.group in after:
                was, is_now = old if subscriber.group in before else None, new if subscriber.group in after else None
                _call(subscriber.handler, was, is_now)


class Group(Mapping[str, T]):
    """The objects of one group of an index, by UID; an object that leaves the group counts as removed."""

    def __init__(self, cache: Cache[Any, T], index: Index[T], group: str) -> None:
        self._cache, self._index, self._group = cache, index, group

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __getitem__(self, uid: str) -> T:
        return self._members[uid]

    @property
    def removals_missed(self) -> bool:
        """As in `Cache`."""
        return self._cache.removals_missed

    @property
    def _members(self) -> Mapping[str, T]:
        return self._cache.members(self._index, self._group)

    def subscribe(self, handler: Handler[T], *, on_list: Listed | None = None, stand_ins: bool = False) -> None:
        """As in `Cache`; `on_list` gets the UIDs of all groups."""
        self._cache.subscribe_to(self._index, self._group, handler, on_list=on_list, stand_ins=stand_ins)


def _call(handler: Callable[..., None], *arguments: Any) -> None:
    """Call a handler, and log its exception so that others still run."""
    try:
        handler(*arguments)
    except Exception:
        logger.exception("%s failed to process a change", getattr(handler, "__qualname__", handler))


def _number(version: str) -> int:
    """A resourceVersion as a number, 0 if it is not one."""
    return int(version) if version.isdecimal() else 0
