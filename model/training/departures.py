"""Evaluation of policies with departures, by load and seed."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from extender.ranking import files
from model.evaluation.reports import Interval, interval
from model.simulations.baselines import Baseline
from model.simulations.departures import PeriodicWorkload, churn_measures, periodic_workload, simulate_churn
from model.simulations.learned import Foresight, Learned, OutlookCache
from model.simulations.online import Follower, Seen, Watch
from model.training.evaluations import ONLINE, SELECTIVE
from model.workloads.sources import ClusterAndPods, Source

Figures = dict[str, list[float]]
"""Values by measure, one per seed: see `churn_measures`."""
_PATIENCE_S: Final = 6 * 3600.0
"""How much later pods may arrive that a skipped share yields to. Tuned on seeds 1001 to 1003 of `default`."""
_PAIRED: Final = {"allocated_gpus": 1, "mean_delay_s": -1, "large_delay_s": -1}
"""Compared measures, with the sign of an improvement."""


def evaluate(
    source: Source,
    trace: str,
    loads: Sequence[float],
    seeds: Sequence[int],
    policies: Mapping[str, Baseline | Path],
    on_step: Callable[[str], None],
) -> dict[str, dict[str, Figures]]:
    """Evaluate policies from `resolve_policies` by load: first come, first served, with skipping.

    Models know the mix of the submitted pods beforehand, as FGD does. `kerf-online` only counts the pods so far,
    including those left from earlier periods. `kerf-selective` is `kerf` with PATIENCE_S.
    """
    models = {name: files.read(rule) for name, rule in policies.items() if isinstance(rule, Path)}
    telling = OutlookCache()

    def rule_of(
        name: str, rule: Baseline | Path, offer: ClusterAndPods, offered: PeriodicWorkload
    ) -> Baseline | Learned | Follower:
        if isinstance(rule, Baseline):
            return rule
        potential, priced_load = models[name].potential, models[name].manifest.foresight_load
        nodes, asks = offered.nodes, offered.tasks.asks
        if name == ONLINE:
            return Follower(potential, Seen(nodes, asks, offered.model_names, Watch(), priced_load), Watch())
        foresight = Foresight(priced_load)
        return Learned(potential, telling(nodes, asks, offered.tasks.mix, offer.nodes, offer.pods, foresight))

    found: dict[str, dict[str, Figures]] = {}
    for load in loads:
        rows: dict[str, Figures] = {name: defaultdict(list) for name in policies}
        for seed in seeds:
            offer = source(seed)
            offered = periodic_workload(offer.path, offer.nodes, offer.pods, load, seed)
            for name, rule in policies.items():
                on_step(f"{trace}, load {load:g}, {name}, seed {seed}")
                patience_s = _PATIENCE_S if name == SELECTIVE else 0.0
                run = simulate_churn(offered, rule_of(name, rule, offer, offered), "fifo", seed, patience_s=patience_s)
                for measure, value in churn_measures(offered, run).items():
                    rows[name][measure].append(value)
        found[f"{load:g}"] = {name: dict(row) for name, row in rows.items()}
    return found


def differences(found: Mapping[str, Figures]) -> dict[str, dict[str, Interval]]:
    """Return the improvement of the first policy over each other one by measure, paired by seed."""
    first, *others = found
    return {
        other: {
            measure: interval((sign * np.subtract(found[first][measure], found[other][measure])).tolist())
            for measure, sign in _PAIRED.items()
        }
        for other in others
    }
