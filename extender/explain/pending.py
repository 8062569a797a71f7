"""The list of waiting pods for people and programs: who waits where, since when, and what comes nearest to a node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.fit.checks import TABLE
from extender.core.fit.remedies import Remedy
from extender.core.occupancies import ObservedRules
from extender.core.resources.requests import GpuRequest, PodRequest, RequestError
from extender.explain.answers import PendingList, PendingPod
from extender.explain.fixes import Fixes, candidates
from extender.explain.sentences.nearest import Nearest, nearest_of
from extender.explain.sentences.pending import Lacking, not_bound, of_claim, why_pending
from extender.explain.sentences.remedies import CORRECT, to_json
from extender.explain.sentences.words import bounded, of_stopped_agent
from extender.explain.waiting_pods import Waiting, Waitlist
from extender.scheduling.placer import Placement, Placer

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
    silent = fixes.silent()
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
                "movesHelp": not waiting.wrong and (found is None or _moves_help(found.nearest)),
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
