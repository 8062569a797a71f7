"""Explains kept decisions. Rendered on request only, so that decisions themselves stay fast."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Mask, Rows
from extender.core.decisions import ranked
from extender.core.evaluations import Evaluation
from extender.core.fit.checks import TABLE, resolvable, sentence
from extender.core.fit.device_fits import devices_at, explain_no_fit, explain_no_fit_on
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.fit.relaxations import obstacles
from extender.core.occupancies import ObservedRules, with_observed_usage
from extender.core.resources.requests import GpuRequest
from extender.explain.answers import Explanation
from extender.explain.fixes import Question, now
from extender.explain.occupants import gpus_of
from extender.explain.sentences.features import FEATURE_WORDS
from extender.explain.sentences.nearest import in_short
from extender.explain.sentences.placed import Scores, scores_of, why_there
from extender.scheduling.placer import Placement, PodIdentity

logger = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 4096
_MAX_NODES_IN_LOG: Final = 20
_MAX_DEVICE_TEXTS: Final = 200
"""Nodes for which the exact obstacle to ResourceClaims is reported."""
_NUMBER_BITS: Final = 48  # of the number behind a reason; units and MiB both stay far below


def failures(placement: Placement) -> tuple[dict[str, str], dict[str, str]]:
    """Why candidates fail, by node name: those where evicting pods may help, and those where it can't."""
    decision, node_names = placement.decision, placement.cluster.node_names
    texts, which = _texts(placement)
    reason = decision.evaluation.reason
    passing = resolvable(reason)

    def texts_of(wanted: Mask) -> dict[str, str]:
        names = map(node_names.__getitem__, decision.rows[wanted].tolist())
        return dict(zip(names, map(texts.__getitem__, which[wanted].tolist()), strict=True))

    unknown = dict.fromkeys(placement.unknown, _unknown(placement))
    return texts_of(passing), texts_of((reason != Reason.FITS) & ~passing) | unknown


def _texts(placement: Placement) -> tuple[list[str], Rows]:
    return _texts_of(placement.decision.request, placement.decision.evaluation)


def _texts_of(request: GpuRequest, evaluation: Evaluation) -> tuple[list[str], Rows]:
    """The distinct sentences about R rows, and (R,) the index of each row's sentence."""
    keys = evaluation.reason.astype(np.int64) << _NUMBER_BITS | evaluation.available
    distinct, which = np.unique(keys, return_inverse=True)
    mask = (1 << _NUMBER_BITS) - 1
    return [sentence(key >> _NUMBER_BITS, request, key & mask) for key in distinct.tolist()], which


def explain(question: Question) -> Explanation:
    """A decision in full: request, result, and every candidate with its GPUs. Its sentence assumes a placed pod."""
    placement, decision = question.placement, question.placement.decision
    rows, evaluation = offered_rows(placement)
    scores = scores_of(placement.cluster, decision, rows, evaluation)
    nodes = _candidates(placement, question.rules, question.policy.rules, scores)
    ranking = None  # parts of the winner's score, if the policy provides them
    if decision.terms is not None and decision.best is not None:
        ranking = _with_meanings(decision.terms(placement.cluster, decision.request, decision.best))
    return {
        "pod": placement.pod.key,
        "uid": placement.pod.uid,
        "decidedAt": datetime.fromtimestamp(placement.decided_at, UTC).isoformat(timespec="seconds"),
        "policy": decision.policy,
        "request": str(decision.request),
        "required": _required(decision.request),
        "node": placement.node,
        "gpus": list(decision.gpus),
        "milli": decision.milli if decision.gpus else None,
        "memoryMiB": decision.mib if decision.milli < WHOLE_MILLI else None,
        "crosses": decision.crosses or None,
        "ranking": ranking,
        "reasons": dict(Counter(node["text"] for node in nodes if node["reason"] != Reason.FITS.name).most_common()),
        "lacks": _lacks(placement),
        "sentence": why_there(scores, len(nodes), planned=decision.planned),
        "scoreTerms": scores.meanings(),
        "nodes": nodes,
        "verdict": question.verdict,
        "now": now(question),
        "offered": True,
        "queue": None,
        "remedies": [],
        "ahead": None,
    }


def _with_meanings(terms: Mapping[str, Any]) -> dict[str, Any]:
    """The terms of a learned score, with descriptions of its features."""
    features = [one | {"meaning": FEATURE_WORDS.get(one["feature"], "")} for one in terms.get("features", ())]
    return {**terms, "features": features} if features else dict(terms)


