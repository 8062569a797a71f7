"""`GET /workloads`: every pod that has or requests GPUs, listed by pod or summed by owner or namespace.

Workloads are a table of P pods: text in lists, numbers in arrays, with NaN for unknown values.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import numpy as np
from fastapi import Query

from extender.core.annotations import read_priority
from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask, Rows
from extender.core.resources.requests import RequestError
from extender.explain.answers import (
    By,
    Sort,
    State,
    WorkloadGroup,
    WorkloadList,
    WorkloadNames,
    WorkloadPod,
    WorkloadSums,
)
from extender.explain.counting import CountsGpuHours
from extender.explain.holders import Holder, Holders, ownership_of
from extender.explain.pending import PendingSummary, Waitlist
from extender.explain.rates import Occupants, asked_milli
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.kube.watches import BOUND_PODS
from extender.ledger.ledger import Ledger, PodAllocation
from extender.queueing.pods.batches import gang_of
from extender.scheduling.build import Foundation

_MAX_CHARS: Final = 128


class BoundPod(NamedTuple):
    """A bound pod with GPUs."""

    created: float
    """Unix time, 0 if unknown."""
    priority: int
    gang: str
    """`namespace/name`, "" for none."""
    starting: bool
    """Whether its containers have not started."""
    leaving: bool
    """Whether it is being deleted; it keeps its GPUs until it is gone."""


def _bound_pod(pod: objects.Pod) -> BoundPod:
    return BoundPod(
        unix_time(pod.metadata.creation_timestamp),
        _priority(pod),
        _gang_name(pod),
        pod.status.phase == "Pending",
        pod.metadata.deletion_timestamp is not None,
    )


def belonging(pod: objects.Pod) -> tuple[str, str]:
    """The owner of a pod, from `ownership_of`, and its gang."""
    return ownership_of(pod.metadata).owner, _gang_name(pod)


def _gang_name(pod: objects.Pod) -> str:
    """The gang of a pod, "" if it has none or an invalid one."""
    try:
        return gang_of(pod)[0][:_MAX_CHARS]
    except RequestError:
        return ""


def _priority(pod: objects.Pod) -> int:
    try:
        return read_priority(pod.metadata.labels or {}, pod.spec.priority)
    except RequestError:
        return pod.spec.priority or 0


_RUNNING, _STARTING, _ENDING, _HELD, _PLACING, _PENDING, _GATED = range(7)
_STATES: Final[tuple[State, ...]] = get_args(State)
"""States with GPUs: containers run, have not started, or the pod is being deleted; held: GPUs without a known pod (a
ResourceClaim without one, a static pod that its kubelet has not reported again). States without GPUs: the node is
decided, the pod waits for one, or a gate keeps it from kube-scheduler."""
_HAVE: Final = _PLACING
"""States before this one have GPUs."""


class Workload(NamedTuple):
    """A row of the table: a pod's names and its own numbers."""

    uid: str
    pod: str
    """`namespace/name`."""
    namespace: str
    owner: str
    """`Kind/name`."""
    gang: str
    node: str
    model: str
    request: str
    """In words, if it has no GPUs yet."""
    state: int
    """Index into `_STATES`."""
    since: float
    """Unix time of its creation, NaN if unknown."""
    priority: int
    asked: float
    """GPUs that it requests, 0 if it has them."""

    @property
    def text(self) -> str:
        """Searchable text, in lower case."""
        return f"{self.pod} {self.owner} {self.gang} {self.node} {self.model}".lower()


class Sources(NamedTuple):
    """Inputs of the table: figures of U holders, waiting pods, and lookups."""

    holders: Sequence[Holder | None]
    """(U,)"""
    booked: Longs
    """(U,) GPU milli."""
    load: Floats
    """(U,)"""
    idle_s: Floats
    """(U,)"""
    waiting: Iterable[PendingSummary]
    bound: Callable[[str], BoundPod | None]
    """A bound pod, by UID."""
    claim: Callable[[str], PodAllocation | None]
    """A pod's claim, by UID."""
    model: Callable[[str], str]
    """GPU model of a node."""


@dataclass(frozen=True, eq=False)
class WorkloadTable:
    """The workloads at a moment. Immutable."""

    rows: Sequence[Workload]
    """(P,)"""
    state: Longs
    """(P,)"""
    booked: Floats
    """(P,) GPUs that it has."""
    asked: Floats
    """(P,) GPUs that it requests and does not have."""
    load: Floats
    """(P,) mean load of its GPUs, 0 to 1."""
    idle_s: Floats
    """(P,) seconds for which all of them have been idle."""
    since: Floats
    """(P,) Unix time of its creation."""
    priority: Longs
    """(P,)"""

    @cached_property
    def texts(self) -> list[str]:
        """(P,) searchable text."""
        return [row.text for row in self.rows]


