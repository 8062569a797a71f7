"""What making room costs at least: units in part, GPUs as mere numbers, no thought of where anybody goes."""

import numpy as np

from extender.core.clusters import Floats, Longs, Rows


def cover_costs(need: Longs, row: Rows, gpus: Longs, price: Floats) -> Floats:
    """(N,) the least that it costs to free so many GPUs on each row, parts of units in proportion; inf where all
    together are too few, 0 where nothing is needed.

    `need` (N,); `row`, `gpus` and `price` (E,) of what can leave.
    """
    holds = gpus > 0
    row, gpus, price = row[holds], gpus[holds], price[holds]
    order = np.lexsort((price / gpus, row))
    row, gpus, price = row[order], gpus[order].astype(np.float64), price[order]
    starts = np.searchsorted(row, np.arange(len(need)))
    before = np.concatenate([[0.0], np.cumsum(gpus)])
    freed_before = before[:-1] - before[starts[row]]  # (E,) by what is cheaper on the row
    taken = np.clip(need[row] - freed_before, 0.0, gpus)
    costs = np.bincount(row, taken / gpus * price, len(need))
    enough = np.bincount(row, gpus, len(need)) >= need
    found: Floats = np.where(need <= 0, 0.0, np.where(enough, costs, np.inf))
    return found
