"""What is known to have happened in a history: when its jobs started, which GPUs were in use, which were fragments."""

from dataclasses import dataclass

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.fragmentation import Nodes
from extender.history.records import Columns, History
from model.engine.engines import Compiled
from model.pasts.accounts import Account, Steps
from model.pasts.pasts import Past


def happened(history: History, known: Past) -> Account | None:
    """The account of the jobs that are replayed, for all that is known of them; None where starts are unknown.

    Who had not started waits to the end of the history, or until it was given up.
    """
    about, pods = history.about, history.pods
    if any("started" in told for told in about.missing):
        return None
    tasks, before = known.offered.tasks, known.offered.num_before
    submitted_s = pods["submitted_s"] - about.since_s
    end_s = np.where(np.isnan(pods["ended_s"]), about.until_s, pods["ended_s"]) - about.since_s
    waiting = np.isnan(pods["started_s"])
    start_s = np.where(waiting, np.maximum(end_s, submitted_s), pods["started_s"] - about.since_s)
    inside = known.rows[before:]
    delay_s = np.array([start_s[rows].max() - submitted_s[rows].max() for rows in inside])
    never = np.array([waiting[rows].any() for rows in inside], np.bool_)
    times = _Times(start_s, np.where(waiting, start_s, end_s), float(tasks.submitted_s[-1]))
    return Account(np.maximum(delay_s, 0.0), never, _steps(pods, known, times), None)


@dataclass(frozen=True)
class _Times:
    """(P,) when pods ran; who never did, for no time at all."""

    start_s: Floats
    end_s: Floats
    until_s: float
    """The end of the period."""

    def ran(self) -> Mask:
        """(P,) whether a pod ran at some time of the period."""
        found: Mask = (np.minimum(self.end_s, self.until_s) > np.maximum(self.start_s, 0.0)) & (self.end_s > 0)
        return found

    def edges(self, known: Past) -> Floats:
        """When something changes in the period."""
        absences = [at for _, *times in known.offered.absences for at in times if np.isfinite(at)]
        times = np.concatenate([self.start_s, self.end_s, absences, [0.0, self.until_s]])
        return np.unique(np.clip(times, 0.0, self.until_s))


def _steps(pods: Columns, known: Past, times: _Times) -> Steps:
    edges_s = times.edges(known)
    asked = pods["gpus"] * pods["gpu_milli"]
    counted = np.zeros(len(asked), np.bool_)
    counted[np.concatenate(known.rows)] = True
    counted &= times.ran()
    change = np.zeros(len(edges_s), np.int64)
    for at_s, sign in ((times.start_s, 1), (times.end_s, -1)):
        step = np.searchsorted(edges_s, np.clip(at_s[counted], 0.0, times.until_s))
        np.add.at(change, step, sign * asked[counted])
    used = np.cumsum(change)[:-1] / WHOLE_MILLI
    return Steps(edges_s, used, _fragments(pods, known, times, edges_s))


def _fragments(pods: Columns, known: Past, times: _Times, edges_s: Floats) -> Floats | None:
    """(S,) fragments in GPUs by where pods were; None where that is not known of each that had GPUs."""
    places = _Places(pods, known)
    ran = np.flatnonzero(times.ran()).tolist()
    if not all(places.knows(pod) for pod in ran):
        return None
    ran = [pod for pod in ran if places.somewhere(pod)]
    offered = known.offered
    meter = Compiled(places.nodes, offered.tasks.asks, offered.tasks.mix)
    events = [(times.start_s[pod], 1, pod) for pod in ran] + [(times.end_s[pod], 0, pod) for pod in ran]
    events.sort()  # ends come before starts
    gone = [(begin, end, node) for node, begin, end in offered.absences]
    found, position = np.zeros(len(edges_s) - 1), 0
    for step, at_s in enumerate(edges_s[:-1].tolist()):
        while position < len(events) and events[position][0] <= at_s:
            _, starts, pod = events[position]
            meter.changed(places.begin(pod) if starts else places.end(pod))
            position += 1
        found[step] = meter.fragment_milli([node for begin, end, node in gone if begin <= at_s < end]) / WHOLE_MILLI
    return found


class _Places:
    """Who holds what of which node. What is held twice, as pods' times overlap a little, counts as in use once."""

    def __init__(self, pods: Columns, known: Past) -> None:
        self.nodes: Nodes = known.offered.nodes.copy()
        row_of = {name: row for row, name in enumerate(known.node_names)}
        self._row: list[int] = [row_of.get(name, -1) for name in pods["node"].tolist()]
        self._pods = pods
        self._gpus: list[list[int] | None] = [_indices(text) for text in pods["gpu_indices"].tolist()]
        self._held: Longs = np.zeros(self.nodes.gpu_free_milli.shape, np.int64)
        self._cpu_held: Longs = np.zeros(len(known.node_names), np.int64)
        self._taken: dict[int, list[int]] = {}

    def knows(self, pod: int) -> bool:
        """Whether a pod's GPUs are known, as far as it matters: any whole ones of a node are alike."""
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
        """A pod starts; returns its node's row."""
        row, num_gpus = self._row[pod], int(self._pods["gpus"][pod])
        gpus = self._gpus[pod]
        if gpus is None or not all(gpu < self.nodes.num_gpus[row] for gpu in gpus):
            held = self._held[row, : self.nodes.num_gpus[row]]
            gpus = np.argsort(held, kind="stable")[:num_gpus].tolist()
        self._taken[pod] = gpus
        return self._book(pod, +1)

    def end(self, pod: int) -> int:
        """A pod ends; returns its node's row."""
        found = self._book(pod, -1)
        self._taken.pop(pod)
        return found

    def _book(self, pod: int, sign: int) -> int:
        row, nodes = self._row[pod], self.nodes
        self._held[row, self._taken[pod]] += sign * int(self._pods["gpu_milli"][pod])
        self._cpu_held[row] += sign * int(self._pods["cpu_milli"][pod])
        there = np.arange(self._held.shape[1]) < nodes.num_gpus[row]
        free = np.where(there, np.maximum(WHOLE_MILLI - self._held[row], 0), 0)
        nodes.gpu_free_milli[row] = free
        nodes.cpu_free_milli[row] = max(int(nodes.cpu_milli[row] - self._cpu_held[row]), 0)
        return row


def _indices(text: str) -> list[int] | None:
    """GPUs of a list as "0,1"; None where there are none."""
    parts = text.split(",") if text else []
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
        return None
    return sorted({int(part) for part in parts})
