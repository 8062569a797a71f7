"""Planning a round: the queue order, the nodes kept for the head, and the call of the planner."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from extender.core.durations import Durations
from extender.core.orders import Order, WaitingJob, hold_s, ordered
from extender.core.resources.requests import GpuRequest
from extender.ledger.ledger import Ledger
from extender.planning.planners import PLANNERS
from extender.planning.plans import GREEDY, Plan, PlanPod
from extender.planning.rounds import Head, Round, RoundRules, greedy_round, searched_round
from extender.planning.wait_reasons import Code
from extender.queueing.gangs import Unit
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Options
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.refusals import Refusals
from extender.queueing.running_pods import owners_of
from extender.scheduling.placer import Placer

Batch = list[tuple[Entry, PlanPod]]
"""Entries of a round, each with the pod as planned."""

_PLANNED_INLINE: Final = 64
_REQUESTS_INLINE: Final = 8
"""Up to this many pods and distinct requests, a round is planned inline; larger ones in a thread, so that filter and
bind keep running."""


@dataclass(eq=False)
class RoundPlanner:
    """Plans rounds, and remembers the head for which nodes are kept."""

    options: Options
    ledger: Ledger
    placer: Placer
    backlog: Backlog
    nodes: NodeBook
    used: Callable[[], Mapping[str, float]]
    """GPUs in use by namespace."""
    clock: Callable[[], float]
    tell: Callable[[Entry, str], None] = lambda entry, sentence: None
    """Emits an event about a pod that kube-scheduler has refused."""
    refusals: Refusals = field(init=False)
    head: Head | None = field(default=None, init=False)
    _keeps_since: float | None = field(default=None, init=False)
    """Monotonic time since which pods have been passed over for the head, None while none was."""
    _backed_off: dict[str, float] = field(default_factory=dict, init=False)
    """By unit: the monotonic time until which no nodes are kept for it, after they were for too long."""
    _full: bool = field(default=False, init=False)
    """Whether the last plan released as many pods as allowed."""

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.backlog, self.ledger, self.nodes, self.clock, self.tell)

    async def rest(self, most_s: float) -> None:
        """Wait up to `most_s` after a plan, so that other work runs, but only while enough pods are on their way."""
        rested_s = 0.0
        while rested_s < most_s and not self._runs_dry():
            await asyncio.sleep(self.options.interval_s)
            rested_s += self.options.interval_s

    def _runs_dry(self) -> bool:
        """Whether few pods are on their way although the last plan could have released more."""
        return self._full and 2 * len(self.backlog.on_their_way(self.clock())) < self.options.max_open

    async def plan(
        self, units: Sequence[Unit], window: int, limits: Mapping[str, int]
    ) -> tuple[Plan, Batch, tuple[str, ...]]:
        """Plan units in their order on the current cluster; return the plan, its batch, and its node names by row."""
        now, options = self.clock(), self.options
        requested = [pod for unit in units for pod in unit.pods]
        cluster = self.ledger.snapshot(now)
        on_way = self.backlog.on_their_way(now)
        closed = self.ledger.rows.closed
        view = await self.nodes.view(cluster, self.backlog.kinds, requested, on_way, options.reserve_frac, closed)
        policies = self.placer.policies_apart()
        if not options.rank_cpu_pods:
            policies = {name: replace(policy, without_gpus=False) for name, policy in policies.items()}
        view = replace(view, policies=policies)
        await self.refusals.judge(view, units)
        units = self.refusals.in_turn(units)
        batch = self._batch(units)
        view, pods = self.refusals.restrict(view, batch)
        trials, tried = self.refusals.trials(units, view)
        self._back_off_head(now)
        waited = [unit for unit in units if now - min(entry.seen for entry in unit.entries) >= options.reserve_after_s]
        rules = RoundRules(
            quotas=options.quotas,
            used=self.used(),
            held=self.head,
            reserves=frozenset(unit.key for unit in waited if unit.key not in self._backed_off) - trials.keys(),
            rank={unit.key: _rank(unit) for unit in units},
            exempt=frozenset(unit.key for unit in units if any(self._is_exempt(entry) for entry in unit.entries)),
            policy=options.policy,
            limit=window,
            most=limits,
            trials=trials,
            tried=tried,
        )
        distinct = {pod.alike for pod in pods[:_PLANNED_INLINE]}
        planned: Round
        short = not any(pod.claims for pod in pods)  # the author's claims decide how long a search for devices takes
        if short and len(pods) <= _PLANNED_INLINE and len(distinct) <= _REQUESTS_INLINE and options.planner == GREEDY:
            planned = greedy_round(view, pods, rules)
        else:
            planned = await asyncio.to_thread(searched_round, view, pods, rules, PLANNERS[options.planner])
        if self.head is None or planned.head is None or planned.head.key != self.head.key:
            self._keeps_since = None
        self.head = planned.head
        self._full = planned.plan.num_placed >= window
        self._note_heads(units, planned.plan, batch, now)
        self.refusals.tried(planned.plan, batch)
        return self.refusals.explained(planned.plan, batch), batch, cluster.node_names

    def kept_from(self, entry: Entry | None) -> frozenset[str]:
        """Return the head's nodes that a released pod may not take: one that lost its own and comes after the head."""
        if self.head is None or entry is None or not entry.behind_head or not entry.lost or self._is_exempt(entry):
            return frozenset()
        if entry.planned is None:
            return self.head.nodes
        return self.head.kept_from(self.ledger.snapshot(self.clock()), entry.num_gpus)

    def _batch(self, units: Sequence[Unit]) -> Batch:
        """Return the pods to plan together: all for greedy, else as many whole units as `batch_pods` allows."""
        most = float("inf") if self.options.planner == GREEDY else self.options.batch_pods
        batch: Batch = []
        for unit in units:
            if batch and len(batch) + len(unit.entries) > most:
                break
            batch += [(entry, entry.planned) for entry in unit.entries if entry.planned is not None]
        return batch

    def _note_heads(self, units: Sequence[Unit], plan: Plan, batch: Batch, now: float) -> None:
        """Note the pods behind the head, and since when each is passed over for it, which is bounded in time."""
        behind = False
        for unit in units:
            for entry in unit.entries:
                entry.behind_head = behind
            behind |= self.head is not None and unit.key == self.head.key
        for position, why in plan.unassigned.items():
            entry, _ = batch[position]
            if why.code is Code.KEPT_FOR_HEAD:
                entry.kept_back = now if entry.kept_back is None else entry.kept_back
                self._keeps_since = now if self._keeps_since is None else self._keeps_since

    def _back_off_head(self, now: float) -> None:
        """Stop keeping nodes for a head once others were passed over for it for `skip_s`; another may follow."""
        self._backed_off = {key: until for key, until in self._backed_off.items() if now < until}
        since, most_s = self._keeps_since, self.options.skip_s
        if self.head is not None and since is not None and now - since >= most_s:
            self._backed_off[self.head.key] = now + most_s
            self.head = self._keeps_since = None

    def _is_exempt(self, entry: Entry) -> bool:
        """Whether a pod has been kept from the head's nodes for `skip_s`."""
        return entry.kept_back is not None and self.clock() - entry.kept_back >= self.options.skip_s


