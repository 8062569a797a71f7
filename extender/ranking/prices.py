"""Shadow prices: what each rest of a GPU is worth to the pods that are expected to come.

A configuration LP spreads the expected pods over the types of nodes, in fractions: as much GPU as possible, within
the CPU, memory and GPUs of each type. GPUs given to shares are cut by patterns, made by column generation (a
knapsack per type; Gilmore and Gomory 1961). Its duals price a whole GPU and each size of share; another knapsack over
the shares' prices gives the worth W(w) of every rest w. 190 milli beside a share of 810 are worth nothing where
nobody asks for so little, and models that picky pods will need are worth more.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from extender.core.clusters import CORE_MILLI, GIB_MIB, WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Asks, Mix, Nodes, expected_count
from extender.core.valuenet.features import Outlook, Worth, outlook_of, plain_worth

MAX_ROUNDS: Final = 40
"""Of column generation; openb's traces need about ten."""
_GAIN: Final = 1e-7
"""A pattern is worth adding when it sells for more than the GPU costs by so much, in GPUs."""
_MISSING_COST: Final = 1e3
"""GPUs that a pod costs which must be placed and is not."""


class PricesError(RuntimeError):
    """The LP has no solution: says what the solver said."""


@dataclass(frozen=True)
class Prices:
    """Duals of the LP, and its optimum."""

    worth: Worth
    bound: float
    """Most GPUs that can be given away, in fractions: no policy gets beyond it for just these pods."""
    num_rounds: int
    """Of column generation."""
    num_missing: float = 0.0
    """Pods that had to be placed and were not."""


def outlook(
    nodes: Nodes, asks: Asks, count: Floats | Longs, mix: Mix, load: float = 1.0, *, by_lp: bool = True
) -> Outlook:
    """What is expected of a mix of classes, `count` (C,) pods each, on nodes; without the LP at plain worth."""
    expected = expected_count(asks, count, int(nodes.num_gpus.sum()), load)
    num_models = int(nodes.model.max(initial=-1)) + 1
    worth = prices(nodes, asks, expected).worth if by_lp else plain_worth(num_models + 1)
    return outlook_of(nodes, asks, expected, mix, worth)


def prices(nodes: Nodes, asks: Asks, expected: Floats, least: Floats | None = None) -> Prices:
    """Solve the LP for `expected` (C,) pods on the empty nodes, of which (C,) `least` are placed in any case.

    Raises PricesError when the solver fails.
    """
    lp = _Program(nodes, asks, expected, least)
    num_rounds = 0
    while True:
        bound, gpu_price, share_price, compute_price = lp.solve()
        rest = _rests(lp.sizes, share_price)  # (T, 1001)
        num_rounds += 1
        cheap = np.flatnonzero(rest[:, WHOLE_MILLI] > gpu_price + _GAIN).tolist()
        num_added = sum(lp.add(t, _pattern(lp.sizes, share_price[t], rest[t])) for t in cheap)
        if num_added == 0 or num_rounds == MAX_ROUNDS:
            break
    rest[:, WHOLE_MILLI] = np.maximum(rest[:, WHOLE_MILLI], gpu_price)
    num_models = int(nodes.model.max(initial=-1)) + 1
    left, compute = np.zeros((num_models + 1, WHOLE_MILLI + 1)), np.zeros((num_models + 1, 2))
    for model in range(-1, num_models):  # -1, the last row: nodes without GPUs
        of_model = lp.model == model
        if of_model.any():
            compute[model] = [
                np.average(price, weights=np.where(of_model, held + 1e-9, 0.0))
                for price, held in zip(compute_price, lp.compute, strict=True)
            ]
            if model >= 0:
                left[model] = np.average(rest, axis=0, weights=np.where(of_model, lp.gpus, 0))
    return Prices(Worth(left, compute), bound, num_rounds, lp.num_missing)


def _rests(sizes: Longs, price: Floats) -> Floats:
    """(T, 1001) the most that each number of milli sells for in whole shares, at (T, U) prices of (U,) sizes."""
    best = np.zeros((len(price), WHOLE_MILLI + 1))
    for left in range(1, WHOLE_MILLI + 1):
        sold = np.flatnonzero(sizes <= left)
        best[:, left] = best[:, left - 1]
        if len(sold):
            best[:, left] = np.maximum(best[:, left], (best[:, left - sizes[sold]] + price[:, sold]).max(axis=1))
    return best


def _pattern(sizes: Longs, price: Floats, rest: Floats) -> Longs:
    """(U,) shares of each size that a whole GPU sells best as; `price` (U,) and `rest` (1001,) are one type's."""
    cut = np.zeros(len(sizes), np.int64)
    left = WHOLE_MILLI
    while left > 0:
        sold = np.flatnonzero((sizes <= left) & (price > 0))  # what costs nothing must not end the pattern
        if len(sold) == 0:
            break
        offers = rest[left - sizes[sold]] + price[sold]
        u = int(offers.argmax())
        if rest[left] > offers[u] + 1e-12:  # a milli left over sells as well
            left -= 1
            continue
        cut[sold[u]] += 1
        left -= int(sizes[sold[u]])
    return cut


