"""A bounded cache by pod in which a namespace with many pods evicts its own entries, not those of others."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Generic, TypeVar

import msgspec

ValueT = TypeVar("ValueT")


class _Entry(msgspec.Struct, Generic[ValueT]):
    value: ValueT
    at: float
    weight: int


class FairCache(Generic[ValueT]):
    """Values by pod UID. When it is full, the namespace with the most weight loses its oldest."""

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._by_namespace: dict[str, OrderedDict[str, _Entry[ValueT]]] = {}
        self._weight_of: dict[str, int] = {}
        self._namespace_of: dict[str, str] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespace_of

    def get(self, uid: str) -> ValueT | None:
        """Return the value of a pod, None if there is none."""
        namespace = self._namespace_of.get(uid)
        return None if namespace is None else self._by_namespace[namespace][uid].value

    def values(self) -> Iterator[ValueT]:
        """Return all values, each namespace's from the oldest on."""
        return (entry.value for entries in self._by_namespace.values() for entry in entries.values())

    def in_turn(self) -> Iterator[ValueT]:
        """Return the oldest value of each namespace, then the second of each, and so on."""
        rounds = zip_longest(*(entries.values() for entries in self._by_namespace.values()))
        return (entry.value for entries in rounds for entry in entries if entry is not None)

    def put(self, namespace: str, uid: str, value: ValueT, now: float, weight: int = 1) -> None:
        """Set a value as the newest."""
        if uid in self._namespace_of:
            self.pop(uid)
        self._by_namespace.setdefault(namespace, OrderedDict())[uid] = _Entry(value, now, weight)
        self._namespace_of[uid] = namespace
        self._weigh(namespace, weight)
        while self._weight > self._max_weight:
            most = max(self._weight_of, key=self._weight_of.__getitem__)
            self.pop(next(iter(self._by_namespace[most])))

    def pop(self, uid: str) -> ValueT | None:
        """Remove and return a pod's value, None if there is none."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return None
        entry = self._by_namespace[namespace].pop(uid)
        self._weigh(namespace, -entry.weight)
        return entry.value

    def clear(self) -> None:
        """Remove all values."""
        for uid in list(self._namespace_of):
            self.pop(uid)

    def expire(self, before: float) -> None:
        """Remove the values put before a monotonic time."""
        for entries in list(self._by_namespace.values()):
            while entries:
                uid, entry = next(iter(entries.items()))
                if entry.at >= before:
                    break
                self.pop(uid)

    def _weigh(self, namespace: str, weight: int) -> None:
        self._weight += weight
        self._weight_of[namespace] = self._weight_of.get(namespace, 0) + weight
        if not self._weight_of[namespace]:
            del self._weight_of[namespace], self._by_namespace[namespace]
