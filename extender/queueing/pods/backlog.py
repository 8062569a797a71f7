"""The queue's pods, maintained from a watch: those behind Kerf's gate, and released ones without a node yet."""

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
from extender.queueing.pods.restrictions import RestrictionKinds

ON_ITS_WAY_S: Final = 30.0
_SEEN_OPEN_WITHIN_S: Final = 15.0
_ANSWERED_WITHIN_S: Final = 15.0
"""More than kube-scheduler's longest back-off of a pod."""
_DOUBTED_WITHIN_S: Final = 5.0
_TRIED_WITHIN_S: Final = 5.0
"""kube-scheduler may reject a pod whose ResourceClaims are allocated until its watch has reported the allocations."""
_MAX_FAULT: Final = 500
_SPARE_KINDS: Final = 64
_PORTION: Final = 16
_MAX_NAME: Final = 253


class Backlog:
    """Entries by UID, fed by a watch of pending pods."""

    def __init__(
        self,
        clock: Callable[[], float],
        changed: Callable[[], None],
        left: Callable[[Entry], None],
        found_open: Callable[[Entry], None] = lambda entry: None,
        check: Callable[[PlanPod], None] = lambda pod: None,
        claims_of: Callable[[Pod], PodClaims] = lambda pod: NO_CLAIMS,
    ) -> None:
        """`left` is called for entries that have their node or are gone, `found_open` for those whose gate another
        process opened, perhaps a previous leader. `check` raises RequestError for a pod that can't be released,
        `claims_of` for one whose ResourceClaims can't be read."""
        self._check = check
        self._claims_of = claims_of
        self._naming: Index[Entry] = Index()  # by a claim's namespace/name and the pod's UID
        self._named: dict[str, Sequence[str]] = {}  # the claims of each pod in `_naming`, by UID
        self._claims_changed: set[str] = set()  # claims changed since their pods were last read
        self._clock = clock
        self._changed = changed
        self._left = left
        self._found_open = found_open
        self.kinds = RestrictionKinds()
        self.entries: dict[str, Entry] = {}

    def waiting(self) -> list[Entry]:
        """Return gated entries that are not being released."""
        return self._in(Stage.GATED)

    def opened(self) -> list[Entry]:
        """Return released entries without a node."""
        return [entry for entry in self.entries.values() if not entry.stage.behind_gate]

    def lost(self) -> list[Entry]:
        """Return released entries that have lost their node."""
        return self._in(Stage.LOST)

    def on_their_way(self, now: float) -> list[Entry]:
        """Return entries that are being released to a node, or were within `ON_ITS_WAY_S`."""
        return [entry for entry in self.entries.values() if entry.on_its_way(now, ON_ITS_WAY_S)]

    def out(self) -> list[Entry]:
        """Return entries that are released, or about to be, unless that was withdrawn."""
        return [entry for entry in self.entries.values() if entry.is_out]

    def refused(self, now: float) -> list[Entry]:
        """Return released entries that kube-scheduler has rejected since."""

        def tried(entry: Entry) -> bool:
            # After a second nomination the condition may be an old one, which kube-scheduler does not write again.
            return not entry.num_lost or now - entry.opened >= ON_ITS_WAY_S or _is_new_refusal(entry)

        opened = [entry for entry in self._in(Stage.OPENED) if entry.node and not is_gated(entry.pod)]
        opened = [entry for entry in opened if not _has_its_devices(entry) or now - entry.opened >= _TRIED_WITHIN_S]
        return [entry for entry in opened if entry.pod.refusal and tried(entry)]

    def unseen(self, now: float) -> list[Entry]:
        """Return opened entries that the watch still reports as gated after `_SEEN_OPEN_WITHIN_S`."""
        opened = [entry for entry in self._in(Stage.OPENED) if is_gated(entry.pod)]
        return [entry for entry in opened if now - entry.opened >= _SEEN_OPEN_WITHIN_S]

    def unanswered(self, now: float) -> list[Entry]:
        """Return renominated entries on which kube-scheduler has not reported since, sooner if it is likely to refuse.

        A nomination does not make kube-scheduler retry a pod rejected for lack of room. A changed node, a deleted pod
        or a withdrawn nomination does, but not a nominated pod that is bound elsewhere.
        """
        opened = self._in(Stage.OPENED)
        renominated = [entry for entry in opened if NOMINATION_LOST in (entry.pod.metadata.annotations or ())]
        silent = [entry for entry in renominated if entry.node and not is_gated(entry.pod) and not entry.pod.refusal]
        return [
            entry
            for entry in silent
            if now - entry.opened >= (_DOUBTED_WITHIN_S if entry.num_refused else _ANSWERED_WITHIN_S)
        ]

    def notice_lost(self, now: float) -> list[Entry]:
        """Make entries that have lost their node since the last call wait for another one; return them."""
        lost = [*self.refused(now), *self.unanswered(now)]
        for entry in lost:
            entry.lose(entry.node)
            self.read_again(entry)
        return lost

    def notice_unserved(self, opted_out: Callable[[Pod], object]) -> None:
        """Make rejected entries that were released without a node wait for a plan, if Kerf should plan them: Kerf now
        has to allocate for their ResourceClaims, or they were released for autoscalers."""
        for entry in self._in(Stage.OPENED):
            refused = not entry.node and not is_gated(entry.pod) and entry.pod.refusal
            claims = entry.planned.claims if entry.planned is not None else ()
            if refused and (claims or is_for_autoscalers(entry.pod)) and not opted_out(entry.pod):
                entry.lose("kube-scheduler")

    def recall(self, now: float) -> list[Entry]:
        """Make the `unseen` entries wait behind the gate again; return them."""
        recalled = self.unseen(now)
        for entry in recalled:
            entry.recall()
        return recalled

    def clear(self) -> None:
        """Forget all entries without calling `left`: a complete list follows."""
        self.entries.clear()
        self._naming = Index()
        self._named.clear()
        self._claims_changed.clear()

    def forget_kinds(self) -> None:
        """Forget restrictions that no entry has any more. This renumbers them, so not while planning."""
        if self.kinds.count <= 2 * len(self.entries) + _SPARE_KINDS:
            return
        self.kinds = RestrictionKinds()
        for entry in self.entries.values():
            if entry.planned is not None:
                self.read_again(entry)

    def naming(self, claim: str) -> list[Entry]:
        """Return the entries whose pods name a ResourceClaim, `namespace/name`."""
        return list(self._naming.of(claim).values())

    def claim_changed(self, claim: str) -> None:
        """Note that a ResourceClaim has changed.

        The pods that name it are read again once, before the next round or decision: there may be thousands of them,
        and any number of changes.
        """
        if self._naming.of(claim):
            self._claims_changed.add(claim)
            self._changed()

    def current(self, entry: Entry) -> PlanPod | None:
        """Return the planned form of an entry with its current claims."""
        if not self._claims_changed.isdisjoint(self._named.get(entry.uid, ())) and not entry.stage.is_written:
            self.read_again(entry)
        return entry.planned

    async def read_claims_again(self, *, all_: bool) -> None:
        """Read entries again whose claims have changed or were undecided; with `all_` all waiting entries with claims.

        Yields to the event loop: there may be thousands of pods, and an author decides how long each takes.
        """
        changed, self._claims_changed = self._claims_changed, set()
        of_changed = {entry.uid for claim in changed for entry in self.naming(claim)}
        num_read = 0
        for entry in list(self.entries.values()):
            if self.entries.get(entry.uid) is not entry:
                continue
            undecided = entry.fault is not None and entry.fault.code is Code.CLAIM_UNDECIDED
            waits = entry.stage.waits or (entry.stage is Stage.OPENED and not entry.node)
            outdated = entry.uid in of_changed and not entry.stage.is_written
            if outdated or undecided or (all_ and waits and entry.pod.spec.resource_claims):
                self.read_again(entry)
                num_read += 1
                if num_read % _PORTION == 0:
                    await give_way()

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of an unbound pod; `new` is None once it is bound or gone."""
        if new is not None:
            self.upsert(new)
        elif old is not None:
            self.remove(old)

    def upsert(self, item: Pod) -> None:
        """Add or update an unbound pod."""
        uid = item.metadata.uid
        known = self.entries.get(uid)
        if item.metadata.deletion_timestamp:
            if known is not None:
                known.pod = item
            self._drop(uid)
        elif known is None:
            released = planned_node(item) and (nominated_node(item) or item.refusal or assigned_node(item))
            if is_gated(item) or released or _needs_plan(item):
                now = self._clock()
                self.entries[uid] = entry = Entry(item, unix_time(item.metadata.creation_timestamp), now)
                self.read_again(entry)
                if not is_gated(item):
                    self._find_open(entry)
                self._changed()
        elif is_gated(item):
            if known.stage.behind_gate:  # else the event is older than the opening by Kerf
                self._update(known, item)
        elif known.stage is Stage.LOST:
            withdrawn = nominated_node(known.pod) and not nominated_node(item)
            self._update(known, item)
            if withdrawn:  # it can be planned now
                self._changed()
        else:
            if item.refusal and not known.pod.refusal:
                self._changed()  # its reservation is free for others
            known.pod = item  # just opened, by Kerf or another client
            if known.stage is Stage.GATED:
                self._find_open(known)

    def remove(self, item: Pod) -> None:
        """Remove a pod that is gone or has its node."""
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
        """Set the claims that a pod names; one generated for it may have been replaced."""
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
        """Parse an entry's pod again, including the gang domain written on it at release."""
        entry.planned, entry.fault, entry.left_to_scheduler = None, None, ""
        self._name(entry, claim_keys(entry.pod))
        if others := other_gates(entry.pod):  # if released, it would hold a node while they stay shut
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
                entry.left_to_scheduler = "kube-scheduler allocates the devices of its ResourceClaims"
                return
            planned = plan_pod(entry.pod, self.kinds, claims)
            self._check(planned)
            entry.planned = planned
        except RequestError as error:
            entry.fault = Code.UNREADABLE.reason(text=str(error))


def _has_its_devices(entry: Entry) -> bool:
    """Whether a pod names ResourceClaims and all are allocated: kube-scheduler deallocates them if the pod can't use
    the devices' nodes."""
    return bool(claim_keys(entry.pod)) and entry.planned is not None and not entry.planned.claims


def _is_new_refusal(entry: Entry) -> bool:
    """Whether a rejection is newer than the last nomination, which removed the older one and noted the losses."""
    note = (entry.pod.metadata.annotations or {}).get(NOMINATION_LOST, "")
    return note.startswith(f"{entry.num_lost}. ") and len(entry.pod.status.conditions or ()) == 1


def _needs_plan(pod: Pod) -> bool:
    """Whether a rejected pod that was released without a node still needs a plan: it has ResourceClaims, or was
    released for autoscalers."""
    planned = is_for_autoscalers(pod) or (PLANNED_BY in (pod.metadata.annotations or {}) and pod.spec.resource_claims)
    return bool(planned and pod.refusal)
