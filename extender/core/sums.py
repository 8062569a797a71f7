"""Sums over the GPUs of each node: on rows as short as these `einsum` is three to five times as fast as `sum`."""

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Longs, Mask


def num_true(mask: Mask) -> Longs:
    """(...) how many of the (..., G) last axis are True; G is 127 at most."""
    counted: Longs = np.einsum("...g->...", mask.view(np.int8)).astype(np.int64)
    return counted


def totals(values: npt.NDArray[np.integer]) -> Longs:
    """(...) sums of integers over the (..., G) last axis. Floats are not for it: the order of their sum matters."""
    summed: Longs = np.einsum("...g->...", values, dtype=np.int64, casting="safe")
    return summed