def _table_of(sources: Sources) -> WorkloadTable:
    """All workloads, those with GPUs first."""
    numbers, rows = _holding(sources)
    have = set(map(_uid, rows))
    rows += [_waiting(pod, sources.claim(pod.uid), sources.model) for pod in sources.waiting if pod.uid not in have]
    left = len(rows) - len(numbers)

    def padded(values: Floats, fill: float) -> Floats:
        return np.concatenate([values[numbers].astype(float), np.full(left, fill)])

    return WorkloadTable(
        rows,
        np.array([row.state for row in rows], np.int64),
        padded(sources.booked / WHOLE_MILLI, 0.0),
        np.array([row.asked for row in rows], float),
        padded(sources.load, np.nan),
        padded(sources.idle_s, np.nan),
        np.array([row.since for row in rows], float),
        np.array([row.priority for row in rows], np.int64),
    )


def _uid(row: Workload) -> str:
    return row.uid


def _holding(sources: Sources) -> tuple[Longs, list[Workload]]:
    """Numbers of holders, and the row of each."""
    numbers: list[int] = []
    rows: list[Workload] = []
    model_of: dict[str, str] = {}
    for number, holder in enumerate(sources.holders):
        if holder is None or number >= len(sources.booked):
            continue
        node, (namespace, owner), bound = holder.node, holder.ownership, sources.bound(holder.key)
        model = model_of.get(node)
        if model is None:
            model = model_of[node] = sources.model(node)
        state, since, priority, gang = _HELD, np.nan, 0, ""
        if bound is not None:
            state = _ENDING if bound.leaving else _STARTING if bound.starting else _RUNNING
            since, priority, gang = bound.created or np.nan, bound.priority, bound.gang
        numbers.append(number)
        rows.append(
            Workload(holder.key, holder.name, namespace, owner, gang, node, model, "", state, since, priority, 0.0)
        )
    return np.array(numbers, np.int64), rows


def _waiting(pod: PendingSummary, claim: PodAllocation | None, model_of: Callable[[str], str]) -> Workload:
    """The row of a pod without GPUs; `claim` is its reservation."""
    node, state = ("", _GATED if pod.gated else _PENDING) if claim is None else (claim.node, _PLACING)
    milli = asked_milli(pod.request) if pod.request is not None else None
    return Workload(
        uid=pod.uid,
        pod=pod.pod,
        namespace=pod.pod.partition("/")[0],
        owner=pod.owner,
        gang=pod.gang,
        node=node,
        model=model_of(node) if node else "",
        request=str(pod.request or ""),
        state=state,
        since=pod.created or np.nan,
        priority=pod.priority,
        asked=np.nan if milli is None else milli / WHOLE_MILLI,
    )


_OF_STATE: Final = {"": -1} | {name: number for number, name in enumerate(_STATES)}
_DIGITS: Final = 3
_MAX_OFFSET: Final = 100_000


@dataclass(frozen=True, slots=True)
class Question:
    """Query parameters of `GET /workloads`."""

    namespace: Annotated[str, Query(max_length=63, description="Namespace of the pods; empty: all.")] = ""
    owner: Annotated[str, Query(max_length=128, description="Owner, as in Job/train; empty: all.")] = ""
    gang: Annotated[str, Query(max_length=128, description="Gang, as namespace/name; empty: all.")] = ""
    node: Annotated[str, Query(max_length=253, description="Node of the pods; empty: any.")] = ""
    state: Annotated[Literal["", State], Query(description="State of the pods; empty: all.")] = ""
    idle: Annotated[bool, Query(description="Only pods that have been idle for usage.idle_after_s.")] = False
    q: Annotated[str, Query(max_length=200, description="Words that must all match.")] = ""
    """Matched against a pod's name, namespace, owner, gang, node and GPU model."""
    by: Annotated[By, Query(description="What each row stands for.")] = "pod"
    sort: Annotated[Sort, Query(description="Sort key.")] = "idle"
    reverse: Annotated[bool, Query(description="Reverse the order.")] = False
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum rows.")] = 100
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET, description="Rows to skip.")] = 0


def _long_idle(table: WorkloadTable, after_s: float) -> Mask:
    """(P,) whether each has been idle for at least `after_s`."""
    idle: Mask = table.idle_s >= after_s  # False for NaN
    return idle


