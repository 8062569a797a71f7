"""The list of waiting pods for people and programs: who waits where, since when, and what comes nearest to a node.

Who has no node: every pod that asks for GPUs, whoever keeps it waiting, with its age and why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.fit.checks import TABLE
from extender.core.fit.reasons import Remedy
from extender.core.occupancies import ObservedRules
from extender.core.resources.requests import GpuRequest, PodRequest, RequestError
from extender.explain.answers import PendingList, PendingPod, WaitingPod
from extender.explain.explanations import RejectionLog
from extender.explain.fixes import Fixes, candidates
from extender.explain.holders import who_of
from extender.explain.sentences.nearest import Nearest, nearest_of
from extender.explain.sentences.pending import Lacking, Standing, not_bound, of_claim, why_pending
from extender.explain.sentences.remedies import CORRECT, to_json
from extender.explain.sentences.words import bounded, of_stopped_agent
from extender.kube.objects import unix_time
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import GATE
from extender.scheduling.callers import Unasked
from extender.scheduling.placer import Placement, Placer, PodIdentity
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods
from extender.scheduling.waking import Waker

_Turn = tuple[int, float, str]
"""Sorts by whose turn it is: priority, highest first, then Unix time of creation, then `namespace/name`."""


@dataclass(frozen=True)
class Waitlist:
    """What the API server tells of pods without a node, with what Kerf itself knows of them."""

    unbound: UnboundPods
    waker: Waker
    rejections: RejectionLog
    backlog: Backlog | None
    """None when the queue is off."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    unasked: Unasked | None = None
    """None where nobody looks whether kube-scheduler asks."""
    passed: Callable[[str], str] = lambda uid: ""
    """Why a pod should have waited in the queue that has passed it by; "" for all others."""

    def num_unattended(self) -> int:
        """Pods behind the queue's gate while there is no queue: nobody takes it off."""
        return sum(self._is_unattended(pod) for pod in self.unbound.all())

    def _is_unattended(self, pod: UnboundPod) -> bool:
        return self.backlog is None and pod.gated and GATE in pod.why

    def num_pods(self) -> int:
        """How many wait."""
        return len(self._turns())

    def longest(self) -> dict[str, float]:
        """Age in seconds of the oldest that waits, by namespace."""
        oldest: dict[str, float] = {}
        for _, created, pod in self._turns().values():
            namespace = pod.partition("/")[0]
            oldest[namespace] = min(created, oldest.get(namespace, created))
        now = self.wall_clock()
        return {namespace: max(now - created, 0.0) for namespace, created in oldest.items()}

    def listing(self, most: int) -> Mapping[str, object]:
        """How many wait, whether there may be more of whom nothing is kept, and those whose turn comes first."""
        total, first = self.first(most)
        return {"total": total, "more": self.unbound.full, "items": [waiting.item for waiting in first]}

    def first(self, most: int, namespace: str = "") -> tuple[int, list["Waiting"]]:
        """How many wait, in all namespaces for "", and those whose turn comes first."""
        turns = self._turns()
        if namespace:
            turns = {uid: turn for uid, turn in turns.items() if turn[2].startswith(f"{namespace}/")}
        first = nsmallest(most, turns.items(), key=lambda item: item[1])
        rejected, queued = self._rejected(), self._queued()
        return len(turns), [self._waiting(uid, turn, rejected.get(uid), queued.get(uid)) for uid, turn in first]

    def _turns(self) -> dict[str, _Turn]:
        """By UID. Rejected pods that the watch has not told of yet count too, or are of whoever calls Kerf by hand."""
        ahead = self.wall_clock() - self.clock()
        turns: dict[str, _Turn] = {
            uid: (-request.priority, unix_time(pod.created) or first + ahead, pod.key)
            for uid, (pod, request, first) in self._rejected().items()
        }
        turns |= {uid: (-_priority(entry), entry.created, entry.pod.key) for uid, entry in self._queued().items()}
        turns |= {pod.uid: (-pod.priority, pod.created, pod.key) for pod in self.unbound.all()}
        return turns

    def _rejected(self) -> dict[str, tuple[PodIdentity, PodRequest, float]]:
        return {pod.uid: (pod, request, first) for pod, request, first in self.waker.waiting()}

    def _queued(self) -> dict[str, Entry]:
        """Those behind the gate, and those let go that have lost their nodes."""
        return (
            {entry.uid: entry for entry in self.backlog.entries.values() if entry.stage.waits} if self.backlog else {}
        )

    def everyone(self) -> Iterator["Awaited"]:
        """All that wait, in no order: read when this is called, and worked out as they are gone through."""
        ahead = self.wall_clock() - self.clock()
        return _awaited(self.unbound.all(), self._rejected(), self._queued(), ahead)

    def standing(self, uid: str, *, refused_by_kerf: bool) -> Standing:
        """Who keeps a pod waiting; `refused_by_kerf`: whether Kerf was asked about it, and had no node."""
        entry = self.backlog.entries.get(uid) if self.backlog else None
        if entry is not None and entry.stage.waits:
            return Standing(entry.skips.reason or entry.fault, queued=True, ahead=self._ahead(entry))
        beside = self._beside_queue(self.unbound.get(uid), refused_by_kerf=refused_by_kerf)
        return replace(beside, refused=entry.refused) if entry is not None else beside

    def _beside_queue(self, known: UnboundPod | None, *, refused_by_kerf: bool) -> Standing:
        if known is None or known.asked is None:
            return Standing()
        gated = not known.owed and not known.refused
        told, unseen = known.why if gated or known.refused else "", known.owed and not refused_by_kerf
        unattended, passed = self._is_unattended(known), self.passed(known.uid)
        unasked = self.unasked.why(known) if self.unasked is not None and not refused_by_kerf else ""
        return Standing(
            scheduler=told,
            by_kerf=refused_by_kerf,
            gated=gated,
            unattended=unattended,
            unseen=unseen,
            unasked=unasked,
            passed=passed,
        )

    def _ahead(self, entry: Entry) -> int:
        """How many pods that wait in the queue come before one by priority, then age."""
        turn = (-_priority(entry), entry.created, entry.pod.key)
        return sum((-_priority(one), one.created, one.pod.key) < turn for one in self._queued().values())

    def why(self, uid: str) -> str:
        """Why a pod waits in the queue, in the words of its last round; "" where it does not wait there."""
        entry = self.backlog.entries.get(uid) if self.backlog else None
        return "" if entry is None or not entry.stage.waits else str(entry.skips.reason or entry.fault or "")

    def _waiting(
        self, uid: str, turn: _Turn, rejected: tuple[PodIdentity, PodRequest, float] | None, entry: Entry | None
    ) -> "Waiting":
        """A pod as it is told; `since` is Unix time."""
        known = self.unbound.get(uid)
        asked = known.asked if known else None
        request: GpuRequest | str | None = known.request if known else None
        why = known.why if known else ""
        planned = entry.planned if entry else None
        if entry is not None:
            request = (planned.gpus if planned else None) or request
            asked = PodRequest(planned.gpus, planned.policy, planned.priority) if planned else asked
            why = str(entry.skips.reason or entry.fault or "")
        elif rejected is not None:
            pod, asked, _ = rejected
            request, why = asked.gpus or request, self.rejections.last(pod) or why
        item: WaitingPod = {
            "pod": turn[2],
            "request": str(request or ""),
            "why": why,
            "where": "scheduler" if entry is None else "queue",
            "priority": -turn[0],
            "since": round(turn[1], 1),
        }
        by_kerf = rejected is not None and entry is None
        told_by_queue = Standing(entry.skips.reason or entry.fault, queued=True) if entry is not None else None
        standing = told_by_queue or self._beside_queue(known, refused_by_kerf=by_kerf)
        let_go = self.backlog.entries.get(uid) if self.backlog else None
        if let_go is not None:
            standing = replace(standing, refused=let_go.refused)
        return Waiting(uid, item, asked, planned.gang if planned else "", by_kerf, standing)


