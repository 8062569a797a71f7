"""What ranks would make of the pods that are expected, tried on a copy of the cluster by the service's own rules.

A rank that was better on the mixes that it was trained on may be worse on another. So before `auto` serves one, the mix
that was seen is offered to each, on the nodes that there are: the same pods in the same orders, from empty nodes until
as much GPU is asked for as there is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import Asks, Nodes, typical_mix
from extender.core.policies import fgd, kerf, tightest
from extender.core.policies.policy import Options, Policy
from extender.core.resources.gpu_models import GpuModel
from extender.core.valuenet.features import Worth
from extender.core.valuenet.potentials import Potential, prospect
from extender.ranking.aside import Arrays, answer, worked_out
from extender.ranking.demands import Demand, outlook_on
from extender.ranking.pricing import arrays_of, demand_in
from extender.ranking.rules import Rules

LEARNED: Final = "kerf"
FGD: Final = "fgd"
TIGHTEST: Final = "tightest"
CANDIDATES: Final = (LEARNED, FGD, TIGHTEST)
_MODULE: Final = "extender.ranking.trials"
_POTENTIAL, _WORTH = "potential.", "worth."
_ORDERS: Final = 8
"""Of arrival, and samples of the nodes where those are many."""
_MAX_NODES: Final = 400
_BEGIN_FRAC: Final = 0.9
"""Allocation is its mean from this part of the load on: a single large pod more or less says little."""
_T95: Final = 2.365
"""Student's t for 95 % at ORDERS - 1 degrees of freedom."""


def candidates(
    demand: Demand, potentials: Mapping[str, Potential], worth: Worth | None, load: float
) -> dict[str, Policy]:
    """The ranks to choose from, by name, for pods that are expected; `worth` and `load` as of `demands.outlook_on`."""
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
    """`tried` of the `candidates`, in a process of its own. Raises AsideError."""
    asked = {**arrays_of(demand), "load": np.array([load])}
    for rank, potential in potentials.items():
        asked |= {f"{_POTENTIAL}{rank}.{name}": column for name, column in potential._asdict().items()}
    if worth is not None:
        asked |= {_WORTH + name: column for name, column in worth._asdict().items()}
    found = await worked_out(_MODULE, asked, max_s)
    return {name: found[name].tolist() for name in (*potentials, FGD, TIGHTEST) if name in found}


def tried(demand: Demand, policies: Mapping[str, Policy], seed: int = 0) -> dict[str, list[float]]:
    """Percent of the GPUs that each policy allocates, by order of arrival; {} where there is nothing to allocate."""
    asked = demand.asks.num_gpus * demand.asks.gpu_milli
    often = demand.count.astype(np.float64)
    if not demand.nodes.num_gpus.any() or not float(often @ asked):
        return {}
    found: dict[str, list[float]] = {name: [] for name in policies}
    for order in range(_ORDERS):
        rng = np.random.default_rng([seed, order])
        nodes = demand.nodes.at(np.sort(rng.permutation(len(demand.nodes.model))[:_MAX_NODES]))
        nodes = nodes.at(rng.permutation(len(nodes.model)))  # ties go by it
        capacity = int(nodes.num_gpus.sum()) * WHOLE_MILLI
        if not capacity:
            return {}
        arrivals = _arrivals(asked, often, capacity, rng)
        for name, policy in policies.items():
            allocated = _filled(nodes.copy(), demand.asks, arrivals, policy)
            late = np.cumsum(asked[arrivals]) >= _BEGIN_FRAC * capacity
            found[name].append(100 * float(allocated[late].mean()) / capacity)
    return found


def _filled(nodes: Nodes, asks: Asks, arrivals: Longs, policy: Policy) -> Longs:
    """(P,) GPU milli allocated after each of (P,) arrivals, by class; the nodes are filled in place."""
    num_models = int(nodes.model.max(initial=-1)) + 1
    models = [GpuModel(f"model-{number}", (f"model-{number}",)) for number in range(num_models)]
    rules = Rules(nodes, asks, policy, models, np.zeros(num_models, np.int64))
    asked = asks.num_gpus * asks.gpu_milli
    gained = np.zeros(len(arrivals), np.int64)
    full = np.zeros(len(asked), np.bool_)  # nothing departs: what fits nowhere never will
    for p, c in enumerate(arrivals.tolist()):
        node = -1 if full[c] else rules.decide(c)
        if node < 0:
            full[c] = True
            continue
        rules.take(c, node)
        gained[p] = asked[c]
    allocated: Longs = np.cumsum(gained)
    return allocated


def _arrivals(asked: Longs, often: Floats, capacity: int, rng: np.random.Generator) -> Longs:
    """Classes in order of arrival, until as much GPU is asked for as there is."""
    c = np.zeros(0, np.int64)
    while int(asked[c].sum()) < capacity:
        c = np.append(c, rng.choice(len(often), 1000, p=often / often.sum()))
    arrivals: Longs = c[: int(np.searchsorted(np.cumsum(asked[c]), capacity)) + 1]
    return arrivals


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which rank is to serve."""

    name: str
    margin: float
    """Percentage points more than the one that served before; 0 where that stays."""
    reason: str


def verdict(found: Mapping[str, Sequence[float]], serving: str, least: float) -> Verdict:
    """The best of what was tried, if it is better than the one that serves by more than `least` and than chance."""
    means = {name: float(np.mean(values)) for name, values in found.items()}
    best = max(means, key=lambda name: (means[name], name == serving))
    told = ", ".join(f"{name} {mean:.2f} %" for name, mean in sorted(means.items(), key=lambda item: -item[1]))
    if best == serving:
        return Verdict(serving, 0.0, f"best of those tried: {told}")
    more, doubt = paired(found[best], found[serving])
    if more <= max(least, doubt):
        why = f"{best} is no more than {max(least, doubt):.2f} points better"
        return Verdict(serving, 0.0, f"{why}: {told}")
    return Verdict(best, more, f"{more:.2f} ± {doubt:.2f} points better than {serving}: {told}")


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How much more one rank allocates than another, order by order, and half the 95 % interval of that."""
    more = np.subtract(one, other)
    return float(more.mean()), _T95 * float(more.std(ddof=1)) / len(more) ** 0.5


def _work(asked: Arrays) -> Arrays:
    demand, load = demand_in(asked), float(asked["load"][0])
    ranks = dict.fromkeys(name.split(".")[1] for name in asked if name.startswith(_POTENTIAL))
    potentials = {
        rank: Potential(*(asked[f"{_POTENTIAL}{rank}.{name}"] for name in Potential._fields)) for rank in ranks
    }
    worth = Worth(*(asked[_WORTH + name] for name in Worth._fields)) if _WORTH + Worth._fields[0] in asked else None
    found = tried(demand, candidates(demand, potentials, worth, load))
    return {name: np.array(values) for name, values in found.items()}


if __name__ == "__main__":
    answer(_work)