class _Program:
    """The LP: T types of nodes, C classes, U sizes of shares, and the patterns found so far."""

    def __init__(self, nodes: Nodes, asks: Asks, expected: Floats, least: Floats | None = None) -> None:
        types, count = nodes.types()
        self.model, per_node, cpu, memory = types
        T, num_classes = len(count), len(expected)
        self.gpus = count * per_node
        self.compute = count * cpu / CORE_MILLI, count * memory / GIB_MIB
        """(T,) cores and GiB."""
        share = (asks.num_gpus > 0) & (asks.gpu_milli < WHOLE_MILLI)
        self.sizes = np.unique(asks.gpu_milli[share])
        num_sizes = len(self.sizes)
        c, t = np.nonzero(asks.hosts(types) & (expected > 0)[:, None])
        x = np.arange(len(c))
        slot = np.searchsorted(self.sizes, asks.gpu_milli[c])
        whole, cut = ~share[c] & (asks.num_gpus[c] > 0), share[c]
        # Rows: pods of each class, CPU, memory and GPUs of each type, shares of each size on each type.
        self._cpu, self._gpu, self._slot = num_classes, num_classes + 2 * T, num_classes + 3 * T
        self._num_rows, self._num_types = num_classes + 3 * T + T * num_sizes, T
        parts = [
            (c, x, np.ones(len(c))),
            (self._cpu + t, x, asks.cpu_milli[c] / CORE_MILLI),
            (self._cpu + T + t, x, asks.memory_mib[c] / GIB_MIB),
            (self._gpu + t[whole], x[whole], asks.num_gpus[c[whole]]),
            (self._slot + t[cut] * num_sizes + slot[cut], x[cut], np.ones(int(cut.sum()))),
        ]
        # Then those that must be placed. What is missing of them is a column of its own, and dear: without any pattern
        # of several sizes, as at first, not all may have room.
        forced = np.flatnonzero(least > 0) if least is not None else np.zeros(0, np.int64)
        row, missing = np.full(num_classes, -1), np.arange(len(forced))
        row[forced] = self._num_rows + missing
        must = row[c] >= 0
        parts += [
            (row[c[must]], x[must], -np.ones(int(must.sum()))),
            (self._num_rows + missing, len(c) + missing, -np.ones(len(forced))),
        ]
        self._rows, self._columns, self._values = (
            [np.asarray(part[i], np.float64 if i == 2 else np.int64) for part in parts] for i in range(3)
        )
        self._num_rows += len(forced)
        self._num_missing = len(forced)
        amounts = (
            *(expected, *self.compute, self.gpus, np.zeros(T * num_sizes)),
            np.zeros(0) if least is None else -least[forced],
        )
        self._limit = np.concatenate([np.asarray(amount, np.float64) for amount in amounts])
        gain = asks.num_gpus[c] * asks.gpu_milli[c] / WHOLE_MILLI
        # A pod without GPUs is placed as well: each of its cores counts as the GPUs that there are for a core.
        by_core = float(self.gpus.sum()) / max(float(self.compute[0].sum()), 1e-9)
        self._gain = np.where(asks.num_gpus[c] > 0, gain, by_core * asks.cpu_milli[c] / CORE_MILLI)
        self._asks_gpu = asks.num_gpus[c] > 0
        self.num_missing = 0.0
        self._num_columns = len(c) + len(forced)
        self._known: set[tuple[int, ...]] = set()
        for t_idx in np.flatnonzero(self.gpus).tolist():
            for u in range(num_sizes):
                pattern = np.zeros(num_sizes, np.int64)
                pattern[u] = WHOLE_MILLI // self.sizes[u]
                self.add(t_idx, pattern)

    def add(self, t: int, pattern: Longs) -> bool:
        """A way to cut the GPUs of a type; False when it is known."""
        key = (t, *pattern.tolist())
        if key in self._known:
            return False
        self._known.add(key)
        used = np.flatnonzero(pattern)
        rows = np.concatenate([[self._gpu + t], self._slot + t * len(self.sizes) + used])
        self._rows.append(rows.astype(np.int64))
        self._columns.append(np.full(len(rows), self._num_columns, np.int64))
        self._values.append(np.concatenate([[1.0], -pattern[used].astype(np.float64)]))
        self._num_columns += 1
        return True

    def solve(self) -> tuple[float, Floats, Floats, Floats]:
        """GPUs given away, (T,) price of a whole GPU, (T, U) price of a share and (2, T) of a core and a GiB."""
        T = self._num_types
        if not self._num_columns:  # no node has room for any pod that is expected
            return 0.0, np.zeros(T), np.zeros((T, len(self.sizes))), np.zeros((2, T))
        cells = np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = csr_matrix(cells, shape=(self._num_rows, self._num_columns))
        cost = np.zeros(self._num_columns)
        cost[: len(self._gain)] = -self._gain
        missing = slice(len(self._gain), len(self._gain) + self._num_missing)
        cost[missing] = _MISSING_COST
        found: Any = linprog(cost, A_ub=matrix, b_ub=self._limit, method="highs")
        if found.status != 0:
            raise PricesError(f"the LP of the expected pods has no solution: {found.message}")
        dual = np.maximum(-found.ineqlin.marginals, 0)
        bound = float((self._gain * self._asks_gpu) @ found.x[: len(self._gain)])
        self.num_missing = float(found.x[missing].sum())
        share_price = dual[self._slot : self._slot + T * len(self.sizes)].reshape(T, len(self.sizes))
        compute_price = dual[self._cpu : self._gpu].reshape(2, T)
        return bound, dual[self._gpu : self._slot], share_price, compute_price
