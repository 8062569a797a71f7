"""The figures that a model is judged by: GPU allocation of policies on a trace, seed by seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core.valuenet.features import Outlook
from extender.ranking import files
from model.evaluation.reports import Interval, interval
from model.simulations import learned, online, replays
from model.simulations.baselines import Baseline, baseline
from model.simulations.learned import LEARNED, Foresight
from model.simulations.measures import LOADS, num_refused
from model.simulations.online import Watch
from model.simulations.replays import Replay
from model.training import ppo_episodes
from model.workloads.shapes import WHOLE, shaped
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload

ONLINE: Final = "kerf-online"
"""The same model, told nothing: it expects what it has seen."""
SELECTIVE: Final = "kerf-selective"
"""The model, with shares giving way that take more of a GPU's worth than their part: only where pods come back."""

Figures = dict[str, list[Any]]
"""Percent allocated at each of LOADS, by seed, and pods `refused` although they fitted."""

_Placing = Callable[[Workload, int], Replay]
"""Places a workload; a seed for what is random."""


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
        found[name] = Path(folder) if equals else ours or baseline(name)
    return found


def evaluate(
    directory: Path,
    trace: str,
    seeds: Sequence[int],
    policies: Mapping[str, Baseline | Path],
    tell: Callable[[str], None],
    shape: str = WHOLE,
) -> dict[str, Figures]:
    """Figures by policy, as `contenders` gives them, on nodes in one of `model.workloads.shapes`.

    Models are told the mix of the trace's pods, as FGD is; only `kerf-online` is told nothing.
    """
    node_list, pod_list = shaped(read_nodes(directory), shape), read_pods(directory, trace)
    outlooks: dict[float, Outlook] = {}

    def told(offered: Workload, load: float) -> Outlook:
        if load not in outlooks:
            foresight = Foresight(load)
            outlooks[load] = learned.told(offered.nodes, offered.asks, offered.mix, node_list, pod_list, foresight)
        return outlooks[load]

    placings = {name: _placing(name, who, told) for name, who in policies.items()}
    found: dict[str, Figures] = {name: {**{str(load): [] for load in LOADS}, "refused": []} for name in policies}
    for seed in seeds:
        offered = workload(directory, trace, seed, node_list, pod_list, made=shape != WHOLE)
        for name, placing in placings.items():
            tell(f"{trace}, {name}, seed {seed}")
            done = placing(offered, seed)
            for load, percent in zip(LOADS, learned.allocations(offered, done.placed), strict=True):
                found[name][str(load)].append(percent)
            found[name]["refused"].append(num_refused(offered, done))
    return found


def _placing(name: str, who: Baseline | Path, told: Callable[[Workload, float], Outlook]) -> _Placing:
    """How a contender places a workload; `told` is what is expected of it, priced for a load."""
    if isinstance(who, Baseline):
        return lambda offered, seed: replays.replay(offered, who, seed)
    if name == ONLINE:
        seeing = files.read(who)
        watched, rank = seeing.manifest.foresight_load, seeing.potential
        return lambda offered, _: learned.replay_pieces(offered, online.outlooks(offered, Watch(), watched), rank)
    load, placed = rank_of(who)
    return lambda offered, _: placed(offered, told(offered, load))


def rank_of(folder: Path) -> tuple[float, Callable[[Workload, Outlook], Replay]]:
    """The load that a model's prices are for, and how it places a workload."""
    model = files.read_any(folder)
    if isinstance(model, files.Actor):
        actor = model.attention
        return model.manifest.foresight_load, lambda offered, told: ppo_episodes.replay(offered, told, actor)
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
