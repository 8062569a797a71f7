"""Features of a node for learned ranks, now and after a decision.

A node's value is a function of its features (`extender.core.valuenet.potentials`); a decision gains the value after it
minus the value before. Features depend only on the node's state and the expected pods (the outlook), so they can be
cached until the node changes. Amounts are in GPUs: free CPU and memory count as the GPUs whose expected need they
cover. A model names the version of the features that it was trained on.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import (
    CORE_MILLI,
    GIB_MIB,
    WHOLE_MILLI,
    Cluster,
    Floats,
    Longs,
    Mask,
    Rows,
    num_true,
    totals,
)
from extender.core.fit.fittings import share_mib
from extender.core.fit.reasons import Fit
from extender.core.fragmentation import Mix, Nodes, PodClasses
from extender.core.resources.requests import GpuRequest

FEATURES_VERSION: Final = 3
"""Incremented whenever a feature changes its meaning, position or unit."""

FEATURES: Final = (
    "fragment",  # expected idle GPU that a typical pod can't use
    "worth",  # shadow price of what is left of each GPU
    "gpus_idle",
    "node_idle",  # 1 when all GPUs of the node are idle
    "gpus_partly_used",
    "cpu_short_half",  # min(0, free CPU - 0.5 x need of the free GPU)
    "cpu_short",
    "cpu_short_more",  # 1.5 x need
    "cpu_square",  # divided by capacity
    "cpu_log",  # log(1 + free)
    "gpu_cpu",  # free GPU x free fraction of the CPU
    "memory_short",
    "gpu_sqrt",
    "gpu_square",  # divided by the number of GPUs
    "gpu_wanted",  # free GPU of models that pods will request by name: other pods should avoid it
    "worth_fed",  # worth times the fraction of the free GPUs' expected CPU need that is available
    "hosts_one",  # pods of one whole GPU that the node could host, weighted by the scarcity of such nodes
    "hosts_many",  # pods of several whole GPUs, likewise
    "compute_worth",  # shadow price of the free CPU and memory
)
"""Names of the F features, in order."""

CONTEXT: Final = {"cpu_asked": 0.8, "in_shares": 0.3, "by_many": 0.1, "choosy": 0.0}
"""The K numbers of `Outlook.context` with their offsets, about the values of trace openb: requested CPU relative to the
cluster's, at most 2; and the fractions of requested GPU in shares, by pods of several GPUs, and by pods that don't
accept every model."""

LEAST_GPU: Final = 1e-3
"""Least divisor for free GPU."""

CPU_NEEDS: Final = (0.5, 1.0, 1.5)
"""Multiples of the expected need below which CPU counts as short."""


class Hosting(NamedTuple):
    """A lookup table for the total weight of the classes of pods that a node can host.

    Classes with equal number and size of GPUs form one of U kinds; T is the number of distinct CPU requests.
    """

    num_gpus: Longs
    """(U,)."""
    gpu_milli: Longs
    """(U,)."""
    cpu_milli: Longs
    """(T,) distinct, ascending."""
    weight: Floats
    """(M + 1, U, T + 1) weight of a kind's classes that accept a model and need at most the first t CPU amounts; the
    last row is 0."""


class Worth(NamedTuple):
    """Shadow prices for the expected pods, in GPUs, by (M,) models of GPU."""

    left: Floats
    """(M + 1, 1001) of each number of milli left on a GPU; the last row, for nodes without GPUs, is 0."""
    compute: Floats
    """(M + 1, 2) of a CPU core and of a GiB of memory; the last row is for nodes without GPUs."""


class Outlook(NamedTuple):
    """The expected pods, from `outlook_of`."""

    mix: Mix
    typical: Hosting
    """Typical pods with GPUs, weighted by frequency."""
    worth: Worth
    cpu_need_milli: float
    """CPU that the expected pods request per whole GPU."""
    memory_need_mib: float
    """Memory, likewise."""
    wanted: Floats
    """(M + 1,) GPUs that pods will request by model, relative to the number installed, at most 1; the last is 0."""
    one: Hosting
    """Pods of one whole GPU, weighted by the GPUs that the class will request relative to all that can host it."""
    many: Hosting
    """Pods of several whole GPUs, likewise."""
    context: Floats
    """(K,) the kind of the expected pods, by CONTEXT."""


def outlook_of(nodes: Nodes, asks: PodClasses, expected: Floats, mix: Mix, worth: Worth) -> Outlook:
    """The outlook for `expected` (C,) pods of each class, and a mix of typical pods, on some nodes."""
    num_models = len(worth.left) - 1
    gpus = expected * asks.num_gpus * asks.gpu_milli / WHOLE_MILLI  # (C,) requested
    suitable = _suitable_gpus(nodes, asks)
    scarcity = np.where(suitable > 0, gpus / np.maximum(suitable, 1), 0.0)
    whole = asks.gpu_milli == WHOLE_MILLI
    one, many = (
        _hosting(asks.at(chosen), scarcity[chosen], num_models)
        for chosen in (whole & (asks.num_gpus == 1), whole & (asks.num_gpus > 1))
    )
    typical = PodClasses(mix.cpu_milli, np.zeros_like(mix.cpu_milli), mix.num_gpus, mix.sizes[mix.size], mix.models)
    with_gpus = typical.num_gpus > 0
    held, allowed, choosy = _choosy(nodes, asks, num_models)
    return Outlook(
        mix, _hosting(typical.at(with_gpus), mix.frequency[with_gpus], num_models), worth, *_needs(asks, expected),
        _wanted(held, allowed & choosy[:, None], gpus), one, many, _context(nodes, asks, expected, gpus, choosy),
    )  # fmt: skip


def _hosting(asks: PodClasses, weight: Floats, num_models: int) -> Hosting:
    """The table of (C,) classes with GPUs and their weights."""
    kinds, kind = np.unique(np.stack([asks.num_gpus, asks.gpu_milli], axis=1), axis=0, return_inverse=True)
    cpu, amount = np.unique(asks.cpu_milli, return_inverse=True)
    table = np.zeros((num_models + 1, len(kinds), len(cpu) + 1))
    for model in range(num_models):
        np.add.at(table[model], (kind.reshape(-1), amount + 1), np.where((asks.models >> model) & 1, weight, 0))
    return Hosting(np.ascontiguousarray(kinds[:, 0]), np.ascontiguousarray(kinds[:, 1]), cpu, np.cumsum(table, axis=2))


def _suitable_gpus(nodes: Nodes, asks: PodClasses) -> Longs:
    """(C,) number of GPUs on nodes that could host a class if empty."""
    types, count = nodes.types()
    suitable: Longs = np.where(asks.hosts(types), count * types[1], 0).sum(axis=1)
    return suitable


def _wanted(held: Floats, chosen: Mask, gpus: Floats) -> Floats:
    """`Outlook.wanted` from (M,) GPUs `held` and (C,) requested of any of the (C, M) `chosen` models.

    Requests for one of several models are distributed in proportion to the models' GPUs.
    """
    choice = np.where(chosen, held, 0.0)
    choice *= (gpus / np.maximum(choice.sum(axis=1), 1e-9))[:, None]
    return np.append(np.minimum(choice.sum(axis=0) / np.maximum(held, 1), 1.0), 0.0)


def _choosy(nodes: Nodes, asks: PodClasses, num_models: int) -> tuple[Floats, Mask, Mask]:
    """(M,) GPUs of each model, (C, M) accepted models, and (C,) whether a class rejects some installed model."""
    held = np.bincount(nodes.model[nodes.model >= 0], nodes.num_gpus[nodes.model >= 0], num_models).astype(np.float64)
    allowed = (asks.models[:, None] >> np.arange(num_models)) & 1 == 1
    return held, allowed, (asks.num_gpus > 0) & ~allowed[:, held > 0].all(axis=1)


def _context(nodes: Nodes, asks: PodClasses, expected: Floats, gpus: Floats, choosy: Mask) -> Floats:
    """`Outlook.context` of (C,) expected pods that request (C,) GPUs."""
    cpu = float((expected * asks.cpu_milli).sum()) / max(int(nodes.cpu_milli.sum()), 1)
    kinds = (asks.num_gpus == 1) & (asks.gpu_milli < WHOLE_MILLI), asks.num_gpus > 1, choosy
    parts = [float(gpus[kind].sum()) / max(float(gpus.sum()), 1e-9) for kind in kinds]
    context: Floats = np.array([min(cpu, 2.0), *parts]) - np.array(list(CONTEXT.values()))
    return context


def plain_worth(num_models: int) -> Worth:
    """The worth without prices, for M models: milli left / 1000, and no worth of CPU and memory."""
    left = np.zeros((num_models + 1, WHOLE_MILLI + 1))
    left[:num_models] = np.arange(WHOLE_MILLI + 1) / WHOLE_MILLI
    return Worth(left, np.zeros((num_models + 1, 2)))


def _needs(asks: PodClasses, count: Floats) -> tuple[float, float]:
    """CPU milli and memory MiB per whole GPU over `count` (C,) pods of each class, both at least 1.

    Pods without GPUs don't count: they don't need CPU next to a GPU.
    """
    asking = np.where(asks.num_gpus > 0, count, 0)
    num_gpus = float((asking * asks.num_gpus * asks.gpu_milli).sum()) / WHOLE_MILLI
    if num_gpus == 0:
        return 1.0, 1.0
    cpu, memory = (float((asking * amount).sum()) / num_gpus for amount in (asks.cpu_milli, asks.memory_mib))
    return max(cpu, 1.0), max(memory, 1.0)


def features(nodes: Nodes, outlook: Outlook, unusable_milli: Floats | None = None) -> Floats:
    """(R, F) features of R nodes in their present state; `unusable_milli` (R,) if already known."""
    return np.column_stack([column.astype(np.float64) for column in feature_columns(nodes, outlook, unusable_milli)])


def feature_columns(
    nodes: Nodes, outlook: Outlook, unusable_milli: Floats | None = None
) -> Sequence[npt.NDArray[np.generic]]:
    """The F features as separate (R,) arrays of any number type."""
    free = nodes.gpu_free_milli.astype(np.int64)  # (R, G)
    has_gpus = nodes.num_gpus > 0
    num_gpus = np.maximum(nodes.num_gpus, 1)
    total = totals(free)
    gpu = total / WHOLE_MILLI
    idle = num_true(free == WHOLE_MILLI)
    cpu, cpu_capacity = nodes.cpu_free_milli / outlook.cpu_need_milli, nodes.cpu_milli / outlook.cpu_need_milli
    memory = nodes.memory_free_mib / outlook.memory_need_mib
    cpu_frac = nodes.cpu_free_milli / np.maximum(nodes.cpu_milli, 1)
    # Flat: NumPy takes from one axis several times as fast as with a tuple of indices. Model -1 is the last row.
    row = np.where(nodes.model < 0, len(outlook.worth.left) - 1, nodes.model) * (WHOLE_MILLI + 1)
    worth = outlook.worth.left.reshape(-1).take(row[:, None] + free).sum(axis=1)
    core, gib = outlook.worth.compute[nodes.model].T
    if unusable_milli is None:
        unusable_milli = total - _useful_milli(nodes, free, outlook.typical)
    return [
        unusable_milli / WHOLE_MILLI if len(outlook.mix.frequency) else np.zeros(len(free)),
        worth,
        idle,
        has_gpus & (idle == nodes.num_gpus),
        num_true((free > 0) & (free < WHOLE_MILLI)),
        *(np.minimum(0, cpu - need * gpu) for need in CPU_NEEDS),
        cpu * cpu / np.maximum(cpu_capacity, 1e-9),
        np.log1p(cpu),
        gpu * cpu_frac,
        np.minimum(0, memory - gpu),
        np.sqrt(gpu),
        gpu * gpu / num_gpus,
        gpu * outlook.wanted[nodes.model],
        worth * np.minimum(cpu / np.maximum(gpu, LEAST_GPU), 1),
        _hosted(nodes, idle, outlook.one),
        _hosted(nodes, idle, outlook.many),
        core * (nodes.cpu_free_milli / CORE_MILLI) + gib * (nodes.memory_free_mib / GIB_MIB),
    ]


def _hosted(nodes: Nodes, idle: Longs, table: Hosting) -> Floats:
    """(R,) weight of the classes of whole GPUs that nodes with (R,) idle GPUs can host."""
    weight = np.where(idle[:, None] >= table.num_gpus, _weights(nodes, table), 0)
    hosted: Floats = weight.sum(axis=1)
    return hosted


def _useful_milli(nodes: Nodes, free: Longs, table: Hosting) -> Floats:
    """(R,) milli left on GPUs large enough for the classes that nodes can host, times the classes' weight."""
    enough = free[:, None, :] >= table.gpu_milli[:, None]  # (R, U, G)
    weight = np.where(num_true(enough) >= table.num_gpus, _weights(nodes, table), 0)
    useful: Floats = (weight * totals(np.where(enough, free[:, None, :], 0))).sum(axis=1)
    return useful


