"""The pods that wait behind Kerf's gate, as the watch tells of them, and those let go that have no node yet."""

from collections.abc import Callable, Sequence
from typing import Final

from extender.core.resources.requests import RequestError
from extender.dra.pod_claims import NO_CLAIMS, PodClaims, claim_keys
from extender.kube.background import give_way
from extender.kube.indexes import Index
from extender.kube.objects import Pod, unix_time
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import Code
from extender.plugins.pods import assigned_node
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import (
    NOMINATION_LOST,
    PLANNED_BY,
    is_for_autoscalers,
    nominated_node,
    planned_node,
    written_by_author,
)
from extender.queueing.pods.objects import is_gated, other_gates
from extender.queueing.pods.restrictions import Kinds

ON_ITS_WAY_S: Final = 30.0
_SEEN_OPEN_WITHIN_S: Final = 15.0
_ANSWERED_WITHIN_S: Final = 15.0
"""More than the longest that kube-scheduler lets a pod wait for its next try."""
_DOUBTED_WITHIN_S: Final = 5.0
_TRIED_WITHIN_S: Final = 5.0
"""A pod whose ResourceClaims have their devices may be refused by a kube-scheduler that does not know of these yet."""
_MAX_FAULT: Final = 500
_SPARE_KINDS: Final = 64
_PORTION: Final = 16
_MAX_NAME: Final = 253


