"""Measures of a replay: allocation by arrived load, fragmentation, utilisation, success rate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from extender.core.clusters import Floats, Longs
from model.engine import kernels, node_scores
from model.simulations.replays import Replay
from model.workloads.workloads import Workload

LOADS = (100, 130)
"""Arrived load, in percent of the GPU capacity, at which results are compared."""


@dataclass(frozen=True)
class Curve:
    """A measure by arrived load."""

    arrived_percent: Longs
    """(E,) distinct whole percents of the GPU capacity."""
    percent: Floats
    """(E,) mean of the measure over the arrivals at that load."""

    def at(self, load: int) -> float | None:
        """Return the measure at a load, rounded to two decimals, None if the load was never reached."""
        index = np.flatnonzero(self.arrived_percent == load)
        return round(float(self.percent[index[0]]), 2) if len(index) else None


def allocation_curve(workload: Workload, placed: Longs) -> Curve:
    """Allocated GPU in percent of the capacity, as the published experiments report it.

    Both percentages are rounded at each arrival, the allocated one to two decimals, and averaged over the arrivals that
    round to the same load.
    """
    held = np.cumsum(np.where(placed >= 0, workload.asked_milli, 0))
    return _curve(workload, np.round(held / workload.num_gpus / 10, 2))


def _fragment_curve(workload: Workload, fragment_milli: Floats) -> Curve:
    """Idle GPU that a typical pod is expected not to be able to use, in percent of the capacity."""
    return _curve(workload, fragment_milli / workload.num_gpus / 10)


def measures(workload: Workload, done: Replay) -> dict[str, Any]:
    """Return all printed measures of a replay, as JSON data."""
    placed = done.placed >= 0
    allocation = allocation_curve(workload, done.placed)
    fragments = _fragment_curve(workload, done.fragment_milli)
    nodes = done.nodes
    num_pods, refused = len(placed), num_refused(workload, done)
    allocated_milli = int(workload.asked_milli[placed].sum())
    return {
        "allocation": {str(load): allocation.at(load) for load in LOADS},
        "fragmentation": {str(load): fragments.at(load) for load in LOADS},
        "pods": num_pods,
        "placed": int(placed.sum()),
        "failed": int(num_pods - placed.sum()) - refused,
        "refused": refused,
        "success_rate": round(float(placed.mean()), 6),
        "gpu_utilisation": _percent(allocated_milli, workload.gpu_milli),
        "cpu_utilisation": _percent(int((nodes.cpu_milli - nodes.cpu_free_milli).sum()), int(nodes.cpu_milli.sum())),
        "memory_utilisation": _percent(
            int((nodes.memory_mib - nodes.memory_free_mib).sum()), int(nodes.memory_mib.sum())
        ),
        "episode_reward": round(allocated_milli / workload.gpu_milli, 6),
        "decisions": num_pods,
        "decisions_per_s": round(num_pods / done.seconds),
        "curve": {
            "arrived": allocation.arrived_percent.tolist(),
            "allocated": [round(value, 3) for value in allocation.percent.tolist()],
            "fragmented": [round(value, 3) for value in fragments.percent.tolist()],
        },
    }


def num_refused(offered: Workload, done: Replay) -> int:
    """Number of pods that were not placed although they fitted on arrival."""
    nodes = offered.nodes.copy()
    full: Longs = np.zeros(len(offered.asks.cpu_milli), np.int64)  # nothing departs, so these never fit again
    refused = 0
    for p, c in enumerate(offered.classes.tolist()):
        node = int(done.placed[p])
        if node >= 0:
            node_scores.retake(nodes, offered.asks, c, node, int(done.gpus[p]))
        elif not full[c]:
            if kernels.fitting(nodes, offered.asks, c).any():
                refused += 1
            else:
                full[c] = 1
    return refused


def _curve(workload: Workload, percent: Floats) -> Curve:
    arrived = np.round(np.cumsum(workload.asked_milli) / workload.num_gpus / 10).astype(np.int64)
    loads, event_load = np.unique(arrived, return_inverse=True)
    return Curve(loads, np.bincount(event_load, weights=percent) / np.bincount(event_load))


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(whole, 1), 3)
