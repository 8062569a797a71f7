"""The state of the learned rank as JSON, for `GET /model` and the page."""

from typing import Annotated, Any, TypedDict

from extender.core.policies.kerf import HEURISTIC
from extender.ranking.interfaces import RankEvaluator
from extender.ranking.service import LearnedRank


class Rank(TypedDict):
    """The response of `GET /model`; annotations are examples."""

    mode: Annotated[str, "off"]
    path: str | None
    served: Annotated[str, "tightest"]
    reason: Annotated[str | None, "no model is loaded"]
    fault: str | None
    auto: Annotated[str, "tightest"]
    evidence: dict[str, Any] | None
    learning: dict[str, Any] | None
    model: dict[str, Any] | None
    weights: Annotated[dict[str, float], {"value": 1.0, "live": 2.0}]
    looks: Annotated[dict[str, Any], {"number": 0, "ageSeconds": None}]
    prices: Annotated[dict[str, Any], {"of": "plain", "fault": None, "workedOut": 0, "seconds": 0.0}]
    mix: Annotated[dict[str, float], {"pods": 71.1, "seen": 62, "drift": 1.0}]


def summary(rank: LearnedRank, judges: RankEvaluator | None) -> dict[str, Any]:
    """A short summary of the model's state."""
    return {
        "mode": rank.mode.value,
        "sha256": None if rank.model is None else rank.model.manifest.sha256,
        "reason": rank.why_not or None,
        "learning": (judges and judges.said) or None,
    }


def describe(rank: LearnedRank, judges: RankEvaluator | None) -> Rank:
    """The state of the model, prices, mix, evidence and fitted models."""
    manifest = None if rank.model is None else rank.model.manifest
    return {
        "mode": rank.mode.value,
        "path": None if rank.path is None else str(rank.path),
        "served": HEURISTIC if rank.why_not else "model",
        "reason": rank.why_not or None,
        "fault": rank.fault() or None,
        "auto": rank.auto,
        "evidence": judges.evidence() if judges else None,
        "learning": judges.learning() if judges else None,
        "model": None
        if manifest is None
        else {
            "kind": manifest.kind,
            "sha256": manifest.sha256,
            "featuresVersion": manifest.features_version,
            "licence": manifest.licence,
            "training": manifest.training,
            "traces": [row.trace for row in manifest.evaluation],
        },
        "weights": {"value": rank.weights.value, "live": rank.weights.live},
        "looks": {"number": rank.num_looks, "ageSeconds": rank.look_age_s()},
        "prices": {
            "of": "plain" if rank.priced.worth is None else "lp",
            "fault": rank.priced.fault or None,
            "workedOut": rank.priced.num,
            "seconds": round(rank.priced.seconds, 3),
            "ageSeconds": rank.age_s(),
        },
        "mix": {
            "pods": round(sum(rank.mix.counts().values()), 1),
            "seen": rank.mix.num_seen,
            "drift": round(rank.mix.drift(), 4),
        },
    }
