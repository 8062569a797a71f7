"""Outcomes of a history's jobs, replayed or actual, and their measures."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from model.pasts.pasts import HistoryWorkload
from model.simulations.delays import Run
from model.simulations.departures import delay_measures

SIZES: Final = (("share", 1), ("1", 1000), ("2-3", 2000), ("4-7", 4000), ("8+", 8000))
"""Job sizes, with the least GPU milli of each."""


@dataclass(frozen=True)
class Steps:
    """Piecewise constant values in the S steps of a period."""

    edges_s: Floats
    """(S + 1,) bounds of the steps; the first is 0."""
    used_gpus: Floats
    """(S,)."""
    fragment_gpus: Floats | None
    """(S,) idle GPUs that a typical pod is expected not to be able to use; None if placements are unknown."""

    def means(self, values: Floats, edges_s: Floats) -> Floats:
        """(T,) time-weighted means of (S,) values between (T + 1,) edges inside the period."""
        integral = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edges_s))])
        means: Floats = np.diff(np.interp(edges_s, self.edges_s, integral)) / np.diff(edges_s)
        return means

    def mean(self, values: Floats) -> float:
        """Return the mean over the period."""
        return float(self.means(values, self.edges_s[[0, -1]])[0])


@dataclass(frozen=True)
class Account:
    """Outcomes of the J jobs submitted in the period."""

    delay_s: Floats
    """(J,) time from submission to start; without a start, to the deletion or the end of the history."""
    never: Mask
    """(J,) whether the job did not start within the history."""
    steps: Steps
    blocked_starts: int | None
    """Multi-GPU jobs that waited because free GPUs were scattered; None if unknown."""


def account_of(workload: HistoryWorkload, run: Run) -> Account:
    """Return the outcomes of a replay with `count_blocked`."""
    tasks, before = workload.offered.tasks, workload.offered.num_before
    # Cut at the end of the history: later times have no actual counterpart and depend on estimated durations.
    known_s = np.maximum(workload.until_s - tasks.submitted_s[before:], 0.0)
    never = run.delay_s > known_s
    steps = run.outcome.steps
    edges_s = np.array([0.0, *(end for _, end, _, _ in steps)])
    used, fragments = (np.array([step[k] for step in steps]) for k in (2, 3))
    return Account(
        np.minimum(run.delay_s, known_s), never, Steps(edges_s, used, fragments),
        sum(job >= before for job in run.outcome.blocked_jobs),
    )  # fmt: skip


def figures(workload: HistoryWorkload, account: Account) -> dict[str, Any]:
    """Return the measures of an account; None for unknown ones.

    GPUs are means from the start of the period to the last submission. A gang counts as one job in delays.
    """
    milli = workload.offered.tasks.asked_milli[workload.offered.num_before :]
    steps, delay_s = account.steps, account.delay_s
    delays = delay_measures(delay_s, milli > WHOLE_MILLI)
    fragments = None if steps.fragment_gpus is None else round(steps.mean(steps.fragment_gpus), 3)
    return {
        "allocated_gpus": round(steps.mean(steps.used_gpus), 3),
        **{name: round(delays[name], 3) for name in ("mean_delay_s", "p99_delay_s", "large_delay_s")},
        "fragments": fragments,
        "gpu_delay_s": round(gpu_delay_s(milli, delay_s), 3),
        "waiting": waiting(milli, delay_s),
        "blocked_starts": account.blocked_starts,
        "never_started": int(account.never.sum()),
    }


def gpu_delay_s(asked_milli: Longs, delay_s: Floats) -> float:
    """Return the mean delay of jobs that request GPUs."""
    asking = asked_milli > 0
    return float(delay_s[asking].mean()) if asking.any() else 0.0


def waiting(asked_milli: Longs, delay_s: Floats) -> dict[str, dict[str, float]]:
    """Return the number of jobs and their waits, by size."""
    size = np.searchsorted([least for _, least in SIZES], asked_milli, side="right") - 1
    found = {}
    for number, (name, _) in enumerate(SIZES):
        waited = delay_s[(size == number) & (asked_milli > 0)]
        if len(waited):
            mean, p99 = float(waited.mean()), float(np.percentile(waited, 99))
            found[name] = {"jobs": len(waited), "mean_delay_s": round(mean, 3), "p99_delay_s": round(p99, 3)}
    return found
