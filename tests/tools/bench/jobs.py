"""The same jobs through a real kube-scheduler alone, and through Kerf's queue, beside what the simulator predicts.

A random choice of jobs is compressed: one factor for the times between submissions, one for the durations, so that the
work submitted is a given load of the nodes. As many others have ended before, so that something is known. Jobs are pods
of up to a node's GPUs, with CPU and memory in proportion; what a kubelet would do is done here: pods that have a node
run, and succeed when their time is over.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from extender.core.clusters import Floats, Mask
from model.evaluation.reports import interval
from model.simulations import delays
from model.simulations.baselines import BASELINES
from model.workloads.jobs import JobList, drawn_jobs, read_jobs
from tests.controlplane import ControlPlane
from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.tools.bench import reports, retries, servers
from tests.tools.bench.job_runs import Times, leave_behind, namespace_of, run_list
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_DAY_S = 86400.0
_GATE = {"schedulingGates": [{"name": "kerf.dev/queue"}]}
# A second is long where hours are: kube-scheduler's pauses after failed attempts are the shortest that it takes.
_BACKOFF = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}
_CHANCES = 5
_LONGEST_FRAC = 0.25
"""Of the span of submissions, the longest that a job runs: a run has to end."""


class Mode(StrEnum):
    """Who decides."""

    NATIVE = "native"
    """kube-scheduler alone."""
    QUEUE = "queue"
    """Kerf's queue in the order `kerf`, and Kerf behind kube-scheduler."""


_SIMULATED = {Mode.NATIVE: ("kube-default", "fifo"), Mode.QUEUE: ("bestfit", "kerf")}


@dataclass(frozen=True)
class Plan:
    """What to run."""

    jobs: Path | None = None
    """A list in the form of Philly's; None for drawn ones."""
    num_jobs: int = 200
    nodes: int = 2
    load: float = 1.5
    span_s: float = 60.0
    """From the first submission to the last."""
    skip_days: float = 0.0
    """Jobs of the first days are left out: those that constants and lists were chosen on."""
    seeds: tuple[int, ...] = (42, 43, 44)
    at_once: int = 1
    """Runs side by side, each on a control plane of its own: what they share is the processor."""

    @property
    def num_steps(self) -> int:
        """Runs."""
        return len(self.seeds) * len(Mode)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when a job does not end."""
    with servers.workspace() as directory, ThreadPoolExecutor(plan.at_once) as pool:
        lists = {seed: compressed(plan, seed) for seed in plan.seeds}

        def play(seed: int, mode: Mode) -> dict[str, Any]:
            tell(f"{mode}, seed {seed}")
            listed, before = lists[seed]
            real = _run(listed, before, plan, mode, directory / f"{seed}-{mode}")
            policy, order = _SIMULATED[mode]
            simulated = delays.simulate_jobs(
                listed, plan.nodes * GPUS_PER_NODE, BASELINES[policy], order, seed, before=before
            )
            result = _beside(listed, real, simulated)
            if mode is Mode.NATIVE:
                result["retried"] = _retried(listed, plan.nodes, seed)
            return result

        modes = list(Mode)
        pairs = [(seed, mode) for seed in plan.seeds for mode in modes[seed % 2 :] + modes[: seed % 2]]
        played = dict(zip(pairs, pool.map(play, *zip(*pairs, strict=True)), strict=True))
    runs = [
        {
            **{"seed": seed, "gpu_s": round(float(lists[seed][0].gpu_s.sum()), 1)},
            **{mode.value: played[seed, mode] for mode in modes},
        }
        for seed in plan.seeds
    ]
    return {
        **{"jobs": plan.num_jobs, "nodes": plan.nodes, "load": plan.load, "span_s": plan.span_s},
        **{"skip_days": plan.skip_days, "at_once": plan.at_once},
        **{"list": plan.jobs.name if plan.jobs else "drawn", "runs": runs, "reductions": _reductions(runs)},
        "machine": reports.machine(),
    }


def compressed(plan: Plan, seed: int) -> tuple[JobList, JobList]:
    """A random choice of the jobs that fit one node, and another one of what ended before it."""
    rng = np.random.default_rng([seed, 4])
    listed = read_jobs(plan.jobs) if plan.jobs else drawn_jobs(20 * plan.num_jobs, seed)
    late = listed.submitted_s - listed.submitted_s[0] >= plan.skip_days * _DAY_S
    listed = listed.select((listed.num_gpus <= GPUS_PER_NODE) & late)
    if len(listed.cluster) < 2 * plan.num_jobs:
        found = f"{len(listed.cluster)} jobs of up to {GPUS_PER_NODE} GPUs"
        raise BenchError(f"{found} are too few; lower --number or --skip-days")
    drawn = rng.permutation(len(listed.cluster))[: 2 * plan.num_jobs].reshape(2, plan.num_jobs)
    few, before = (listed.select(np.isin(np.arange(len(listed.cluster)), chosen)) for chosen in drawn)
    submitted = (few.submitted_s - few.submitted_s[0]) * plan.span_s / max(few.span_s, 1e-9)
    work = plan.load * plan.span_s * plan.nodes * GPUS_PER_NODE
    factor = 1.0
    for _ in range(50):  # what is cut off the longest is given to the others
        factor *= work / float((_cut(few, factor, plan) * few.num_gpus).sum())
    return (
        replace(few, submitted_s=submitted, duration_s=_cut(few, factor, plan)),
        replace(before, submitted_s=np.zeros(plan.num_jobs), duration_s=_cut(before, factor, plan)),
    )


def _cut(jobs: JobList, factor: float, plan: Plan) -> Floats:
    shortest_s = 0.1  # as often as the cluster is looked at, or so
    return np.clip(jobs.duration_s * factor, shortest_s, _LONGEST_FRAC * plan.span_s).round(2)


def _run(listed: JobList, before: JobList, plan: Plan, mode: Mode, directory: Path) -> Times:
    """One run on a control plane of its own, on which jobs have ended before."""
    with servers.plane_with_nodes(directory, plan.nodes) as plane:
        for name in sorted({*listed.cluster, *before.cluster}):
            plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace_of(name)}})
        leave_behind(plane, before)
        with _deciding(plane, mode) as gate:
            return run_list(plane, listed, gate)


def _beside(listed: JobList, real: Times, simulated: delays.Run) -> dict[str, Any]:
    """A run, and the simulator's prediction of it."""
    whole = listed.num_gpus == GPUS_PER_NODE
    real_jct = np.array(real.ended) - np.array(real.submitted)
    real_delay = np.array(real.started) - np.array(real.submitted)
    return {
        "real": _figures(real_jct, real_delay, whole),
        "simulated": _figures(simulated.jct_s, simulated.delay_s, whole),
        "jct_ratio": round(float(real_jct.mean() / simulated.jct_s.mean()), 4),
        # By how much jobs ran longer than they should: by more than a small part of a job's time, the run says nothing.
        "late_s": round(float((real_jct - real_delay).mean() - (simulated.jct_s - simulated.delay_s).mean()), 3),
        "delay_correlation": _correlation(real_delay, simulated.delay_s),
    }


