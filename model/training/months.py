"""Simulation of continual learning over months: the mix of pods drifts and jumps once; ranks are fitted and tried.

The rollout (`extender.ranking.rollout`) and its trials are the service's, with months instead of days: a rank fitted to
one month is tried on the next, half as shadow and half as canary, and serves from the month after.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import numpy as np

from extender.history import files as history_files
from extender.ranking import files, prices, trials
from extender.ranking import rollout as rollouts
from extender.ranking.demands import Demand
from extender.ranking.files import Model
from extender.ranking.rollout import Rollout, Stage
from model.evaluation.reports import interval
from model.simulations.baselines import baseline
from model.simulations.departures import PeriodicWorkload, churn_measures, periodic_workload, simulate_churn
from model.simulations.histories import listed
from model.simulations.online import Follower, Seen, Watch
from model.simulations.side_by_side import side_by_side
from model.training.fitting import RUN, fit
from model.workloads.mixes import DEMO, drawn, pods_on, read_mixes
from model.workloads.traces import NodeList, PodList
from model.workloads.workloads import bits_of, classes_of, empty_nodes, typical_pods

_LEARNING, _RELEASED, _FGD = "learning", "released", "fgd"
MEASURES: Final = ("allocated_gpus", "mean_delay_s", "large_delay_s")
_GPUS: Final = (100.0, 250.0)
_ASKED: Final = 4.0
"""GPUs requested in a month, relative to capacity."""
_DRIFT: Final = 0.15
"""Fraction of the pods that change with each month of drift."""
_BETWEEN_S: Final = 60.0
_CANDIDATE, _RIVAL = "candidate", "rival"
_RESOLUTION: Final = 1000
_FLOOD: Final = (60_000, 1024, 1, 130)
"""CPU milli, MiB, GPUs and milli of the unusual pods with which a tenant floods a history."""


@dataclass(frozen=True)
class Plan:
    """Parameters of the simulation."""

    num_months: int = 8
    jump: int = 5
    """Month in which the whole mix changes."""
    episodes: int = 200
    load: float = 1.0
    memory_load: float = 0.0
    """Memory requested relative to capacity once the requested GPUs equal the cluster's; 0: as in the released rank's
    training mixes, where memory is never short."""
    flood: int = 0
    """Unusual pods of one minute that one tenant adds to each month's history."""


def _cluster(seed: int, plan: Plan) -> tuple[NodeList, list[PodList]]:
    """Return a cluster, and its pods by month: of one mix, with a growing fraction of a second, then of a third."""
    rng = np.random.default_rng(seed)
    description = read_mixes(DEMO)
    kinds = rng.permutation(sorted(description.kinds)).tolist()[:3]
    others: dict[str, Any] = {"memory_load": plan.memory_load} if plan.memory_load else {}
    mixes = [msgspec.structs.replace(description.mix(kind), gpus=_GPUS, **others) for kind in kinds]
    nodes, _ = drawn(mixes[0], seed)
    series = [pods_on(mix, nodes, seed * 10 + number, _ASKED * plan.num_months) for number, mix in enumerate(mixes)]
    pods = PodList.joined(series)
    size = [len(each.names) for each in series]
    milli_of_pod, taken = pods.asked_milli.tolist(), [0, 0, 0]
    months = []
    for month in range(plan.num_months):
        rows: list[int] = []
        milli = 0
        while milli < _ASKED * nodes.gpu_milli:
            which = 2 if month >= plan.jump else int(rng.random() < _DRIFT * month)
            rows.append(sum(size[:which]) + taken[which] % size[which])
            taken[which] += 1
            milli += milli_of_pod[rows[-1]]
        names = tuple(f"pod-{number:06d}" for number in range(len(rows)))
        times = np.rint(np.cumsum(rng.exponential(_BETWEEN_S, len(rows))))
        months.append(replace(pods.at(np.array(rows)), names=names, submitted_s=times))
    return nodes, months


def _simulated(seed: int, plan: Plan) -> list[dict[str, Any]]:
    """Return results of each month by rank, and the decision at its end."""
    nodes, months = _cluster(seed, plan)
    released = files.read(files.RELEASED)
    course, models = Rollout(), {"": released}
    rows: list[dict[str, Any]] = []
    for number, pods in enumerate(months):
        offered = periodic_workload(Path(f"month {number}"), nodes, pods, plan.load, seed)
        found = {_FGD: _figures(offered, None), _RELEASED: _figures(offered, released)}
        found[_LEARNING] = _figures(offered, models[course.serving]) if course.serving else found[_RELEASED]
        before = course
        course = _decided(course, models, nodes, pods, number)
        if not course.candidate and (model := _fitted(nodes, pods, seed, plan)) is not None:
            models[model.manifest.sha256] = model
            course = rollouts.offered(course, model.manifest.sha256, number)
        message = "" if course.said == before.said else course.said
        gpus = nodes.gpu_milli / 1000
        rows.append({"month": number, "gpus": gpus, "serving": before.serving[:12], "said": message, "ranks": found})
    return rows


