"""A placed pod in one sentence: why it is on its node and not on the runner-up, by the largest differences first."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.decisions import Decision, ranked
from extender.core.evaluations import Evaluation, broken_down
from extender.core.policies.breakdowns import Breakdown, Part
from extender.core.policies.policy import Terms
from extender.core.resources.requests import GpuRequest
from extender.explain.sentences.features import FEATURE_WORDS
from extender.explain.sentences.words import bounded, named

_MOST_PARTS: Final = 2
_TELLING: Final = 0.1
"""A part whose difference is a smaller fraction of the largest is not told."""
_DIGITS: Final = 12
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Scores:
    """Candidates as a policy ranks them, R rows."""

    cluster: Cluster
    """As it was."""
    request: GpuRequest
    rows: Rows
    evaluation: Evaluation
    breakdown: Breakdown | None
    """None where nothing was scored."""
    terms: Terms | None = None
    """What moved the value of the learned rank."""

    @property
    def first(self) -> list[int]:
        """Positions of the winner and of the runner-up, as far as there are any."""
        position = {row: at for at, row in enumerate(self.rows.tolist())}
        return [position[row] for row in islice(ranked(self.cluster, self.rows, self.evaluation), 2)]

    def meanings(self) -> dict[str, str]:
        """What each part counts, by its name."""
        return {part.name: part.meaning for part in self.breakdown.parts} if self.breakdown else {}

    def of_rows(self) -> list[dict[str, float] | None]:
        """R times what each part adds to the score, None where a row does not fit or was not scored."""
        if self.breakdown is None:
            return [None] * len(self.rows)
        names = [part.name for part in self.breakdown.parts]
        added = np.array([part.adds for part in self.breakdown.parts]).round(_DIGITS) + 0.0  # (K, R), without -0.0
        fits = self.evaluation.fits.tolist()
        told = zip(added.T.tolist(), fits, strict=True)
        return [dict(zip(names, parts, strict=True)) if here else None for parts, here in told]


def scores_of(cluster: Cluster, decision: Decision, rows: Rows, evaluation: Evaluation) -> Scores:
    """What a decision's scores are made of, on some of its rows. A thread may ask."""
    by = decision.by
    told = None if by is None or decision.planned else broken_down(cluster, decision.request, by, rows)[1]
    return Scores(cluster, decision.request, rows, evaluation, told, decision.terms)


def why_there(scores: Scores, num_candidates: int, *, planned: bool) -> str:
    """The sentence, "" where no candidate has room; of the candidates some may be unknown."""
    first = scores.first
    if not first:
        return ""
    node = named(scores.cluster.node_names[int(scores.rows[first[0]])])
    if planned:
        return bounded(f"On {node}, where Kerf's queue has planned it, in turn with the others that waited.")
    if len(first) == 1:
        only = f"the only one of {num_candidates} candidates with room" if num_candidates > 1 else "its only candidate"
        return bounded(f"On {node}, {only}.")
    runner = named(scores.cluster.node_names[int(scores.rows[first[1]])])
    return bounded(_compared(scores, node, runner, *first))


def _compared(scores: Scores, node: str, runner: str, winner: int, second: int) -> str:
    if scores.breakdown is None:
        return f"On {node}, which ranks before {runner}."
    total = float(scores.breakdown.score[winner] - scores.breakdown.score[second])
    differences = [(float(part.adds[winner] - part.adds[second]), part) for part in scores.breakdown.parts]
    for_it = sorted((one for one in differences if one[0] > _NOTHING), key=lambda one: -one[0])
    against = [one for one in differences if one[0] < -_NOTHING]
    if not for_it or abs(total) <= _NOTHING:
        return f"On {node}: {runner}, the next, ranks the same, and comes later in a fixed order."
    told = [part for size, part in for_it if size >= _TELLING * for_it[0][0]][:_MOST_PARTS]
    here, there = _words(told, winner), _words(told, second)
    sentence = f"On {node}: {here}; on {runner}, the next: {there}"
    if scores.terms is not None and told[0].name == "value":
        sentence += _moved(scores, scores.terms, node, runner, winner, second)
    if against:
        size, most = min(against, key=lambda one: one[0])
        if -size >= _TELLING * for_it[0][0]:
            sentence += f"; this outweighs {_words([most], winner)} against {_words([most], second)}"
    return f"{sentence}."


def _words(parts: list[Part], at: int) -> str:
    return " and ".join(part.words(float(part.amount[at])) for part in parts)


def _moved(scores: Scores, terms: Terms, node: str, runner: str, winner: int, second: int) -> str:
    """The feature by which the learned values of the two differ most."""
    here, there = (_features(terms(scores.cluster, scores.request, int(scores.rows[at]))) for at in (winner, second))
    gains = {name: here.get(name, 0.0) - there.get(name, 0.0) for name in here | there}
    if not gains or gains[most := max(gains, key=gains.__getitem__)] <= _NOTHING:
        return ""
    moved = f"{here.get(most, 0.0):+.2f} on {node}, {there.get(most, 0.0):+.2f} on {runner}"
    return f", mostly by {FEATURE_WORDS.get(most, named(most))} ({moved})"


def _features(told: Mapping[str, Any]) -> dict[str, float]:
    return {feature["feature"]: feature["movedGPUs"] for feature in told.get("features", ())}
