"""The pods that wait behind Kerf's gate, as the watch tells of them, and those let go that have no node yet."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from extender.core.resources.requests import RequestError
from extender.kube.objects import Metadata, Pod, unix_time
from extender.planning.wait_reasons import Code
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import nominated_node, planned_node, written_by_author
from extender.queueing.pods.objects import is_gated, other_gates
from extender.queueing.pods.restrictions import Kinds

ON_ITS_WAY_S: Final = 30.0
_SEEN_OPEN_WITHIN_S: Final = 15.0
_MAX_FAULT: Final = 500
_SPARE_KINDS: Final = 64
_MAX_TEXT: Final = 2**16


class Backlog:
    """Entries by UID; the sink of a reflector of pending pods."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None], left: Callable[[Entry], None]) -> None:
        """`left` hears of entries that have their node, or are gone."""
        self._clock = clock
        self._changed = changed
        self._left = left
        self.kinds = Kinds()
        self.entries: dict[str, Entry] = {}

    def waiting(self) -> list[Entry]:
        """Entries behind the gate that nobody is letting go."""
        return self._in(Stage.GATED)

    def opened(self) -> list[Entry]:
        """Entries let go, without a node yet."""
        return [entry for entry in self.entries.values() if not entry.stage.behind_gate]

    def lost(self) -> list[Entry]:
        """Entries let go whose node was lost."""
        return self._in(Stage.LOST)

    def on_their_way(self, now: float) -> list[Entry]:
        """Entries that are being let go for a node, or were a short while ago: later they are kube-scheduler's like
        any other pod."""
        return [entry for entry in self.entries.values() if entry.on_its_way(now, ON_ITS_WAY_S)]

    def notice_lost(self, now: float) -> list[Entry]:
        """Find those whose node was lost since the last time: kube-scheduler has refused them."""
        found = []
        for entry in self._in(Stage.OPENED):
            # After a second nomination its word may still be the one from before, and is not written again.
            tried = not entry.num_lost or now - entry.opened >= ON_ITS_WAY_S
            if tried and entry.node and not is_gated(entry.pod) and entry.pod.refusal:
                entry.lose(entry.node)
                self._read(entry)  # its gang's domain was written into it as it was let go
                found.append(entry)
        return found

    def recall(self, now: float) -> list[Entry]:
        """Entries whose gate was opened, and of which the watch has not told that it is: they wait again."""
        recalled = [
            entry
            for entry in self._in(Stage.OPENED)
            if is_gated(entry.pod) and now - entry.opened >= _SEEN_OPEN_WITHIN_S
        ]
        for entry in recalled:
            entry.recall()
        return recalled

    def forget_kinds(self) -> None:
        """Forget restrictions that no entry has any more. Their numbers change: not while a plan is being made."""
        if self.kinds.count <= 2 * len(self.entries) + _SPARE_KINDS:
            return
        self.kinds = Kinds()
        for entry in self.entries.values():
            if entry.planned is not None:
                entry.planned = replace(entry.planned, kind=self.kinds.kind_of(entry.pod.spec))

    def upsert(self, item: Pod) -> None:
        """A pending pod was added or changed."""
        _shorten(item.metadata)
        uid = item.metadata.uid
        known = self.entries.get(uid)
        if item.metadata.deletion_timestamp:
            self._drop(uid)
        elif known is None:
            let_go = planned_node(item) and (nominated_node(item) or item.refusal)
            if is_gated(item) or let_go:
                now = self._clock()
                self.entries[uid] = entry = Entry(item, unix_time(item.metadata.creation_timestamp), now)
                self._read(entry)
                if not is_gated(item):
                    entry.find_open(now)
                self._changed()
        elif is_gated(item):
            if known.stage.behind_gate:  # else it is from before Kerf has opened it
                self._update(known, item)
        else:
            known.pod = item  # opened by Kerf a moment ago, or by somebody else
            if known.stage is Stage.GATED:
                known.find_open(self._clock())

    def remove(self, item: Pod) -> None:
        """A pod is gone, or has its node."""
        self._drop(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        """Pods that a complete list does not name are gone, or have their nodes."""
        for uid in self.entries.keys() - items:
            self._drop(uid)

    def _in(self, stage: Stage) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.stage is stage]

    def _drop(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._left(entry)
            self._changed()

    def _update(self, known: Entry, item: Pod) -> None:
        old, new = known.pod.metadata, item.metadata
        same = (old.labels, item.spec) == (new.labels, known.pod.spec)
        known.pod = item
        if not same or written_by_author(old.annotations) != written_by_author(new.annotations):
            self._read(known)
            self._changed()

    def _read(self, entry: Entry) -> None:
        """What its pod asks for now."""
        entry.planned = entry.fault = None
        if others := other_gates(entry.pod):  # let go, it would hold a node for as long as they stay shut
            entry.fault = Code.OTHER_GATE.reason(gates=", ".join(others)[:_MAX_FAULT])
            return
        try:
            entry.planned = plan_pod(entry.pod, self.kinds)
        except RequestError as error:
            entry.fault = Code.UNREADABLE.reason(text=str(error))


def _shorten(metadata: Metadata) -> None:
    """Let go of what is longer than anything that is read: pods wait for long, and their authors choose how much."""
    metadata.annotations = {key: text[:_MAX_TEXT] for key, text in (metadata.annotations or {}).items()}