def _retried(listed: JobList, num_nodes: int, seed: int) -> dict[str, float | None]:
    """What kube-scheduler's own queue would make of it in this compressed time; means over some chances."""
    runs: list[dict[str, Any]] = []
    whole = listed.num_gpus == GPUS_PER_NODE
    for chance in range(_CHANCES):
        started_s = retries.started_s(
            listed, num_nodes, np.random.default_rng([seed, 5, chance]), backoff_s=_BACKOFF["podInitialBackoffSeconds"]
        )
        delay_s = started_s - listed.submitted_s
        runs.append(_figures(delay_s + listed.duration_s, delay_s, whole))
    return {
        key: None if known is None else round(sum(run[key] for run in runs) / len(runs), 3)
        for key, known in runs[0].items()
    }


@contextlib.contextmanager
def _deciding(plane: ControlPlane, mode: Mode) -> Iterator[dict[str, Any]]:
    """The schedulers of a mode; gives what is added to a pod's spec."""
    if mode is Mode.NATIVE:
        plain = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        plane.start_scheduler(yaml.safe_dump(plain | _BACKOFF))
        yield {}
        return
    plane.apply(QUEUE_RBAC)
    with servers.kerf(plane, "decisive", "--set=queue.enabled=true") as kerf:
        config = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text()) | _BACKOFF
        plane.start_scheduler(yaml.safe_dump(config), extender_url=kerf.url)
        yield _GATE


def _figures(jct_s: Floats, delay_s: Floats, whole: Mask) -> dict[str, float | None]:
    """Of J jobs; `whole` (J,) are those that take a whole node."""
    return {
        "mean_jct_s": round(float(jct_s.mean()), 3),
        "mean_delay_s": round(float(delay_s.mean()), 3),
        "p99_delay_s": round(float(np.percentile(delay_s, 99)), 3),
        "whole_nodes_mean_delay_s": round(float(delay_s[whole].mean()), 3) if whole.any() else None,
    }


def _correlation(real: Any, simulated: Any) -> float | None:
    """Pearson's, of the delays of the jobs; None where all are alike."""
    if real.std() == 0 or simulated.std() == 0:
        return None
    return round(float(np.corrcoef(real, simulated)[0, 1]), 4)


def _reductions(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By how much the queue lowers the mean JCT, and the p99 ratio.

    Of the control plane, of the simulator, and of the simulator where kube-scheduler's queue is as it is in compressed
    time.
    """
    result: dict[str, Any] = {}
    for which, beside in (("real", "real"), ("simulated", "simulated"), ("retried", "simulated")):
        native = [run[Mode.NATIVE.value][which] for run in runs]
        queue = [run[Mode.QUEUE.value][beside] for run in runs]
        pairs = list(zip(native, queue, strict=True))
        lower = interval([1 - after["mean_jct_s"] / before["mean_jct_s"] for before, after in pairs])
        p99 = interval([after["p99_delay_s"] / max(before["p99_delay_s"], 1e-3) for before, after in pairs])
        result[which] = {
            "jct_reduction": {"mean": round(lower.mean, 4), "half_width": round(lower.half_width or 0.0, 4)},
            "p99_ratio": {"mean": round(p99.mean, 4), "half_width": round(p99.half_width or 0.0, 4)},
        }
    return result
