"""Values by two keys, such as node and pod."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class Index(Generic[ValueT]):
    """Values by group and key. Empty groups are dropped."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, ValueT]] = {}

    def __len__(self) -> int:
        """Number of groups with values."""
        return len(self._groups)

    def groups(self) -> Collection[str]:
        """Return the groups with values."""
        return self._groups.keys()

    def of(self, group: str) -> Mapping[str, ValueT]:
        """Return the values of a group by key, in insertion order."""
        return self._groups.get(group) or MappingProxyType({})

    def put(self, group: str, key: str, value: ValueT) -> None:
        """Set a value."""
        self._groups.setdefault(group, {})[key] = value

    def pop(self, group: str, key: str) -> None:
        """Remove a value, if there is one."""
        values = self._groups.get(group, {})
        values.pop(key, None)
        if not values:
            self._groups.pop(group, None)