def _summary(clusters: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the gains of learning over the fixed ranks, paired by cluster, over the months in which they can differ.

    GPUs in percent of capacity, delays in seconds; means with 95 % intervals.
    """
    beside: dict[str, Any] = {}
    for other in (_RELEASED, _FGD):
        rows = {measure: [_mean_gain(months, other, measure) for months in clusters] for measure in MEASURES}
        found = {measure: interval(values) for measure, values in rows.items()}
        beside[other] = {
            measure: {"mean": round(value.mean, 4), "half_width": round(value.half_width or 0.0, 4)}
            for measure, value in found.items()
        }
    messages = [month["said"] for months in clusters for month in months if month["said"]]
    return {
        "over": beside,
        "months_served": sum(bool(month["serving"]) for months in clusters for month in months),
        "months": sum(len(months) for months in clusters),
        "came_to_serve": sum(" serves: " in line for line in messages),
        "taken_back": sum(" no longer serves: " in line for line in messages),
    }


def run(seeds: Sequence[int], plan: Plan, jobs: int, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Simulate clusters by seed; returns the results as JSON data."""
    with side_by_side(jobs, on_step) as run_all:
        found = run_all({f"cluster {seed}": partial(_simulated, seed, plan) for seed in seeds})
    return {"plan": asdict(plan), "seeds": list(seeds), **_summary(list(found.values())), "clusters": found}


def _mean_gain(months: Sequence[dict[str, Any]], other: str, measure: str) -> float:
    gains = [
        (month["ranks"][_LEARNING][measure] - month["ranks"][other][measure])
        * (100 / month["gpus"] if measure == MEASURES[0] else 1)
        for month in months[2:]
    ]
    return float(np.mean(gains))


def _figures(offered: PeriodicWorkload, model: Model | None) -> dict[str, float]:
    """Return the measures of a month under a model without prior knowledge, or under FGD."""
    if model is None:
        run = simulate_churn(offered, baseline(_FGD), "fifo", 0)
    else:
        seen = Seen(offered.nodes, offered.tasks.asks, offered.model_names, Watch(), model.manifest.foresight_load)
        run = simulate_churn(offered, Follower(model.potential, seen, Watch()), "fifo", 0)
    measured = churn_measures(offered, run)
    return {measure: measured[measure] for measure in MEASURES}


def _decided(course: Rollout, models: dict[str, Model], nodes: NodeList, pods: PodList, month: int) -> Rollout:
    """Return the rollout state after a month of unseen pods; half of them for each step."""
    half = len(pods.names) // 2
    for part in (np.arange(half), np.arange(half, len(pods.names))):
        if course.candidate:
            more, doubt = _tried(models[course.candidate], models[course.serving], nodes, pods.at(part))
            course = rollouts.judged(course, more, doubt, "the one that serves", month)
        elif course.serving:
            more, doubt = _tried(models[course.serving], models[""], nodes, pods.at(part))
            course = rollouts.watched(course, more, doubt, month)
    if course.stage is Stage.SHADOW and course.trials:
        course = rollouts.withdrawn(course, "a month without a verdict", month)
    return course


def _tried(model: Model, other: Model, nodes: NodeList, pods: PodList) -> tuple[float, float]:
    """As the service tries them, on the pods of a part of a month."""
    model_bits = bits_of(nodes)
    empty = empty_nodes(nodes, model_bits, np.arange(len(nodes.names)))
    asks, classes = classes_of(pods, model_bits)
    count = np.bincount(classes, minlength=len(asks.cpu_milli)) * _RESOLUTION
    demand = Demand(empty, asks, count, len(model_bits))
    load = model.manifest.foresight_load
    worth = prices.outlook(empty, asks, count, typical_pods(pods, model_bits), load).worth
    ranks = {_CANDIDATE: model.potential, _RIVAL: other.potential}
    found = trials.tried(demand, trials.candidates(demand, ranks, worth, load))
    return trials.paired(found[_CANDIDATE], found[_RIVAL])


def _fitted(nodes: NodeList, pods: PodList, seed: int, plan: Plan) -> Model | None:
    """Fit a rank to a month; None if it is not better than the released one."""
    history = listed(nodes, _flooded(pods, plan.flood), "drawn")
    if plan.flood:
        history.pods["namespace"][history.pods["gpu_milli"] == _FLOOD[3]] = "flood"
    with TemporaryDirectory() as folder:
        history_folder, out = Path(folder) / "past", Path(folder) / RUN
        history_files.write(history_folder, history)
        found = fit(history_folder, out, plan.episodes, plan.episodes, _nothing, resume=False, jobs=1)
        return files.read(out) if found.better else None


def _nothing(step: str) -> None:
    """Ignore a step."""


def _flooded(pods: PodList, flood: int) -> PodList:
    if not flood:
        return pods
    cpu, memory, gpus, milli = (np.full(flood, amount, np.int64) for amount in _FLOOD)
    assert pods.submitted_s is not None and pods.duration_s is not None  # noqa: S101 - drawn with times
    times = np.linspace(float(pods.submitted_s[0]), float(pods.submitted_s[-1]), flood)
    strange = PodList(
        tuple(f"strange-{number}" for number in range(flood)), cpu, memory, gpus, milli, ("",) * flood, times,
        np.full(flood, 60.0),
    )  # fmt: skip
    return PodList.joined([pods, strange])
