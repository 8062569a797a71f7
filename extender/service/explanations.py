"""Why: rendered from kept decisions only when somebody asks, so that the hot path pays nothing."""

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from extender.cluster.placements import Placement, PodIdentity
from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.decisions import ranked
from extender.core.fits import fit
from extender.core.observations import Gauge
from extender.core.occupancies import ObservedRules, counting_observed, faulty, unaccounted_mib
from extender.core.reasons import Reason, resolvable, sentence
from extender.core.requests import GpuRequest
from extender.service.obstacles import obstacles

logger = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 4096
_MAX_NODES_IN_LOG: Final = 20
_NUMBER_BITS: Final = 48  # of the number behind a reason; units and MiB both stay far below


@dataclass(frozen=True, slots=True)
class NodeReason:
    """How one candidate did."""

    node: str
    reason: Reason
    available: int
    text: str


def node_reasons(placement: Placement) -> list[NodeReason]:
    """Each candidate's reason, in the order of the request; nodes that Kerf does not know come last."""
    decision = placement.decision
    offered = None if placement.offered is None else set(placement.offered.decode())
    node_names = placement.cluster.node_names
    texts, which = _texts(placement)
    result = [
        NodeReason(node_names[row], Reason(code), available, texts[index])
        for row, code, available, index in zip(
            decision.rows.tolist(),
            decision.evaluation.reason.tolist(),
            decision.evaluation.available.tolist(),
            which.tolist(),
            strict=True,
        )
        if offered is None or node_names[row] in offered
    ]
    unknown = sentence(Reason.UNKNOWN_NODE, decision.request, 0)
    return result + [NodeReason(name, Reason.UNKNOWN_NODE, 0, unknown) for name in placement.unknown]


def failures(placement: Placement) -> tuple[dict[str, str], dict[str, str]]:
    """Why candidates fail, by name: where eviction of other pods may help, and where it can't."""
    decision, node_names = placement.decision, placement.cluster.node_names
    texts, which = _texts(placement)
    reason = decision.evaluation.reason
    passing = resolvable(reason)

    def texts_of(wanted: Mask) -> dict[str, str]:
        names = map(node_names.__getitem__, decision.rows[wanted].tolist())
        return dict(zip(names, map(texts.__getitem__, which[wanted].tolist()), strict=True))

    unknown = dict.fromkeys(placement.unknown, sentence(Reason.UNKNOWN_NODE, decision.request, 0))
    return texts_of(passing), texts_of((reason != Reason.FITS) & ~passing) | unknown


def _texts(placement: Placement) -> tuple[list[str], Rows]:
    """The few different sentences about a decision's rows, and (R,) which of them is each row's."""
    evaluation = placement.decision.evaluation
    keys = evaluation.reason.astype(np.int64) << _NUMBER_BITS | evaluation.available
    distinct, which = np.unique(keys, return_inverse=True)
    mask = (1 << _NUMBER_BITS) - 1
    request = placement.decision.request
    return [sentence(Reason(key >> _NUMBER_BITS), request, key & mask) for key in distinct.tolist()], which


def explain(placement: Placement, rules: ObservedRules, counted: ObservedRules | None) -> dict[str, Any]:
    """A decision in full: what was asked, what was decided, and every candidate with its GPUs.

    `rules` say what of the GPUs' use is odd; `counted` are those that the decision's policy goes by, if by any.
    """
    decision, cluster = placement.decision, placement.cluster
    reasons = node_reasons(placement)
    listed = [cluster.row_of[reason.node] for reason in reasons if reason.node in cluster.row_of]
    seen = _Seen(placement, listed, counted)
    return {
        "pod": placement.pod.key,
        "uid": placement.pod.uid,
        "decidedAt": datetime.fromtimestamp(placement.decided_at, UTC).isoformat(timespec="seconds"),
        "policy": decision.policy,
        "request": str(decision.request),
        "required": _required(decision.request),
        "verdict": "placed" if placement.node else "rejected",
        "node": placement.node,
        "gpus": list(decision.gpus),
        "milli": decision.milli if decision.gpus else None,
        "memoryMiB": decision.mib if decision.milli < WHOLE_MILLI else None,
        "crosses": decision.crosses or None,
        "ranking": _ranking(placement),
        "reasons": dict(Counter(reason.text for reason in reasons if reason.reason is not Reason.FITS).most_common()),
        "nodes": [
            {
                "node": reason.node,
                "reason": reason.reason.name,
                "text": reason.text,
                "available": reason.available,
                **_node_details(cluster, reason.node, seen, rules),
            }
            for reason in reasons
        ],
    }


def _ranking(placement: Placement) -> dict[str, Any] | None:
    """What the score of the winner is made of, where the policy can say."""
    decision = placement.decision
    if decision.terms is None or decision.best is None:
        return None
    return dict(decision.terms(placement.cluster, decision.request, decision.best))


class _Seen:
    """What a decision saw of its candidates, looked at once for all of them."""

    def __init__(self, placement: Placement, listed: list[int], counted: ObservedRules | None) -> None:
        decision, cluster = placement.decision, counting_observed(placement.cluster, counted)
        evaluation = decision.evaluation
        self.scores = dict(zip(decision.rows.tolist(), evaluation.score.tolist(), strict=True))
        offered = np.isin(decision.rows, listed)
        ranks = ranked(cluster, decision.rows[offered], evaluation.take(np.flatnonzero(offered)))
        self.ranks = {row: rank for rank, row in enumerate(ranks, 1)}
        rows = np.array(listed, np.intp)
        checked = fit(cluster, decision.request, rows)
        self._index = {row: index for index, row in enumerate(listed)}
        self._checked = checked
        self._obstacles = obstacles(cluster, decision.request, rows, checked)

    def terms(self, row: int) -> dict[str, int]:
        """What a score is made of, for a node that fits."""
        free, taken = (int(array[self._index[row]]) for array in (self._checked.free_units, self._checked.taken_units))
        return {"freeUnits": free, "takenUnits": taken, "leftUnits": free - taken}

    def obstacles(self, row: int) -> list[str]:
        """For each GPU slot what keeps the request from it, "" for nothing."""
        return self._obstacles[self._index[row]]


