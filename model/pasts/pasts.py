"""Conversion of a history to a simulation: the same pods at the same times, on the same nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Longs, Mask
from extender.history.records import Column, History, HistoryError
from model.engine import kernels
from model.simulations.delays import Owners
from model.simulations.departures import PeriodicWorkload
from model.simulations.simulated_jobs import Absence, Kind, Tasks
from model.workloads.histories import node_list
from model.workloads.traces import NodeList, PodList
from model.workloads.workloads import bits_of, classes_of, empty_nodes, typical_pods

_LEAST_S: Final = 1.0


@dataclass(frozen=True)
class HistoryWorkload:
    """A history as input to a simulation."""

    offered: PeriodicWorkload
    """The simulated workload; times are in seconds since the start of the history."""
    nodes: NodeList
    pods: PodList
    """All pods of the history, by submission time."""
    rows: tuple[Longs, ...]
    """(J,) rows of the pods of each job of `offered`."""
    node_names: tuple[str, ...]
    """(N,) names of the nodes of `offered`."""
    until_s: float
    """End of the history, in seconds since its start."""
    duration_guessed: int
    """Number of pods that had not ended by the end of the history: their durations are estimates."""


def past(history: History, seed: int = 0) -> HistoryWorkload:
    """Return the pods of a history that fit one of its nodes. `seed` draws the nodes' tie-break order.

    Pods that already ran at the start of the history are submitted at 0 with their remaining duration. Raises
    HistoryError if no pod fits.
    """
    all_nodes = node_list(history)
    about, pods = history.about, history.pods
    estimated = np.isnan(pods["ended_s"])
    submitted, duration = np.maximum(pods["submitted_s"] - about.since_s, 0.0), _durations(history)
    pod_list = PodList(
        tuple(pods["pod"]), pods["cpu_milli"], pods["memory_mib"], pods["gpus"], pods["gpu_milli"],
        tuple(pods["gpu_models"]), submitted, duration,
    )  # fmt: skip
    model_bits = bits_of(all_nodes)
    order = np.random.default_rng(seed).permutation(len(all_nodes.names))
    nodes = empty_nodes(all_nodes, model_bits, order)
    asks, classes = classes_of(pod_list, model_bits)
    jobs = _jobs(pods["gang"], kernels.can_run(nodes, asks)[classes])
    if not jobs:
        raise HistoryError("no pod of the history fits any of its nodes")
    complete = np.array([submitted[members].max() for members in jobs])
    by_submission = np.argsort(complete, kind="stable")
    jobs = [jobs[job] for job in by_submission.tolist()]
    tasks = Tasks(
        complete[by_submission],
        np.array([duration[members].max() for members in jobs]),
        tuple(_kind(classes[members]) for members in jobs),
        np.array([pods["priority"][members[0]] for members in jobs], np.int64),
        np.array([pod_list.asked_milli[members].sum() for members in jobs], np.int64),
        asks,
        typical_pods(pod_list, model_bits),
    )
    owners: list[Owners] = [(str(pods["owner"][members[0]]),) for members in jobs]
    num_before = int((tasks.submitted_s <= 0).sum()) if (pods["submitted_s"] < about.since_s).any() else 0
    left_out = len(classes) - sum(len(members) for members in jobs)
    names = tuple(all_nodes.names[i] for i in order.tolist())
    absences = _absences(history, names)
    offered = PeriodicWorkload(tasks, nodes, tuple(model_bits), owners, num_before, left_out, 1.0, absences)
    rows = tuple(np.array(members) for members in jobs)
    return HistoryWorkload(
        offered, all_nodes, pod_list, rows, names, about.until_s - about.since_s, int(estimated.sum())
    )


def _durations(history: History) -> Floats:
    """(P,) positive durations of pods: from start to end if known, else estimated."""
    about, pods = history.about, history.pods
    started, ended = pods["started_s"], pods["ended_s"]
    has_duration = ~np.isnan(started) & ~np.isnan(ended)
    usual = float(np.median((ended - started)[has_duration])) if has_duration.any() else about.until_s - about.since_s
    running = ~np.isnan(started) & np.isnan(ended)
    # A pod that still runs at the end of the history would run until then if it started at once.
    duration = np.where(has_duration, ended - started, np.where(running, about.until_s - pods["submitted_s"], usual))
    before = pods["submitted_s"] < about.since_s
    left = np.where(has_duration, ended, about.until_s) - about.since_s
    duration = np.where(before & ~np.isnan(started), np.minimum(left, duration), duration)
    found: Floats = np.maximum(duration, _LEAST_S)
    return found


def _absences(history: History, names: Sequence[str]) -> tuple[Absence, ...]:
    """Return absences of nodes, by index in `names`: before, between and after the times of their rows."""
    about, nodes = history.about, history.nodes
    present: dict[str, list[tuple[float, float]]] = {}
    times = zip(*(nodes[name].tolist() for name in ("node", "from_s", "until_s")), strict=True)
    for name, from_s, until_s in times:
        present.setdefault(name, []).append((from_s - about.since_s, until_s - about.since_s))
    found: list[Absence] = []
    for place, name in enumerate(names):
        gone_s = 0.0
        for from_s, until_s in sorted(present[name], key=lambda times: times[0]):
            if from_s > gone_s:
                found.append((place, gone_s, from_s))
            gone_s = math.inf if math.isnan(until_s) else max(gone_s, until_s)
        if gone_s < math.inf:
            found.append((place, max(gone_s, 0.0), math.inf))
    return tuple(found)


def _jobs(gang: Column, can_run: Mask) -> list[list[int]]:
    """Return the rows of each job's pods; jobs with a pod that fits nowhere are left out."""
    members: dict[str, list[int]] = {}
    for row, name in enumerate(gang.tolist()):
        members.setdefault(name or f"\0{row}", []).append(row)
    return [rows for rows in members.values() if can_run[rows].all()]


def _kind(classes: Longs) -> Kind:
    distinct, count = np.unique(classes, return_counts=True)
    return tuple(zip(distinct.tolist(), count.tolist(), strict=True))
