"""The runs of a report: all policies on the same traces, seeds and jobs."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.core.fragmentation import Nodes
from model.evaluation.ceilings import ceiling
from model.evaluation.reports import Report
from model.simulations import delays
from model.simulations.baselines import BASELINES
from model.simulations.measures import measures
from model.simulations.replays import replay
from model.workloads.jobs import GPUS_PER_NODE, nodes_for_load, read_jobs
from model.workloads.traces import read_nodes, read_pods, read_table
from model.workloads.workloads import workload

OnStep = Callable[[str], None]
"""Called with a description of each run before it starts."""


def compare(
    directory: Path, traces: Sequence[str], policies: Sequence[str], seeds: Sequence[int], on_step: OnStep
) -> Report:
    """Replay each trace under each policy and seed."""
    report = Report(seeds, published=_published_means(directory))
    node_list = read_nodes(directory)
    for trace in traces:
        pod_list = read_pods(directory, trace)
        offered = {seed: workload(directory, trace, seed, node_list, pod_list) for seed in seeds}
        on_step(f"{trace}, ceiling")
        report.ceilings[trace] = ceiling(offered[seeds[0]])
        for policy in policies:
            runs = report.replays.setdefault(trace, {}).setdefault(policy, [])
            for seed in seeds:
                on_step(f"{trace}, {policy}, seed {seed}")
                runs.append(measures(offered[seed], replay(offered[seed], BASELINES[policy], seed)))
    return report


def compare_orders(
    path: Path, orders: Sequence[str], load: float, seed: int, on_step: OnStep
) -> dict[str, list[Mapping[str, Any]]]:
    """Run the jobs of a file in each order, with best fit, on a cluster sized for the load."""
    jobs = read_jobs(path)
    num_gpus = nodes_for_load(jobs, load) * GPUS_PER_NODE
    fitting = jobs.select(jobs.num_gpus <= num_gpus)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for order in orders:
        on_step(f"jobs, {order}")
        run = delays.simulate_jobs(fitting, num_gpus, BASELINES["bestfit"], order, seed)
        found[order] = [{**delays.measures(run), "fairness": delays.fairness(run, fitting.cluster)}]
    return found


def _published_means(directory: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Read the means over seeds at 100 and 130 % from `published_allocation.csv`; empty without that file."""
    path = directory / "published_allocation.csv"
    if not path.exists():
        return {}
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in read_table(path, ("trace", "policy", "alloc_at_100", "alloc_at_130")):
        values = row["alloc_at_100"].number(), row["alloc_at_130"].number()
        found[row["trace"].text, row["policy"].text].append(values)
    means: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (trace, policy), pairs in found.items():
        at_100, at_130 = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        means[trace][policy] = statistics.fmean(at_100), statistics.fmean(at_130)
    return dict(means)


SIZES: Final = (1000, 2000, 5000, 10000, 20000)
"""Cluster sizes, in nodes, for the cost of a decision."""
_PODS_OF_SIZE: Final = 4000


def compare_sizes(
    directory: Path, trace: str, policy: str, sizes: Sequence[int], on_step: OnStep
) -> list[dict[str, float]]:
    """Measure the time of a decision and the memory of the cache, on clusters that repeat a trace's nodes."""
    from model.engine import kernels  # noqa: PLC0415 - importing numba is slow

    node_list, pod_list = read_nodes(directory), read_pods(directory, trace)
    offered = workload(directory, trace, 42, node_list, pod_list)
    found = []
    for size in sizes:
        on_step(f"{size} nodes")
        rows = np.arange(size) % len(node_list.names)
        nodes = Nodes(*(np.ascontiguousarray(column[rows]) for column in offered.nodes))  # type: ignore[arg-type]
        pods = np.arange(_PODS_OF_SIZE) % len(offered.pods)
        larger = replace(
            offered, nodes=nodes, pods=offered.pods[pods], classes=offered.classes[pods],
            asked_milli=offered.asked_milli[pods],
        )  # fmt: skip
        done = replay(larger, BASELINES[policy], 42)
        memo = kernels.memo_of(len(offered.asks.cpu_milli), nodes.copy(), offered.mix)
        num_bytes = sum(column.nbytes for column in (*memo, *nodes))
        found.append({"nodes": size, "us": done.seconds / _PODS_OF_SIZE * 1e6, "mb": num_bytes / 1e6})
    return found
