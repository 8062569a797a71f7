"""Shadow prices: the worth of each free remainder of a GPU for the expected pods.

A configuration LP distributes the expected pods over the types of nodes, fractionally, to allocate as much GPU as
possible within each type's CPU, memory and GPUs. Shared GPUs are split by patterns from column generation (a knapsack
per type; Gilmore and Gomory 1961). The duals price a whole GPU and each size of share; another knapsack over the
shares' prices gives the worth W(w) of every remainder w. So 190 milli left by a share of 810 are worth nothing if no
pod requests so little, and GPU models that choosy pods need are worth more.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from extender.core.clusters import CORE_MILLI, GIB_MIB, WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Mix, Nodes, PodClasses, expected_count
from extender.core.valuenet.features import Outlook, Worth, outlook_of, plain_worth

MAX_ROUNDS: Final = 40
"""Limit of column generation; openb's traces need about ten rounds."""
_MIN_GAIN: Final = 1e-7
"""A pattern is added if its shares are worth more than a whole GPU by this, in GPUs."""
_MISSING_COST: Final = 1e3
"""Penalty for a required pod that is not placed, in GPUs."""


class PricesError(RuntimeError):
    """The LP has no solution."""


@dataclass(frozen=True)
class Prices:
    """Duals of the LP, and its optimum."""

    worth: Worth
    bound: float
    """Upper bound of the GPUs that any policy can allocate to these pods, fractional."""
    num_rounds: int
    """Rounds of column generation."""
    num_missing: float = 0.0
    """Required pods that were not placed."""


def outlook(
    nodes: Nodes, asks: PodClasses, count: Floats | Longs, mix: Mix, load: float = 1.0, *, by_lp: bool = True
) -> Outlook:
    """The outlook for `count` (C,) pods of each class on nodes; with plain worth unless `by_lp`."""
    expected = expected_count(asks, count, int(nodes.num_gpus.sum()), load)
    num_models = int(nodes.model.max(initial=-1)) + 1
    worth = prices(nodes, asks, expected).worth if by_lp else plain_worth(num_models + 1)
    return outlook_of(nodes, asks, expected, mix, worth)


def prices(nodes: Nodes, asks: PodClasses, expected: Floats, least: Floats | None = None) -> Prices:
    """Solve the LP for `expected` (C,) pods on the empty nodes, of which `least` (C,) must be placed.

    Raises PricesError if the solver fails.
    """
    lp = _Program(nodes, asks, expected, least)
    num_rounds = 0
    while True:
        bound, gpu_price, share_price, compute_price = lp.solve()
        rest = _rests(lp.sizes, share_price)  # (T, 1001)
        num_rounds += 1
        improvable = np.flatnonzero(rest[:, WHOLE_MILLI] > gpu_price + _MIN_GAIN).tolist()
        num_added = sum(lp.add(t, _pattern(lp.sizes, share_price[t], rest[t])) for t in improvable)
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
    """(T, 1001) worth of each number of milli, split into shares of (U,) sizes at (T, U) prices."""
    best = np.zeros((len(price), WHOLE_MILLI + 1))
    for left in range(1, WHOLE_MILLI + 1):
        fitting = np.flatnonzero(sizes <= left)
        best[:, left] = best[:, left - 1]
        if len(fitting):
            best[:, left] = np.maximum(best[:, left], (best[:, left - sizes[fitting]] + price[:, fitting]).max(axis=1))
    return best


def _pattern(sizes: Longs, price: Floats, rest: Floats) -> Longs:
    """(U,) number of shares of each size in the best split of a GPU; `price` (U,) and `rest` (1001,) of one type."""
    pattern = np.zeros(len(sizes), np.int64)
    left = WHOLE_MILLI
    while left > 0:
        fitting = np.flatnonzero((sizes <= left) & (price > 0))  # worthless shares must not fill the pattern
        if len(fitting) == 0:
            break
        values = rest[left - sizes[fitting]] + price[fitting]
        u = int(values.argmax())
        if rest[left] > values[u] + 1e-12:  # leaving a milli unused is better
            left -= 1
            continue
        pattern[fitting[u]] += 1
        left -= int(sizes[fitting[u]])
    return pattern


class _Program:
    """The LP with T types of nodes, C classes of pods, U sizes of shares, and the patterns so far."""

    def __init__(self, nodes: Nodes, asks: PodClasses, expected: Floats, least: Floats | None = None) -> None:
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
        # Then the required pods. Missing ones are a column with a high cost, since not all may fit with the initial
        # patterns, which have one size each.
        forced = np.flatnonzero(least > 0) if least is not None else np.zeros(0, np.int64)
        row, missing = np.full(num_classes, -1), np.arange(len(forced))
        row[forced] = self._num_rows + missing
        required = row[c] >= 0
        parts += [
            (row[c[required]], x[required], -np.ones(int(required.sum()))),
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
        # Pods without GPUs are placed as well: a core counts as the cluster's GPUs per core.
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
        """Add a pattern of a type; return False if it exists already."""
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
        """GPUs allocated, (T,) price of a whole GPU, (T, U) price of a share and (2, T) of a core and a GiB."""
        T = self._num_types
        if not self._num_columns:  # no expected pod fits any node
            return 0.0, np.zeros(T), np.zeros((T, len(self.sizes))), np.zeros((2, T))
        cells = np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = csr_matrix(cells, shape=(self._num_rows, self._num_columns))
        cost = np.zeros(self._num_columns)
        cost[: len(self._gain)] = -self._gain
        missing = slice(len(self._gain), len(self._gain) + self._num_missing)
        cost[missing] = _MISSING_COST
        result: Any = linprog(cost, A_ub=matrix, b_ub=self._limit, method="highs")
        if result.status != 0:
            raise PricesError(f"the LP of the expected pods has no solution: {result.message}")
        dual = np.maximum(-result.ineqlin.marginals, 0)
        bound = float((self._gain * self._asks_gpu) @ result.x[: len(self._gain)])
        self.num_missing = float(result.x[missing].sum())
        share_price = dual[self._slot : self._slot + T * len(self.sizes)].reshape(T, len(self.sizes))
        compute_price = dual[self._cpu : self._gpu].reshape(2, T)
        return bound, dual[self._gpu : self._slot], share_price, compute_price
