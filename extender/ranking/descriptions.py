"""The state of the learned rank as JSON, for `GET /model` and the page."""

from typing import Any

from extender.core.policies.kerf import HEURISTIC
from extender.ranking.evidence import Evidence
from extender.ranking.learning.controller import Learning
from extender.ranking.service import LearnedRank


def summary(rank: LearnedRank, learning: Learning | None) -> dict[str, Any]:
    """Which model there is, in a line."""
    return {
        "mode": rank.mode.value,
        "sha256": None if rank.model is None else rank.model.manifest.sha256,
        "reason": rank.why_not or None,
        "learning": (learning and learning.course.said) or None,
    }


def describe(rank: LearnedRank, evidence: Evidence | None, learning: Learning | None) -> dict[str, Any]:
    """Model, prices and mix, by what `auto` was decided, and how fitted models do; None where there is none of it."""
    manifest = None if rank.model is None else rank.model.manifest
    return {
        "mode": rank.mode.value,
        "path": None if rank.path is None else str(rank.path),
        "served": HEURISTIC if rank.why_not else "model",
        "reason": rank.why_not or None,
        "fault": rank.fault() or None,
        "auto": rank.auto,
        "evidence": evidence and evidence.describe(),
        "learning": learning and learning.describe(),
        "model": manifest
        and {
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
