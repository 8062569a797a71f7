"""Why a pod is on its node and not on the runner-up, in one sentence with the largest differences first."""

from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Rows
from extender.core.decisions import Decision, ranked
from extender.core.evaluations import Evaluation, evaluate_with_breakdown
from extender.core.policies.breakdowns import Breakdown, Part
from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest, named
from extender.core.texts import in_figures
from extender.explain.sentences.seen import compared, looks
from extender.explain.sentences.words import bounded

_MOST_PARTS: Final = 2
_MIN_FRACTION: Final = 0.1
"""Parts whose difference is a smaller fraction of the largest are left out."""
_DIGITS: Final = 12
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Scores:
    """R candidates as a policy ranks them."""

    cluster: Cluster
    """The cluster at the time of the decision."""
    request: GpuRequest
    rows: Rows
    evaluation: Evaluation
    breakdown: Breakdown | None
    """None if nothing was scored."""
    by: Policy | None = None
    """The policy that scored them, None if nothing was scored."""

    @property
    def first(self) -> list[int]:
        """Positions of the winner and the runner-up; fewer if fewer candidates fit."""
        position = {row: at for at, row in enumerate(self.rows.tolist())}
        return [position[row] for row in islice(ranked(self.cluster, self.rows, self.evaluation), 2)]

    def meanings(self) -> dict[str, str]:
        """Description of each part of the score, by name."""
        return {part.name: part.meaning for part in self.breakdown.parts} if self.breakdown else {}

    def of_rows(self) -> list[dict[str, float] | None]:
        """For each of R rows, what each part adds to the score; None for rows that don't fit or were not scored."""
        if self.breakdown is None:
            return [None] * len(self.rows)
        names = [part.name for part in self.breakdown.parts]
        added = np.array([part.adds for part in self.breakdown.parts]).round(_DIGITS) + 0.0  # (K, R), without -0.0
        fits = self.evaluation.fits.tolist()
        return [
            dict(zip(names, parts, strict=True)) if row_fits else None
            for parts, row_fits in zip(added.T.tolist(), fits, strict=True)
        ]


def scores_of(cluster: Cluster, decision: Decision, rows: Rows, evaluation: Evaluation) -> Scores:
    """A decision's scores on some of its rows, broken down into parts. Thread-safe."""
    by = decision.by
    breakdown = (
        None if by is None or decision.planned else evaluate_with_breakdown(cluster, decision.request, by, rows)[1]
    )
    return Scores(cluster, decision.request, rows, evaluation, breakdown, by)


def why_there(scores: Scores, num_candidates: int, *, planned: bool) -> str:
    """The sentence, "" if no candidate has room. `num_candidates` includes unknown nodes."""
    first = scores.first
    if not first:
        return ""
    node = named(scores.cluster.node_names[int(scores.rows[first[0]])])
    if planned:
        return bounded(f"On {node}, planned by Kerf's queue together with other waiting pods.")
    if len(first) == 1:
        only = f"the only one of {num_candidates} candidates with room" if num_candidates > 1 else "its only candidate"
        return bounded(f"On {node}, {only}.")
    runner = named(scores.cluster.node_names[int(scores.rows[first[1]])])
    return bounded(_compared(scores, node, runner, *first))


def _compared(scores: Scores, node: str, runner: str, winner: int, second: int) -> str:
    breakdown, by = scores.breakdown, scores.by
    if breakdown is None or by is None:
        return f"On {node}, which ranks before {runner}."
    score = float(breakdown.score[winner]), float(breakdown.score[second])
    if score[0] == score[1]:
        return f"{node} and {runner} rank equal; the first by name was taken."
    differences = [(float(part.adds[winner] - part.adds[second]), part) for part in breakdown.parts if part.tells]
    for_it = sorted((one for one in differences if one[0] > _NOTHING), key=lambda one: -one[0])
    against = min((one for one in differences if one[0] < -_NOTHING), key=lambda one: one[0], default=None)
    largest = for_it[0][0] if for_it else 0.0
    most = [part for size, part in for_it if size >= _MIN_FRACTION * largest][:_MOST_PARTS]
    plain = [part for part in most if not part.unitless]
    of_winner, of_runner = _words(plain, winner), _words(plain, second)
    if len(plain) < len(most):
        sentence = compared(*looks(scores.cluster, by, scores.request, _pair(scores, winner, second)))
        sentence += f"; also, {of_winner} against {of_runner}" if plain else ""
    elif of_winner:
        sentence = f"On {node}: {of_winner}; on {runner}, the next: {of_runner}"
    else:
        sentence = f"On {node}, which ranks before {runner}"
    if against is not None and -against[0] >= _MIN_FRACTION * largest:
        part = against[1]
        ours, theirs = _words([part], winner), _words([part], second)
        of_other = f"the learned rank, which puts {runner} first" if part.unitless else f"{ours} against {theirs}"
        sentence += f"; this outweighs {of_other}"
    if of_winner == of_runner or any(part.unitless for part in breakdown.parts):
        sentence += ". (Score {} against {}.)".format(*in_figures(score))
        return sentence
    return f"{sentence}."


def _pair(scores: Scores, winner: int, second: int) -> tuple[int, int]:
    return int(scores.rows[winner]), int(scores.rows[second])


def _words(parts: list[Part], at: int) -> str:
    return " and ".join(part.words(float(part.amount[at])) for part in parts)
