"""Which workloads are asked for, in which order, and what they come to together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import Query

from extender.core.clusters import Floats, Longs, Mask, Rows
from extender.explain.answers import By, Sort, State, WorkloadSums
from extender.explain.workload_tables.tables import HAVE, STATES, Workload, WorkloadTable

_OF_STATE: Final = {"": -1} | {name: number for number, name in enumerate(STATES)}
_DIGITS: Final = 3
_MAX_OFFSET: Final = 100_000


@dataclass(frozen=True, slots=True)
class Question:
    """Which workloads, and how they are shown: what is asked of `GET /workloads`."""

    namespace: Annotated[str, Query(max_length=63, description="Of the pods; empty: all.")] = ""
    owner: Annotated[str, Query(max_length=128, description="Kind/name, as in Job/train; empty: all.")] = ""
    gang: Annotated[str, Query(max_length=128, description="namespace/name; empty: all.")] = ""
    node: Annotated[str, Query(max_length=253, description="Where they are; empty: anywhere.")] = ""
    state: Annotated[Literal["", State], Query(description="Of the pods; empty: all.")] = ""
    idle: Annotated[bool, Query(description="Only pods that have been idle for usage.idle_after_s.")] = False
    q: Annotated[str, Query(max_length=200, description="Words that all have to be found.")] = ""
    """In a pod's name, namespace, owner, gang, node or GPU model."""
    by: Annotated[By, Query(description="What a row is of.")] = "pod"
    sort: Annotated[Sort, Query(description="What comes first.")] = "idle"
    reverse: Annotated[bool, Query(description="The other way round.")] = False
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum rows.")] = 100
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET, description="Rows before the first.")] = 0


def long_idle(table: WorkloadTable, after_s: float) -> Mask:
    """(P,) whether each has been idle for so long."""
    found: Mask = table.idle_s >= after_s  # NaN is not
    return found


def chosen(table: WorkloadTable, asked: Question) -> Rows:
    """(R,) positions of those that a question is about, whatever their states."""
    columns: tuple[tuple[str, Callable[[Workload], str]], ...] = (
        (asked.namespace, lambda row: row.namespace),
        (asked.owner, lambda row: row.owner),
        (asked.gang, lambda row: row.gang),
        (asked.node, lambda row: row.node),
    )
    positions = list(range(len(table.rows)))
    for wanted, column in columns:
        if wanted:
            positions = [position for position in positions if column(table.rows[position]) == wanted]
    for word in asked.q.lower().split():
        positions = [position for position in positions if word in table.texts[position]]
    return np.array(positions, np.intp)


def of_states(table: WorkloadTable, asked: Question, rows: Rows, idle: Mask) -> Rows:
    """(S,) of R rows those in the states that a question is about; `idle` is (P,)."""
    state = _OF_STATE[asked.state]
    wanted = np.full(len(rows), True) if state < 0 else table.state[rows] == state
    return rows[wanted & (idle[rows] if asked.idle else True)]


@dataclass(frozen=True, eq=False)
class Sums:
    """What rows come to together, by group: S rows, C groups."""

    names: Sequence[tuple[str, str]]
    """(C,) namespace and owner; "" where a group is not of one."""
    pods: Longs
    """(C,)"""
    states: Longs
    """(C, 7) pods in each state."""
    booked: Floats
    """(C,) GPUs."""
    asked: Floats
    """(C,) GPUs, those of which nobody knows left out."""
    load: Floats
    """(C,) mean of the GPUs whose load is known; NaN where that of none is."""
    idle_pods: Longs
    """(C,) idle for long."""
    idle_gpus: Floats
    """(C,)"""
    idle_s: Floats
    """(C,) that of the pod that has been idle for longest; NaN for none."""
    since: Floats
    """(C,) of the oldest; NaN where no age is known."""
    priority: Longs
    """(C,) the highest."""


