"""A placed pod in one sentence: why it is on its node and not on the runner-up, by the largest differences first."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.decisions import Decision, ranked
from extender.core.evaluations import Evaluation, broken_down
from extender.core.policies.breakdowns import Breakdown, Part
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest, named
from extender.core.texts import in_figures
from extender.explain.sentences.seen import compared, looks
from extender.explain.sentences.words import bounded

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
    by: Policy | None = None
    """Whose they are, None where nothing was scored."""

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
    return Scores(cluster, decision.request, rows, evaluation, told, by)


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
    told, by = scores.breakdown, scores.by
    if told is None or by is None:
        return f"On {node}, which ranks before {runner}."
    score = float(told.score[winner]), float(told.score[second])
    if score[0] == score[1]:
        return f"{node} and {runner} rank equal; the first by name was taken."
    differences = [(float(part.adds[winner] - part.adds[second]), part) for part in told.parts if part.tells]
    for_it = sorted((one for one in differences if one[0] > _NOTHING), key=lambda one: -one[0])
    against = min((one for one in differences if one[0] < -_NOTHING), key=lambda one: one[0], default=None)
    largest = for_it[0][0] if for_it else 0.0
    most = [part for size, part in for_it if size >= _TELLING * largest][:_MOST_PARTS]
    plain = [part for part in most if not part.unitless]
    here, there = _words(plain, winner), _words(plain, second)
    if len(plain) < len(most):
        sentence = compared(*looks(scores.cluster, by, scores.request, _pair(scores, winner, second)))
        sentence += f"; besides, {here} against {there}" if plain else ""
    elif here:
        sentence = f"On {node}: {here}; on {runner}, the next: {there}"
    else:
        sentence = f"On {node}, which ranks before {runner}"
    if against is not None and -against[0] >= _TELLING * largest:
        part = against[1]
        ours, theirs = _words([part], winner), _words([part], second)
        of_other = f"the learned rank, which puts {runner} first" if part.unitless else f"{ours} against {theirs}"
        sentence += f"; this outweighs {of_other}"
    if here == there or any(part.unitless for part in told.parts):
        sentence += ". (Score {} against {}.)".format(*in_figures(score))
        return sentence
    return f"{sentence}."


def _pair(scores: Scores, winner: int, second: int) -> tuple[int, int]:
    return int(scores.rows[winner]), int(scores.rows[second])


def _words(parts: list[Part], at: int) -> str:
    return " and ".join(part.words(float(part.amount[at])) for part in parts)
