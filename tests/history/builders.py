"""Histories made for tests."""

from typing import Any

import numpy as np

from extender.history.records import NODE_COLUMNS, POD_COLUMNS, About, Column, History, columns_of

_PLAIN = {"text": "", "whole": 0, "number": np.nan}


def pods(*rows: dict[str, Any]) -> dict[str, Column]:
    """Rows of pods of one whole GPU, submitted and started at 0, that ran for an hour."""
    usual = {"gpus": 1, "gpu_milli": 1000, "cpu_milli": 1000, "memory_mib": 1024, "submitted_s": 0.0}
    made = []
    for number, row in enumerate(rows):
        told = {**{name: _PLAIN[kind] for name, kind in POD_COLUMNS.items()}, **usual, "pod": f"pod-{number}", **row}
        told = {"started_s": told["submitted_s"], **{k: v for k, v in told.items() if k != "started_s" or k in row}}
        told = {"ended_s": told["started_s"] + 3600, **{k: v for k, v in told.items() if k != "ended_s" or k in row}}
        made.append(told)
    return columns_of(POD_COLUMNS, {name: [row[name] for row in made] for name in POD_COLUMNS})


def nodes(*gpus: int, model: str = "T4") -> dict[str, Column]:
    """Nodes of so many GPUs that exist all the time."""
    usual = {"gpu_model": model, "cpu_milli": 64_000, "memory_mib": 262_144, "from_s": 0.0}
    plain = {name: _PLAIN[kind] for name, kind in NODE_COLUMNS.items()}
    rows = [{**plain, **usual, "node": f"node-{number}", "gpus": num} for number, num in enumerate(gpus)]
    return columns_of(NODE_COLUMNS, {name: [row[name] for row in rows] for name in NODE_COLUMNS})


def history(pods: dict[str, Column], nodes: dict[str, Column], **about: Any) -> History:
    """A history of two days from 0."""
    return History(About(**{"source": "cluster", "since_s": 0.0, "until_s": 172_800.0, **about}), pods, nodes)
