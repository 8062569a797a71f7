"""Why: rendered from kept decisions only when somebody asks, so that the hot path pays nothing."""

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from extender.cluster.placements import Placement
from extender.core.clusters import Cluster
from extender.core.reasons import Reason, sentence

logger = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 4096
_MAX_NODES_IN_LOG: Final = 20


@dataclass(frozen=True, slots=True)
class NodeReason:
    """How one candidate did."""

    node: str
    reason: Reason
    available: int
    text: str


def node_reasons(placement: Placement, *, failing_only: bool = False) -> list[NodeReason]:
    """Each candidate's reason, in the order of the request; nodes that Kerf does not know come last."""
    decision = placement.decision
    evaluation = decision.evaluation
    node_names = placement.cluster.node_names
    offered = None if placement.offered is None else set(placement.offered.decode())
    texts: dict[tuple[int, int], str] = {}
    result: list[NodeReason] = []
    wanted = ~evaluation.fits if failing_only else slice(None)
    for row, code, available in zip(
        decision.rows[wanted].tolist(),
        evaluation.reason[wanted].tolist(),
        evaluation.available[wanted].tolist(),
        strict=True,
    ):
        text = texts.get((code, available))
        if text is None:
            text = texts[code, available] = sentence(Reason(code), decision.request, available)
        if offered is None or node_names[row] in offered:
            result.append(NodeReason(node_names[row], Reason(code), available, text))
    unknown = sentence(Reason.UNKNOWN_NODE, decision.request, 0)
    return result + [NodeReason(name, Reason.UNKNOWN_NODE, 0, unknown) for name in placement.unknown]


def explain(placement: Placement) -> dict[str, Any]:
    """A decision in full: what was asked, what was decided, and every candidate with its GPUs."""
    decision, cluster = placement.decision, placement.cluster
    scores = dict(zip(decision.rows.tolist(), decision.evaluation.score.tolist(), strict=True))
    reasons = node_reasons(placement)
    return {
        "pod": placement.pod.key,
        "uid": placement.pod.uid,
        "decidedAt": datetime.fromtimestamp(placement.decided_at, UTC).isoformat(),
        "policy": decision.policy,
        "request": str(decision.request),
        "verdict": "placed" if placement.node else "rejected",
        "node": placement.node,
        "gpus": list(decision.gpus),
        "reasons": dict(Counter(reason.text for reason in reasons if reason.reason is not Reason.FITS).most_common()),
        "nodes": [
            {
                "node": reason.node,
                "reason": reason.reason.name,
                "text": reason.text,
                "available": reason.available,
                **_node_details(cluster, reason.node, scores),
            }
            for reason in reasons
        ],
    }


def _node_details(cluster: Cluster, node: str, scores: dict[int, float]) -> dict[str, Any]:
    row = cluster.row_of.get(node)
    if row is None:
        return {}
    score = scores[row]
    return {
        "score": score if score > float("-inf") else None,
        "untrackedUnits": int(cluster.untracked_units[row]),
        "gpus": [
            {"index": index, "model": cluster.models[model].name, "memoryMiB": memory, "free": free}
            for index, (model, memory, free) in enumerate(
                zip(
                    cluster.gpu_model[row].tolist(),
                    cluster.gpu_memory_mib[row].tolist(),
                    cluster.gpu_free[row].tolist(),
                    strict=True,
                )
            )
            if model >= 0
        ],
    }


class RejectionLog:
    """The log of pods that fit nowhere: one line for a pod and its reasons, not one for every retry."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, str] = OrderedDict()

    def record(self, placement: Placement) -> None:
        """Log why a pod fits on none of its candidates, unless that was logged last time already."""
        reasons = node_reasons(placement)
        counts = Counter(reason.text for reason in reasons).most_common()
        text = "; ".join(f"{count} x {reason}" for reason, count in counts) or "no candidates"
        key = placement.pod.uid or placement.pod.key
        if self._last.get(key) == text:
            return
        self._last[key] = text
        self._last.move_to_end(key)
        if len(self._last) > _MAX_REMEMBERED:
            self._last.popitem(last=False)
        nodes = ", ".join(f"{reason.node}: {reason.text}" for reason in reasons[:_MAX_NODES_IN_LOG])
        more = len(reasons) - _MAX_NODES_IN_LOG
        if more > 0:
            nodes += f", and {more} more (GET /explain/pod/{placement.pod.key})"
        logger.info("pod %s fits on no node: %s [%s]", placement.pod.key, text, nodes)