def _chosen(table: WorkloadTable, question: Question) -> Rows:
    """(R,) positions of the workloads that match a question, in any state."""
    columns: tuple[tuple[str, Callable[[Workload], str]], ...] = (
        (question.namespace, lambda row: row.namespace),
        (question.owner, lambda row: row.owner),
        (question.gang, lambda row: row.gang),
        (question.node, lambda row: row.node),
    )
    positions = list(range(len(table.rows)))
    for wanted, column in columns:
        if wanted:
            positions = [position for position in positions if column(table.rows[position]) == wanted]
    for word in question.q.lower().split():
        positions = [position for position in positions if word in table.texts[position]]
    return np.array(positions, np.intp)


def _of_states(table: WorkloadTable, question: Question, rows: Rows, idle: Mask) -> Rows:
    """(S,) of R rows, those in the requested states; `idle` is (P,)."""
    state = _OF_STATE[question.state]
    wanted = np.full(len(rows), True) if state < 0 else table.state[rows] == state
    return rows[wanted & (idle[rows] if question.idle else True)]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of S rows by C groups."""

    names: Sequence[tuple[str, str]]
    """(C,) namespace and owner; "" if not grouped by it."""
    pods: Longs
    """(C,)"""
    states: Longs
    """(C, 7) pods in each state."""
    booked: Floats
    """(C,) GPUs."""
    asked: Floats
    """(C,) requested GPUs, unknown numbers excluded."""
    load: Floats
    """(C,) mean over the GPUs with a known load; NaN if there are none."""
    idle_pods: Longs
    """(C,) pods idle for long."""
    idle_gpus: Floats
    """(C,) GPUs of these."""
    idle_s: Floats
    """(C,) longest idle time of a pod; NaN for none."""
    since: Floats
    """(C,) creation of the oldest pod; NaN if unknown."""
    priority: Longs
    """(C,) highest priority."""


def _summed(table: WorkloadTable, rows: Rows, idle: Mask, by: By | Literal["all"]) -> _Sums:
    """Sums of some rows by group; `all` makes one group of them. `idle` is (P,)."""
    names: dict[tuple[str, str], int] = {("", ""): 0} if by == "all" else {}
    codes = [names.setdefault(_group_key(table.rows[row], by), len(names)) for row in rows.tolist()]
    group, width = np.array(codes, np.intp), len(names)

    def total(values: Floats) -> Floats:
        return np.bincount(group, values, width).astype(float)  # bincount of nothing has integers

    def best(values: Floats, fill: float, better: Any) -> Floats:
        result = np.full(width, fill)
        better.at(result, group, np.where(np.isnan(values), fill, values))
        return np.where(np.isinf(result), np.nan, result)

    booked, load = table.booked[rows], table.load[rows]
    known, is_idle = np.isfinite(load), idle[rows]
    measured = total(np.where(known, booked, 0.0))
    used = total(np.where(known, booked * np.nan_to_num(load), 0.0))
    states = np.bincount(group * len(_STATES) + table.state[rows], minlength=width * len(_STATES))
    return _Sums(
        list(names),
        np.bincount(group, minlength=width),
        states.reshape(width, len(_STATES)),
        total(booked),
        total(np.nan_to_num(table.asked[rows])),
        np.where(measured > 0, used / np.where(measured > 0, measured, 1.0), np.nan),
        np.bincount(group[is_idle], minlength=width),
        total(booked * is_idle),
        best(table.idle_s[rows], -np.inf, np.maximum),
        best(table.since[rows], np.inf, np.minimum),
        np.nan_to_num(best(table.priority[rows].astype(float), -np.inf, np.maximum)).astype(np.int64),
    )


def _group_key(row: Workload, by: str) -> tuple[str, str]:
    if by == "all":
        return "", ""
    return (row.namespace, row.owner) if by == "owner" else (row.namespace, "")


def _order(keys: Mapping[str, Floats | Longs], names: Sequence[str], question: Question) -> Rows:
    """(C,) positions in display order: by the requested key, then most GPUs, then name.

    `keys` has (C,) values by sort key, sorted in descending order; NaN always comes last.
    """
    sign = 1.0 if question.reverse else -1.0
    name = np.argsort(sorted(range(len(names)), key=names.__getitem__))
    if question.sort == "name":
        return np.lexsort((-sign * name,))
    first = np.where(np.isnan(keys[question.sort]), np.inf, sign * keys[question.sort])
    return np.lexsort((name, -np.nan_to_num(keys["gpus"]), first))


def _keys_of_pods(table: WorkloadTable, rows: Rows, idle: Mask, now: float) -> dict[str, Floats | Longs]:
    """(S,) values of each sort key of pods, in descending order; the lowest load comes first."""
    have = table.state[rows] < _HAVE
    return {
        "idle": np.where(idle[rows], table.idle_s[rows], 0.0),
        "gpus": np.where(have, table.booked[rows], table.asked[rows]),
        "load": -table.load[rows],
        "age": now - table.since[rows],
        "priority": table.priority[rows].astype(float),
        "pods": np.ones(len(rows)),
    }


def _keys_of_groups(sums: _Sums, now: float) -> dict[str, Floats | Longs]:
    """(C,) values of each sort key of groups, in descending order; `idle` sorts by idle GPUs."""
    return {
        "idle": sums.idle_gpus,
        "gpus": sums.booked + sums.asked,
        "load": -sums.load,
        "age": now - sums.since,
        "priority": sums.priority.astype(float),
        "pods": sums.pods.astype(float),
    }


def _told_sums(sums: _Sums, group: int) -> WorkloadSums:
    """A group's sums as JSON data."""
    booked, asked, idle = (round(float(gpus[group]), _DIGITS) for gpus in (sums.booked, sums.asked, sums.idle_gpus))
    return {
        "pods": int(sums.pods[group]),
        "states": dict(zip(_STATES, sums.states[group].tolist(), strict=True)),
        "gpusBooked": booked,
        "gpusAsked": asked,
        "load": _rounded(sums.load[group]),
        "idlePods": int(sums.idle_pods[group]),
        "idleGpus": idle,
    }


