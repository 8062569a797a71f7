"""Evaluation of the learned rank's live term: a trace's pods on GPUs that other processes use as well.

Loads are synthetic, since traces have none: on some of the nodes each GPU has an unbooked load, and a pod loads each of
its GPUs with more or less than it booked. Pods are placed by the served score (`extender.core.policies.kerf`), with
samples that age until the next refresh; their slowdown is `extender.core.policies.interference`. Pods without GPUs are
left out, because the service does not place them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.fragmentation import expected_count
from extender.core.gauges import Gauge
from extender.core.observations import Observations, SampleState
from extender.core.policies.interference import interference
from extender.core.policies.kerf import KerfWeights, LearnedScore, live_term, serving
from extender.core.policies.policy import Policy
from extender.core.valuenet.features import Outlook
from extender.core.valuenet.potentials import Potential, prospect
from extender.ranking import prices
from extender.ranking.demands import Demand, outlook_on
from extender.ranking.rules import cluster_of, requests_of
from model.engine.clusters import models_of
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, bits_of, classes_of, workload

LOADS: Final = (50, 75, 100)
"""Arrived GPU, in percent of the capacity, at which results are reported."""
_MIB_PER_MILLI: Final = 16
"""Memory of each GPU in MiB per milli: traces don't have it."""
_SHORT: Final = -1e8
"""Lower scores mean that a node's CPU or memory does not suffice."""


@dataclass(frozen=True)
class Synthetic:
    """Distribution of the synthetic loads."""

    hot_frac: float = 0.25
    """Fraction of the nodes with foreign load."""
    foreign: tuple[float, float] = (0.2, 0.9)
    """Load of each of their GPUs, uniform."""
    used: tuple[float, float] = (0.3, 1.3)
    """Load of a pod on each GPU as a multiple of its booking, uniform; at most the whole GPU."""
    refresh_pods: int = 20
    """Arrivals between refreshes of the samples."""


class Scene(NamedTuple):
    """Some of a trace's nodes, and enough of its pods to fill them."""

    offered: Workload
    outlook: Outlook
    foreign: Floats
    """(N, G) unbooked load."""
    used: Floats
    """(P,) load of each pod on each of its GPUs."""


class Outcome(NamedTuple):
    """Results in percent of the GPU capacity, at each of LOADS."""

    allocated: tuple[float, ...]
    effective: tuple[float, ...]
    """Allocated GPUs, each divided by its pod's slowdown."""

    @property
    def mean(self) -> float:
        """Mean effective percent over LOADS."""
        return sum(self.effective) / len(LOADS)


def scenes(
    directory: Path, trace: str, load: float, num_nodes: int, seeds: Sequence[int], synthetic: Synthetic
) -> list[Scene]:
    """Return one scene for each seed; the expected mix is that of the trace's pods, priced for `load`."""
    node_list, pod_list = read_nodes(directory), read_pods(directory, trace)
    whole = workload(directory, trace, 0, node_list, pod_list)
    _, classes = classes_of(pod_list, bits_of(node_list))
    count = np.bincount(classes, minlength=len(whole.asks.cpu_milli)).astype(np.int64)
    demand = Demand(whole.nodes, whole.asks, count, len(whole.model_names))
    expected = expected_count(whole.asks, count, whole.num_gpus, load)
    outlook = outlook_on(demand, prices.prices(whole.nodes, whole.asks, expected).worth, load)
    with_gpus = classes[whole.asks.num_gpus[classes] > 0]
    return [_scene(whole, with_gpus, outlook, num_nodes, synthetic, np.random.default_rng(seed)) for seed in seeds]


def _scene(
    whole: Workload, classes: Longs, outlook: Outlook, num_nodes: int, synthetic: Synthetic, rng: np.random.Generator
) -> Scene:
    rows = rng.permutation(len(whole.node_names))[:num_nodes]
    nodes = whole.nodes.at(rows)
    milli = whole.asks.num_gpus * whole.asks.gpu_milli
    drawn = rng.choice(classes, int(1.5 * nodes.num_gpus.sum() * WHOLE_MILLI / milli[classes].mean()) + 100)
    enough = int(np.searchsorted(np.cumsum(milli[drawn]), nodes.num_gpus.sum() * WHOLE_MILLI)) + 1
    drawn = drawn[:enough]
    names = tuple(f"node-{i:05}" for i in range(len(rows)))
    offered = replace(
        whole, node_names=names, nodes=nodes, pods=np.arange(enough), classes=drawn, asked_milli=milli[drawn]
    )
    shape = nodes.gpu_free_milli.shape
    hot = rng.random(len(rows)) < synthetic.hot_frac
    foreign = np.where(hot[:, None], rng.uniform(*synthetic.foreign, shape), 0.0)
    booked = whole.asks.gpu_milli[drawn] / WHOLE_MILLI
    used = np.minimum(booked * rng.uniform(*synthetic.used, enough), 1.0)
    return Scene(offered, outlook, np.where(nodes.gpu_free_milli > 0, foreign, 0.0), used)


