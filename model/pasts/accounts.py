"""What became of the jobs of a history, in a replay or in truth, and the figures that are told of it."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from model.pasts.pasts import Past
from model.simulations.delays import Run
from model.simulations.departures import delay_measures

SIZES: Final = (("share", 1), ("1", 1000), ("2-3", 2000), ("4-7", 4000), ("8+", 8000))
"""Of jobs, by the GPU milli that they ask for at least: a share of a GPU, one, and so on."""


@dataclass(frozen=True)
class Steps:
    """What changes from step to step, in the S steps that a period falls into."""

    edges_s: Floats
    """(S + 1,) the first is 0."""
    used_gpus: Floats
    """(S,)."""
    fragment_gpus: Floats | None
    """(S,) idle GPUs that a typical pod is expected to be unable to use; None where places are unknown."""

    def means(self, values: Floats, edges_s: Floats) -> Floats:
        """(T,) means over time of (S,) values between (T + 1,) edges inside the period."""
        so_far = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edges_s))])
        found: Floats = np.diff(np.interp(edges_s, self.edges_s, so_far)) / np.diff(edges_s)
        return found

    def mean(self, values: Floats) -> float:
        """Over the period."""
        return float(self.means(values, self.edges_s[[0, -1]])[0])


@dataclass(frozen=True)
class Account:
    """What became of the J jobs that were submitted in the period."""

    delay_s: Floats
    """(J,) from submission to the start; where there was none, to the end of the history, or until it was given up."""
    never: Mask
    """(J,) whether it did not start in the time of the history."""
    steps: Steps
    blocked_starts: int | None
    """Of several GPUs, that only a move would have allowed; None where that is unknown."""


def account_of(known: Past, run: Run) -> Account:
    """That of a replay with `count_blocked`."""
    tasks, before = known.offered.tasks, known.offered.num_before
    # What a replay makes of the time after the history is not known of what happened, and rests on durations guessed.
    known_s = np.maximum(known.until_s - tasks.submitted_s[before:], 0.0)
    never = run.delay_s > known_s
    steps = run.outcome.steps
    edges_s = np.array([0.0, *(end for _, end, _, _ in steps)])
    used, fragments = (np.array([step[k] for step in steps]) for k in (2, 3))
    return Account(
        np.minimum(run.delay_s, known_s), never, Steps(edges_s, used, fragments),
        sum(job >= before for job in run.outcome.blocked_jobs),
    )  # fmt: skip


def figures(known: Past, account: Account) -> dict[str, Any]:
    """What is told of an account; None where it is not known.

    GPUs are means over the period, from its begin to the last submission. Delays are of jobs: a gang is one.
    """
    asked = known.offered.tasks.asked_milli[known.offered.num_before :]
    steps, delay_s = account.steps, account.delay_s
    delays = delay_measures(delay_s, asked > WHOLE_MILLI)
    fragments = None if steps.fragment_gpus is None else round(steps.mean(steps.fragment_gpus), 3)
    return {
        "allocated_gpus": round(steps.mean(steps.used_gpus), 3),
        **{name: round(delays[name], 3) for name in ("mean_delay_s", "p99_delay_s", "large_delay_s")},
        "fragments": fragments,
        "gpu_delay_s": round(gpu_delay_s(asked, delay_s), 3),
        "waiting": waiting(asked, delay_s),
        "blocked_starts": account.blocked_starts,
        "never_started": int(account.never.sum()),
    }


def gpu_delay_s(asked_milli: Longs, delay_s: Floats) -> float:
    """Mean delay of the jobs that ask for GPUs."""
    asking = asked_milli > 0
    return float(delay_s[asking].mean()) if asking.any() else 0.0


def waiting(asked_milli: Longs, delay_s: Floats) -> dict[str, dict[str, float]]:
    """How many jobs there are of each size that occurs, and how long they waited."""
    size = np.searchsorted([least for _, least in SIZES], asked_milli, side="right") - 1
    found = {}
    for number, (name, _) in enumerate(SIZES):
        waited = delay_s[(size == number) & (asked_milli > 0)]
        if len(waited):
            mean, p99 = float(waited.mean()), float(np.percentile(waited, 99))
            found[name] = {"jobs": len(waited), "mean_delay_s": round(mean, 3), "p99_delay_s": round(p99, 3)}
    return found
