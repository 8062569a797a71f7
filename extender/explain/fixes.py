"""What would make a pending pod fit, and what has changed since a decision. Worked out on request."""

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
from extender.core.occupancies import ObservedRules, with_observed_usage
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import PodRequest
from extender.explain import occupants
from extender.explain.answers import Explanation
from extender.explain.sentences.nearest import Nearest, holding, nearest_of
from extender.ledger.ledger import AllocationState, Ledger, PodAllocation
from extender.scheduling.placer import Placement, Placer

_MAX_NAMES: Final = 10
_MAX_CHANGED: Final = 20
_TIGHTEST_FIRST: Final = POLICIES["tightest"]
"""Ranks the nodes where a smaller request fits; a stateless policy."""


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of an answer, read at one moment so that a thread can work it out."""

    placement: Placement
    cluster: Cluster
    policy: Policy
    rules: ObservedRules
    """Which observed use of GPUs counts as unexpected."""
    claim: PodAllocation | None
    """The pod's claim."""
    num_fit: int
    """Candidates that fit now."""
    best_node: str | None
    """The candidate that ranks first now, None if none fits."""
    asked_at: float
    """Unix time."""
    nearest: Nearest | None = None
    """The candidate nearest to fitting if none fits; None for ResourceClaims, where the search takes longer."""
    holders: Sequence[Mapping[str, Any]] = ()
    """Pods in the way there."""
    ends_in_s: float | None = None
    """Expected seconds until all holders have ended, None if unknown."""
    elsewhere: str = ""
    """A node with room that is not a candidate, "" for none."""
    lapsed: bool = False
    """Whether its reservation has lapsed while the pod is still pending."""

    @property
    def verdict(self) -> Literal["placed", "expired", "rejected"]:
        """The current outcome of the decision."""
        return "rejected" if self.placement.node is None else "expired" if self.lapsed else "placed"


@dataclass(frozen=True)
class Fixes:
    """Compares kept decisions with the current cluster."""

    placer: Placer
    ledger: Ledger
    rules: ObservedRules
    wall_clock: Callable[[], float]
    left_s: Callable[[str], float | None] = lambda uid: None
    """Expected remaining seconds of a running pod, by UID; None if unknown."""
    waits: Callable[[str], bool] = lambda uid: False
    """Whether the API server reports a pod as unbound, by UID."""
    silent: Callable[[], Collection[str]] = lambda: ()
    """Names of nodes whose agent has stopped."""
    makes_room: Callable[[], bool] = lambda: True
    """Whether plans for moving running pods are available."""
    answers_what_if: Callable[[], bool] = lambda: True
    """Whether what-if questions are answered."""

    def ask(self, placement: Placement) -> Question:
        """Read the inputs in the event loop: policies that rank by samples are not thread-safe."""
        policy = self.placer.policy_of(PodRequest(policy=placement.decision.policy))
        cluster, claim = self.placer.snapshot(), self.ledger.allocation(placement.pod.uid)
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
        """Whether a pod exists and is unbound. Bound pods come from another watch, and either watch may lag."""
        return self.waits(uid) and not self.ledger.is_bound(uid)

    def _lacking(self, question: Question, rows: Rows) -> Question:
        """Add the pods in the way to a question about a pod that fits on none of R rows."""
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
        """The holders of suitable GPUs on the nearest node, and the expected seconds until all have ended."""
        if not nearest.missing:
            return [], None
        holders = holding(nearest, self.held_on(nearest.node))
        pods = {holder["pod"] for holder in holders}
        left = [
            self.left_s(claim.uid) for claim in self.ledger.allocations_on(nearest.node) if (claim.pod or None) in pods
        ]
        known = [seconds for seconds in left if seconds is not None]
        return holders, max(known) if known and len(known) == len(left) else None

    def held_on(self, node: str) -> list[dict[str, Any]]:
        """The holders of a node's GPUs as JSON data."""
        return occupants.holders(self.ledger.allocations_on(node)) + occupants.users(self.ledger.device_uses(node))

    def occupied(self, question: Question, node: str) -> dict[str, Any]:
        """The holders of a node's GPUs and other uses of them, as JSON data and in words."""
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
    """The decision compared with the cluster now: the pod's claim, where it fits, and changed candidates."""
    placement, claim = question.placement, question.claim
    return {
        "askedAt": datetime.fromtimestamp(question.asked_at, UTC).isoformat(),
        "age_s": round(max(question.asked_at - placement.decided_at, 0.0), 3),
        "held": claim and {"node": claim.node, "gpus": list(claim.gpus), "state": claim.state.name},
        "nodesThatFit": question.num_fit,
        "bestNode": question.best_node,
        **_changes(question),
    }


