"""The pods that wait behind Kerf's gate, as the watch tells of them, and those let go that have no node yet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from extender.cluster import objects
from extender.cluster.unbound import unix_time
from extender.core.requests import RequestError
from extender.queueing.batches import plan_pod
from extender.queueing.manifests import Pod
from extender.queueing.plans import PlanPod
from extender.queueing.realisations import PLANNED_NODE
from extender.queueing.restrictions import Kinds

ON_ITS_WAY_S: Final = 30.0
_TOLD_WITHIN_S: Final = 15.0
_MAX_NODE_NAME: Final = 253
_MAX_FAULT: Final = 500
_SPARE_KINDS: Final = 64
_MAX_TEXT: Final = 2**16


@dataclass(slots=True, eq=False)
class Entry:
    """A pod that waits, or that was let go and has no node yet."""

    pod: Pod
    planned: PlanPod | None
    """As planners take it; None when it can't be planned."""
    fault: str
    """Why it can't be planned: its request can't be understood, or another gate is shut."""
    created: float
    """Unix time."""
    seen: float
    """Monotonic time of the first sight."""
    opened: float | None = None
    """Monotonic time at which its gate was found open, or opened."""
    by_kerf: bool = False
    """Whether Kerf has let it go, within its order and quotas."""
    going: bool = False
    """Whether it is being let go: planned, its GPUs reserved, and not opened yet."""
    node: str = ""
    """Node that it was nominated for."""
    lost: str = ""
    """That node, and why it was not to be had, nor another one: the pod is planned anew."""
    num_lost: int = 0
    """How often that has happened."""
    reason: str = ""
    """Why it was passed over last."""
    behind_head: bool = False
    """Whether the last plan kept nodes for one that comes before it."""
    kept_back: float | None = None
    """Monotonic time since when it has been passed over for the head, though there is room; None when it is not."""
    num_skips: int = 0
    """How often it was passed over for a new reason."""
    noted: str = ""
    """Reason that is written on the pod."""
    noted_at: float = float("-inf")

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.pod.metadata.uid

    @property
    def waits(self) -> bool:
        """Whether it waits for a plan: behind the gate, or because its node was lost."""
        return not self.going and (self.opened is None or bool(self.lost))

    def opened_after(self, since: float) -> bool:
        """Whether it was let go after a monotonic time, and has not lost its node."""
        return self.opened is not None and self.opened > since and not self.lost


