"""The list of pending pods that request GPUs: what each waits for, since when, and the node nearest to fitting it."""

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
from extender.explain.holders import ownership_of
from extender.explain.sentences.nearest import Nearest, nearest_of
from extender.explain.sentences.pending import Lacking, Standing, not_bound, of_claim, why_pending
from extender.explain.sentences.remedies import CORRECT, to_json
from extender.explain.sentences.words import bounded, of_stopped_agent
from extender.kube.objects import unix_time
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import GATE
from extender.scheduling.callers import UncalledPods
from extender.scheduling.placer import Placement, Placer, PodIdentity
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods
from extender.scheduling.waking import Waker

_Rank = tuple[int, float, str]
"""Sort key in queue order: negative priority, Unix time of creation, `namespace/name`."""


@dataclass(frozen=True)
class Waitlist:
    """Pending pods as the API server reports them, with what Kerf itself knows of them."""

    unbound: UnboundPods
    waker: Waker
    rejections: RejectionLog
    backlog: Backlog | None
    """None when the queue is off."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    unasked: UncalledPods | None = None
    """None if calls of kube-scheduler are not tracked."""
    passed: Callable[[str], str] = lambda uid: ""
    """Why a pod that has bypassed the queue should have waited there, by UID; "" for all others."""

    def num_unattended(self) -> int:
        """Number of pods behind the queue's gate while the queue is off."""
        return sum(self._is_unattended(pod) for pod in self.unbound.all())

    def _is_unattended(self, pod: UnboundPod) -> bool:
        return self.backlog is None and pod.gated and GATE in pod.why

    def num_pods(self) -> int:
        """Number of pending pods."""
        return len(self._ranks())

    def longest(self) -> dict[str, float]:
        """Age in seconds of the oldest pending pod, by namespace."""
        oldest: dict[str, float] = {}
        for _, created, pod in self._ranks().values():
            namespace = pod.partition("/")[0]
            oldest[namespace] = min(created, oldest.get(namespace, created))
        now = self.wall_clock()
        return {namespace: max(now - created, 0.0) for namespace, created in oldest.items()}

    def listing(self, most: int) -> Mapping[str, object]:
        """As JSON data: the number of pending pods, whether there may be more than are kept, and the first `most`."""
        total, first = self.first(most)
        return {"total": total, "more": self.unbound.full, "items": [waiting.item for waiting in first]}

    def first(self, most: int, namespace: str = "") -> tuple[int, list["PendingEntry"]]:
        """The number of pending pods of a namespace, or of all for "", and the first `most` in queue order."""
        ranks = self._ranks()
        if namespace:
            ranks = {uid: rank for uid, rank in ranks.items() if rank[2].startswith(f"{namespace}/")}
        first = nsmallest(most, ranks.items(), key=lambda item: item[1])
        rejected, queued = self._rejected(), self._queued()
        return len(ranks), [self._waiting(uid, rank, rejected.get(uid), queued.get(uid)) for uid, rank in first]

    def _ranks(self) -> dict[str, _Rank]:
        """By UID. Includes rejected pods that the watch has not reported, such as those of manual calls."""
        ahead = self.wall_clock() - self.clock()
        ranks: dict[str, _Rank] = {
            uid: (-request.priority, unix_time(pod.created) or first + ahead, pod.key)
            for uid, (pod, request, first) in self._rejected().items()
        }
        ranks |= {uid: (-_priority(entry), entry.created, entry.pod.key) for uid, entry in self._queued().items()}
        ranks |= {pod.uid: (-pod.priority, pod.created, pod.key) for pod in self.unbound.all()}
        return ranks

    def _rejected(self) -> dict[str, tuple[PodIdentity, PodRequest, float]]:
        return {pod.uid: (pod, request, first) for pod, request, first in self.waker.waiting()}

    def _queued(self) -> dict[str, Entry]:
        """Pods behind the gate, and released pods that have lost their nodes, by UID."""
        return (
            {entry.uid: entry for entry in self.backlog.entries.values() if entry.stage.waits} if self.backlog else {}
        )

    def everyone(self) -> Iterator["PendingSummary"]:
        """All pending pods, unordered: read at the call, evaluated lazily."""
        ahead = self.wall_clock() - self.clock()
        return _awaited(self.unbound.all(), self._rejected(), self._queued(), ahead)

    def standing(self, uid: str, *, refused_by_kerf: bool) -> Standing:
        """What keeps a pod waiting; `refused_by_kerf`: whether Kerf was called for it and found no node."""
        entry = self.backlog.entries.get(uid) if self.backlog else None
        if entry is not None and entry.stage.waits:
            return Standing(entry.skips.reason or entry.fault, queued=True, ahead=self._ahead(entry))
        standing = self._outside_queue(self.unbound.get(uid), refused_by_kerf=refused_by_kerf)
        return replace(standing, refused=entry.refused) if entry is not None else standing

    def _outside_queue(self, known: UnboundPod | None, *, refused_by_kerf: bool) -> Standing:
        if known is None or known.asked is None:
            return Standing()
        gated = not known.owed and not known.refused
        message, unseen = known.why if gated or known.refused else "", known.owed and not refused_by_kerf
        unattended, passed = self._is_unattended(known), self.passed(known.uid)
        unasked = self.unasked.why(known) if self.unasked is not None and not refused_by_kerf else ""
        return Standing(
            scheduler=message,
            by_kerf=refused_by_kerf,
            gated=gated,
            unattended=unattended,
            unseen=unseen,
            unasked=unasked,
            passed=passed,
        )

    def _ahead(self, entry: Entry) -> int:
        """Number of queued pods before an entry, by priority, then age."""
        rank = (-_priority(entry), entry.created, entry.pod.key)
        return sum((-_priority(one), one.created, one.pod.key) < rank for one in self._queued().values())

    def why(self, uid: str) -> str:
        """Why the queue's last round skipped a pod, in words; "" if it is not queued."""
        entry = self.backlog.entries.get(uid) if self.backlog else None
        return "" if entry is None or not entry.stage.waits else str(entry.skips.reason or entry.fault or "")

    def _waiting(
        self, uid: str, rank: _Rank, rejected: tuple[PodIdentity, PodRequest, float] | None, entry: Entry | None
    ) -> "PendingEntry":
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
            "pod": rank[2],
            "request": str(request or ""),
            "why": why,
            "where": "scheduler" if entry is None else "queue",
            "priority": -rank[0],
            "since": round(rank[1], 1),
        }
        by_kerf = rejected is not None and entry is None
        in_queue = Standing(entry.skips.reason or entry.fault, queued=True) if entry is not None else None
        standing = in_queue or self._outside_queue(known, refused_by_kerf=by_kerf)
        released = self.backlog.entries.get(uid) if self.backlog else None
        if released is not None:
            standing = replace(standing, refused=released.refused)
        return PendingEntry(uid, item, asked, planned.gang if planned else "", by_kerf, standing)


