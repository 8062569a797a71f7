"""The figures that a model is judged by: GPU allocation of policies on a trace, seed by seed."""

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
from model.simulations.learned import LEARNED, Foresight, Telling
from model.simulations.measures import LOADS, num_refused
from model.simulations.online import Watch
from model.simulations.replays import Replay
from model.workloads.sources import Offer, Source
from model.workloads.workloads import Workload

ONLINE: Final = "kerf-online"
"""The same model, told nothing: it expects what it has seen."""
SELECTIVE: Final = "kerf-selective"
"""The model, with shares giving way that take more of a GPU's worth than their part: only where pods come back."""

Figures = dict[str, list[Any]]
"""Percent allocated at each of LOADS, by seed, and pods `refused` although they fitted."""

_Placing = Callable[[Offer, Workload, int], Replay]
"""Places a workload of what is offered; a seed for what is random."""


def contenders(policies: Sequence[str], model: Path) -> dict[str, Baseline | Path]:
    """What is named: one of `model.simulations.baselines`, or the folder of a model, which NAME=FOLDER gives.

    `model` is that of `kerf` and `kerf-online`. Raises ValueError when a name is unknown or there twice.
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
    """What came of an evaluation."""

    policies: dict[str, Figures]
    ceiling: dict[str, list[float | None]]
    """Percent at each of LOADS, by seed, that none of the policies can pass: `ceilings.ceiling` with all that came
    before one of them had no place for a pod; None where the LP finds none."""

    def closed(self, policy: str, load: str = "100", beside: str = "fgd") -> float | None:
        """The part of what lies between another policy and the ceiling that a policy has gained, over all seeds."""
        known = [i for i, value in enumerate(self.ceiling[load]) if value is not None]
        if beside not in self.policies or not known:
            return None
        ours, others = (np.array(self.policies[name][load])[known] for name in (policy, beside))
        gap = float((np.array(self.ceiling[load], np.float64)[known] - others).sum())
        return float((ours - others).sum()) / gap if gap > 0 else None


def evaluate(
    source: Source,
    name: str,
    seeds: Sequence[int],
    policies: Mapping[str, Baseline | Path],
    tell: Callable[[str], None],
) -> Found:
    """Figures by policy, as `contenders` gives them; `name` is that of the source.

    Models are told the mix of the pods, as FGD is; only `kerf-online` is told nothing.
    """
    telling = Telling()

    def told(offer: Offer, offered: Workload, load: float) -> Outlook:
        return telling(offered.nodes, offered.asks, offered.mix, offer.nodes, offer.pods, Foresight(load))

    placings = {policy: _placing(policy, who, told) for policy, who in policies.items()}
    found: dict[str, Figures] = {policy: {**{str(load): [] for load in LOADS}, "refused": []} for policy in policies}
    ceilings: dict[str, list[float | None]] = {str(load): [] for load in LOADS}
    for seed in seeds:
        offer = source(seed)
        offered = offer.arrivals()
        num_placed = len(offered.pods)
        for policy, placing in placings.items():
            tell(f"{name}, {policy}, seed {seed}")
            done = placing(offer, offered, seed)
            for load, percent in zip(LOADS, learned.allocations(offered, done.placed), strict=True):
                found[policy][str(load)].append(percent)
            found[policy]["refused"].append(num_refused(offered, done))
            num_placed = min([num_placed, *np.flatnonzero(done.placed < 0)[:1].tolist()])
        for load in LOADS:
            ceilings[str(load)].append(ceiling(offered, load, num_placed))
    return Found(found, ceilings)


def _placing(name: str, who: Baseline | Path, told: Callable[[Offer, Workload, float], Outlook]) -> _Placing:
    """How a contender places a workload; `told` is what is expected of it, priced for a load."""
    if isinstance(who, Baseline):
        return lambda _, offered, seed: replays.replay(offered, who, seed)
    if name == ONLINE:
        seeing = files.read(who)

        def seen(_offer: Offer, offered: Workload, _seed: int) -> Replay:
            expected = online.outlooks(offered, Watch(), seeing.manifest.foresight_load)
            return learned.replay_pieces(offered, expected, seeing.potential)

        return seen
    load, placed = _rank_of(who)
    return lambda offer, offered, _: placed(offered, told(offer, offered, load))


def _rank_of(folder: Path) -> tuple[float, Callable[[Workload, Outlook], Replay]]:
    """The load that a model's prices are for, and how it places a workload."""
    model = files.read_any(folder)
    if isinstance(model, files.Actor):
        actor = model.attention
        return model.manifest.foresight_load, lambda offered, told: looks.replay(offered, told, actor)
    potential = model.potential
    return model.manifest.foresight_load, lambda offered, told: learned.replay(offered, told, potential)


def differences(found: Mapping[str, Figures]) -> dict[str, dict[str, Interval]]:
    """By policy and load: how much more than each other policy the first one allocates, paired by seed."""
    first, *others = found
    return {
        other: {
            str(load): interval(np.subtract(found[first][str(load)], found[other][str(load)]).tolist())
            for load in LOADS
        }
        for other in others
    }