class Backlog:
    """Entries by UID; the sink of a reflector of pending pods."""

    def __init__(
        self,
        clock: Callable[[], float],
        changed: Callable[[], None],
        left: Callable[[Entry], None],
        found_open: Callable[[Entry], None] = lambda entry: None,
        check: Callable[[PlanPod], None] = lambda pod: None,
        claims_of: Callable[[Pod], PodClaims] = lambda pod: NO_CLAIMS,
    ) -> None:
        """`left` hears of entries that have their node, or are gone; `found_open` of those whose gate was opened by
        somebody else, a Kerf before this one perhaps. `check` raises RequestError for a pod that can't be let go,
        `claims_of` for one whose ResourceClaims can't be read."""
        self._check = check
        self._claims_of = claims_of
        self._naming: Index[Entry] = Index()  # by a claim's namespace/name and uid
        self._named: dict[str, Sequence[str]] = {}  # what is in it, by uid
        self._claims_changed: set[str] = set()  # since those who name them were read
        self._clock = clock
        self._changed = changed
        self._left = left
        self._found_open = found_open
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

    def out(self) -> list[Entry]:
        """Entries let go, or about to be, of which that was not taken back."""
        return [entry for entry in self.entries.values() if entry.is_out]

    def refused(self, now: float) -> list[Entry]:
        """Entries let go whose node was lost: kube-scheduler has refused them."""

        def tried(entry: Entry) -> bool:
            # After a second nomination its word may still be the one from before, and is not written again.
            return not entry.num_lost or now - entry.opened >= ON_ITS_WAY_S or _is_news(entry)

        opened = [entry for entry in self._in(Stage.OPENED) if entry.node and not is_gated(entry.pod)]
        opened = [entry for entry in opened if not _has_its_devices(entry) or now - entry.opened >= _TRIED_WITHIN_S]
        return [entry for entry in opened if entry.pod.refusal and tried(entry)]

    def unseen(self, now: float) -> list[Entry]:
        """Entries whose gate was opened, and of which the watch has not told that it is."""
        opened = [entry for entry in self._in(Stage.OPENED) if is_gated(entry.pod)]
        return [entry for entry in opened if now - entry.opened >= _SEEN_OPEN_WITHIN_S]

    def unanswered(self, now: float) -> list[Entry]:
        """Entries nominated anew a while ago, of which kube-scheduler has said nothing since; a shorter while ago where
        it is likely to refuse them.

        A nomination does not make it look again at a pod that it refused for want of room. A node that changes does,
        a pod that goes, or a nomination that is taken back; not a nominated pod that is bound elsewhere.
        """
        anew = [entry for entry in self._in(Stage.OPENED) if NOMINATION_LOST in (entry.pod.metadata.annotations or ())]
        silent = [entry for entry in anew if entry.node and not is_gated(entry.pod) and not entry.pod.refusal]
        return [
            entry
            for entry in silent
            if now - entry.opened >= (_DOUBTED_WITHIN_S if entry.num_refused else _ANSWERED_WITHIN_S)
        ]

    def notice_lost(self, now: float) -> list[Entry]:
        """Find those whose node was lost since the last time: they wait for another one."""
        found = [*self.refused(now), *self.unanswered(now)]
        for entry in found:
            entry.lose(entry.node)
            self.read_again(entry)
        return found

    def notice_unserved(self, opted_out: Callable[[Pod], object]) -> None:
        """Find those let go without a node, and refused, that are Kerf's to plan: because nobody else has devices for
        their ResourceClaims by now, or because they were let go for autoscalers."""
        for entry in self._in(Stage.OPENED):
            refused = not entry.node and not is_gated(entry.pod) and entry.pod.refusal
            claims = entry.planned.claims if entry.planned is not None else ()
            if refused and (claims or is_for_autoscalers(entry.pod)) and not opted_out(entry.pod):
                entry.lose("kube-scheduler")

    def recall(self, now: float) -> list[Entry]:
        """Those of which nobody tells that they are open wait behind the gate again."""
        recalled = self.unseen(now)
        for entry in recalled:
            entry.recall()
        return recalled

    def clear(self) -> None:
        """Forget all entries, of which `left` does not hear: a complete list follows."""
        self.entries.clear()
        self._naming = Index()
        self._named.clear()
        self._claims_changed.clear()

    def forget_kinds(self) -> None:
        """Forget restrictions that no entry has any more. Their numbers change: not while a plan is being made."""
        if self.kinds.count <= 2 * len(self.entries) + _SPARE_KINDS:
            return
        self.kinds = Kinds()
        for entry in self.entries.values():
            if entry.planned is not None:
                self.read_again(entry)

    def naming(self, claim: str) -> list[Entry]:
        """Entries whose pods name a ResourceClaim, by `namespace/name`."""
        return list(self._naming.of(claim).values())

    def claim_changed(self, claim: str) -> None:
        """A ResourceClaim is not as it was. Whoever names it is read again before the next round or decision, once:
        thousands may name it, and its author may change it as often as they like."""
        if self._naming.of(claim):
            self._claims_changed.add(claim)
            self._changed()

    def current(self, entry: Entry) -> PlanPod | None:
        """What an entry asks as its claims are now."""
        if not self._claims_changed.isdisjoint(self._named.get(entry.uid, ())) and not entry.stage.is_written:
            self.read_again(entry)
        return entry.planned

    async def read_claims_again(self, *, all_: bool) -> None:
        """Read those again whose claims have changed, or of whose claims more is known; with `all_` all that wait:
        what claims may be given has changed.

        In portions: each of thousands of pods takes as long as its author wants.
        """
        changed, self._claims_changed = self._claims_changed, set()
        of_changed = {entry.uid for claim in changed for entry in self.naming(claim)}
        num_read = 0
        for entry in list(self.entries.values()):
            if self.entries.get(entry.uid) is not entry:
                continue
            undecided = entry.fault is not None and entry.fault.code is Code.CLAIM_UNDECIDED
            waits = entry.stage.waits or (entry.stage is Stage.OPENED and not entry.node)
            behind = entry.uid in of_changed and not entry.stage.is_written
            if behind or undecided or (all_ and waits and entry.pod.spec.resource_claims):
                self.read_again(entry)
                num_read += 1
                if num_read % _PORTION == 0:
                    await give_way()

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod without a node was added or has changed; or it has its node, or is gone."""
        if new is not None:
            self.upsert(new)
        elif old is not None:
            self.remove(old)

    def upsert(self, item: Pod) -> None:
        """A pending pod was added or changed."""
        uid = item.metadata.uid
        known = self.entries.get(uid)
        if item.metadata.deletion_timestamp:
            if known is not None:
                known.pod = item
            self._drop(uid)
        elif known is None:
            let_go = planned_node(item) and (nominated_node(item) or item.refusal or assigned_node(item))
            if is_gated(item) or let_go or _was_left(item):
                now = self._clock()
                self.entries[uid] = entry = Entry(item, unix_time(item.metadata.creation_timestamp), now)
                self.read_again(entry)
                if not is_gated(item):
                    self._find_open(entry)
                self._changed()
        elif is_gated(item):
            if known.stage.behind_gate:  # else it is from before Kerf has opened it
                self._update(known, item)
        elif known.stage is Stage.LOST:
            gone = nominated_node(known.pod) and not nominated_node(item)
            self._update(known, item)
            if gone:  # it waited for that
                self._changed()
        else:
            if item.refusal and not known.pod.refusal:
                self._changed()  # what is kept for it is others'
            known.pod = item  # opened by Kerf a moment ago, or by somebody else
            if known.stage is Stage.GATED:
                self._find_open(known)

    def remove(self, item: Pod) -> None:
        """A pod is gone, or has its node."""
        self._drop(item.metadata.uid)

    def _find_open(self, entry: Entry) -> None:
        entry.find_open(self._clock())
        self._found_open(entry)

    def _in(self, stage: Stage) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.stage is stage]

    def _drop(self, uid: str) -> None:
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._name(entry, ())
            self._left(entry)
            self._changed()

    def _name(self, entry: Entry, claims: Sequence[str]) -> None:
        """A pod names these claims: one that was made for it may be another by now."""
        for claim in self._named.pop(entry.uid, ()):
            self._naming.pop(claim, entry.uid)
        for claim in claims:
            self._naming.put(claim, entry.uid, entry)
        if claims:
            self._named[entry.uid] = claims

    def _update(self, known: Entry, item: Pod) -> None:
        old, new = known.pod.metadata, item.metadata
        named = item.status.resource_claim_statuses == known.pod.status.resource_claim_statuses
        same = named and (old.labels, item.spec) == (new.labels, known.pod.spec)
        known.pod = item
        if not same or written_by_author(old.annotations) != written_by_author(new.annotations):
            self.read_again(known)
            self._changed()

    def read_again(self, entry: Entry) -> None:
        """What its pod asks for now: the domain of its gang, too, which is written into it as it is let go."""
        entry.planned, entry.fault, entry.left = None, None, ""
        self._name(entry, claim_keys(entry.pod))
        if others := other_gates(entry.pod):  # let go, it would hold a node for as long as they stay shut
            entry.fault = Code.OTHER_GATE.reason(gates=", ".join(others)[:_MAX_FAULT])
            return
        try:
            claims = self._claims_of(entry.pod)
            if claims.missing:
                entry.fault = Code.CLAIM_MISSING.reason(claim=claims.missing[:_MAX_NAME])
                return
            if claims.undecided:
                entry.fault = Code.CLAIM_UNDECIDED.reason(claim=claims.undecided)
                return
            if claims.left and claims.asked is None:
                entry.left = "kube-scheduler allocates the devices of its ResourceClaims"
                return
            planned = plan_pod(entry.pod, self.kinds, claims)
            self._check(planned)
            entry.planned = planned
        except RequestError as error:
            entry.fault = Code.UNREADABLE.reason(text=str(error))


def _has_its_devices(entry: Entry) -> bool:
    """Whether a pod names ResourceClaims, and all of them have devices: kube-scheduler takes these away from one that
    can't be had where they are."""
    return bool(claim_keys(entry.pod)) and entry.planned is not None and not entry.planned.claims


def _is_news(entry: Entry) -> bool:
    """Whether a refusal came after the last nomination: that took back what was said before, and counts losses."""
    told = (entry.pod.metadata.annotations or {}).get(NOMINATION_LOST, "")
    return told.startswith(f"{entry.num_lost}. ") and len(entry.pod.status.conditions or ()) == 1


def _was_left(pod: Pod) -> bool:
    """Whether a pod was let go without a node, kube-scheduler has refused it, and it is still Kerf's to plan: one with
    ResourceClaims, or one for autoscalers."""
    known = is_for_autoscalers(pod) or (PLANNED_BY in (pod.metadata.annotations or {}) and pod.spec.resource_claims)
    return bool(known and pod.refusal)
