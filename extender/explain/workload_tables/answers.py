"""`GET /workloads`: every pod that has GPUs or asks for some, pod by pod or summed up by owner or namespace."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import Rows
from extender.explain.answers import WorkloadGroup, WorkloadList, WorkloadNames, WorkloadPod
from extender.explain.waiting_pods import Waitlist
from extender.explain.workload_tables.bound_pods import BoundPod
from extender.explain.workload_tables.selections import (
    Question,
    Sums,
    chosen,
    keys_of_groups,
    keys_of_pods,
    long_idle,
    of_states,
    order,
    rounded,
    summed,
    told_sums,
)
from extender.explain.workload_tables.tables import HAVE, HELD, STATES, Sources, Workload, WorkloadTable, table_of
from extender.ledger.ledger import Ledger
from extender.usage.idle import IdleTimes
from extender.usage.rates import Occupants

_WORTH_S: Final = 2.0
"""For so long a table does for whoever asks."""
_MAX_FOUND: Final = 6


@dataclass(eq=False)
class Workloads:
    """Makes tables when somebody asks, and answers from them in a thread."""

    ledger: Ledger
    occupants: Occupants
    idle: IdleTimes | None
    """None where nobody counts for how long pods are idle."""
    idle_after_s: float
    bound: Callable[[str], BoundPod | None]
    """What is told of a pod with a node, by its UID."""
    waitlist: Waitlist
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _making: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _made: tuple[float, WorkloadTable] | None = field(default=None, init=False)

    async def answer(self, asked: Question) -> WorkloadList:
        """The workloads that a question is about."""
        table = await self._table()
        return await asyncio.to_thread(self._told, table, asked)

    async def of_pod(self, uid: str) -> WorkloadPod | None:
        """What a pod with a node has there, None for one that has no GPUs."""
        table = await self._table()
        found = (number for number, row in enumerate(table.rows) if row.uid == uid and row.state < HAVE)
        number = next(found, None)
        return None if number is None else self._pod(table, number)

    async def _table(self) -> WorkloadTable:
        """The workloads now, or a moment ago."""
        async with self._making:
            now = self.clock()
            if self._made is None or not 0 <= now - self._made[0] < _WORTH_S:
                await self.occupants.catch_up()
                table = await asyncio.to_thread(table_of, self._sources())
                self._made = now, table
                asyncio.get_running_loop().call_later(_WORTH_S, self._forget, table)  # megabytes, for nobody
                return table
            return self._made[1]

    def _forget(self, table: WorkloadTable) -> None:
        if self._made is not None and self._made[1] is table:
            self._made = None

    def _sources(self) -> Sources:
        """What is known now: short, for the event loop waits for it."""
        now, holders = self.clock(), self.occupants.holders
        of_holders = self.occupants.of_holders(self.ledger.snapshot(now))
        width = len(of_holders.booked)
        if self.idle is None:
            holders.fresh.clear()  # nobody else takes them
        return Sources(
            holders.all(),
            of_holders.booked,
            of_holders.load,
            np.full(width, np.nan) if self.idle is None else self.idle.seconds(now, width),
            waiting=self.waitlist.everyone(),
            bound=self.bound,
            claim=self.ledger.claim,
            model=self.occupants.model_of,
        )

    def _told(self, table: WorkloadTable, asked: Question) -> WorkloadList:
        now, idle = self.wall_clock(), long_idle(table, self.idle_after_s)
        matching = chosen(table, asked)
        states = told_sums(summed(table, matching, idle, "all"), 0)["states"]
        rows = of_states(table, asked, matching, idle)
        pods: list[WorkloadPod] = []
        groups: list[WorkloadGroup] = []
        if asked.by == "pod":
            total, names = len(rows), [table.rows[row].pod for row in rows.tolist()]
            places = order(keys_of_pods(table, rows, idle, now), names, asked)
            pods = [self._pod(table, int(row)) for row in rows[_page(places, asked)]]
        else:
            sums = summed(table, rows, idle, asked.by)
            total, places = len(sums.names), order(keys_of_groups(sums, now), list(map("/".join, sums.names)), asked)
            groups = [_group(sums, int(group)) for group in _page(places, asked)]
        return {
            "by": asked.by,
            "pods": pods,
            "groups": groups,
            "total": total,
            "more": max(total - asked.offset - len(pods) - len(groups), 0),
            "atLeast": self.waitlist.unbound.full,
            "totals": told_sums(summed(table, rows, idle, "all"), 0),
            "states": states | {"idle": int(idle[matching].sum())},
            "idleAfterSeconds": None if self.idle is None else self.idle_after_s,
            "found": _found(table, asked.q, matching) if asked.q.strip() else None,
        }

    def _pod(self, table: WorkloadTable, row: int) -> WorkloadPod:
        work = table.rows[row]
        has = work.state < HAVE
        indices, memory_mib = self._of_claim(work) if has else ([], None)
        return {
            "pod": work.pod,
            "namespace": work.namespace,
            "owner": work.owner,
            "gang": work.gang or None,
            "state": STATES[work.state],
            "node": work.node or None,
            "model": work.model or None,
            "gpus": rounded(table.booked[row] if has else table.asked[row]),
            "indices": indices,
            "memoryMiB": memory_mib,
            "request": work.request or None,
            "load": rounded(table.load[row]),
            "idleSeconds": rounded(table.idle_s[row], 0),
            "priority": work.priority,
            "since": rounded(table.since[row], 1),
            "explain": None if work.state == HELD else f"kerf explain {work.pod}",
        }

    def _of_claim(self, work: Workload) -> tuple[list[int], int | None]:
        """Indices of a pod's GPUs and what it has of their memory, as far as that is known."""
        claim = self.ledger.claim(work.uid)
        if claim is None or not claim.held.parts:
            return [], None
        offer, held = self.ledger.rows.offer_of(work.node), claim.held
        memory_mib = sum(
            part.mib if not part.whole else offer.gpus[part.gpu].memory_mib if 0 <= part.gpu < len(offer.gpus) else 0
            for part in held.parts
        )
        known = len(held.parts) == held.units and offer.units_per_gpu <= 1
        return sorted(gpu for gpu in held.gpus if gpu >= 0), (memory_mib or None) if known else None


def _page(places: Rows, asked: Question) -> Rows:
    return places[asked.offset : asked.offset + asked.limit]


def _group(sums: Sums, group: int) -> WorkloadGroup:
    namespace, owner = sums.names[group]
    return {
        "namespace": namespace,
        "owner": owner or None,
        **told_sums(sums, group),
        "idleSeconds": rounded(sums.idle_s[group], 0),
        "since": rounded(sums.since[group], 1),
        "priority": int(sums.priority[group]),
    }


def _found(table: WorkloadTable, q: str, rows: Rows) -> WorkloadNames:
    """What has a text in its own name, by kind, a few of each: what begins with it first."""
    text, works = q.strip().lower(), [table.rows[row] for row in rows.tolist()]

    def first(names: Iterable[str]) -> list[str]:
        having = {name for name in names if text in name.lower()}
        late = {name: not name.rpartition("/")[2].lower().startswith(text) for name in having}
        return sorted(having, key=lambda name: (late[name], name))[:_MAX_FOUND]

    return {
        "pods": first(work.pod for work in works if work.state != HELD),
        "owners": first(f"{work.namespace}/{work.owner}" for work in works),
        "namespaces": first(work.namespace for work in works),
        "gangs": first(work.gang for work in works if work.gang),
    }
