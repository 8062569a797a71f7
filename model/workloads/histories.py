"""What a history gives to train on: its nodes, and the pods of a part of its days."""

from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from extender.core.clusters import Mask
from extender.core.fragmentation import fair_weights
from extender.history import files
from extender.history.records import Columns, History, HistoryError
from model.workloads.traces import NodeList, PodList

_HELD_OUT_FRAC: Final = 0.3
"""Of the pods of a history, those that came last: what was learned from the others is judged there."""
_LEAST_PODS: Final = 20
_SEED: Final = 7


class Part(StrEnum):
    """Of a history's days."""

    LEARN = "learn"
    JUDGE = "judge"


def node_list(history: History) -> NodeList:
    """The nodes that were there, each as it was for longest: GPUs come and go when a device plugin starts anew.

    Raises HistoryError where none has GPUs.
    """
    nodes = history.nodes
    lasted_s = np.where(np.isnan(nodes["until_s"]), history.about.until_s, nodes["until_s"]) - nodes["from_s"]
    usual = {nodes["node"][row]: row for row in np.lexsort((nodes["gpus"], lasted_s)).tolist()}
    rows = [usual[name] for name in sorted(usual)]
    if not nodes["gpus"][rows].any():
        raise HistoryError("the history has no node with GPUs")
    return NodeList(
        tuple(sorted(usual)), nodes["cpu_milli"][rows], nodes["memory_mib"][rows], nodes["gpus"][rows],
        tuple(nodes["gpu_model"][rows]),
    )  # fmt: skip


def _pod_list(pods: Columns, kept: Mask) -> PodList:
    """Some of the pods, without their times."""
    return PodList(
        tuple(pods["pod"][kept]), pods["cpu_milli"][kept], pods["memory_mib"][kept], pods["gpus"][kept],
        pods["gpu_milli"][kept], tuple(pods["gpu_models"][kept]), None, None,
    )  # fmt: skip


def _part_of(history: History, part: Part) -> Mask:
    """(P,) the pods that were submitted before the time held out, or in it. Raises HistoryError where they are few."""
    submitted = history.pods["submitted_s"]
    later = submitted >= np.quantile(submitted, 1 - _HELD_OUT_FRAC)
    kept: Mask = later if part is Part.JUDGE else ~later
    asking = int((history.pods["gpus"][kept] > 0).sum())
    if asking < _LEAST_PODS:
        raise HistoryError(
            f"{asking} pods that ask for GPUs are in the part of the history to {part}; {_LEAST_PODS} are needed"
        )
    return kept


def _fairly(history: History, kept: Mask) -> Mask:
    """(P,) of the pods kept, so many of each namespace that none is a larger part of them than of their GPU work.

    One tenant who submits thousands of strange pods moves no more than its share of the work. Which of a namespace's
    pods stay is drawn, the same at each call.
    """
    pods, until_s = history.pods, history.about.until_s
    begun_s = np.where(np.isnan(pods["started_s"]), until_s, pods["started_s"])
    ran_s = np.maximum(np.where(np.isnan(pods["ended_s"]), until_s, pods["ended_s"]) - begun_s, 0.0)
    spaces, of_pod = np.unique(pods["namespace"].astype(str), return_inverse=True)
    num_pods = np.bincount(of_pod[kept], minlength=len(spaces))
    work = np.bincount(of_pod[kept], (pods["gpus"] * pods["gpu_milli"] * ran_s)[kept], len(spaces))
    there = np.flatnonzero(num_pods).tolist()
    weight = np.zeros(len(spaces))
    found = fair_weights({s: int(num_pods[s]) for s in there}, {s: float(work[s]) for s in there})
    weight[there] = [found[s] for s in there]
    drawn: Mask = np.random.default_rng(_SEED).random(len(kept)) < weight[of_pod]
    return kept & drawn


def lists(directory: Path, part: Part) -> tuple[NodeList, PodList]:
    """Nodes, and the pods of a part of a history in a folder. Raises HistoryError."""
    history = files.read(directory)
    if not len(history.pods["pod"]):
        raise HistoryError(f"{directory}: no pods")
    return node_list(history), _pod_list(history.pods, _fairly(history, _part_of(history, part)))
