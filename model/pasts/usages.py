"""GPU-hours of an account, their cost, and GPUs in use over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import Floats
from model.pasts.accounts import Account
from model.pasts.pasts import HistoryWorkload

_MONTH_H: Final = 720.0
"""Hours of a month: 30 days."""
_MOST_BINS: Final = 180
"""Largest number of bins of a timeline."""
_LEAST_BIN_S: Final = 3600.0


@dataclass(frozen=True)
class Price:
    """Price of a GPU-hour."""

    amount: float
    currency: str = ""


def month_cost(gpus: float, price: Price) -> float:
    """Return the cost of GPUs for a month."""
    return round(gpus * _MONTH_H * price.amount, 2)


def usage(workload: HistoryWorkload, account: Account, price: Price | None) -> dict[str, float | None]:
    """Return GPU-hours per month: booked, idle, and stranded (idle, but not usable by a typical pod).

    With a price, also their cost. Stranded is None if placements are unknown.
    """
    steps = account.steps
    booked = steps.mean(steps.used_gpus)
    capacity = float(_capacity(workload, steps.edges_s[[0, -1]])[0])
    stranded = None if steps.fragment_gpus is None else steps.mean(steps.fragment_gpus)
    gpus = {"booked": booked, "idle": max(capacity - booked, 0.0), "stranded": stranded}
    hours = {name: None if mean is None else round(mean * _MONTH_H, 1) for name, mean in gpus.items()}
    found: dict[str, float | None] = {f"{name}_gpu_hours": value for name, value in hours.items()}
    if price:
        found |= {
            f"{name}_cost": None if value is None else round(value * price.amount, 2) for name, value in hours.items()
        }
    return found


def _capacity(workload: HistoryWorkload, edges_s: Floats) -> Floats:
    """(T,) mean GPUs present between (T + 1,) edges."""
    gpus = workload.offered.nodes.num_gpus
    present = np.full(len(edges_s) - 1, float(gpus.sum()))
    for node, begin_s, end_s in workload.offered.absences:
        away_s = np.minimum(edges_s[1:], end_s) - np.maximum(edges_s[:-1], begin_s)
        present -= gpus[node] * np.maximum(away_s, 0.0) / np.diff(edges_s)
    return present


def timeline(workload: HistoryWorkload, accounts: Mapping[str, Account]) -> dict[str, Any]:
    """Return the GPUs in use under each account, and the GPUs present, in equal bins of the period."""
    until_s = float(workload.offered.tasks.submitted_s[-1])
    num_bins = max(min(_MOST_BINS, int(until_s / _LEAST_BIN_S)), 1)
    edges_s = np.linspace(0.0, until_s, num_bins + 1)
    in_use = {name: account.steps.means(account.steps.used_gpus, edges_s) for name, account in accounts.items()}
    return {
        "bin_s": round(until_s / num_bins, 3),
        "gpus": {name: np.round(values, 1).tolist() for name, values in in_use.items()},
        "capacity": np.round(_capacity(workload, edges_s), 1).tolist(),
    }
