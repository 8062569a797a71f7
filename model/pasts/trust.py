"""Validation of a replay: the error of a replay under the default scheduler, and its limits."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from extender.core.clusters import Floats
from model.pasts.accounts import Account, figures
from model.pasts.pasts import HistoryWorkload

REPLAYED: Final = "kube-default"
"""The policy that most clusters run."""
GPUS_OFF_FRAC: Final = 0.05
"""Largest relative error of the GPUs in use."""
DELAY_OFF_FRAC: Final = 0.5
"""Largest relative error of mean delays."""
DELAY_OFF_S: Final = 60.0
"""Absolute error of mean delays that is always accepted, for image pulls and binding, which a replay lacks."""
LEAST_CORRELATION: Final = 0.8
"""Least correlation of the daily GPUs in use."""
_LEAST_DAYS: Final = 7
"""Least days for a correlation."""
LEAST_JOBS: Final = 30
"""Least jobs with GPUs for a verdict."""
_LEFT_OUT_FRAC: Final = 0.05
"""Largest fraction of pods that fit no node."""
_DAY_S: Final = 86400.0


def error_of(workload: HistoryWorkload, actual: Account | None, replayed: Account) -> dict[str, Any]:
    """Return the differences, and `faults`: reasons for no verdict. `trusted` is None if nothing is known."""
    if actual is None:
        return {"policy": REPLAYED, "trusted": None, "faults": []}
    was, is_now = figures(workload, actual), figures(workload, replayed)
    sizes = {
        size: _delays(row["mean_delay_s"], is_now["waiting"][size]["mean_delay_s"]) | {"jobs": row["jobs"]}
        for size, row in was["waiting"].items()
    }
    gpus = {"actual": was["allocated_gpus"], "replayed": is_now["allocated_gpus"]}
    gpus["off_frac"] = round((gpus["replayed"] - gpus["actual"]) / max(gpus["actual"], 1e-9), 4)
    days, correlation = _by_day(actual, replayed)
    found = {
        "policy": REPLAYED, "gpus": gpus, "gpu_delay_s": _delays(was["gpu_delay_s"], is_now["gpu_delay_s"]),
        "waiting": sizes, "days": days, "daily_correlation": correlation,
    }  # fmt: skip
    faults = _faults(workload, found)
    return {**found, "trusted": not faults, "faults": faults}


def _delays(actual_s: float, replayed_s: float) -> dict[str, Any]:
    """Return two mean delays, their difference, and whether it is acceptable."""
    off_s = replayed_s - actual_s
    acceptable = abs(off_s) <= max(DELAY_OFF_S, DELAY_OFF_FRAC * actual_s)
    return {"actual": actual_s, "replayed": replayed_s, "off_s": round(off_s, 3), "trusted": acceptable}


def _by_day(actual: Account, replayed: Account) -> tuple[int, float | None]:
    """Return whole days and the correlation of the daily GPUs in use; None for few days or constant use."""
    until_s = min(actual.steps.edges_s[-1], replayed.steps.edges_s[-1])
    days = int(until_s // _DAY_S)
    if days < _LEAST_DAYS:
        return days, None
    edges_s: Floats = np.arange(days + 1, dtype=np.float64) * _DAY_S
    both = [account.steps.means(account.steps.used_gpus, edges_s) for account in (actual, replayed)]
    if any(float(np.ptp(gpus)) < 1e-6 for gpus in both):
        return days, None
    return days, round(float(np.corrcoef(both[0], both[1])[0, 1]), 4)


def _faults(workload: HistoryWorkload, error: Mapping[str, Any]) -> list[str]:
    gpus, delay = error["gpus"], error["gpu_delay_s"]
    num_jobs = sum(row["jobs"] for row in error["waiting"].values())
    left_out, num_pods = workload.offered.left_out, len(workload.pods.names)
    correlation = error["daily_correlation"]
    faults = []
    if num_jobs < LEAST_JOBS:
        faults.append(f"only {num_jobs} jobs requested GPUs; at least {LEAST_JOBS} are needed")
    if left_out > _LEFT_OUT_FRAC * num_pods:
        faults.append(f"{left_out:,} of {num_pods:,} pods fit no known node and are not in the replay")
    if abs(gpus["off_frac"]) > GPUS_OFF_FRAC:
        faults.append(
            f"{gpus['actual']:,.1f} GPUs were in use, but {gpus['replayed']:,.1f} in the replay: "
            f"{100 * abs(gpus['off_frac']):.0f} % {'more' if gpus['off_frac'] > 0 else 'fewer'}"
        )
    if not delay["trusted"]:
        faults.append(
            f"the mean wait for GPUs was {spell(delay['actual'])}, but {spell(delay['replayed'])} in the replay"
        )
    if correlation is not None and correlation < LEAST_CORRELATION:
        faults.append(f"the correlation of the daily GPUs in use is only {correlation:.2f}")
    return faults


def spell(seconds: float) -> str:
    """Format a duration for people."""
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a duration")
    if seconds < 0.5:
        return "0 s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (math.inf, 86400, "days")):
        if seconds < limit:
            return (
                f"{seconds / size:.0f} {unit}" if seconds / size >= 9.5 or size == 1 else f"{seconds / size:.1f} {unit}"
            )
    raise AssertionError("no unit")