def _weights(nodes: Nodes, table: Hosting) -> Floats:
    """(R, U) weight of the classes of each kind that accept the node's model and for which it has enough CPU."""
    met = np.searchsorted(table.cpu_milli, nodes.cpu_free_milli, side="right")
    return table.weight[nodes.model[:, None], np.arange(len(table.gpu_milli)), met[:, None]]


def node_states(cluster: Cluster, rows: Rows, num_models: int) -> Nodes:
    """R rows in their present state. Models from `num_models` on are merged into `num_models`.

    A GPU has the lesser of its free compute and free memory; overcommitted CPU and memory count as 0.
    """
    installed = cluster.take_rows(cluster.gpu_model, rows)
    return Nodes(
        cpu_milli=cluster.take_rows(cluster.cpu_milli, rows),
        memory_mib=cluster.take_rows(cluster.memory_mib, rows),
        num_gpus=num_true(installed >= 0),
        model=np.minimum(installed.max(axis=1, initial=-1), num_models).astype(np.int64),
        cpu_free_milli=np.maximum(cluster.take_rows(cluster.cpu_free_milli, rows), 0),
        memory_free_mib=np.maximum(cluster.take_rows(cluster.memory_free_mib, rows), 0),
        gpu_free_milli=_withheld(cluster, rows, _left(cluster, rows), np.zeros(len(rows), np.int64)),  # type: ignore[arg-type]
    )


