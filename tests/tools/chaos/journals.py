"""All that the API server has told of pods, claims and slices in a run, in the order in which it was written.

Three watches tell it, each at its own pace. Objects of one etcd have resource versions from one counter, so that what
they have told can be put in order afterwards, and each moment be judged as it was.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.tools.chaos.holdings import Manifest


@dataclass(frozen=True, slots=True)
class Event:
    """One version of an object, or its end."""

    version: int
    kind: str
    uid: str
    manifest: Manifest
    """As it was last, where it is gone."""
    gone: bool = False
    at_s: float = 0.0
    """When it was told, by the monotonic clock."""


@dataclass
class Journal:
    """What was told so far."""

    _events: list[Event] = field(default_factory=list)
    _known: dict[str, dict[str, Event]] = field(default_factory=lambda: defaultdict(dict))
    _read: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _gaps: list[tuple[int, int]] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic

    def told(self, kind: str, event: str, manifest: Manifest) -> None:
        """A watch has told of an object of a kind."""
        metadata = manifest["metadata"]
        version, gone = int(metadata["resourceVersion"]), event == "DELETED"
        self._add(Event(version, kind, metadata["uid"], manifest, gone, self.clock()))

    def listed(self, kind: str, version: str, manifests: Iterable[Manifest]) -> None:
        """A complete list has come: what happened between the last event and now is not known, only what is there."""
        found = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
        if self._read[kind]:
            self._gaps.append((self._read[kind], int(version)))
        for uid, last in list(self._known[kind].items()):
            if uid not in found:
                self._add(Event(int(version), kind, uid, last.manifest, gone=True, at_s=self.clock()))
        for manifest in found.values():
            self.told(kind, "ADDED", manifest)
        self._read[kind] = max(self._read[kind], int(version))

    def begin(self) -> None:
        """Forget what is over: a run begins."""
        self._events = [event for known in self._known.values() for event in known.values()]
        self._gaps.clear()

    def copy(self) -> "Journal":
        """What was told up to now."""
        return Journal(list(self._events), _gaps=list(self._gaps))

    def __iter__(self) -> Iterator[Event]:
        return iter(sorted(self._events, key=lambda event: event.version))

    def missed(self, version: int) -> bool:
        """Whether what was written at about this version may not have been told."""
        return any(begin <= version <= end for begin, end in self._gaps)

    def _add(self, event: Event) -> None:
        self._read[event.kind] = max(self._read[event.kind], event.version)
        known = self._known[event.kind]
        if event.uid in known and known[event.uid].version >= event.version:
            return
        if event.gone:
            known.pop(event.uid, None)
        else:
            known[event.uid] = event
        self._events.append(event)
