"""Pods whose request can't be understood: they are pending, and nothing is decided of them until it is corrected."""

from typing import Any

from extender.explain.sentences.remedies import CORRECT, to_json
from extender.explain.sentences.words import bounded
from extender.kube import objects


def told_of_wrong(pod: objects.Pod, fault: str, queue: str) -> dict[str, Any]:
    """What is told of one in the place of an explanation; `queue` says why it waits there, "" where it does not."""
    return {
        "pod": pod.key,
        "uid": pod.metadata.uid,
        **{"decidedAt": None, "policy": None, "ranking": None, "offered": False},
        **{"request": "", "required": {}, "milli": None, "memoryMiB": None, "crosses": None},
        **{"verdict": "rejected", "node": None, "gpus": [], "sentence": bounded(fault)},
        **{"remedies": [to_json(CORRECT)], "ahead": None, "queue": queue or None, "lacks": None},
        **{"reasons": {}, "scoreTerms": {}, "nodes": [], "wouldFit": []},
        "now": {"held": None, "nodesThatFit": 0, "bestNode": None, "numChanged": 0, "changed": [], "gone": []},
    }
