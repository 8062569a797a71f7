"""What would make a pending pod fit, and what has changed since a pod was placed: worked out when somebody asks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.decisions import near_best, ranked
from extender.core.evaluations import evaluate
from extender.core.fit.relaxations import (
    Relaxation,
    Shortfall,
    device_relaxations,
    device_shortfalls,
    relaxations,
    shortfalls,
)
from extender.core.occupancies import ObservedRules, counting_observed
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import PodRequest
from extender.explain import occupants
from extender.explain.answers import Explanation
from extender.explain.sentences.nearest import Nearest, holding, nearest_of
from extender.ledger.ledger import Claim, ClaimState, Ledger
from extender.scheduling.placer import Placement, Placer

_MAX_NAMES: Final = 10
_MAX_CHANGED: Final = 20
_TIGHTEST_FIRST: Final = POLICIES["tightest"]
"""Of the nodes where a smaller request fits; keeps no state of its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that an answer takes, read at one moment: the answer may be worked out in a thread."""

    placement: Placement
    cluster: Cluster
    policy: Policy
    rules: ObservedRules
    """What counts as odd of the use of GPUs."""
    claim: Claim | None
    """What is held for the pod."""
    num_fit: int
    """Candidates that have room now."""
    best_node: str | None
    """The one that ranks highest."""
    asked_at: float
    """Unix time."""
    nearest: Nearest | None = None
    """The candidate that comes nearest where none has room; None where ResourceClaims ask: that takes longer."""
    holders: Sequence[Mapping[str, Any]] = ()
    """Who is in the way there."""
    ends_in_s: float | None = None
    """When they are all expected to have ended, None where that is not known."""
    elsewhere: str = ""
    """A node with room that is no candidate, "" for none."""
    lapsed: bool = False
    """Whether it was given a node that is not held for it any more, and waits still."""

    @property
    def verdict(self) -> Literal["placed", "expired", "rejected"]:
        """What has become of the decision."""
        return "rejected" if self.placement.node is None else "expired" if self.lapsed else "placed"


@dataclass(frozen=True)
class Fixes:
    """Compares kept decisions with the cluster as it is."""

    placer: Placer
    ledger: Ledger
    rules: ObservedRules
    wall_clock: Callable[[], float]
    left_s: Callable[[str], float | None] = lambda uid: None
    """How long a running pod is expected to go on, by its UID; None where that is not known."""
    waits: Callable[[str], bool] = lambda uid: False
    """Whether the API server has told of a pod, by its UID, that has no node."""
    silent: Callable[[], Collection[str]] = lambda: ()
    """Names of nodes whose agent has stopped."""
    makes_room: Callable[[], bool] = lambda: True
    """Whether anybody works out which running pods could move."""
    answers_what_if: Callable[[], bool] = lambda: True
    """Whether anybody answers what-if questions."""

    def ask(self, placement: Placement) -> Question:
        """Read what is needed now, in the event loop: policies that rank by samples are not for several threads."""
        policy = self.placer.policy_of(PodRequest(policy=placement.decision.policy))
        cluster, claim = self.placer.snapshot(), self.ledger.claim(placement.pod.uid)
        rows = candidates(placement, cluster)
        evaluation = evaluate(cluster, placement.decision.request, policy, rows)
        best = next(ranked(cluster, rows, evaluation), None)
        question = Question(
            placement,
            cluster,
            policy,
            self.rules,
            claim,
            num_fit=int(evaluation.fits.sum()),
            best_node=None if best is None else cluster.node_names[best],
            asked_at=self.wall_clock(),
            lapsed=claim is None and self._has_no_node(placement.pod.uid),
        )
        return question if question.verdict == "placed" or best is not None else self._lacking(question, rows)

    def _has_no_node(self, uid: str) -> bool:
        """Pods with a node are told of by another watch: either may be behind. Of one that is gone nobody tells."""
        return self.waits(uid) and not self.ledger.is_bound(uid)

    def _lacking(self, question: Question, rows: Rows) -> Question:
        """A question about a pod that fits on none of R rows, with who is in the way: of the same moment."""
        cluster, request, rules = question.cluster, question.placement.decision.request, question.policy.rules
        if request.devices is not None:
            return question
        everywhere = np.fromiter(cluster.row_of.values(), np.intp, len(cluster.row_of))
        others = nearest_of(cluster, request, rules, everywhere) if len(rows) < len(everywhere) else None
        nearest = nearest_of(cluster, request, rules, rows)
        holders, ends_in_s = self.in_the_way(nearest)
        elsewhere = others.node if others is not None and others.fits else ""
        return replace(question, nearest=nearest, holders=holders, ends_in_s=ends_in_s, elsewhere=elsewhere)

    def in_the_way(self, nearest: Nearest) -> tuple[list[Mapping[str, Any]], float | None]:
        """Who holds what would do on the node that comes nearest, and when all of them are expected to have ended."""
        if not nearest.missing:
            return [], None
        holders = holding(nearest, self.held_on(nearest.node))
        pods = {holder["pod"] for holder in holders}
        left = [self.left_s(claim.uid) for claim in self.ledger.claims_on(nearest.node) if (claim.pod or None) in pods]
        known = [seconds for seconds in left if seconds is not None]
        return holders, max(known) if known and len(known) == len(left) else None

    def held_on(self, node: str) -> list[dict[str, Any]]:
        """Who holds GPUs of a node."""
        return occupants.holders(self.ledger.claims_on(node)) + occupants.users(self.ledger.device_uses(node))

    def occupied(self, question: Question, node: str) -> dict[str, Any]:
        """The holders of a node's GPUs, and in words who or what has how many of them."""
        held = self.held_on(node)
        row = question.cluster.row_of[node]
        rest = occupants.unbooked(question.cluster, row, question.policy.rules)
        return {
            "holders": held,
            "usedByNobody": rest.used,
            "faulty": rest.faulty,
            "unhealthy": rest.unhealthy,
            "who": occupants.words(held, rest),
        }


