"""The largest of what each node has."""

import numpy as np

from extender.core.clusters import Ints, Longs, Mask
from extender.core.resources.requests import GpuRequest


def nth_largest(values: Ints, nth: int) -> Longs:
    """(R,) the nth largest of each row, counted from 1; 0 where there are fewer."""
    if nth > values.shape[1]:
        return np.zeros(len(values), np.int64)
    if nth == 1:
        most: Longs = values.max(axis=1).astype(np.int64)
        return most
    ordered: Longs = np.partition(values, values.shape[1] - nth).astype(np.int64)
    return ordered[:, values.shape[1] - nth]


def most_memory_mib(
    memory_mib: Ints, units_per_gpu: Ints, selection: Mask, untracked: Ints, request: GpuRequest
) -> tuple[Longs, Longs]:
    """(R,) the most memory that the request's number of selected units have, and (R,) how many units that takes.

    A request without a number takes the fewest that hold its total. The `untracked` units may be the largest ones,
    so those are left out. A time slice's memory is its part of the GPU's.
    """
    memory = np.where(selection, memory_mib // units_per_gpu[:, None], 0)
    memory = np.sort(memory)[:, ::-1]  # (R, G) of each GPU's unit, largest first
    per_gpu = units_per_gpu.astype(np.int64)[:, None]  # (R, 1)
    num_units = memory.shape[1] * per_gpu[:, 0]  # (R,)
    before = np.arange(memory.shape[1]) * per_gpu  # (R, G) units on larger GPUs

    def largest(units: Longs) -> Longs:
        """(R,) memory of the so many largest units."""
        summed: Longs = (np.clip(units[:, None] - before, 0, per_gpu) * memory).sum(axis=1)
        return summed

    first = np.minimum(untracked, num_units)
    skipped = largest(first)
    most = largest(np.minimum(first + (request.count or num_units), num_units)) - skipped
    if request.count:
        return most, np.full(len(memory), request.count)
    # Every GPU gives units until the total is reached: rounded up, and no more than it has.
    missing = skipped[:, None] + request.memory_total_mib - (np.cumsum(memory, axis=1) - memory) * per_gpu  # (R, G)
    given = np.clip(-(-missing // np.maximum(memory, 1)), 0, per_gpu)
    return most, given.sum(axis=1) - first
