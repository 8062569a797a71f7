"""Pods with a node of which no decision is kept: where they are, and what they have there."""

from collections.abc import Mapping
from typing import Any

from extender.kube import objects


def told_of_running(pod: objects.Pod, workload: Mapping[str, Any], request: str, num_kept: int) -> dict[str, Any]:
    """What is told of one in the place of an explanation; `workload` is its row of `GET /workloads`, `request` what it
    asks for in words, and `num_kept` how many decisions are kept."""
    node, gpus = pod.spec.node_name, workload["indices"]
    return {
        "pod": pod.key,
        "uid": pod.metadata.uid,
        **{"decidedAt": None, "policy": None, "ranking": None, "offered": False},
        **{"request": request, "required": {}, "milli": None, "memoryMiB": None, "crosses": None},
        **{"verdict": "placed", "node": node, "gpus": gpus, "workload": workload},
        "sentence": f"no decision about it is kept: Kerf keeps the last {num_kept} that it has made since it started",
        **{"remedies": [], "ahead": None, "queue": None, "lacks": None, "reasons": {}, "scoreTerms": {}, "nodes": []},
        "now": {
            "held": {"node": node, "gpus": gpus, "state": "BOUND"},
            **{"nodesThatFit": 0, "bestNode": None, "numChanged": 0, "changed": [], "gone": []},
        },
    }
