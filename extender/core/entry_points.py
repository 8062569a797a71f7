"""What other packages bring, by a group of entry points. This is the one place of the core that looks at what is
installed."""

from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True)
class Installed:
    """What was loaded of a group."""

    group: str
    kind: str
    """What each is, in a word."""
    found: dict[str, Any] = field(default_factory=dict)
    """By name."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why each that could not be loaded could not, in a sentence, by name."""

    def load(self, taken: Collection[str]) -> None:
        """Load what is installed by now; `taken` are names of Kerf's own."""
        for entry in entry_points(group=self.group):
            if entry.name in self.found:
                continue
            try:
                if entry.name in taken:
                    raise ValueError(f"Kerf already has a {self.kind} of that name")
                self.found[entry.name] = entry.load()
                self.faults.pop(entry.name, None)
            except (Exception, SystemExit) as error:  # whatever it is, it costs that one only
                package = entry.dist.name if entry.dist else entry.value
                told = f"{self.kind} {entry.name} of package {package} could not be loaded: {told_of(error)}"
                self.faults[entry.name] = told

    def forget(self) -> None:
        """As before `load`."""
        self.found.clear()
        self.faults.clear()


def told_of(error: BaseException) -> str:
    """An error in words: "ValueError: it is wrong"."""
    return f"{type(error).__name__}: {error}"