def now(question: Question) -> dict[str, Any]:
    """How the decision looks by now: what is held for the pod, where it would fit, what changed on its candidates."""
    placement, claim = question.placement, question.claim
    return {
        "askedAt": datetime.fromtimestamp(question.asked_at, UTC).isoformat(),
        "age_s": round(max(question.asked_at - placement.decided_at, 0.0), 3),
        "held": claim and {"node": claim.node, "gpus": list(claim.gpus), "state": claim.state.name},
        "nodesThatFit": question.num_fit,
        "bestNode": question.best_node,
        **_changes(question),
    }


def tell_running(question: Question, told: Explanation) -> None:
    """Say where a pod runs, if it is bound: it stays there whatever is decided of it when it is asked about again.

    On the node of its newest decision it may have other GPUs, those that the kubelet gave.
    """
    claim, placement = question.claim, question.placement
    if claim is None or claim.state is not ClaimState.BOUND:
        return
    if claim.node == placement.node:
        told["gpus"] = list(claim.gpus) or told["gpus"]
        return
    told.update({"verdict": "placed", "node": claim.node, "gpus": list(claim.gpus)})
    told.update({"milli": None, "memoryMiB": None, "crosses": None, "ranking": None})
    told["askedAgain"] = {"node": placement.node, "gpus": list(placement.decision.gpus)}


def suggestions(question: Question) -> list[dict[str, Any]]:
    """What would make it fit, the smallest change first; nothing where it fits as it is."""
    if question.num_fit:
        return []
    request, rows = question.placement.decision.request, candidates(question.placement, question.cluster)
    seen = counting_observed(question.cluster, question.policy.rules)
    if request.devices is None:
        missing, relaxed = shortfalls(seen, request, rows), relaxations(seen, request, rows)
    else:
        missing = device_shortfalls(seen, request.devices, rows)
        relaxed = device_relaxations(seen, request, request.devices, rows)
    lacking = [_of_shortfall(question.cluster, shortfall) for shortfall in missing]
    return lacking[:1] + [_of_relaxation(question, one) for one in relaxed] + lacking[1:]


def _of_shortfall(cluster: Cluster, shortfall: Shortfall) -> dict[str, Any]:
    node = cluster.node_names[shortfall.row]
    return {
        "change": "room",
        "text": f"{shortfall.text} on node {node}",
        "missing": shortfall.missing,
        "unit": shortfall.unit,
        "numNodes": 1,
        "nodes": [node],
    }


def _of_relaxation(question: Question, relaxation: Relaxation) -> dict[str, Any]:
    cluster = question.cluster
    evaluation = evaluate(cluster, relaxation.request, _TIGHTEST_FIRST, relaxation.rows)
    order = list(ranked(cluster, relaxation.rows, evaluation))[:_MAX_NAMES]
    return {
        "change": relaxation.change,
        "text": relaxation.text,
        "request": str(relaxation.request),
        "numNodes": len(relaxation.rows),
        "nodes": [cluster.node_names[row] for row in order],
    }


def candidates(placement: Placement, cluster: Cluster) -> Rows:
    """Rows that the candidates of a decision have by now."""
    row_of = cluster.row_of
    then = placement.cluster.node_names
    names = (then[row] for row in placement.decision.rows.tolist())
    if placement.offered is not None:
        offered = set(placement.offered.decode())
        names = (name for name in names if name in offered)
    return np.array([row_of[name] for name in names if name in row_of], np.intp)


def _changes(question: Question) -> dict[str, Any]:
    """Candidates that differ from what the decision saw."""
    placement, cluster, claim = question.placement, question.cluster, question.claim
    before = placement.cluster
    gone: list[str] = []
    changed: list[dict[str, Any]] = []
    num_changed = 0
    order = [*near_best(before, placement.decision, _MAX_CHANGED).tolist(), *placement.decision.rows.tolist()]
    for row in dict.fromkeys(order):
        name = before.node_names[row]
        current = cluster.row_of.get(name)
        if current is None:
            gone += [name] if name else []
            continue
        if cluster.row_version[current] == before.row_version[row]:
            continue
        own = claim.gpus if claim is not None and claim.node == name else ()  # that it got them is no news
        if _booked(before, row, own) != _booked(cluster, current, own):
            then, today = _idle(before, row, own), _idle(cluster, current, own)
            num_changed += 1
            if len(changed) < _MAX_CHANGED:
                changed.append({"node": name, "freeGPUsThen": then, "freeGPUsNow": today})
    return {"numChanged": num_changed, "changed": changed, "gone": gone[:_MAX_CHANGED]}


def _others(cluster: Cluster, row: int, own: Sequence[int]) -> Mask:
    """(G,) GPUs of a node but for some."""
    others: Mask = cluster.gpu_model[row] >= 0
    others[[gpu for gpu in own if gpu < len(others)]] = False
    return others


def _idle(cluster: Cluster, row: int, own: Sequence[int]) -> int:
    """How many of a node's GPUs but for a pod's `own` are idle."""
    return int((cluster.gpu_idle[row] & _others(cluster, row, own)).sum())


def _booked(cluster: Cluster, row: int, own: Sequence[int]) -> tuple[object, ...]:
    """What of a node's GPUs but for a pod's `own` can be had, whatever they are seen doing."""
    has = _others(cluster, row, own)
    arrays = (cluster.gpu_memory_mib, cluster.gpu_healthy, cluster.gpu_free_milli, cluster.gpu_free_mib)
    return (int(cluster.untracked_units[row]), *(array[row][has].tolist() for array in arrays))