def tell_running(question: Question, explanation: Explanation) -> None:
    """Set node and GPUs of a bound pod, which later decisions about it don't change.

    On the node of its newest decision it may have other GPUs, allocated by the kubelet.
    """
    claim, placement = question.claim, question.placement
    if claim is None or claim.state is not AllocationState.BOUND:
        return
    if claim.node == placement.node:
        explanation["gpus"] = list(claim.gpus) or explanation["gpus"]
        return
    explanation.update({"verdict": "placed", "node": claim.node, "gpus": list(claim.gpus)})
    explanation.update({"milli": None, "memoryMiB": None, "crosses": None, "ranking": None})
    explanation["askedAgain"] = {"node": placement.node, "gpus": list(placement.decision.gpus)}


def suggestions(question: Question) -> list[dict[str, Any]]:
    """Changes that would make the pod fit, the smallest first; empty if it fits already."""
    if question.num_fit:
        return []
    request, rows = question.placement.decision.request, candidates(question.placement, question.cluster)
    seen = with_observed_usage(question.cluster, question.policy.rules)
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
    """Current rows of a decision's candidates."""
    row_of = cluster.row_of
    then = placement.cluster.node_names
    names = (then[row] for row in placement.decision.rows.tolist())
    if placement.offered is not None:
        offered = set(placement.offered.decode())
        names = (name for name in names if name in offered)
    return np.array([row_of[name] for name in names if name in row_of], np.intp)


def _changes(question: Question) -> dict[str, Any]:
    """Candidates that have changed since the decision."""
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
        own = claim.gpus if claim is not None and claim.node == name else ()  # its own GPUs are not a change
        if _booked(before, row, own) != _booked(cluster, current, own):
            then, idle_now = _idle(before, row, own), _idle(cluster, current, own)
            num_changed += 1
            if len(changed) < _MAX_CHANGED:
                changed.append({"node": name, "freeGPUsThen": then, "freeGPUsNow": idle_now})
    return {"numChanged": num_changed, "changed": changed, "gone": gone[:_MAX_CHANGED]}


def _others(cluster: Cluster, row: int, own: Sequence[int]) -> Mask:
    """(G,) GPUs of a node except a pod's `own`."""
    others: Mask = cluster.gpu_model[row] >= 0
    others[[gpu for gpu in own if gpu < len(others)]] = False
    return others


def _idle(cluster: Cluster, row: int, own: Sequence[int]) -> int:
    """Number of idle GPUs of a node except a pod's `own`."""
    return int((cluster.gpu_idle[row] & _others(cluster, row, own)).sum())


def _booked(cluster: Cluster, row: int, own: Sequence[int]) -> tuple[object, ...]:
    """The bookings of a node's GPUs except a pod's `own`, regardless of observed use; for comparison."""
    others = _others(cluster, row, own)
    arrays = (cluster.gpu_memory_mib, cluster.gpu_healthy, cluster.gpu_free_milli, cluster.gpu_free_mib)
    return (int(cluster.untracked_units[row]), *(array[row][others].tolist() for array in arrays))
