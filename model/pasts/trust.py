"""How far a replay of what most clusters run is from what is known to have happened, and when not to judge by it."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from extender.core.clusters import Floats
from model.pasts.accounts import Account, figures
from model.pasts.pasts import Past

REPLAYED: Final = "kube-default"
"""The policy that most clusters run."""
GPUS_OFF_FRAC: Final = 0.05
"""GPUs in use may differ by so much of what they were."""
DELAY_OFF_FRAC: Final = 0.5
"""Mean delays may differ by so much of what they were."""
DELAY_OFF_S: Final = 60.0
"""Or by so many seconds, which images and binding take and a replay has none of."""
LEAST_CORRELATION: Final = 0.8
"""Of the GPUs in use, day by day."""
_LEAST_DAYS: Final = 7
"""Fewer days don't correlate, they happen to."""
LEAST_JOBS: Final = 30
"""That ask for GPUs; nothing is judged by fewer."""
_LEFT_OUT_FRAC: Final = 0.05
"""Pods that fit no node may be so many of all."""
_DAY_S: Final = 86400.0


def error_of(known: Past, actual: Account | None, replayed: Account) -> dict[str, Any]:
    """The differences, and `faults`: each a reason not to judge, in words. `trusted` is None where nothing is known."""
    if actual is None:
        return {"policy": REPLAYED, "trusted": None, "faults": []}
    was, is_now = figures(known, actual), figures(known, replayed)
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
    faults = _faults(known, found)
    return {**found, "trusted": not faults, "faults": faults}


def _delays(actual_s: float, replayed_s: float) -> dict[str, Any]:
    """Two mean delays, and whether they are alike enough to judge by."""
    off_s = replayed_s - actual_s
    alike = abs(off_s) <= max(DELAY_OFF_S, DELAY_OFF_FRAC * actual_s)
    return {"actual": actual_s, "replayed": replayed_s, "off_s": round(off_s, 3), "trusted": alike}


def _by_day(actual: Account, replayed: Account) -> tuple[int, float | None]:
    """Whole days, and how the GPUs in use correlate over them; None where they are few, or nothing changes."""
    until_s = min(actual.steps.edges_s[-1], replayed.steps.edges_s[-1])
    days = int(until_s // _DAY_S)
    if days < _LEAST_DAYS:
        return days, None
    edges_s: Floats = np.arange(days + 1, dtype=np.float64) * _DAY_S
    both = [account.steps.means(account.steps.used_gpus, edges_s) for account in (actual, replayed)]
    if any(float(np.ptp(gpus)) < 1e-6 for gpus in both):
        return days, None
    return days, round(float(np.corrcoef(both[0], both[1])[0, 1]), 4)


def _faults(known: Past, error: Mapping[str, Any]) -> list[str]:
    gpus, delay = error["gpus"], error["gpu_delay_s"]
    num_jobs = sum(row["jobs"] for row in error["waiting"].values())
    left_out, num_pods = known.offered.left_out, len(known.pods.names)
    correlation = error["daily_correlation"]
    faults = []
    if num_jobs < LEAST_JOBS:
        faults.append(f"only {num_jobs} jobs asked for GPUs; {LEAST_JOBS} are needed to judge by")
    if left_out > _LEFT_OUT_FRAC * num_pods:
        faults.append(f"{left_out:,} of {num_pods:,} pods fit no node that is known, and are not in the replay")
    if abs(gpus["off_frac"]) > GPUS_OFF_FRAC:
        faults.append(
            f"{gpus['actual']:,.1f} GPUs were in use, and {gpus['replayed']:,.1f} are in the replay: "
            f"{100 * abs(gpus['off_frac']):.0f} % {'more' if gpus['off_frac'] > 0 else 'fewer'}"
        )
    if not delay["trusted"]:
        faults.append(
            f"pods waited {spell(delay['actual'])} for GPUs in the mean, and {spell(delay['replayed'])} in the replay"
        )
    if correlation is not None and correlation < LEAST_CORRELATION:
        faults.append(f"the GPUs in use, day by day, correlate by {correlation:.2f} only")
    return faults


def spell(seconds: float) -> str:
    """A time as people say it."""
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    if seconds < 0.5:
        return "0 s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (math.inf, 86400, "days")):
        if seconds < limit:
            return (
                f"{seconds / size:.0f} {unit}" if seconds / size >= 9.5 or size == 1 else f"{seconds / size:.1f} {unit}"
            )
    raise AssertionError("no unit")