def _rounded(value: float, digits: int = _DIGITS) -> float | None:
    """A number for JSON, None if unknown."""
    return round(float(value), digits) if np.isfinite(value) else None


_MAX_AGE_S: Final = 2.0
"""Time for which a table is reused, in seconds."""
_MAX_FOUND: Final = 6


@dataclass(eq=False)
class Workloads:
    """Answers questions from a cached table, in a thread."""

    ledger: Ledger
    occupants: Occupants
    counts: CountsGpuHours | None
    """None if idle times are not counted."""
    bound: Callable[[str], BoundPod | None]
    """A bound pod, by UID."""
    waitlist: Waitlist
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _making: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _made: tuple[float, WorkloadTable] | None = field(default=None, init=False)

    async def answer(self, question: Question) -> WorkloadList:
        """The workloads that match a question."""
        table = await self._table()
        return await asyncio.to_thread(self._answer_from, table, question)

    async def of_pod(self, uid: str) -> WorkloadPod | None:
        """A pod with GPUs, by UID; None if there is none."""
        table = await self._table()
        matching = (number for number, row in enumerate(table.rows) if row.uid == uid and row.state < _HAVE)
        number = next(matching, None)
        return None if number is None else self._pod(table, number)

    async def _table(self) -> WorkloadTable:
        """The workloads, at most `_MAX_AGE_S` old."""
        async with self._making:
            now = self.clock()
            if self._made is None or not 0 <= now - self._made[0] < _MAX_AGE_S:
                await self.occupants.catch_up()
                table = await asyncio.to_thread(_table_of, self._sources())
                self._made = now, table
                asyncio.get_running_loop().call_later(_MAX_AGE_S, self._forget, table)  # it has megabytes
                return table
            return self._made[1]

    def _forget(self, table: WorkloadTable) -> None:
        if self._made is not None and self._made[1] is table:
            self._made = None

    def _sources(self) -> Sources:
        """The table's inputs; fast, since it blocks the event loop."""
        now, holders = self.clock(), self.occupants.holders
        of_holders = self.occupants.of_holders(self.ledger.snapshot(now))
        width = len(of_holders.booked)
        if self.counts is None:
            holders.fresh.clear()  # it has no other consumer
        return Sources(
            holders.all(),
            of_holders.booked,
            of_holders.load,
            np.full(width, np.nan) if self.counts is None else self.counts.idle_s(now, width),
            waiting=self.waitlist.everyone(),
            bound=self.bound,
            claim=self.ledger.allocation,
            model=self.occupants.model_of,
        )

    def _answer_from(self, table: WorkloadTable, question: Question) -> WorkloadList:
        now, after_s = self.wall_clock(), float("inf") if self.counts is None else self.counts.idle_after_s
        idle = _long_idle(table, after_s)
        matching = _chosen(table, question)
        states = _told_sums(_summed(table, matching, idle, "all"), 0)["states"]
        rows = _of_states(table, question, matching, idle)
        pods: list[WorkloadPod] = []
        groups: list[WorkloadGroup] = []
        if question.by == "pod":
            total, names = len(rows), [table.rows[row].pod for row in rows.tolist()]
            places = _order(_keys_of_pods(table, rows, idle, now), names, question)
            pods = [self._pod(table, int(row)) for row in rows[_page(places, question)]]
        else:
            sums = _summed(table, rows, idle, question.by)
            total, places = (
                len(sums.names),
                _order(_keys_of_groups(sums, now), list(map("/".join, sums.names)), question),
            )
            groups = [_group(sums, int(group)) for group in _page(places, question)]
        return {
            "by": question.by,
            "pods": pods,
            "groups": groups,
            "total": total,
            "more": max(total - question.offset - len(pods) - len(groups), 0),
            "atLeast": self.waitlist.unbound.full,
            "totals": _told_sums(_summed(table, rows, idle, "all"), 0),
            "states": states | {"idle": int(idle[matching].sum())},
            "idleAfterSeconds": None if self.counts is None else self.counts.idle_after_s,
            "found": _found(table, question.q, matching) if question.q.strip() else None,
        }

    def _pod(self, table: WorkloadTable, row: int) -> WorkloadPod:
        work = table.rows[row]
        has = work.state < _HAVE
        indices, memory_mib = self._of_claim(work) if has else ([], None)
        return {
            "pod": work.pod,
            "namespace": work.namespace,
            "owner": work.owner,
            "gang": work.gang or None,
            "state": _STATES[work.state],
            "node": work.node or None,
            "model": work.model or None,
            "gpus": _rounded(table.booked[row] if has else table.asked[row]),
            "indices": indices,
            "memoryMiB": memory_mib,
            "request": work.request or None,
            "load": _rounded(table.load[row]),
            "idleSeconds": _rounded(table.idle_s[row], 0),
            "priority": work.priority,
            "since": _rounded(table.since[row], 1),
            "explain": None if work.state == _HELD else f"kerf explain {work.pod}",
        }

    def _of_claim(self, work: Workload) -> tuple[list[int], int | None]:
        """Indices of a pod's GPUs and its MiB of their memory, None if unknown."""
        claim = self.ledger.allocation(work.uid)
        if claim is None or not claim.held.parts:
            return [], None
        offer, held = self.ledger.rows.offer_of(work.node), claim.held
        memory_mib = sum(
            part.mib if not part.whole else offer.gpus[part.gpu].memory_mib if 0 <= part.gpu < len(offer.gpus) else 0
            for part in held.parts
        )
        known = len(held.parts) == held.units and offer.units_per_gpu <= 1
        return sorted(gpu for gpu in held.gpus if gpu >= 0), (memory_mib or None) if known else None


