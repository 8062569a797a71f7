"""Lines of an account: one for each namespace, owner and GPU model, bounded.

Users choose the names of owners, and some those of namespaces, so a namespace gets only a share of the lines. Owners
beyond it count under OTHER of their namespace. These lines have separate room, so that busy namespaces displace no
other; beyond that too, owners count under OTHER of all namespaces.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

OTHER: Final = "(other)"
"""No valid name of a namespace or an owner."""


class Key(NamedTuple):
    """Identifies a line."""

    namespace: str
    owner: str
    gpu_model: str


@dataclass(eq=False)
class Lines:
    """Lines by number. Numbers of closed lines are reused."""

    most: int
    """Most lines of owners. Besides, half as many of namespaces' OTHER, and one of OTHER for each GPU model."""
    most_each: int
    """Most lines of owners of a namespace."""
    always: frozenset[str] = frozenset()
    """Namespaces that always get lines."""
    keys: list[Key | None] = field(default_factory=list, init=False)
    _number_of: dict[Key, int] = field(default_factory=dict, init=False)
    _of_namespace: dict[str, int] = field(default_factory=dict, init=False)
    """Lines of owners by namespace."""
    _num_of_owners: int = field(default=0, init=False)
    _free: list[int] = field(default_factory=list, init=False)
    opened: list[int] = field(default_factory=list, init=False)
    """Numbers of lines opened since the list was last cleared."""

    def number(self, key: Key) -> int:
        """The line that a key counts on, opened if necessary."""
        for candidate in (key, Key(key.namespace, OTHER, key.gpu_model)):
            if (known := self._number_of.get(candidate)) is not None:
                return known
            if self._has_room(candidate):
                return self._open(candidate)
        rest = Key(OTHER, OTHER, key.gpu_model)
        known = self._number_of.get(rest)
        return self._open(rest) if known is None else known

    def close(self, number: int) -> None:
        """Close a line; its key opens a new one if it is used again."""
        key = self.keys[number]
        if key is not None:
            self.keys[number] = None
            del self._number_of[key]
            self._free.append(number)
            if key.owner != OTHER:
                self._num_of_owners -= 1
                self._of_namespace[key.namespace] -= 1
                if not self._of_namespace[key.namespace]:
                    del self._of_namespace[key.namespace]

    def _has_room(self, key: Key) -> bool:
        always = key.namespace in self.always
        if key.owner == OTHER:
            return always or len(self._number_of) - self._num_of_owners < self.most // 2
        return self._of_namespace.get(key.namespace, 0) < self.most_each and (always or self._num_of_owners < self.most)

    def _open(self, key: Key) -> int:
        number = self._free.pop() if self._free else len(self.keys)
        if number == len(self.keys):
            self.keys.append(None)
        self.keys[number] = key
        self._number_of[key] = number
        if key.owner != OTHER:
            self._num_of_owners += 1
            self._of_namespace[key.namespace] = self._of_namespace.get(key.namespace, 0) + 1
        self.opened.append(number)
        return number
