"""The list of waiting pods for people and programs: who waits where, since when, and what comes nearest to a node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.fit.device_obstacles import why_not
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason, sentence
from extender.core.fit.relaxations import shortfalls
from extender.core.occupancies import ObservedRules, counting_observed
from extender.core.resources.requests import GpuRequest, PodRequest, RequestError
from extender.explain.waiting_pods import Waiting, Waitlist
from extender.scheduling.placer import Placer

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
        return PendingPage(total, self.waitlist.unbound.full, pods, classes, self.snapshot())

    def _class_of(self, asked: PodRequest | None) -> _Class | None:
        if asked is None:
            return None
        try:
            policy = self.placer.policy_of(asked)
            request = policy.asked(asked)
        except RequestError:
            return None
        return None if request is None else (request, policy.rules)


def told(page: PendingPage) -> dict[str, Any]:
    """A page as it is answered."""
    rows = np.fromiter(page.cluster.row_of.values(), np.intp, len(page.cluster.row_of))
    nearest_of = {found: nearest(page.cluster, *found, rows) for found in page.classes if found is not None}
    pods = [
        _pod(waiting, nearest_of[found] if found is not None else "")
        for waiting, found in zip(page.pods, page.classes, strict=True)
    ]
    return {"pods": pods, "total": page.total, "more": page.total - len(pods), "atLeast": page.at_least}


def nearest(cluster: Cluster, request: GpuRequest, rules: ObservedRules | None, rows: Rows) -> str:
    """What of R rows comes nearest to a request, in a sentence: "needs 8 GPUs; h100-1 has 6 free"."""
    if not len(rows):
        return "there are no nodes"
    names, seen = cluster.node_names, counting_observed(cluster, rules)
    checked = fit(seen, request, rows)
    order = cluster.tie_rank[rows]
    if checked.fits.any():
        return f"needs {request}; there is room now on {names[_first(rows, order, checked.fits)]}"
    if request.devices is not None:
        return why_not(cluster, request.devices, rows, checked.reason) or ""
    if lacking := shortfalls(seen, request, rows, 1):
        (short,) = lacking
        if short.unit == "GPUs":
            return f"needs {request}; {names[short.row]} has {max(request.count, 1) - short.missing} free"
        return f"needs {request}; {names[short.row]} would have to have {short.text}"
    last = checked.reason == checked.reason.max()
    most = last & (checked.available == checked.available[last].max())
    row = _first(rows, order, most)
    words = sentence(Reason(int(checked.reason.max())), request, int(checked.available[last].max()))
    return f"{words} ({names[row]})" if Reason(int(checked.reason.max())) is not Reason.NO_GPUS else words


def _first(rows: Rows, order: Any, where: Any) -> int:
    """The row of the lowest rank."""
    return int(rows[where][np.argmin(order[where])])


def _pod(waiting: Waiting, nearest_words: str) -> dict[str, Any]:
    item = waiting.item
    return {
        "pod": item["pod"],
        "request": item["request"],
        "where": "kerf" if waiting.rejected else item["where"],
        "why": item["why"],
        "nearest": nearest_words or None,
        "priority": item["priority"],
        "gang": waiting.gang or None,
        "since": item["since"],
        "explain": f"kerf explain {item['pod']}",
    }