def _rank(unit: Unit) -> tuple[float, float]:
    """Return a unit's rank for having nodes kept: by PriorityClass, then age.

    A priority label, which any author may set, can only lower the rank.
    """
    priority = min(
        min(entry.planned.priority, entry.pod.spec.priority or 0) for entry in unit.entries if entry.planned is not None
    )
    return -float(priority), min(entry.created for entry in unit.entries)


def in_order(
    units: Sequence[Unit],
    now: float,
    options: Options,
    used: Mapping[str, float],
    durations: Durations,
    wastes_gpu: Callable[[GpuRequest], bool],
) -> list[Unit]:
    """Return the units in queue order at a Unix time. `used`, GPUs by namespace, matters for fair share only."""
    quotas, by_name = options.quotas, {unit.name: unit for unit in units}
    waiting = [
        WaitingJob(
            key=unit.name,
            priority=max(pod.priority for pod in unit.pods),
            since=min(entry.created for entry in unit.entries),
            held_s=_held_s(unit, options, durations, wastes_gpu),
            owner=unit.namespace,
            share=quotas.share(unit.namespace, unit.gpus) if options.fair_share else 0.0,
        )
        for unit in units
    ]
    shares = {name: quotas.share(name, gpus) for name, gpus in used.items()} if options.fair_share else None
    return [by_name[item.key] for item in ordered(waiting, now, ageing_s=options.ageing_s, shares=shares)]


def _held_s(unit: Unit, options: Options, durations: Durations, wastes_gpu: Callable[[GpuRequest], bool]) -> float:
    """Return the seconds a unit is held back: its patience, and a part in proportion to its expected GPU time."""
    selective = options.patience_s > 0 and all(pod.gpus and wastes_gpu(pod.gpus) for pod in unit.pods)
    patience_s = options.patience_s if selective else 0.0
    if options.order is not Order.KERF:
        return patience_s
    expected_s = max(durations.expected_s(owners_of(entry.pod, entry.num_gpus)) for entry in unit.entries)
    return patience_s + hold_s(expected_s, unit.gpus, options.held_most_s)
