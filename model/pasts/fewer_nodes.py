"""The fewest nodes on which a policy serves the same pods no later: nodes are taken away until pods wait longer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from extender.core.clusters import Longs, Rows
from model.engine.engines import Compiled
from model.engine.ranks import Rank
from model.pasts.accounts import Account, gpu_delay_s, waiting
from model.pasts.pasts import Past

_NUM_REPLAYS: Final = 7
"""Halvings of the part of the nodes that is taken away: the answer is known to 1/128 of the nodes."""

_GRACE_S: Final = 600.0
"""That jobs of one size may wait besides: else the first of them that waits at all would decide."""


@dataclass(frozen=True)
class Limits:
    """How long jobs waited, in the mean: those that ask for GPUs, and those of each size."""

    gpu_delay_s: float
    delay_s: Mapping[str, float]
    """By size."""

    def serves(self, found: "Limits") -> bool:
        """Whether all together wait no longer, and no size more than twice as long as it did and GRACE_S."""
        return found.gpu_delay_s <= self.gpu_delay_s and all(
            waited_s <= 2 * self.delay_s[size] + _GRACE_S for size, waited_s in found.delay_s.items()
        )

    def and_of(self, other: "Limits") -> "Limits":
        """The shorter of each."""
        sizes = {size: min(delay_s, other.delay_s[size]) for size, delay_s in self.delay_s.items()}
        return Limits(min(self.gpu_delay_s, other.gpu_delay_s), sizes)


def limits_of(known: Past, account: Account) -> Limits:
    """What an account's jobs waited."""
    asked = known.offered.tasks.asked_milli[known.offered.num_before :]
    sizes = {size: row["mean_delay_s"] for size, row in waiting(asked, account.delay_s).items()}
    return Limits(gpu_delay_s(asked, account.delay_s), sizes)


@dataclass(frozen=True)
class Fewest:
    """GPUs on which jobs waited no longer, and those on which they did."""

    gpus: int
    """Of the smallest cluster that was tried and served; of all nodes where none did."""
    too_few_gpus: int
    """Of the largest cluster that was tried and did not serve; 0 where all did."""
    served: bool
    """Whether the whole cluster, or a smaller one, served."""
    waited: Limits
    """How long jobs waited on `gpus`."""


def fewest(known: Past, limits: Limits, whole: Account, replayed: Callable[[Past], Account]) -> Fewest:
    """By halving the part of the nodes that is taken away, NUM_REPLAYS times; `whole` is the replay on all of them.

    Each cluster is a part of every larger one, so waiting grows as nodes go, but for accidents of packing: the answer
    is a cluster that was tried, not a bound.
    """
    gpus, waited = gpus_of(known), limits_of(known, whole)
    if not limits.serves(waited):
        return Fewest(gpus, gpus, served=False, waited=waited)
    too_few, low, high = 0, 0.0, 1.0
    for _ in range(_NUM_REPLAYS):
        part = (low + high) / 2
        smaller = _thinned(known, part)
        found = limits_of(smaller, replayed(smaller)) if _holds_each(smaller) else None
        if found and limits.serves(found):
            low, gpus, waited = part, gpus_of(smaller), found
        else:
            high, too_few = part, gpus_of(smaller)
    return Fewest(gpus, too_few, served=True, waited=waited)


def gpus_of(known: Past) -> int:
    """GPUs of all nodes."""
    return int(known.offered.nodes.num_gpus.sum())


def _thinned(known: Past, part: float, seed: int = 0) -> Past:
    """Without a part, below 1, of the nodes with GPUs: the same of each kind of node, rounded down, so that one stays.

    Which go is drawn; those that go for a smaller part go for a larger one, too. Nodes without GPUs stay.
    """
    offered = known.offered
    kept = _kept(known, part, np.random.default_rng([seed, 3]))
    place = {int(row): number for number, row in enumerate(kept)}
    absences = tuple((place[node], begin, end) for node, begin, end in offered.absences if node in place)
    names = tuple(known.node_names[row] for row in kept.tolist())
    return replace(
        known, offered=replace(offered, nodes=offered.nodes.at(kept), absences=absences), node_names=names
    )  # fmt: skip


def _holds_each(known: Past) -> bool:
    """Whether each job, alone on empty nodes, finds room."""
    offered = known.offered
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


def _kept(known: Past, part: float, rng: np.random.Generator) -> Rows:
    """Rows that stay, in their order."""
    nodes = known.offered.nodes
    kinds = np.column_stack([nodes.model, nodes.num_gpus, nodes.cpu_milli, nodes.memory_mib])
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    drawn = rng.permutation(len(kind))
    stays = np.ones(len(kind), np.bool_)
    for number in range(int(kind.max()) + 1):
        rows: Longs = drawn[kind[drawn] == number]
        if nodes.num_gpus[rows[0]] > 0:
            stays[rows[: int(part * len(rows))]] = False
    return np.flatnonzero(stays)
