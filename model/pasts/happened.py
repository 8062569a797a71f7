"""Actual outcomes in a history: starts of jobs, GPUs in use, and fragments."""

from dataclasses import dataclass

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.fragmentation import Nodes
from extender.history.records import Columns, History
from model.engine.engines import Compiled
from model.pasts.accounts import Account, Steps
from model.pasts.pasts import HistoryWorkload


def happened(history: History, workload: HistoryWorkload) -> Account | None:
    """Return the actual outcomes of the replayed jobs; None if start times are unknown.

    Jobs without a start wait until their deletion or the end of the history.
    """
    about, pods = history.about, history.pods
    if any("started" in item for item in about.missing):
        return None
    tasks, before = workload.offered.tasks, workload.offered.num_before
    submitted_s = pods["submitted_s"] - about.since_s
    end_s = np.where(np.isnan(pods["ended_s"]), about.until_s, pods["ended_s"]) - about.since_s
    waiting = np.isnan(pods["started_s"])
    start_s = np.where(waiting, np.maximum(end_s, submitted_s), pods["started_s"] - about.since_s)
    inside = workload.rows[before:]
    delay_s = np.array([start_s[rows].max() - submitted_s[rows].max() for rows in inside])
    never = np.array([waiting[rows].any() for rows in inside], np.bool_)
    times = _Times(start_s, np.where(waiting, start_s, end_s), float(tasks.submitted_s[-1]))
    return Account(np.maximum(delay_s, 0.0), never, _steps(pods, workload, times), None)


@dataclass(frozen=True)
class _Times:
    """(P,) times in which pods ran; empty for pods that never started."""

    start_s: Floats
    end_s: Floats
    until_s: float
    """End of the period."""

    def ran(self) -> Mask:
        """(P,) whether a pod ran within the period."""
        found: Mask = (np.minimum(self.end_s, self.until_s) > np.maximum(self.start_s, 0.0)) & (self.end_s > 0)
        return found

    def edges(self, workload: HistoryWorkload) -> Floats:
        """Return the times of changes within the period."""
        absences = [at for _, *times in workload.offered.absences for at in times if np.isfinite(at)]
        times = np.concatenate([self.start_s, self.end_s, absences, [0.0, self.until_s]])
        return np.unique(np.clip(times, 0.0, self.until_s))


def _steps(pods: Columns, workload: HistoryWorkload, times: _Times) -> Steps:
    edges_s = times.edges(workload)
    milli = pods["gpus"] * pods["gpu_milli"]
    counted = np.zeros(len(milli), np.bool_)
    counted[np.concatenate(workload.rows)] = True
    counted &= times.ran()
    change = np.zeros(len(edges_s), np.int64)
    for at_s, sign in ((times.start_s, 1), (times.end_s, -1)):
        step = np.searchsorted(edges_s, np.clip(at_s[counted], 0.0, times.until_s))
        np.add.at(change, step, sign * milli[counted])
    used = np.cumsum(change)[:-1] / WHOLE_MILLI
    return Steps(edges_s, used, _fragments(pods, workload, times, edges_s))


def _fragments(pods: Columns, workload: HistoryWorkload, times: _Times, edges_s: Floats) -> Floats | None:
    """(S,) fragments in GPUs; None unless the GPUs of all GPU pods are known."""
    places = _Places(pods, workload)
    ran = np.flatnonzero(times.ran()).tolist()
    if not all(places.knows(pod) for pod in ran):
        return None
    ran = [pod for pod in ran if places.somewhere(pod)]
    offered = workload.offered
    meter = Compiled(places.nodes, offered.tasks.asks, offered.tasks.mix)
    events = [(times.start_s[pod], 1, pod) for pod in ran] + [(times.end_s[pod], 0, pod) for pod in ran]
    events.sort()  # ends come before starts
    absences = [(begin, end, node) for node, begin, end in offered.absences]
    values, position = np.zeros(len(edges_s) - 1), 0
    for step, at_s in enumerate(edges_s[:-1].tolist()):
        while position < len(events) and events[position][0] <= at_s:
            _, starts, pod = events[position]
            meter.changed(places.begin(pod) if starts else places.end(pod))
            position += 1
        values[step] = (
            meter.fragment_milli([node for begin, end, node in absences if begin <= at_s < end]) / WHOLE_MILLI
        )
    return values


class _Places:
    """Actual placements. Overlapping use of a GPU, from inexact times, counts once."""

    def __init__(self, pods: Columns, workload: HistoryWorkload) -> None:
        self.nodes: Nodes = workload.offered.nodes.copy()
        row_of = {name: row for row, name in enumerate(workload.node_names)}
        self._row: list[int] = [row_of.get(name, -1) for name in pods["node"].tolist()]
        self._pods = pods
        self._gpus: list[list[int] | None] = [_indices(text) for text in pods["gpu_indices"].tolist()]
        self._held: Longs = np.zeros(self.nodes.gpu_free_milli.shape, np.int64)
        self._cpu_held: Longs = np.zeros(len(workload.node_names), np.int64)
        self._taken: dict[int, list[int]] = {}

    def knows(self, pod: int) -> bool:
        """Whether a pod's GPUs are known; whole GPUs of a node are interchangeable."""
        num_gpus = int(self._pods["gpus"][pod])
        if num_gpus == 0:
            return True
        row, gpus = self._row[pod], self._gpus[pod]
        if row < 0:
            return False
        if int(self._pods["gpu_milli"][pod]) < WHOLE_MILLI:
            return gpus is not None and all(gpu < self.nodes.num_gpus[row] for gpu in gpus)
        return True

    def somewhere(self, pod: int) -> bool:
        """Whether a pod's node is known."""
        return self._row[pod] >= 0

    def begin(self, pod: int) -> int:
        """Start a pod; returns its node's row."""
        row, num_gpus = self._row[pod], int(self._pods["gpus"][pod])
        gpus = self._gpus[pod]
        if gpus is None or not all(gpu < self.nodes.num_gpus[row] for gpu in gpus):
            held = self._held[row, : self.nodes.num_gpus[row]]
            gpus = np.argsort(held, kind="stable")[:num_gpus].tolist()
        self._taken[pod] = gpus
        return self._book(pod, +1)

    def end(self, pod: int) -> int:
        """End a pod; returns its node's row."""
        found = self._book(pod, -1)
        self._taken.pop(pod)
        return found

    def _book(self, pod: int, sign: int) -> int:
        row, nodes = self._row[pod], self.nodes
        self._held[row, self._taken[pod]] += sign * int(self._pods["gpu_milli"][pod])
        self._cpu_held[row] += sign * int(self._pods["cpu_milli"][pod])
        installed = np.arange(self._held.shape[1]) < nodes.num_gpus[row]
        free = np.where(installed, np.maximum(WHOLE_MILLI - self._held[row], 0), 0)
        nodes.gpu_free_milli[row] = free
        nodes.cpu_free_milli[row] = max(int(nodes.cpu_milli[row] - self._cpu_held[row]), 0)
        return row


def _indices(text: str) -> list[int] | None:
    """Parse GPU indices such as "0,1"; None if there are none."""
    parts = text.split(",") if text else []
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
        return None
    return sorted({int(part) for part in parts})
