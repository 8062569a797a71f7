"""Evaluation of models: GPU allocation of policies on a trace, by seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core.valuenet.features import Outlook
from extender.ranking import files
from model.evaluation.ceilings import ceiling
from model.evaluation.reports import Interval, interval
from model.simulations import learned, looks, online, replays
from model.simulations.baselines import POOL, Baseline, baseline
from model.simulations.learned import LEARNED, Foresight, OutlookCache
from model.simulations.measures import LOADS, num_refused
from model.simulations.online import Watch
from model.simulations.replays import Replay
from model.workloads.sources import ClusterAndPods, Source
from model.workloads.workloads import Workload

ONLINE: Final = "kerf-online"
"""The model without prior knowledge: its mix is estimated from the pods so far."""
SELECTIVE: Final = "kerf-selective"
"""The model with selective skip of shares that take more of a GPU's worth than their fraction; with departures only."""

Figures = dict[str, list[Any]]
"""Percent allocated at each of LOADS, by seed, and pods `refused` although they fitted."""

_Placing = Callable[[ClusterAndPods, Workload, int], Replay]
"""Places the arrivals of an offer; the seed is for random tie-breaks."""


def resolve_policies(policies: Sequence[str], model: Path) -> dict[str, Baseline | Path]:
    """Resolve policy names: baselines (`model.simulations.baselines`), or model folders given as NAME=FOLDER.

    `model` is the folder for `kerf`, `kerf-online` and `kerf-selective`. Raises ValueError for unknown and repeated
    names.
    """
    found: dict[str, Baseline | Path] = {}
    for policy in policies:
        name, equals, folder = policy.partition("=")
        if name in found:
            raise ValueError(f"--policies {','.join(policies)}: a policy is named twice")
        ours = model if name in (LEARNED, ONLINE, SELECTIVE) else None
        found[name] = Path(folder) if equals else POOL if name == POOL.name else ours or baseline(name)
    return found


@dataclass(frozen=True)
class Found:
    """Results of an evaluation."""

    policies: dict[str, Figures]
    ceiling: dict[str, list[float | None]]
    """Upper bound in percent at each of LOADS, by seed: `ceilings.ceiling` with the arrivals before the first pod
    that any policy did not place; None if the LP finds no optimum."""

    def closed(self, policy: str, load: str = "100", beside: str = "fgd") -> float | None:
        """Return the fraction of the gap between another policy and the ceiling that a policy closes, over seeds."""
        rows = [i for i, value in enumerate(self.ceiling[load]) if value is not None]
        if beside not in self.policies or not rows:
            return None
        ours, others = (np.array(self.policies[name][load])[rows] for name in (policy, beside))
        gap = float((np.array(self.ceiling[load], np.float64)[rows] - others).sum())
        return float((ours - others).sum()) / gap if gap > 0 else None


def evaluate(
    source: Source,
    name: str,
    seeds: Sequence[int],
    policies: Mapping[str, Baseline | Path],
    on_step: Callable[[str], None],
) -> Found:
    """Evaluate policies from `resolve_policies`; `name` is that of the source.

    Models know the mix of the pods beforehand, as FGD does, except `kerf-online`.
    """
    telling = OutlookCache()

    def outlook_of(offer: ClusterAndPods, offered: Workload, load: float) -> Outlook:
        return telling(offered.nodes, offered.asks, offered.mix, offer.nodes, offer.pods, Foresight(load))

    placings = {policy: _placing(policy, rule, outlook_of) for policy, rule in policies.items()}
    found: dict[str, Figures] = {policy: {**{str(load): [] for load in LOADS}, "refused": []} for policy in policies}
    ceilings: dict[str, list[float | None]] = {str(load): [] for load in LOADS}
    for seed in seeds:
        offer = source(seed)
        offered = offer.arrivals()
        num_placed = len(offered.pods)
        for policy, placing in placings.items():
            on_step(f"{name}, {policy}, seed {seed}")
            done = placing(offer, offered, seed)
            for load, percent in zip(LOADS, learned.allocations(offered, done.placed), strict=True):
                found[policy][str(load)].append(percent)
            found[policy]["refused"].append(num_refused(offered, done))
            num_placed = min([num_placed, *np.flatnonzero(done.placed < 0)[:1].tolist()])
        for load in LOADS:
            ceilings[str(load)].append(ceiling(offered, load, num_placed))
    return Found(found, ceilings)


def _placing(
    name: str, rule: Baseline | Path, outlook_of: Callable[[ClusterAndPods, Workload, float], Outlook]
) -> _Placing:
    """Return the placing function of a policy; `outlook_of` gives the outlook of a workload, priced for a load."""
    if isinstance(rule, Baseline):
        return lambda _, offered, seed: replays.replay(offered, rule, seed)
    if name == ONLINE:
        model = files.read(rule)

        def place_online(_offer: ClusterAndPods, offered: Workload, _seed: int) -> Replay:
            expected = online.outlooks(offered, Watch(), model.manifest.foresight_load)
            return learned.replay_pieces(offered, expected, model.potential)

        return place_online
    load, place = _rank_of(rule)
    return lambda offer, offered, _: place(offered, outlook_of(offer, offered, load))


def _rank_of(folder: Path) -> tuple[float, Callable[[Workload, Outlook], Replay]]:
    """Return the load of a model's prices, and its placing function."""
    model = files.read_any(folder)
    if isinstance(model, files.Actor):
        actor = model.attention
        return model.manifest.foresight_load, lambda offered, outlook: looks.replay(offered, outlook, actor)
    potential = model.potential
    return model.manifest.foresight_load, lambda offered, outlook: learned.replay(offered, outlook, potential)


def differences(found: Mapping[str, Figures]) -> dict[str, dict[str, Interval]]:
    """Return the gain of the first policy over each other one by load, paired by seed."""
    first, *others = found
    return {
        other: {
            str(load): interval(np.subtract(found[first][str(load)], found[other][str(load)]).tolist())
            for load in LOADS
        }
        for other in others
    }