def weights_of(text: str) -> dict[str, KerfWeights]:
    """Parse weights of the live term, as in "0,2,8". Raises ValueError."""
    found: dict[str, KerfWeights] = {}
    for part in map(str.strip, text.split(",")):
        try:
            live = float(part)
        except ValueError:
            live = -1.0
        if not 0 <= live < np.inf:
            raise ValueError(f"--weights {text}: write numbers of 0 or more, as in 0,2,8")
        found[part] = KerfWeights(live=live)
    return found


def outcomes(
    scene: Scene, potential: Potential, weights: Mapping[str, KerfWeights], refresh_pods: int
) -> dict[str, Outcome]:
    """Return the results of a scene for each of the weights."""
    served = prospect(potential, scene.outlook)
    return {
        name: _outcome(scene, serving(LearnedScore(served, each, live_term(), serial=1)), refresh_pods)
        for name, each in weights.items()
    }


def _outcome(scene: Scene, policy: Policy, refresh_pods: int) -> Outcome:
    offered = scene.offered
    board = _Board(scene)
    requests = requests_of(offered.asks, offered.model_names)
    memo = Memo(max_classes=len(requests))
    arrived = np.cumsum(offered.asked_milli) / offered.gpu_milli
    ends = np.searchsorted(arrived, np.array(LOADS) / 100, side="right").tolist()
    allocated: list[float] = []
    effective: list[float] = []
    for p, c in enumerate(offered.classes.tolist()):
        if p % refresh_pods == 0:
            board.refresh()
        decision = decide(board.cluster, requests[c], policy, board.rows, memo)
        if decision.best is not None and decision.evaluation.score[decision.best] > _SHORT:
            board.place(p, decision.best, decision.gpus)
        while len(allocated) < len(ends) and p + 1 >= ends[len(allocated)]:
            held, fast = board.held()
            allocated.append(100 * held / offered.num_gpus)
            effective.append(100 * fast / offered.num_gpus)
    return Outcome(tuple(allocated), tuple(effective))


class _Board:
    """The cluster as the service sees it, its pods, and the true loads of its GPUs."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._pods: dict[tuple[int, int], list[int]] = {}
        self._placed: dict[int, list[tuple[int, int]]] = {}
        self._load = scene.foreign.copy()
        cluster = cluster_of(scene.offered.nodes.copy(), *models_of(scene.offered.model_names))
        memory = cluster.gpu_free_milli * _MIB_PER_MILLI
        self.cluster = replace(cluster, gpu_memory_mib=memory, gpu_free_mib=memory.copy())
        self.rows = np.arange(len(scene.offered.node_names))

    def refresh(self) -> None:
        """Sample the current loads."""
        value = np.full((len(Gauge), *self._load.shape), np.nan, np.float32)
        value[Gauge.LOAD] = np.minimum(self._load, 1.0)
        num_nodes = len(self.rows)
        state = np.full(num_nodes, SampleState.FRESH, np.int8)
        observed = Observations(
            self.cluster.version + 1, value, state, np.zeros(num_nodes), np.zeros(self._load.shape, np.float32),
            np.zeros(self._load.shape, np.bool_),
        )  # fmt: skip
        self.cluster = replace(self.cluster, version=observed.version, observed=observed)

    def place(self, p: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod on GPUs of a node; until the next refresh its expected load is its booking."""
        offered, before = self._scene.offered, self.cluster
        if before.observed is None:
            raise AssertionError("no sample before the first refresh")
        c = offered.classes[p]
        milli = int(offered.asks.gpu_milli[c])
        version = before.version + 1
        free, expected = before.gpu_free_milli.copy(), before.observed.expected_load.copy()
        free[row, list(gpus)] -= milli
        expected[row, list(gpus)] += milli / WHOLE_MILLI
        cpu, memory = before.cpu_free_milli.copy(), before.memory_free_mib.copy()
        cpu[row] -= offered.asks.cpu_milli[c]
        memory[row] -= offered.asks.memory_mib[c]
        row_version = before.row_version.copy()
        row_version[row] = version
        self.cluster = replace(
            before, version=version, row_version=row_version, gpu_free_milli=free, gpu_free_mib=free * _MIB_PER_MILLI,
            cpu_free_milli=cpu, memory_free_mib=memory,
            observed=replace(before.observed, expected_load=np.minimum(expected, 1.0)),
        )  # fmt: skip
        self._placed[p] = [(row, gpu) for gpu in gpus]
        for place in self._placed[p]:
            self._pods.setdefault(place, []).append(p)
            self._load[place] += self._scene.used[p]

    def held(self) -> tuple[float, float]:
        """Return the allocated GPUs, and their sum with each divided by its pod's slowdown."""
        slowdown = {
            place: interference([self._scene.foreign[place], *(self._scene.used[p] for p in pods)]).slowdown
            for place, pods in self._pods.items()
        }
        gpus = {p: self._scene.offered.asked_milli[p] / WHOLE_MILLI for p in self._placed}
        slowest = {p: max(slowdown[place] for place in places) for p, places in self._placed.items()}
        return float(sum(gpus.values())), float(sum(gpus[p] / slowest[p] for p in gpus))
