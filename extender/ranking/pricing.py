"""Shadow prices from a separate process, since the LP takes seconds and SciPy 100 MB."""

import sys
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Mask
from extender.core.fragmentation import Nodes, PodClasses, expected_count
from extender.core.resources.requests import GpuRequest
from extender.core.selective_skip import wastes_gpu
from extender.core.valuenet.features import Worth
from extender.ranking.demands import Demand
from extender.ranking.worker import CPU_S, Arrays, WorkerError, run_worker, worker_main

_NODES, _ASKS = "nodes.", "asks."
_MODULE: Final = "extender.ranking.pricing"


class PricingError(RuntimeError):
    """Prices could not be computed."""


@dataclass(slots=True)
class Priced:
    """The prices in use."""

    worth: Worth | None = None
    """None: the rest of a GPU is worth its size."""
    fault: str = ""
    """Why there are no LP prices."""
    nodes: object = None
    """Identity of the inventory."""
    at: float = float("-inf")
    """Monotonic time of the computation."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    num: int = 0
    """Number of computations."""


class WasteCache:
    """Caches which shares take a larger part of a GPU's worth than of the GPU."""

    def __init__(self) -> None:
        self._cache: tuple[Worth | None, Mask] = None, np.zeros(0, np.bool_)  # the mask is by amount in milli

    def wastes_gpu(self, worth: Worth, request: GpuRequest) -> bool:
        """Whether a pod's share does, by these prices."""
        if self._cache[0] is not worth:
            every = np.arange(WHOLE_MILLI)
            self._cache = worth, wastes_gpu(worth.left, np.ones_like(every), every)
        return request.count == 1 and bool(self._cache[1][request.milli])


async def priced(demand: Demand, load: float, max_s: float) -> tuple[Worth, float]:
    """The worth of resources, by m models, if the demand fills the nodes to a load; and the CPU seconds used.

    Raises PricingError.
    """
    try:
        output = await run_worker(_MODULE, {**arrays_of(demand), "load": np.array([load])}, max_s)
        worth = Worth(*(output[name] for name in Worth._fields))
    except (WorkerError, KeyError) as error:
        raise PricingError(f"the LP: {error}") from None
    if not all(np.isfinite(prices).all() for prices in worth):
        raise PricingError("the LP's prices are not finite")
    return worth, float(output[CPU_S][0])


def arrays_of(demand: Demand) -> Arrays:
    """A demand as arrays by name."""
    return {
        **{_NODES + name: column for name, column in demand.nodes._asdict().items()},
        **{_ASKS + name: column for name, column in demand.asks._asdict().items()},
        "count": demand.count,
        "num_models": np.array([demand.num_models]),
    }


def demand_in(asked: Arrays) -> Demand:
    """The demand from arrays by name."""
    nodes = Nodes(*(asked[_NODES + name] for name in Nodes._fields))
    asks = PodClasses(*(asked[_ASKS + name] for name in PodClasses._fields))
    return Demand(nodes, asks, asked["count"], int(asked["num_models"][0]))


def _work(asked: Arrays) -> Arrays:
    try:
        from extender.ranking import prices
    except ImportError:
        sys.exit("SciPy is not installed (extra `plan`)")
    demand = demand_in(asked)
    load, num_gpus = float(asked["load"][0]), int(demand.nodes.num_gpus.sum())
    try:
        expected = expected_count(demand.asks, demand.count, num_gpus, load)
        return prices.prices(demand.nodes, demand.asks, expected).worth._asdict()
    except prices.PricesError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    worker_main(_work)