def offered_rows(placement: Placement) -> tuple[Rows, Evaluation]:
    """Rows of the candidates, in the order of the call, and their evaluation."""
    decision, names = placement.decision, placement.cluster.node_names
    if placement.offered is None:
        return decision.rows, decision.evaluation
    offered = set(placement.offered.decode())
    listed = np.flatnonzero([names[row] in offered for row in decision.rows.tolist()])
    return decision.rows[listed], decision.evaluation.take(listed)


def _lacks(placement: Placement) -> str | None:
    """What ResourceClaims lack on the nearest node; None for other requests or if a node fits."""
    decision, evaluation = placement.decision, placement.decision.evaluation
    if decision.request.devices is None or evaluation.fits.any() or not len(decision.rows):
        return None
    return explain_no_fit(placement.cluster, decision.request.devices, decision.rows, evaluation.reason)


def _candidates(
    placement: Placement, rules: ObservedRules, counted: ObservedRules | None, scores: Scores
) -> list[dict[str, Any]]:
    """JSON data of each candidate, in the order of the call; nodes unknown to Kerf come last."""
    decision, cluster, names = placement.decision, placement.cluster, placement.cluster.node_names
    rows, evaluation = scores.rows, scores.evaluation
    texts, which = _texts_of(decision.request, evaluation)
    seen = with_observed_usage(cluster, counted)
    ranks = {row: rank for rank, row in enumerate(ranked(seen, rows, evaluation), 1)}
    checked = fit(seen, decision.request, rows)
    numbers = (rows, evaluation.reason, evaluation.available, evaluation.score, which)
    units = (checked.free_units, checked.taken_units, cluster.untracked_units[rows])
    candidates: list[dict[str, Any]] = []
    for (row, code, available, score, text, free, taken, untracked), added, gpus, obstacle in zip(
        zip(*(array.tolist() for array in (*numbers, *units)), strict=True),
        scores.of_rows(),
        gpus_of(cluster, rows, rules, counted),
        obstacles(seen, decision.request, rows),
        strict=True,
    ):
        for gpu in gpus:
            gpu["obstacle"] = obstacle[gpu["index"]] or None
        fits = code == Reason.FITS
        candidates.append(
            {
                "node": names[row],
                "reason": TABLE[code].name,
                "text": texts[text],
                "available": available,
                "busy": TABLE[code].resolvable,
                "score": score if fits else None,
                "rank": ranks.get(row),
                "terms": {"freeUnits": free, "takenUnits": taken, "leftUnits": free - taken} if fits else None,
                "scoreTerms": added,
                "untrackedUnits": untracked,
                "gpus": gpus,
            }
        )
    unknown = {"reason": Reason.UNKNOWN_NODE.name, "text": _unknown(placement), "available": 0}
    if decision.request.devices is not None:
        for node, row in islice(zip(candidates, rows.tolist(), strict=True), _MAX_DEVICE_TEXTS):
            possible = node["reason"] in (Reason.FITS.name, Reason.SET_ASIDE.name, Reason.KEPT_FOR_MOVE.name)
            node["lacks"] = "" if possible else explain_no_fit_on(devices_at(cluster, row), decision.request.devices)
    return candidates + [{"node": name, **unknown} for name in placement.unknown]


def _required(request: GpuRequest) -> dict[str, Any]:
    """The stated conditions of a request as JSON data."""
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


def _unknown(placement: Placement) -> str:
    return sentence(Reason.UNKNOWN_NODE, placement.decision.request, 0)


def _in_short(placement: Placement) -> str:
    """One sentence on why a pod fits on none of its candidates."""
    decision = placement.decision
    if not len(decision.rows) and not placement.unknown:
        return "it was offered no node"
    rules = None if decision.by is None else decision.by.rules
    return in_short(placement.cluster, decision.request, rules, decision.rows, decision.evaluation)


class RejectionLog:
    """Logs pods that fit nowhere: one line per pod and reasons, not one for every retry."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()  # reasons as logged, and in one sentence

    def last(self, pod: PodIdentity) -> str:
        """One sentence on why a pod fitted nowhere when last logged; "" if it is not remembered."""
        return self._last.get(pod.uid or pod.key, ("", ""))[1]

    def record(self, placement: Placement) -> None:
        """Log why a pod fits on none of its candidates, unless the reasons are unchanged."""
        decision, node_names = placement.decision, placement.cluster.node_names
        texts, which = _texts(placement)
        counts = Counter(dict(zip(texts, np.bincount(which, minlength=len(texts)).tolist(), strict=True)))
        unknown = _unknown(placement)
        if placement.unknown:
            counts[unknown] += len(placement.unknown)
        text = "; ".join(f"{count} x {reason}" for reason, count in counts.most_common()) or "no candidates"
        key = placement.pod.uid or placement.pod.key
        if self._last.get(key, ("", ""))[0] == text:
            return
        self._last[key] = text, _in_short(placement)
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
