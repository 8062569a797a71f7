"""Figures of policies on a cluster that churns: the same pods with their own durations, by load and seed."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from extender.ranking import files
from model.evaluation.reports import Interval, interval
from model.simulations.baselines import Baseline
from model.simulations.departures import Churn, churn, churn_measures, simulate_churn
from model.simulations.learned import Foresight, Learned, Telling
from model.simulations.online import Follower, Seen, Watch
from model.training.evaluations import ONLINE, SELECTIVE
from model.workloads.sources import Offer, Source

Figures = dict[str, list[float]]
"""By measure, one per seed: see `churn_measures`."""
_PATIENCE_S: Final = 6 * 3600.0
"""How much later those may come that it gives way to. Chosen on orders 1001 to 1003 of `default`."""
_PAIRED: Final = {"allocated_gpus": 1, "mean_delay_s": -1, "large_delay_s": -1}
"""Measures that policies are compared by, and the sign of what is better."""


def evaluate(
    source: Source,
    trace: str,
    loads: Sequence[float],
    seeds: Sequence[int],
    policies: Mapping[str, Baseline | Path],
    tell: Callable[[str], None],
) -> dict[str, dict[str, Figures]]:
    """Figures by load and policy, as `contenders` gives them, first come first served with skipping.

    Models are told the mix of the pods submitted, as FGD is; `kerf-online` is told nothing, and has seen the pods that
    earlier periods left when it places the first. `kerf-selective` is `kerf` with PATIENCE_S.
    """
    models = {name: files.read(who) for name, who in policies.items() if isinstance(who, Path)}
    telling = Telling()

    def rule_of(name: str, who: Baseline | Path, offer: Offer, offered: Churn) -> Baseline | Learned | Follower:
        if isinstance(who, Baseline):
            return who
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
            offered = churn(offer.path, offer.nodes, offer.pods, load, seed)
            for name, who in policies.items():
                tell(f"{trace}, load {load:g}, {name}, seed {seed}")
                patience_s = _PATIENCE_S if name == SELECTIVE else 0.0
                run = simulate_churn(offered, rule_of(name, who, offer, offered), "fifo", seed, patience_s=patience_s)
                for measure, value in churn_measures(offered, run).items():
                    rows[name][measure].append(value)
        found[f"{load:g}"] = {name: dict(row) for name, row in rows.items()}
    return found


def differences(found: Mapping[str, Figures]) -> dict[str, dict[str, Interval]]:
    """By policy and measure of PAIRED: how much better than each other policy the first one does, paired by seed."""
    first, *others = found
    return {
        other: {
            measure: interval((sign * np.subtract(found[first][measure], found[other][measure])).tolist())
            for measure, sign in _PAIRED.items()
        }
        for other in others
    }