class Waiting(NamedTuple):
    """A pod without a node."""

    uid: str
    item: WaitingPod
    asked: PodRequest | None
    """None where its request can't be understood."""
    gang: str
    """As the queue names it, "" for none."""
    rejected: bool
    """Whether Kerf was asked about it and found no node."""
    standing: Standing
    """Who keeps it waiting."""

    @property
    def wrong(self) -> bool:
        """Whether Kerf turns it away for a request that can't be understood."""
        return self.asked is None and self.item["where"] == "scheduler"


class Awaited(NamedTuple):
    """A pod without a node, in short."""

    uid: str
    pod: str
    """`namespace/name`."""
    priority: int
    created: float
    """Unix time."""
    request: GpuRequest | None
    """None where it can't be understood."""
    owner: str
    """`Kind/name`."""
    gang: str
    """`namespace/name`, "" for none."""
    gated: bool
    """Whether a gate keeps it from kube-scheduler."""


def _awaited(
    unbound: Sequence[UnboundPod],
    rejected: Mapping[str, tuple[PodIdentity, PodRequest, float]],
    queued: Mapping[str, Entry],
    ahead_s: float,
) -> Iterator[Awaited]:
    """Pods by whom tells most of each: the watch, the queue, and who was rejected; Unix time is `ahead_s` ahead of the
    time of rejections."""
    told: set[str] = set()
    for known in unbound:
        told.add(known.uid)
        entry, refused = queued.get(known.uid), rejected.get(known.uid)
        planned = entry.planned if entry is not None else None
        asked = refused[1] if refused is not None else known.asked
        request = (planned.gpus if planned is not None else None) or (asked.gpus if asked is not None else None)
        yield Awaited(
            known.uid,
            known.key,
            known.priority,
            known.created,
            request,
            owner=known.owner,
            gang=known.gang,
            gated=known.gated,
        )
    for uid, entry in queued.items():
        if uid not in told:
            told.add(uid)
            planned, pod = entry.planned, entry.pod
            request, gang = (planned.gpus, planned.gang) if planned is not None else (None, "")
            owner, gated = who_of(pod.metadata).owner, entry.stage.behind_gate
            yield Awaited(uid, pod.key, _priority(entry), entry.created, request, owner, gang, gated)
    for uid, (identity, asked, first) in rejected.items():
        if uid not in told:
            owner = identity.owner.partition("/")[2] or f"Pod/{identity.name}"
            created = unix_time(identity.created) or first + ahead_s
            yield Awaited(uid, identity.key, asked.priority, created, asked.gpus, owner, identity.gang, gated=False)