def summed(table: WorkloadTable, rows: Rows, idle: Mask, by: By | Literal["all"]) -> Sums:
    """Some rows by group; `all` makes one group of them, `idle` is (P,)."""
    names: dict[tuple[str, str], int] = {("", ""): 0} if by == "all" else {}
    codes = [names.setdefault(_group(table.rows[row], by), len(names)) for row in rows.tolist()]
    group, width = np.array(codes, np.intp), len(names)

    def total(values: Floats) -> Floats:
        return np.bincount(group, values, width).astype(float)  # whole numbers where there are none

    def best(values: Floats, fill: float, better: Any) -> Floats:
        found = np.full(width, fill)
        better.at(found, group, np.where(np.isnan(values), fill, values))
        return np.where(np.isinf(found), np.nan, found)

    booked, load = table.booked[rows], table.load[rows]
    known, is_idle = np.isfinite(load), idle[rows]
    measured = total(np.where(known, booked, 0.0))
    used = total(np.where(known, booked * np.nan_to_num(load), 0.0))
    states = np.bincount(group * len(STATES) + table.state[rows], minlength=width * len(STATES))
    return Sums(
        list(names),
        np.bincount(group, minlength=width),
        states.reshape(width, len(STATES)),
        total(booked),
        total(np.nan_to_num(table.asked[rows])),
        np.where(measured > 0, used / np.where(measured > 0, measured, 1.0), np.nan),
        np.bincount(group[is_idle], minlength=width),
        total(booked * is_idle),
        best(table.idle_s[rows], -np.inf, np.maximum),
        best(table.since[rows], np.inf, np.minimum),
        np.nan_to_num(best(table.priority[rows].astype(float), -np.inf, np.maximum)).astype(np.int64),
    )


def _group(row: Workload, by: str) -> tuple[str, str]:
    if by == "all":
        return "", ""
    return (row.namespace, row.owner) if by == "owner" else (row.namespace, "")


def order(keys: Mapping[str, Floats | Longs], names: Sequence[str], asked: Question) -> Rows:
    """(C,) positions as they are to be shown: what is asked for first, then what has most GPUs, then by name.

    `keys` has (C,) values by what is sorted by, those to come first the greatest; NaN comes last either way.
    """
    sign = 1.0 if asked.reverse else -1.0
    name = np.argsort(sorted(range(len(names)), key=names.__getitem__))
    if asked.sort == "name":
        return np.lexsort((-sign * name,))
    first = np.where(np.isnan(keys[asked.sort]), np.inf, sign * keys[asked.sort])
    return np.lexsort((name, -np.nan_to_num(keys["gpus"]), first))


def keys_of_pods(table: WorkloadTable, rows: Rows, idle: Mask, now: float) -> dict[str, Floats | Longs]:
    """(S,) by what pods are sorted by: greatest first, load and idleness as one wants to see them."""
    have = table.state[rows] < HAVE
    return {
        "idle": np.where(idle[rows], table.idle_s[rows], 0.0),
        "gpus": np.where(have, table.booked[rows], table.asked[rows]),
        "load": -table.load[rows],
        "age": now - table.since[rows],
        "priority": table.priority[rows].astype(float),
        "pods": np.ones(len(rows)),
    }


def keys_of_groups(sums: Sums, now: float) -> dict[str, Floats | Longs]:
    """(C,) by what groups are sorted by; the most idle GPUs first."""
    return {
        "idle": sums.idle_gpus,
        "gpus": sums.booked + sums.asked,
        "load": -sums.load,
        "age": now - sums.since,
        "priority": sums.priority.astype(float),
        "pods": sums.pods.astype(float),
    }


def told_sums(sums: Sums, group: int) -> WorkloadSums:
    """A group's sums as they are answered."""
    booked, asked, idle = (round(float(gpus[group]), _DIGITS) for gpus in (sums.booked, sums.asked, sums.idle_gpus))
    return {
        "pods": int(sums.pods[group]),
        "states": dict(zip(STATES, sums.states[group].tolist(), strict=True)),
        "gpusBooked": booked,
        "gpusAsked": asked,
        "load": rounded(sums.load[group]),
        "idlePods": int(sums.idle_pods[group]),
        "idleGpus": idle,
    }


def rounded(value: float, digits: int = _DIGITS) -> float | None:
    """A number as it is answered, None for one that nobody knows."""
    return round(float(value), digits) if np.isfinite(value) else None