def after_whole(cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, before: Nodes) -> Nodes:
    """The states with the request placed on each row: whole GPUs, units that the plugin picks, shares of several GPUs.

    `fit` is that of the rows. Which of several equal GPUs is taken makes no difference.
    """
    first = fit.room & (np.cumsum(fit.room, axis=1) <= fit.taken_units[:, None])
    left = np.where(fit.shares[:, None], before.gpu_free_milli - request.milli, 0)
    free = np.where(first, left, before.gpu_free_milli)
    counted = cluster.take_rows(cluster.units_per_gpu, rows) > 1
    if counted.any():  # time slices on unknown GPUs
        free = np.where(counted[:, None], _withheld(cluster, rows, _left(cluster, rows), fit.taken_units), free)
    return _with_compute(before, request)._replace(gpu_free_milli=free)


def after_share(
    cluster: Cluster, request: GpuRequest, rows: Rows, room: Mask, before: Nodes
) -> tuple[Nodes, Rows, Rows]:
    """Q states after a share of one GPU is placed on each GPU with room; of equal GPUs only the first is tried.

    Returns the states, (Q,) positions among the R rows, and (Q,) GPUs.
    """
    milli, mib = cluster.take_rows(cluster.gpu_free_milli, rows), cluster.take_rows(cluster.gpu_free_mib, rows)
    memory = cluster.take_rows(cluster.gpu_memory_mib, rows)
    key = milli.astype(np.int64) << 44 | mib.astype(np.int64) << 22 | memory  # 63 bits
    by_gpu = np.ascontiguousarray(np.where(room, key, -1).T)  # (G, R)
    tried = room.T.copy()
    for g in range(1, len(by_gpu)):
        for earlier in range(g):
            tried[g] &= by_gpu[g] != by_gpu[earlier]
    of, gpu = np.nonzero(tried.T)
    # Flat with `take`: indexing with tuples is several times as slow.
    at = of * room.shape[1] + gpu
    milli, mib, memory = (column.reshape(-1).take(at) for column in (milli, mib, memory))
    by_milli, left_mib = milli - request.milli, mib - share_mib(request, memory)
    by_mib = np.where(memory > 0, left_mib.astype(np.int64) * WHOLE_MILLI // np.maximum(memory, 1), WHOLE_MILLI)
    states = Nodes(*(column.take(of, axis=0) for column in _with_compute(before, request)))  # type: ignore[arg-type]
    left = np.clip(np.minimum(by_milli, by_mib), 0, WHOLE_MILLI)
    states.gpu_free_milli.reshape(-1)[np.arange(len(of)) * room.shape[1] + gpu] = left
    return states, of, gpu


def _with_compute(before: Nodes, request: GpuRequest) -> Nodes:
    return before._replace(
        cpu_free_milli=np.maximum(before.cpu_free_milli - request.cpu_milli, 0),
        memory_free_mib=np.maximum(before.memory_free_mib - request.memory_mib, 0),
    )


def _left(cluster: Cluster, rows: Rows) -> Longs:
    """(R, G) milli left on each GPU, the lesser of compute and memory."""
    left: Longs = cluster.take_rows(cluster.gpu_free_milli, rows).astype(np.int64)
    memory, free = cluster.take_rows(cluster.gpu_memory_mib, rows), cluster.take_rows(cluster.gpu_free_mib, rows)
    partly = free != memory
    if partly.any():
        by_memory = free[partly].astype(np.int64) * WHOLE_MILLI // np.maximum(memory[partly], 1)
        left[partly] = np.minimum(left[partly], by_memory)
    return left


def _withheld(cluster: Cluster, rows: Rows, left: Longs, more_units: Longs) -> Longs:
    """(R, G) `left` minus untracked units and (R,) `more_units`, taken from the last idle GPUs."""
    units = cluster.take_rows(cluster.untracked_units, rows) + more_units
    if not units.any():
        return left
    held = units * WHOLE_MILLI // np.maximum(cluster.take_rows(cluster.units_per_gpu, rows), 1)  # (R,)
    idle = np.where(left == WHOLE_MILLI, left, 0)
    behind = np.cumsum(idle[:, ::-1], axis=1)[:, ::-1] - idle  # (R, G) idle milli of the GPUs after each
    taken: Longs = np.clip(held[:, None] - behind, 0, idle)
    return left - taken
