"""Training and held-out workloads from a history: its nodes, and pods of a part of its days."""

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
"""Fraction of a history's pods, the last ones, that is held out for evaluation."""
_LEAST_PODS: Final = 20
_SEED: Final = 7


class Part(StrEnum):
    """Part of a history: training or held-out."""

    LEARN = "learn"
    JUDGE = "judge"


def node_list(history: History) -> NodeList:
    """Return the nodes, each in its longest-lasting state, because GPUs disappear while a device plugin restarts.

    Raises HistoryError if no node has GPUs.
    """
    nodes = history.nodes
    lasted_s = np.where(np.isnan(nodes["until_s"]), history.about.until_s, nodes["until_s"]) - nodes["from_s"]
    usual = {nodes["node"][row]: row for row in np.lexsort((nodes["gpus"], lasted_s)).tolist()}
    rows = [usual[name] for name in sorted(usual)]
    if not nodes["gpus"][rows].any():
        raise HistoryError("the history has no nodes with GPUs")
    return NodeList(
        tuple(sorted(usual)), nodes["cpu_milli"][rows], nodes["memory_mib"][rows], nodes["gpus"][rows],
        tuple(nodes["gpu_model"][rows]),
    )  # fmt: skip


def _pod_list(pods: Columns, kept: Mask) -> PodList:
    """Return the kept pods, without times."""
    return PodList(
        tuple(pods["pod"][kept]), pods["cpu_milli"][kept], pods["memory_mib"][kept], pods["gpus"][kept],
        pods["gpu_milli"][kept], tuple(pods["gpu_models"][kept]), None, None,
    )  # fmt: skip


def _part_of(history: History, part: Part) -> Mask:
    """(P,) pods submitted before or in the held-out period. Raises HistoryError if there are too few."""
    submitted = history.pods["submitted_s"]
    later = submitted >= np.quantile(submitted, 1 - _HELD_OUT_FRAC)
    kept: Mask = later if part is Part.JUDGE else ~later
    asking = int((history.pods["gpus"][kept] > 0).sum())
    if asking < _LEAST_PODS:
        raise HistoryError(
            f"the {part} part of the history has {asking} pods that request GPUs; {_LEAST_PODS} are needed"
        )
    return kept


def _fairly(history: History, kept: Mask) -> Mask:
    """(P,) the kept pods, thinned so that no namespace's fraction of them exceeds its fraction of their GPU work.

    A tenant that submits thousands of unusual pods then has no more influence than its share of the work. The pods are
    drawn, with a fixed seed.
    """
    pods, until_s = history.pods, history.about.until_s
    begun_s = np.where(np.isnan(pods["started_s"]), until_s, pods["started_s"])
    ran_s = np.maximum(np.where(np.isnan(pods["ended_s"]), until_s, pods["ended_s"]) - begun_s, 0.0)
    namespaces, namespace_of_pod = np.unique(pods["namespace"].astype(str), return_inverse=True)
    num_pods = np.bincount(namespace_of_pod[kept], minlength=len(namespaces))
    work = np.bincount(namespace_of_pod[kept], (pods["gpus"] * pods["gpu_milli"] * ran_s)[kept], len(namespaces))
    present = np.flatnonzero(num_pods).tolist()
    weight = np.zeros(len(namespaces))
    weights = fair_weights({s: int(num_pods[s]) for s in present}, {s: float(work[s]) for s in present})
    weight[present] = [weights[s] for s in present]
    drawn: Mask = np.random.default_rng(_SEED).random(len(kept)) < weight[namespace_of_pod]
    return kept & drawn


def lists(directory: Path, part: Part) -> tuple[NodeList, PodList]:
    """Return the nodes and the pods of a part of the history in a folder. Raises HistoryError."""
    history = files.read(directory)
    if not len(history.pods["pod"]):
        raise HistoryError(f"{directory}: no pods")
    return node_list(history), _pod_list(history.pods, _fairly(history, _part_of(history, part)))
