"""Objects by UID as a watch tells of them: the sink of a reflector, for whoever needs no more than the newest ones."""

from typing import Generic, TypeVar

from extender.kube import objects

T = TypeVar("T", bound=objects.Named)


class Store(Generic[T]):
    """The objects; a subclass says what their changes mean."""

    def __init__(self) -> None:
        self.by_uid: dict[str, T] = {}

    def changed(self, before: T | None, after: T | None) -> None:
        """An object was added (`before` is None), changed, or is gone (`after` is None)."""

    def upsert(self, item: T) -> None:
        """An object was added or changed."""
        before = self.by_uid.get(item.metadata.uid)
        self.by_uid[item.metadata.uid] = item
        self.changed(before, item)

    def remove(self, item: T) -> None:
        """An object is gone."""
        self._drop(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        """Objects that a complete list does not name are gone."""
        for uid in self.by_uid.keys() - items:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        if (before := self.by_uid.pop(uid, None)) is not None:
            self.changed(before, None)
