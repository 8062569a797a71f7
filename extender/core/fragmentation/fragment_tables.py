"""Fragments looked up instead of added up class by class: what serving needs at thousands of nodes.

A class of the mix that a node can host finds useful what is free on GPUs large enough for it; all else that is idle is
a fragment. Where a class asks for one GPU that sum has a term for each GPU, which depends on the model, on what is left
of the GPU, and on how many of the classes' demands for CPU are met: a table. Whole GPUs by the number go by how many
are idle: another one. Equal to `fragments.fragment_milli` up to rounding, and ten to thirty times as fast.
"""

from typing import NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, num_true, totals
from extender.core.fragmentation.fragments import Mix


class FragmentTables(NamedTuple):
    """A mix, for nodes of M models and up to G GPUs. Axis J counts the demands for CPU that are met."""

    cpu_milli: Longs
    """(J - 1,) distinct demands, ascending."""
    single: Floats
    """(M + 1, J, 1001) milli of what is left of a GPU that classes of one GPU find useful; last model: none."""
    several: Floats
    """(M + 1, J, G + 1) milli that classes of several whole GPUs find useful, by the number of idle ones."""
    shares: tuple[tuple[int, int, Floats], ...]
    """Classes of shares of several GPUs: milli of each, how many, and (M + 1, J) how frequent they are."""
    total: float
    """Sum of the frequencies."""


def tables_of(mix: Mix, num_models: int, num_slots: int) -> FragmentTables:
    """The tables of a mix."""
    demands = np.unique(mix.cpu_milli)
    met = np.searchsorted(demands, mix.cpu_milli) + 1  # a class counts from so many demands on
    bits = np.arange(num_models)
    allowed = np.zeros((num_models + 1, len(mix.frequency)), np.bool_)  # (M + 1, K)
    allowed[:num_models] = (mix.models[None, :] >> bits[:, None]) & 1 == 1
    frequent = np.zeros((num_models + 1, len(demands) + 1, len(mix.frequency)))  # (M + 1, J, K)
    reached = np.arange(len(demands) + 1)[:, None] >= met
    frequent[:] = np.where(allowed[:, None, :] & reached[None], mix.frequency, 0.0)
    asked = mix.sizes[mix.size]
    left = np.arange(WHOLE_MILLI + 1)
    one = mix.num_gpus == 1
    large_enough = np.where(left >= asked[one, None], left, 0)  # (K1, 1001)
    single = frequent[:, :, one] @ large_enough
    idle = np.arange(num_slots + 1)
    whole = (mix.num_gpus > 1) & (asked == WHOLE_MILLI)
    several = frequent[:, :, whole] @ np.where(idle >= mix.num_gpus[whole, None], WHOLE_MILLI * idle, 0)
    parts = np.flatnonzero((mix.num_gpus > 1) & (asked < WHOLE_MILLI)).tolist()
    shares = tuple((int(asked[k]), int(mix.num_gpus[k]), frequent[:, :, k].copy()) for k in parts)
    return FragmentTables(demands, single, several, shares, float(mix.frequency.sum()))


def unusable_milli(cpu_free_milli: Longs, gpu_free_milli: Longs, model: Longs, tables: FragmentTables) -> Floats:
    """(R,) idle GPU milli that the next pod is expected to be unable to use, as `fragments.fragment_milli`."""
    j = np.searchsorted(tables.cpu_milli, cpu_free_milli, side="right")
    # Flat, because NumPy takes from one axis several times as fast as by a tuple of indices.
    num_rows, num_met, _ = tables.single.shape
    base = np.where(model < 0, num_rows - 1, model) * num_met + j  # (R,)
    useful = tables.single.reshape(-1).take(base[:, None] * (WHOLE_MILLI + 1) + gpu_free_milli).sum(axis=1)
    if tables.several.any():
        num_idle = num_true(gpu_free_milli == WHOLE_MILLI)
        useful += tables.several.reshape(-1).take(base * tables.several.shape[2] + num_idle)
    for milli, num, frequency in tables.shares:
        enough = gpu_free_milli >= milli
        hosted = num_true(enough) >= num
        useful += frequency.reshape(-1).take(base) * np.where(hosted, totals(np.where(enough, gpu_free_milli, 0)), 0)
    unusable: Floats = totals(gpu_free_milli) * tables.total - useful
    return unusable
