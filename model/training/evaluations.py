"""The figures that a model is judged by: GPU allocation of policies on a trace, seed by seed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core import packing
from extender.core.clusters import Longs
from extender.core.features import Outlook
from extender.models import files
from model import learned, online, replays
from model.baselines import baseline
from model.learned import LEARNED, Foresight
from model.measures import LOADS
from model.online import Watch
from model.replays import Replay
from model.reports import Interval, interval
from model.traces import read_nodes, read_pods
from model.training import ppo_episodes
from model.workloads import Workload, workload

ONLINE: Final = "kerf-online"
"""The same model, told nothing: it expects what it has seen."""

Figures = dict[str, list[Any]]
"""Percent allocated at each of LOADS, by seed, and pods `refused` although they fitted."""


def evaluate(
    directory: Path,
    trace: str,
    seeds: Sequence[int],
    policies: Sequence[str],
    model: Path,
    tell: Callable[[str], None],
) -> dict[str, Figures]:
    """Figures by policy: those of `model.baselines`, of a model and of others, each NAME=FOLDER.

    Models are told the mix of the trace's pods, as FGD is; only `kerf-online` is told nothing.
    """
    folders = {name: Path(folder) for name, equals, folder in (each.partition("=") for each in policies) if equals}
    if LEARNED in policies:
        folders[LEARNED] = model
    policies = [name.partition("=")[0] for name in policies]
    rules = {name: baseline(name) for name in policies if name not in folders and name != ONLINE}
    ranks = {name: rank_of(folder) for name, folder in folders.items()}
    watching = files.read(model) if ONLINE in policies else None
    node_list, pod_list = read_nodes(directory), read_pods(directory, trace)
    outlooks: dict[float, Outlook] = {}
    found: dict[str, Figures] = {name: {**{str(load): [] for load in LOADS}, "refused": []} for name in policies}
    for seed in seeds:
        offered = workload(directory, trace, seed, node_list, pod_list)
        for name in policies:
            tell(f"{trace}, {name}, seed {seed}")
            if name in ranks:
                load, rank = ranks[name]
                if load not in outlooks:
                    outlooks[load] = learned.told(
                        offered.nodes, offered.asks, offered.mix, node_list, pod_list, Foresight(load)
                    )
                done = rank(offered, outlooks[load])
            elif watching is None or name in rules:
                done = replays.replay(offered, rules[name], seed)
            else:
                expected = online.outlooks(offered, Watch(), watching.manifest.foresight_load)
                done = learned.replay_pieces(offered, expected, watching.potential)
            for load, percent in zip(LOADS, learned.allocations(offered, done.placed), strict=True):
                found[name][str(load)].append(percent)
            found[name]["refused"].append(num_refused(offered, done))
    return found


def rank_of(folder: Path) -> tuple[float, Callable[[Workload, Outlook], Replay]]:
    """The load that a model's prices are for, and how it places a workload."""
    model = files.read_any(folder)
    if isinstance(model, files.Actor):
        actor = model.attention
        return model.manifest.foresight_load, lambda offered, told: ppo_episodes.replay(offered, told, actor)
    potential = model.potential
    return model.manifest.foresight_load, lambda offered, told: learned.replay(offered, told, potential)


def differences(found: dict[str, Figures]) -> dict[str, dict[str, Interval]]:
    """By policy and load: how much more than each other policy the first one allocates, paired by seed."""
    first, *others = found
    return {
        other: {
            str(load): interval(np.subtract(found[first][str(load)], found[other][str(load)]).tolist())
            for load in LOADS
        }
        for other in others
    }


def num_refused(offered: Workload, done: Replay) -> int:
    """Pods that were not placed although they fitted when they came."""
    nodes = packing.copy_of(offered.nodes)
    every = np.arange(len(nodes.cpu_milli))
    full: Longs = np.zeros(len(offered.asks.cpu_milli), np.int64)  # nothing departs: what fits nowhere never will
    refused = 0
    for p, c in enumerate(offered.classes.tolist()):
        node = int(done.placed[p])
        if node >= 0:
            _take(nodes, offered, c, node, int(done.gpus[p]))
        elif not full[c]:
            if packing.fits(nodes, offered.asks, c, every).any():
                refused += 1
            else:
                full[c] = 1
    return refused


def _take(nodes: packing.Nodes, offered: Workload, c: int, node: int, gpus: int) -> None:
    asks = offered.asks
    nodes.cpu_free_milli[node] -= asks.cpu_milli[c]
    nodes.memory_free_mib[node] -= asks.memory_mib[c]
    for g in range(nodes.gpu_free_milli.shape[1]):
        if gpus >> g & 1:
            nodes.gpu_free_milli[node, g] -= asks.gpu_milli[c]