class PendingEntry(NamedTuple):
    """A pending pod."""

    uid: str
    item: WaitingPod
    asked: PodRequest | None
    """Its request, None if it can't be parsed."""
    gang: str
    """The queue's name of its gang, "" for none."""
    rejected: bool
    """Whether Kerf was called for it and found no node."""
    standing: Standing
    """What keeps it waiting."""

    @property
    def wrong(self) -> bool:
        """Whether Kerf rejects it because its request can't be parsed."""
        return self.asked is None and self.item["where"] == "scheduler"


class PendingSummary(NamedTuple):
    """A summary of a pending pod."""

    uid: str
    pod: str
    """`namespace/name`."""
    priority: int
    created: float
    """Unix time."""
    request: GpuRequest | None
    """None if it can't be parsed."""
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
) -> Iterator[PendingSummary]:
    """Each pod once, from the source that knows most of it: the watch, the queue, then the rejections.

    Unix time is `ahead_s` ahead of the clock of rejections.
    """
    seen: set[str] = set()
    for known in unbound:
        seen.add(known.uid)
        entry, refused = queued.get(known.uid), rejected.get(known.uid)
        planned = entry.planned if entry is not None else None
        asked = refused[1] if refused is not None else known.asked
        request = (planned.gpus if planned is not None else None) or (asked.gpus if asked is not None else None)
        yield PendingSummary(
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
        if uid not in seen:
            seen.add(uid)
            planned, pod = entry.planned, entry.pod
            request, gang = (planned.gpus, planned.gang) if planned is not None else (None, "")
            owner, gated = ownership_of(pod.metadata).owner, entry.stage.behind_gate
            yield PendingSummary(uid, pod.key, _priority(entry), entry.created, request, owner, gang, gated)
    for uid, (identity, asked, first) in rejected.items():
        if uid not in seen:
            owner = identity.owner.partition("/")[2] or f"Pod/{identity.name}"
            created = unix_time(identity.created) or first + ahead_s
            yield PendingSummary(
                uid, identity.key, asked.priority, created, asked.gpus, owner, identity.gang, gated=False
            )


def _priority(entry: Entry) -> int:
    return entry.planned.priority if entry.planned else 0


_MAX_REQUESTS: Final = 64
"""Distinct requests per page that are compared with the nodes: each comparison reads all nodes."""

_MAX_CLAIM_REQUESTS: Final = 8
"""Of these, requests by ResourceClaims, for which devices are searched."""

_Class = tuple[GpuRequest, ObservedRules | None]
"""A request, and its policy's rules for observed use of GPUs."""


@dataclass(frozen=True, slots=True)
class PendingPage:
    """The inputs of an answer, read at one moment so that a thread can work it out."""

    total: int
    at_least: bool
    """Whether there may be more than `total`."""
    pods: Sequence[PendingEntry]
    classes: Sequence[_Class | None]
    """Request class of each pod; None if it is not compared with the nodes."""
    cluster: Cluster
    decided: Mapping[str, Placement]
    """Newest kept decisions, by UID."""


@dataclass(frozen=True)
class PendingPods:
    """Pages of the waitlist."""

    waitlist: Waitlist
    placer: Placer
    snapshot: Callable[[], Cluster]

    def page(self, most: int, namespace: str) -> PendingPage:
        """The first `most` pods in queue order, of all namespaces for ""."""
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
            request = policy.weighed_request(asked)
        except RequestError:
            return None
        return None if request is None else (request, policy.rules)


@dataclass(frozen=True, slots=True)
class Looked:
    """How the nodes compare with a pod's request."""

    nearest: Nearest
    elsewhere: str = ""
    """A node with room that it was not offered, "" for none."""
    of_all: bool = True
    """Whether all nodes were compared because the offered ones are unknown."""


def compare_nodes(page: PendingPage) -> list[Looked | None]:
    """The nearest node for each pod of a page, among the nodes that it was offered if known. Runs in a thread."""
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


def answer(page: PendingPage, looked: Sequence[Looked | None], fixes: Fixes) -> PendingList:
    """A page as JSON data, with the pods that are in the way now."""
    distinct = {id(one): one for one in looked if one is not None}
    silent, makes_room = fixes.silent(), fixes.makes_room()
    in_the_way = {key: fixes.in_the_way(one.nearest) for key, one in distinct.items()}
    pods: list[PendingPod] = []
    for waiting, class_, found in zip(page.pods, page.classes, looked, strict=True):
        claim = fixes.ledger.allocation(waiting.uid)
        item, rejected = waiting.item, waiting.rejected or waiting.wrong
        sentence, remedies = bounded(item["why"] or f"requests {item['request']}"), list[Remedy]()
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
    """Whether moving running pods could make room: not if no node could ever fit the pod."""
    return bool(TABLE.could_fit[nearest.reason])


def _why(lacking: Lacking, waiting: PendingEntry, decided: Placement | None) -> tuple[str, list[Remedy]]:
    """The sentence and remedies of a pod without a claim; it may have been assigned a node before."""
    if decided is None or decided.node is None:
        return why_pending(lacking, waiting.standing)
    sentence, remedies = why_pending(lacking, replace(waiting.standing, unseen=False))
    return not_bound(decided.node, decided.decided_at, sentence), remedies
