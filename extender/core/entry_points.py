"""Plugins from other packages, by entry point group. Only this module of the core looks at installed packages."""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any


@dataclass(frozen=True)
class Installed:
    """The loaded entry points of a group."""

    group: str
    kind: str
    """Noun for one entry in messages."""
    found: dict[str, Any] = field(default_factory=dict)
    """Loaded objects by name."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why an entry could not be loaded, as a sentence, by name."""

    def load(self, taken: Collection[str]) -> None:
        """Load entries not loaded yet; names in `taken` are Kerf's own and are refused."""
        for entry in _scan(tuple(sys.path))(group=self.group):
            if entry.name in self.found:
                continue
            try:
                if entry.name in taken:
                    raise ValueError(f"Kerf already has a {self.kind} of that name")
                self.found[entry.name] = entry.load()
                self.faults.pop(entry.name, None)
            except (Exception, SystemExit) as error:  # a broken plugin must not affect the others
                package = entry.dist.name if entry.dist else entry.value
                fault = f"{self.kind} {entry.name} of package {package} could not be loaded: {describe_error(error)}"
                self.faults[entry.name] = fault

    def forget(self) -> None:
        """Drop everything that was loaded."""
        self.found.clear()
        self.faults.clear()


@cache
def _scan(path: tuple[str, ...]) -> Callable[..., EntryPoints]:
    """Selects from all entry points; `path` is `sys.path` and only serves as cache key, because the scan is slow."""
    return entry_points().select


def describe_error(error: BaseException) -> str:
    """An error with its type: "ValueError: it is wrong"."""
    return f"{type(error).__name__}: {error}"