def _page(places: Rows, question: Question) -> Rows:
    return places[question.offset : question.offset + question.limit]


def _group(sums: _Sums, group: int) -> WorkloadGroup:
    namespace, owner = sums.names[group]
    return {
        "namespace": namespace,
        "owner": owner or None,
        **_told_sums(sums, group),
        "idleSeconds": _rounded(sums.idle_s[group], 0),
        "since": _rounded(sums.since[group], 1),
        "priority": int(sums.priority[group]),
    }


def _found(table: WorkloadTable, q: str, rows: Rows) -> WorkloadNames:
    """Up to `_MAX_FOUND` names per kind that contain a text, those that begin with it first."""
    text, works = q.strip().lower(), [table.rows[row] for row in rows.tolist()]

    def first(names: Iterable[str]) -> list[str]:
        matching = {name for name in names if text in name.lower()}
        inner = {name: not name.rpartition("/")[2].lower().startswith(text) for name in matching}
        return sorted(matching, key=lambda name: (inner[name], name))[:_MAX_FOUND]

    return {
        "pods": first(work.pod for work in works if work.state != _HELD),
        "owners": first(f"{work.namespace}/{work.owner}" for work in works),
        "namespaces": first(work.namespace for work in works),
        "gangs": first(work.gang for work in works if work.gang),
    }


def build_workloads(base: Foundation, counts: CountsGpuHours | None, waitlist: Waitlist) -> Workloads:
    """Build `Workloads` and subscribe it to pods; must be called before the mirror starts."""
    pods, ledger = base.mirror.hub.group(BOUND_PODS), base.ledger

    def bound(uid: str) -> BoundPod | None:
        pod = pods.get(uid)
        return _bound_pod(pod) if pod is not None and ledger.is_bound(uid) else None

    if counts is not None:
        occupants = counts.occupants
    else:
        holders = Holders(ledger)
        holders.subscribe(base.mirror.hub)
        occupants = Occupants(ledger, holders)
    return Workloads(
        ledger=ledger,
        occupants=occupants,
        counts=counts,
        bound=bound,
        waitlist=waitlist,
        clock=base.clock,
        wall_clock=time.time,
    )