class Backlog:
    """Entries by UID; the sink of a reflector of pending pods."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None], left: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._left = left
        self.kinds = Kinds()
        self.entries: dict[str, Entry] = {}

    def waiting(self) -> list[Entry]:
        """Entries behind the gate that nobody is letting go."""
        return [entry for entry in self.entries.values() if entry.opened is None and not entry.going]

    def opened(self) -> list[Entry]:
        """Entries let go, without a node yet."""
        return [entry for entry in self.entries.values() if entry.opened is not None]

    def on_their_way(self, now: float) -> list[Entry]:
        """Entries that are being let go for a node, or were a short while ago: later they are kube-scheduler's like
        any other pod."""
        return [
            entry
            for entry in self.entries.values()
            if entry.node and (entry.going or entry.opened_after(now - ON_ITS_WAY_S))
        ]

    def lost(self) -> list[Entry]:
        """Entries let go whose node was lost."""
        return [entry for entry in self.entries.values() if entry.lost and entry.waits]

    def notice_lost(self, now: float) -> list[Entry]:
        """Find those whose node was lost since the last time: kube-scheduler has refused them."""
        found = []
        for entry in self.entries.values():
            if entry.opened is None or entry.going or entry.lost or not entry.node or entry.pod.gated:
                continue
            # After a second nomination its word may still be the one from before, and is not written again.
            tried = not entry.num_lost or now - entry.opened >= ON_ITS_WAY_S
            if tried and entry.pod.refusal:
                entry.lost, entry.num_lost = f"{entry.node}: {entry.pod.refusal}", entry.num_lost + 1
                self._read(entry)  # its gang's domain was written into it as it was let go
                found.append(entry)
        return found

    def recall(self, now: float) -> list[Entry]:
        """Entries whose gate was to be opened, and of which the watch has not told that it is: they wait again."""
        recalled = [
            entry
            for entry in self.entries.values()
            if entry.opened is not None and entry.pod.gated and now - entry.opened >= _TOLD_WITHIN_S
        ]
        for entry in recalled:
            entry.opened, entry.node = None, ""
        return recalled

    def forget_kinds(self) -> None:
        """Forget restrictions that no entry has any more. Their numbers change: not while a plan is being made."""
        if self.kinds.count <= 2 * len(self.entries) + _SPARE_KINDS:
            return
        self.kinds = Kinds()
        for entry in self.entries.values():
            if entry.planned is not None:
                entry.planned = replace(entry.planned, kind=self.kinds.kind_of(entry.pod.spec))

    def upsert(self, item: objects.Pod) -> None:
        """A pending pod was added or changed."""
        if not isinstance(item, Pod):
            raise TypeError("pods of the queue are decoded with what the queue reads")
        _shorten(item.metadata)
        uid = item.metadata.uid
        known = self.entries.get(uid)
        if known is None:
            let_go = _planned_node(item) and (_nominated(item) or item.refusal)
            if (item.gated or let_go) and not item.metadata.deletion_timestamp:
                self.entries[uid] = entry = self._entry(item)
                if not item.gated:
                    _let_go_before(entry, self._clock())
                self._changed()
            return
        if item.metadata.deletion_timestamp:
            self._drop(uid)
        elif item.gated:
            if known.opened is None:
                self._update(known, item)
        else:
            known.pod = item  # opened by Kerf a moment ago, or by somebody else
            if known.opened is None:
                _let_go_before(known, self._clock())

    def remove(self, item: objects.Pod) -> None:
        """A pod is gone, or has its node."""
        self._drop(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        """Pods that a complete list does not name are gone, or have their nodes."""
        for uid in self.entries.keys() - items:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._left(entry)
            self._changed()

    def _update(self, known: Entry, item: Pod) -> None:
        old, new = known.pod.metadata, item.metadata
        same = (old.labels, item.spec) == (new.labels, known.pod.spec)
        known.pod = item
        if not same or _asked(old.annotations) != _asked(new.annotations):
            self._read(known)
            self._changed()

    def _entry(self, pod: Pod) -> Entry:
        entry = Entry(pod, None, "", unix_time(pod.metadata.creation_timestamp), self._clock())
        self._read(entry)
        return entry

    def _read(self, entry: Entry) -> None:
        """What its pod asks for now."""
        entry.planned, entry.fault = None, ""
        if others := entry.pod.other_gates:  # let go, it would hold a node for as long as they stay shut
            entry.fault = f"another gate is shut: {', '.join(others)}"[:_MAX_FAULT]
            return
        try:
            entry.planned = plan_pod(entry.pod, self.kinds)
        except RequestError as error:
            entry.fault = str(error)


def _shorten(metadata: objects.Metadata) -> None:
    """Let go of what is longer than anything that is read: pods wait for long, and their authors choose how much."""
    metadata.annotations = {key: text[:_MAX_TEXT] for key, text in (metadata.annotations or {}).items()}


def _planned_node(pod: Pod) -> str:
    return (pod.metadata.annotations or {}).get(PLANNED_NODE, "")


def _nominated(pod: Pod) -> str:
    """The node that a Kerf before this one, or one that led meanwhile, has let a pod go for; "" for none.

    An author may write the annotation. The nomination beside it takes the right to write `pods/status`.
    """
    planned = _planned_node(pod)
    return planned if planned == pod.status.nominated_node_name else ""


def _let_go_before(entry: Entry, now: float) -> None:
    """A gate is found open. kube-scheduler takes the nomination of a pod away that it refuses: then the annotation is
    believed as far as that the pod waits for a plan as one behind the gate does, and holds nothing meanwhile."""
    entry.opened, entry.node = now, _nominated(entry.pod)
    entry.by_kerf = bool(entry.node)
    if not entry.node and _planned_node(entry.pod) and entry.pod.refusal:
        entry.lost, entry.num_lost = f"{_planned_node(entry.pod)[:_MAX_NODE_NAME]}: {entry.pod.refusal}", 1


def _asked(annotations: dict[str, str] | None) -> dict[str, str]:
    """What the pod's author says: all but what Kerf itself writes while it waits."""
    return {key: value for key, value in (annotations or {}).items() if not key.startswith("kerf.dev/skipped")}