def _node_details(cluster: Cluster, node: str, seen: _Seen, rules: ObservedRules) -> dict[str, Any]:
    row = cluster.row_of.get(node)
    if row is None:
        return {}
    score = seen.scores[row]
    fits = score > float("-inf")
    return {
        "score": score if fits else None,
        "rank": seen.ranks.get(row),
        "terms": seen.terms(row) if fits else None,
        "untrackedUnits": int(cluster.untracked_units[row]),
        "gpus": [
            {**gpu, "obstacle": seen.obstacles(row)[gpu["index"]] or None} for gpu in gpus_of(cluster, row, rules)
        ],
    }


def gpus_of(cluster: Cluster, row: int, rules: ObservedRules) -> list[dict[str, Any]]:
    """The GPUs of a node, what is free of each, and what it was last seen doing."""
    return [
        {
            "index": index,
            "model": cluster.models[model].name,
            "memoryMiB": memory,
            "free": free_milli == WHOLE_MILLI and free_mib == memory,
            "healthy": healthy,
            "freeMilli": free_milli,
            "freeMemoryMiB": free_mib,
            **_observed(cluster, row, index, rules),
        }
        for index, (model, memory, healthy, free_milli, free_mib) in enumerate(
            zip(
                cluster.gpu_model[row].tolist(),
                cluster.gpu_memory_mib[row].tolist(),
                cluster.gpu_healthy[row].tolist(),
                cluster.gpu_free_milli[row].tolist(),
                cluster.gpu_free_mib[row].tolist(),
                strict=True,
            )
        )
        if model >= 0
    ]


def _required(request: GpuRequest) -> dict[str, Any]:
    """The conditions on GPUs, those that are not stated left out."""
    stated = {
        "count": request.count,
        "unit": request.unit.name,
        "milli": request.milli,
        "memoryEachMiB": request.memory_each_mib,
        "memoryEachPercent": request.memory_each_percent,
        "memoryTotalMiB": request.memory_total_mib,
        "model": request.include and request.include.text,
        "modelExclude": request.exclude and request.exclude.text,
        "uuids": sorted(request.uuids),
        "uuidsExclude": sorted(request.uuids_exclude),
        "mig": dict(request.mig),
    }
    return {name: value for name, value in stated.items() if value}


def _observed(cluster: Cluster, row: int, slot: int, rules: ObservedRules) -> dict[str, Any]:
    """What a GPU was last seen doing, where its samples are fresh, and the load expected of pods just placed."""
    observed = cluster.observed
    if observed is None:
        return {}
    told = {
        gauge.name.lower(): round(float(sample), 4)
        for gauge in Gauge
        if not np.isnan(sample := observed.value[gauge, row, slot])
    }
    expected = round(float(observed.expected_load[row, slot]), 4)
    if not told and not expected:
        return {}
    rows = np.array([row])
    return {
        "observed": told,
        "expectedLoad": expected,
        "unmanagedMiB": int(unaccounted_mib(cluster, rows, rules)[0, slot]),
        "faulty": bool(faulty(cluster, rows, rules)[0, slot]),
    }


class RejectionLog:
    """The log of pods that fit nowhere: one line for a pod and its reasons, not one for every retry."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, str] = OrderedDict()

    def last(self, pod: PodIdentity) -> str:
        """The reasons logged last of a pod, "" when none are remembered."""
        return self._last.get(pod.uid or pod.key, "")

    def record(self, placement: Placement) -> None:
        """Log why a pod fits on none of its candidates, unless that was logged last time already."""
        decision, node_names = placement.decision, placement.cluster.node_names
        texts, which = _texts(placement)
        counts = Counter(dict(zip(texts, np.bincount(which, minlength=len(texts)).tolist(), strict=True)))
        unknown = sentence(Reason.UNKNOWN_NODE, decision.request, 0)
        if placement.unknown:
            counts[unknown] += len(placement.unknown)
        text = "; ".join(f"{count} x {reason}" for reason, count in counts.most_common()) or "no candidates"
        key = placement.pod.uid or placement.pod.key
        if self._last.get(key) == text:
            return
        self._last[key] = text
        self._last.move_to_end(key)
        if len(self._last) > _MAX_REMEMBERED:
            self._last.popitem(last=False)
        first = zip(decision.rows[:_MAX_NODES_IN_LOG].tolist(), which[:_MAX_NODES_IN_LOG].tolist(), strict=True)
        lines = [f"{node_names[row]}: {texts[index]}" for row, index in first]
        lines += [f"{name}: {unknown}" for name in placement.unknown[: _MAX_NODES_IN_LOG - len(lines)]]
        nodes = ", ".join(lines)
        more = len(decision.rows) + len(placement.unknown) - len(lines)
        if more > 0:
            nodes += f", and {more} more (GET /explain/pod/{placement.pod.key})"
        logger.info("pod %s fits on no node: %s [%s]", placement.pod.key, text, nodes)
