"""Compares ranks on a copy of the cluster with the service's own rules.

A rank that is better on the mixes of its training may be worse on another. So before `auto` serves one, each places the
observed mix on the cluster's nodes: the same pods in the same orders, from empty nodes until the requested GPUs reach
the capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Nodes, PodClasses, typical_mix
from extender.core.policies import fgd, kerf, tightest
from extender.core.policies.policy import Options, Policy
from extender.core.resources.gpu_models import GpuModel
from extender.core.valuenet.features import Worth
from extender.core.valuenet.potentials import Potential, prospect
from extender.ranking.demands import Demand, outlook_on
from extender.ranking.pricing import arrays_of, demand_in
from extender.ranking.rules import Rules
from extender.ranking.worker import Arrays, run_worker, worker_main

LEARNED: Final = "kerf"
FGD: Final = "fgd"
TIGHTEST: Final = "tightest"
CANDIDATES: Final = (LEARNED, FGD, TIGHTEST)
_MODULE: Final = "extender.ranking.trials"
_POTENTIAL, _WORTH = "potential.", "worth."
_ORDERS: Final = 8
"""Number of arrival orders, and of samples of the nodes if there are many."""
_MAX_NODES: Final = 400
_START_FRAC: Final = 0.9
"""Allocation is averaged from this load on, so that single large pods matter less."""
_T95: Final = 2.365
"""Student's t for 95 % at ORDERS - 1 degrees of freedom."""


def candidates(
    demand: Demand, potentials: Mapping[str, Potential], worth: Worth | None, load: float
) -> dict[str, Policy]:
    """The ranks to compare, by name, for a demand; `worth` and `load` as in `demands.outlook_on`."""
    outlook = outlook_on(demand, worth, load)
    mix = typical_mix(demand.asks, demand.count.astype(np.float64))
    return {
        **{
            name: kerf.serving(kerf.LearnedScore(prospect(potential, outlook), serial=serial))
            for serial, (name, potential) in enumerate(potentials.items(), start=1)
        },
        FGD: fgd.expecting(mix),
        TIGHTEST: tightest.policy(Options()),
    }


async def tried_aside(
    demand: Demand, potentials: Mapping[str, Potential], worth: Worth | None, load: float, max_s: float
) -> dict[str, list[float]]:
    """`tried` of the `candidates`, in a separate process. Raises WorkerError."""
    asked = {**arrays_of(demand), "load": np.array([load])}
    for rank, potential in potentials.items():
        asked |= {f"{_POTENTIAL}{rank}.{name}": column for name, column in potential._asdict().items()}
    if worth is not None:
        asked |= {_WORTH + name: column for name, column in worth._asdict().items()}
    output = await run_worker(_MODULE, asked, max_s)
    return {name: output[name].tolist() for name in (*potentials, FGD, TIGHTEST) if name in output}


def tried(demand: Demand, policies: Mapping[str, Policy], seed: int = 0) -> dict[str, list[float]]:
    """Percent of the GPUs that each policy allocates, by arrival order; {} without GPUs or requests for them."""
    milli = demand.asks.num_gpus * demand.asks.gpu_milli
    count = demand.count.astype(np.float64)
    if not demand.nodes.num_gpus.any() or not float(count @ milli):
        return {}
    percent: dict[str, list[float]] = {name: [] for name in policies}
    for order in range(_ORDERS):
        rng = np.random.default_rng([seed, order])
        nodes = demand.nodes.at(np.sort(rng.permutation(len(demand.nodes.model))[:_MAX_NODES]))
        nodes = nodes.at(rng.permutation(len(nodes.model)))  # breaks ties between nodes
        capacity = int(nodes.num_gpus.sum()) * WHOLE_MILLI
        if not capacity:
            return {}
        arrivals = _arrivals(milli, count, capacity, rng)
        for name, policy in policies.items():
            allocated = _filled(nodes.copy(), demand.asks, arrivals, policy)
            late = np.cumsum(milli[arrivals]) >= _START_FRAC * capacity
            percent[name].append(100 * float(allocated[late].mean()) / capacity)
    return percent


def _filled(nodes: Nodes, asks: PodClasses, arrivals: Longs, policy: Policy) -> Longs:
    """(P,) GPU milli allocated after each of (P,) arrivals, given by class; changes the nodes in place."""
    num_models = int(nodes.model.max(initial=-1)) + 1
    models = [GpuModel(f"model-{number}", (f"model-{number}",)) for number in range(num_models)]
    rules = Rules(nodes, asks, policy, models, np.zeros(num_models, np.int64))
    milli = asks.num_gpus * asks.gpu_milli
    gained = np.zeros(len(arrivals), np.int64)
    full = np.zeros(len(milli), np.bool_)  # no pod departs, so a class that does not fit never will
    for p, c in enumerate(arrivals.tolist()):
        node = -1 if full[c] else rules.decide(c)
        if node < 0:
            full[c] = True
            continue
        rules.take(c, node)
        gained[p] = milli[c]
    allocated: Longs = np.cumsum(gained)
    return allocated


def _arrivals(milli: Longs, count: Floats, capacity: int, rng: np.random.Generator) -> Longs:
    """Classes in arrival order until the requested GPUs reach the capacity; `milli` (C,) and `count` (C,) by class."""
    c = np.zeros(0, np.int64)
    while int(milli[c].sum()) < capacity:
        c = np.append(c, rng.choice(len(count), 1000, p=count / count.sum()))
    arrivals: Longs = c[: int(np.searchsorted(np.cumsum(milli[c]), capacity)) + 1]
    return arrivals


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rank that is to serve."""

    name: str
    margin: float
    """Percentage points more than the previous rank; 0 if that stays."""
    reason: str


def verdict(found: Mapping[str, Sequence[float]], serving: str, least: float) -> Verdict:
    """The best rank if it beats the serving one significantly and by more than `least` points, else the serving one.

    `found` is the result of `tried`.
    """
    means = {name: float(np.mean(values)) for name, values in found.items()}
    best = max(means, key=lambda name: (means[name], name == serving))
    results = ", ".join(f"{name} {mean:.2f} %" for name, mean in sorted(means.items(), key=lambda item: -item[1]))
    if best == serving:
        return Verdict(serving, 0.0, f"best of those tried: {results}")
    more, doubt = paired(found[best], found[serving])
    if more <= max(least, doubt):
        why = f"{best} is no more than {max(least, doubt):.2f} points better"
        return Verdict(serving, 0.0, f"{why}: {results}")
    return Verdict(best, more, f"{more:.2f} ± {doubt:.2f} points better than {serving}: {results}")


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The mean difference between two ranks, paired by arrival order, and half of its 95 % interval."""
    more = np.subtract(one, other)
    return float(more.mean()), _T95 * float(more.std(ddof=1)) / len(more) ** 0.5


def _work(asked: Arrays) -> Arrays:
    demand, load = demand_in(asked), float(asked["load"][0])
    ranks = dict.fromkeys(name.split(".")[1] for name in asked if name.startswith(_POTENTIAL))
    potentials = {
        rank: Potential(*(asked[f"{_POTENTIAL}{rank}.{name}"] for name in Potential._fields)) for rank in ranks
    }
    worth = Worth(*(asked[_WORTH + name] for name in Worth._fields)) if _WORTH + Worth._fields[0] in asked else None
    percent = tried(demand, candidates(demand, potentials, worth, load))
    return {name: np.array(values) for name, values in percent.items()}


if __name__ == "__main__":
    worker_main(_work)
