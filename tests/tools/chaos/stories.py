"""A journal as a test tells it: for the judges of what was promised."""

import itertools
from typing import Any

from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Journal


class Story:
    """What a journal is told, one version after the other."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._versions = itertools.count(1)
        self._last: dict[tuple[str, str], Manifest] = {}

    def tell(self, kind: str, name: str, *, metadata: Manifest | None = None, **parts: Any) -> None:
        """An object as it is from now on; its name is its UID, unless `metadata` says others."""
        known = {"name": name, "uid": name, "resourceVersion": str(next(self._versions))}
        self._last[kind, name] = {"metadata": known | dict(metadata or {}), "status": {}, **parts}
        self.journal.told(kind, "MODIFIED", self._last[kind, name])

    def gone(self, kind: str, name: str) -> None:
        """It is no more."""
        last = self._last[kind, name]
        version = {"resourceVersion": str(next(self._versions))}
        self.journal.told(kind, "DELETED", {**last, "metadata": {**last["metadata"], **version}})
