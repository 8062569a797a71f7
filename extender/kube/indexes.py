"""Values by two keys: what several parts keep by node, by pool or by namespace."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class Index(Generic[ValueT]):
    """Values by group and key. Groups without values take no room."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, ValueT]] = {}

    def __len__(self) -> int:
        """How many groups have values."""
        return len(self._groups)

    def groups(self) -> Collection[str]:
        """Groups that have values."""
        return self._groups.keys()

    def of(self, group: str) -> Mapping[str, ValueT]:
        """The values of a group by key, in the order in which their keys came."""
        return self._groups.get(group) or MappingProxyType({})

    def put(self, group: str, key: str, value: ValueT) -> None:
        """Set a value."""
        self._groups.setdefault(group, {})[key] = value

    def pop(self, group: str, key: str) -> None:
        """Forget a value, if there is one."""
        values = self._groups.get(group, {})
        values.pop(key, None)
        if not values:
            self._groups.pop(group, None)
