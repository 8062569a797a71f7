"""Search for the fewest nodes on which a policy serves the same pods without longer waits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import Longs, Rows
from model.engine.engines import Compiled
from model.engine.ranks import Rank
from model.pasts.accounts import Account, gpu_delay_s, waiting
from model.pasts.pasts import HistoryWorkload

_NUM_REPLAYS: Final = 7
"""Bisection steps: the result is exact to 1/128 of the nodes."""

_GRACE_S: Final = 600.0
"""Tolerance of the mean wait of one job size, so that a single waiting job does not decide."""


@dataclass(frozen=True)
class Limits:
    """Mean waits of jobs that request GPUs, in total and by size."""

    gpu_delay_s: float
    delay_s: Mapping[str, float]
    """Mean wait by size."""

    def serves(self, found: "Limits") -> bool:
        """Whether the total mean is not exceeded, and no size's exceeds twice its limit plus GRACE_S."""
        return found.gpu_delay_s <= self.gpu_delay_s and all(
            waited_s <= 2 * self.delay_s[size] + _GRACE_S for size, waited_s in found.delay_s.items()
        )

    def and_of(self, other: "Limits") -> "Limits":
        """Return the minimum of each."""
        sizes = {size: min(delay_s, other.delay_s[size]) for size, delay_s in self.delay_s.items()}
        return Limits(min(self.gpu_delay_s, other.gpu_delay_s), sizes)


def limits_of(workload: HistoryWorkload, account: Account) -> Limits:
    """Return the mean waits of an account."""
    milli = workload.offered.tasks.asked_milli[workload.offered.num_before :]
    sizes = {size: row["mean_delay_s"] for size, row in waiting(milli, account.delay_s).items()}
    return Limits(gpu_delay_s(milli, account.delay_s), sizes)


@dataclass(frozen=True)
class Fewest:
    """Result of the search."""

    gpus: int
    """GPUs of the smallest tried cluster within the limits; of all nodes if there was none."""
    too_few_gpus: int
    """GPUs of the largest tried cluster that exceeded the limits; 0 if none did."""
    served: bool
    """Whether the whole cluster is within the limits."""
    waited: Limits
    """Mean waits on `gpus`."""


def fewest(
    workload: HistoryWorkload, limits: Limits, whole: Account, replayed: Callable[[HistoryWorkload], Account]
) -> Fewest:
    """Bisect the fraction of removed nodes in NUM_REPLAYS steps; `whole` is the replay on all nodes.

    Each cluster is a subset of every larger one, so waits mostly grow as nodes are removed. The result is a tried
    cluster, not a bound.
    """
    gpus, waited = gpus_of(workload), limits_of(workload, whole)
    if not limits.serves(waited):
        return Fewest(gpus, gpus, served=False, waited=waited)
    too_few, low, high = 0, 0.0, 1.0
    for _ in range(_NUM_REPLAYS):
        part = (low + high) / 2
        smaller = _thinned(workload, part)
        found = limits_of(smaller, replayed(smaller)) if _holds_each(smaller) else None
        if found and limits.serves(found):
            low, gpus, waited = part, gpus_of(smaller), found
        else:
            high, too_few = part, gpus_of(smaller)
    return Fewest(gpus, too_few, served=True, waited=waited)


def gpus_of(workload: HistoryWorkload) -> int:
    """Return the GPUs of all nodes."""
    return int(workload.offered.nodes.num_gpus.sum())


def _thinned(workload: HistoryWorkload, part: float, seed: int = 0) -> HistoryWorkload:
    """Remove a fraction below 1 of the GPU nodes: the same of each kind, rounded down, so that one remains.

    The removed nodes are drawn; a larger fraction removes a superset. Nodes without GPUs stay.
    """
    offered = workload.offered
    kept = _kept(workload, part, np.random.default_rng([seed, 3]))
    place = {int(row): number for number, row in enumerate(kept)}
    absences = tuple((place[node], begin, end) for node, begin, end in offered.absences if node in place)
    names = tuple(workload.node_names[row] for row in kept.tolist())
    return replace(
        workload, offered=replace(offered, nodes=offered.nodes.at(kept), absences=absences), node_names=names
    )  # fmt: skip


def _holds_each(workload: HistoryWorkload) -> bool:
    """Whether each job fits on the empty nodes."""
    offered = workload.offered
    nodes = offered.nodes.copy()
    engine = Compiled(nodes, offered.tasks.asks, offered.tasks.mix, Rank.BESTFIT)
    for kind in sorted(set(offered.tasks.kinds)):
        taken: list[tuple[int, int, int]] = []
        for c in (c for c, count in kind for _ in range(count)):
            node = engine.decide(c)
            if node < 0:
                return False
            taken.append((c, node, engine.take(c, node)))
        for part in taken:
            engine.give_back(*part)
    return True


def _kept(workload: HistoryWorkload, part: float, rng: np.random.Generator) -> Rows:
    """Return the remaining rows, in order."""
    nodes = workload.offered.nodes
    kinds = np.column_stack([nodes.model, nodes.num_gpus, nodes.cpu_milli, nodes.memory_mib])
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    drawn = rng.permutation(len(kind))
    remains = np.ones(len(kind), np.bool_)
    for number in range(int(kind.max()) + 1):
        rows: Longs = drawn[kind[drawn] == number]
        if nodes.num_gpus[rows[0]] > 0:
            remains[rows[: int(part * len(rows))]] = False
    return np.flatnonzero(remains)
