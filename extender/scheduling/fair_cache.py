"""What is remembered of pods, bounded, so that the author of many pods has his own forgotten and not others'."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class _Kept(Generic[ValueT]):
    value: ValueT
    at: float
    weight: int


class FairCache(Generic[ValueT]):
    """Values by pod UID. When it is full, the namespace that has most in it gives its oldest up."""

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._of: dict[str, OrderedDict[str, _Kept[ValueT]]] = {}
        self._weight_of: dict[str, int] = {}
        self._namespace_of: dict[str, str] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespace_of

    def get(self, uid: str) -> ValueT | None:
        """The value of a pod, None when there is none."""
        namespace = self._namespace_of.get(uid)
        return None if namespace is None else self._of[namespace][uid].value

    def values(self) -> Iterator[ValueT]:
        """All of them, those of a namespace from the oldest on."""
        return (kept.value for of_namespace in self._of.values() for kept in of_namespace.values())

    def in_turn(self) -> Iterator[ValueT]:
        """The oldest of each namespace, then the second of each, and so on."""
        rounds = zip_longest(*(of_namespace.values() for of_namespace in self._of.values()))
        return (kept.value for of_all in rounds for kept in of_all if kept is not None)

    def of(self, namespace: str) -> Iterator[tuple[str, ValueT]]:
        """UIDs and values of a namespace."""
        return ((uid, kept.value) for uid, kept in self._of.get(namespace, {}).items())

    def put(self, namespace: str, uid: str, value: ValueT, now: float, weight: int = 1) -> None:
        """Keep a value, as the newest."""
        self.pop(uid)
        self._of.setdefault(namespace, OrderedDict())[uid] = _Kept(value, now, weight)
        self._namespace_of[uid] = namespace
        self._weigh(namespace, weight)
        while self._weight > self._max_weight:
            most = max(self._weight_of, key=self._weight_of.__getitem__)
            self.pop(next(iter(self._of[most])))

    def pop(self, uid: str) -> ValueT | None:
        """Forget a pod; what was kept of it."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return None
        kept = self._of[namespace].pop(uid)
        self._weigh(namespace, -kept.weight)
        return kept.value

    def clear(self) -> None:
        """Forget all."""
        for uid in list(self._namespace_of):
            self.pop(uid)

    def expire(self, before: float) -> None:
        """Forget what was put before a time."""
        for of_namespace in list(self._of.values()):
            while of_namespace:
                uid, kept = next(iter(of_namespace.items()))
                if kept.at >= before:
                    break
                self.pop(uid)

    def _weigh(self, namespace: str, weight: int) -> None:
        self._weight += weight
        self._weight_of[namespace] = self._weight_of.get(namespace, 0) + weight
        if not self._weight_of[namespace]:
            del self._weight_of[namespace], self._of[namespace]