def _priority(entry: Entry) -> int:
    return entry.planned.priority if entry.planned else 0


_MAX_REQUESTS: Final = 64
"""Different requests of a page that are compared with the nodes: each takes a look at all of them."""

_MAX_CLAIM_REQUESTS: Final = 8
"""Of these, those by ResourceClaims, for which devices are searched."""

_Class = tuple[GpuRequest, ObservedRules | None]
"""A request, and what its policy counts of the GPUs' use."""


@dataclass(frozen=True, slots=True)
class PendingPage:
    """All that an answer takes, read at one moment: it is worked out in a thread."""

    total: int
    at_least: bool
    """Whether there may be more than `total`."""
    pods: Sequence[Waiting]
    classes: Sequence[_Class | None]
    """Of each pod; None where it is not to be compared with the nodes."""
    cluster: Cluster
    decided: Mapping[str, Placement]
    """Newest decisions that are kept, by UID."""


@dataclass(frozen=True)
class PendingPods:
    """Pages of the waitlist."""

    waitlist: Waitlist
    placer: Placer
    snapshot: Callable[[], Cluster]

    def page(self, most: int, namespace: str) -> PendingPage:
        """The pods whose turn comes first, of all namespaces for ""."""
        total, pods = self.waitlist.first(most, namespace)
        known: dict[_Class, None] = {}
        classes: list[_Class | None] = []
        for waiting in pods:
            found = self._class_of(waiting.asked)
            if found is not None and found not in known:
                claims = sum(request.devices is not None for request, _ in known)
                if len(known) == _MAX_REQUESTS or (found[0].devices is not None and claims == _MAX_CLAIM_REQUESTS):
                    found = None
                else:
                    known[found] = None
            classes.append(found)
        decided = self.placer.decided.newest()
        return PendingPage(total, self.waitlist.unbound.full, pods, classes, self.snapshot(), decided)

    def _class_of(self, asked: PodRequest | None) -> _Class | None:
        if asked is None:
            return None
        try:
            policy = self.placer.policy_of(asked)
            request = policy.asked(asked)
        except RequestError:
            return None
        return None if request is None else (request, policy.rules)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found of the nodes for a pod."""

    nearest: Nearest
    elsewhere: str = ""
    """A node with room that it was not offered, "" for none."""
    of_all: bool = True
    """Whether all nodes were looked at, since it is not known which of them it was offered."""


def looked_at(page: PendingPage) -> list[Looked | None]:
    """What comes nearest to each pod of a page, of the nodes that it was offered where that is known: for a thread."""
    everywhere = np.fromiter(page.cluster.row_of.values(), np.intp, len(page.cluster.row_of))
    of_class = {
        found: Looked(nearest_of(page.cluster, *found, everywhere)) for found in page.classes if found is not None
    }
    of_offer: dict[tuple[object, ...], Looked] = {}
    looked: list[Looked | None] = []
    for waiting, class_ in zip(page.pods, page.classes, strict=True):
        placement = page.decided.get(waiting.uid)
        known = of_class[class_] if class_ is not None else None
        if known is None or class_ is None or placement is None or placement.node is not None or not waiting.rejected:
            looked.append(known)
            continue
        decision = placement.decision
        key = (class_, placement.offered, decision.rows.tobytes(), id(placement.cluster.node_names))
        if key not in of_offer and len(of_offer) < _MAX_REQUESTS:
            of_offer[key] = _offered(page.cluster, class_, candidates(placement, page.cluster), known)
        looked.append(of_offer.get(key, known))
    return looked


def _offered(cluster: Cluster, class_: _Class, rows: Rows, of_all: Looked) -> Looked:
    if len(rows) == len(cluster.row_of):
        return replace(of_all, of_all=False)
    found = nearest_of(cluster, *class_, rows)
    others = of_all.nearest
    return Looked(found, others.node if others.fits and not found.fits else "", of_all=False)


def told(page: PendingPage, looked: Sequence[Looked | None], fixes: Fixes) -> PendingList:
    """A page as it is answered, with who is in the way now."""
    distinct = {id(one): one for one in looked if one is not None}
    silent, makes_room = fixes.silent(), fixes.makes_room()
    in_the_way = {key: fixes.in_the_way(one.nearest) for key, one in distinct.items()}
    pods: list[PendingPod] = []
    for waiting, class_, found in zip(page.pods, page.classes, looked, strict=True):
        claim = fixes.ledger.claim(waiting.uid)
        item, rejected = waiting.item, waiting.rejected or waiting.wrong
        sentence, remedies = bounded(item["why"] or f"asks for {item['request']}"), list[Remedy]()
        if claim is not None:
            sentence = of_claim(claim, waiting.standing.refused)
        elif found is not None and class_ is not None:
            holders, ends_in_s = in_the_way[id(found)]
            lacking = Lacking(
                item["pod"],
                class_[0],
                found.nearest,
                holders,
                elsewhere=found.elsewhere,
                ends_in_s=ends_in_s,
                of_all=found.of_all,
                makes_room=makes_room,
                answers_what_if=fixes.answers_what_if(),
            )
            sentence, remedies = _why(lacking, waiting, page.decided.get(waiting.uid))
        elif waiting.asked is None and rejected:
            remedies = [CORRECT]
        sentence += of_stopped_agent(claim.node if claim else found.nearest.node if found else "", silent)
        pods.append(
            {
                **item,
                "where": "kerf" if rejected else item["where"],
                "nearest": (found.nearest.words if found is not None and claim is None else "") or None,
                "gang": waiting.gang or None,
                "explain": f"kerf explain {item['pod']}",
                "sentence": sentence,
                "remedy": to_json(remedies[0]) if remedies else None,
                "movesHelp": makes_room and not waiting.wrong and (found is None or _moves_help(found.nearest)),
            }
        )
    return {"pods": pods, "total": page.total, "more": page.total - len(pods), "atLeast": page.at_least}


def _moves_help(nearest: Nearest) -> bool:
    """Whether the nearest node might have room if running pods moved: not if no node is made for the pod."""
    return bool(TABLE.could_fit[nearest.reason])


def _why(lacking: Lacking, waiting: Waiting, decided: Placement | None) -> tuple[str, list[Remedy]]:
    """The sentence of a pod that nothing is held for, and what helps: it may have been given a node before."""
    if decided is None or decided.node is None:
        return why_pending(lacking, waiting.standing)
    sentence, remedies = why_pending(lacking, replace(waiting.standing, unseen=False))
    return not_bound(decided.node, decided.decided_at, sentence), remedies
