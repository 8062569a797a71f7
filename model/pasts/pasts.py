"""A history as something to be simulated: the same pods at the same times, on the nodes that there were."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Longs, Mask
from extender.history.records import Column, History, HistoryError
from model.engine import kernels
from model.simulations.delays import Owners
from model.simulations.departures import Churn
from model.simulations.simulated_jobs import Absence, Kind, Tasks
from model.workloads.histories import node_list
from model.workloads.traces import NodeList, PodList
from model.workloads.workloads import bits_of, classes_of, empty_nodes, typical_pods

_LEAST_S: Final = 1.0


@dataclass(frozen=True)
class Past:
    """What is simulated of a history, and what was known of it."""

    offered: Churn
    """Its times are in seconds since the history begins."""
    nodes: NodeList
    pods: PodList
    """All pods of the history, by time of submission."""
    rows: tuple[Longs, ...]
    """(J,) of the jobs of `offered`: the rows of their pods."""
    node_names: tuple[str, ...]
    """(N,) of the nodes of `offered`."""
    until_s: float
    """The history's end, as long after its begin."""
    duration_guessed: int
    """Pods that had not ended, or not started, when the history ends: they ran at least that long, or as long as
    others do."""


def past(history: History, seed: int = 0) -> Past:
    """The pods of a history that a node of it could take. `seed` draws the order of the nodes, which ties go by.

    Those that ran before it begins are there from the start, with the rest of their time. Raises HistoryError where
    there is nothing to simulate.
    """
    nodes_then = node_list(history)
    about, pods = history.about, history.pods
    guessed = np.isnan(pods["ended_s"])
    submitted, duration = np.maximum(pods["submitted_s"] - about.since_s, 0.0), _durations(history)
    pod_list = PodList(
        tuple(pods["pod"]), pods["cpu_milli"], pods["memory_mib"], pods["gpus"], pods["gpu_milli"],
        tuple(pods["gpu_models"]), submitted, duration,
    )  # fmt: skip
    model_bits = bits_of(nodes_then)
    order = np.random.default_rng(seed).permutation(len(nodes_then.names))
    nodes = empty_nodes(nodes_then, model_bits, order)
    asks, classes = classes_of(pod_list, model_bits)
    jobs = _jobs(pods["gang"], kernels.can_run(nodes, asks)[classes])
    if not jobs:
        raise HistoryError("no pod of the history fits any of its nodes")
    complete = np.array([submitted[members].max() for members in jobs])
    turns = np.argsort(complete, kind="stable")
    jobs = [jobs[job] for job in turns.tolist()]
    tasks = Tasks(
        complete[turns],
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
    names = tuple(nodes_then.names[i] for i in order.tolist())
    absences = _absences(history, names)
    offered = Churn(tasks, nodes, tuple(model_bits), owners, num_before, left_out, 1.0, absences)
    rows = tuple(np.array(members) for members in jobs)
    return Past(offered, nodes_then, pod_list, rows, names, about.until_s - about.since_s, int(guessed.sum()))


def _durations(history: History) -> Floats:
    """(P,) how long pods run: from their start to their end, where it is known, and more than nothing."""
    about, pods = history.about, history.pods
    started, ended = pods["started_s"], pods["ended_s"]
    known = ~np.isnan(started) & ~np.isnan(ended)
    usual = float(np.median((ended - started)[known])) if known.any() else about.until_s - about.since_s
    running = ~np.isnan(started) & np.isnan(ended)
    # Who still runs when the history ends would run until then had it started at once.
    duration = np.where(known, ended - started, np.where(running, about.until_s - pods["submitted_s"], usual))
    before = pods["submitted_s"] < about.since_s
    left = np.where(known, ended, about.until_s) - about.since_s
    duration = np.where(before & ~np.isnan(started), np.minimum(left, duration), duration)
    found: Floats = np.maximum(duration, _LEAST_S)
    return found


def _absences(history: History, names: Sequence[str]) -> tuple[Absence, ...]:
    """When nodes were not there, by their place among `names`: before, between and after the times of their rows."""
    about, nodes = history.about, history.nodes
    there: dict[str, list[tuple[float, float]]] = {}
    times = zip(*(nodes[name].tolist() for name in ("node", "from_s", "until_s")), strict=True)
    for name, from_s, until_s in times:
        there.setdefault(name, []).append((from_s - about.since_s, until_s - about.since_s))
    found: list[Absence] = []
    for place, name in enumerate(names):
        gone_s = 0.0
        for from_s, until_s in sorted(there[name], key=lambda times: times[0]):
            if from_s > gone_s:
                found.append((place, gone_s, from_s))
            gone_s = math.inf if math.isnan(until_s) else max(gone_s, until_s)
        if gone_s < math.inf:
            found.append((place, max(gone_s, 0.0), math.inf))
    return tuple(found)


def _jobs(gang: Column, can_run: Mask) -> list[list[int]]:
    """Rows of the pods that start together, of those all of which could run."""
    members: dict[str, list[int]] = {}
    for row, name in enumerate(gang.tolist()):
        members.setdefault(name or f"\0{row}", []).append(row)
    return [rows for rows in members.values() if can_run[rows].all()]


def _kind(classes: Longs) -> Kind:
    distinct, count = np.unique(classes, return_counts=True)
    return tuple(zip(distinct.tolist(), count.tolist(), strict=True))
