"""All workloads as columns: what has GPUs, as the meter's entries count them, and what waits for some.

P pods. Text is in lists, numbers are in arrays; NaN stands for what nobody knows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, get_args

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.explain.answers import State
from extender.explain.waiting_pods import Awaited
from extender.explain.workload_tables.bound_pods import BoundPod
from extender.ledger.ledger import Claim
from extender.usage.holders import Holder
from extender.usage.shares import asked_milli

_RUNNING, _STARTING, _ENDING, HELD, PLACING, _PENDING, _GATED = range(7)
STATES: Final[tuple[State, ...]] = get_args(State)
"""Has its GPUs: its containers run, have not begun, or it is being deleted; or nobody is known to use what is held (a
ResourceClaim without a pod, a static pod whose kubelet has not told of it again). Has none: its node is decided, it
waits for one, or a gate keeps it from kube-scheduler."""
HAVE: Final = PLACING
"""States before this one have GPUs."""


class Workload(NamedTuple):
    """A pod in words, and what numbers it has of its own."""

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
    """In words, of one that has no GPUs yet."""
    state: int
    """Index into STATES."""
    since: float
    """Unix time of its creation, NaN where nobody has told."""
    priority: int
    asked: float
    """GPUs that it asks for, 0 where it has them."""

    @property
    def text(self) -> str:
        """What a search looks through, in small letters."""
        return f"{self.pod} {self.owner} {self.gang} {self.node} {self.model}".lower()


class Sources(NamedTuple):
    """What workloads are made of: numbers of U holders, and whom they belong to."""

    holders: Sequence[Holder | None]
    """(U,)"""
    booked: Longs
    """(U,) GPU milli."""
    load: Floats
    """(U,)"""
    idle_s: Floats
    """(U,)"""
    waiting: Iterable[Awaited]
    bound: Callable[[str], BoundPod | None]
    """Of a pod, by UID."""
    claim: Callable[[str], Claim | None]
    """Likewise."""
    model: Callable[[str], str]
    """Of a node."""


@dataclass(frozen=True, eq=False)
class WorkloadTable:
    """The workloads at a moment. Never changed."""

    rows: Sequence[Workload]
    """(P,)"""
    state: Longs
    """(P,)"""
    booked: Floats
    """(P,) GPUs that it has."""
    asked: Floats
    """(P,) GPUs that it asks for and has not."""
    load: Floats
    """(P,) mean of its GPUs, 0 to 1."""
    idle_s: Floats
    """(P,) for how long all of them have been idle."""
    since: Floats
    """(P,) Unix time of its creation."""
    priority: Longs
    """(P,)"""

    @cached_property
    def texts(self) -> list[str]:
        """(P,) what a search looks through."""
        return [row.text for row in self.rows]


def table_of(sources: Sources) -> WorkloadTable:
    """All of them, those that have GPUs first."""
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
    """Numbers of holders, and what each is."""
    numbers: list[int] = []
    rows: list[Workload] = []
    model_of: dict[str, str] = {}
    for number, holder in enumerate(sources.holders):
        if holder is None or number >= len(sources.booked):
            continue
        node, (namespace, owner), told = holder.node, holder.who, sources.bound(holder.key)
        model = model_of.get(node)
        if model is None:
            model = model_of[node] = sources.model(node)
        state, since, priority, gang = HELD, np.nan, 0, ""
        if told is not None:
            state = _ENDING if told.leaving else _STARTING if told.starting else _RUNNING
            since, priority, gang = told.created or np.nan, told.priority, told.gang
        numbers.append(number)
        rows.append(
            Workload(holder.key, holder.name, namespace, owner, gang, node, model, "", state, since, priority, 0.0)
        )
    return np.array(numbers, np.int64), rows


def _waiting(pod: Awaited, claim: Claim | None, model_of: Callable[[str], str]) -> Workload:
    """A pod without GPUs; `claim` is what is reserved for it."""
    node, state = ("", _GATED if pod.gated else _PENDING) if claim is None else (claim.node, PLACING)
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
