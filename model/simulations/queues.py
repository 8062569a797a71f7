"""Discrete-event simulation of a cluster: jobs arrive, wait, run and end; nodes fail and return.

A job is one or more parts that start together or not at all (a gang). After each arrival and end, the queue is
walked in order and every job that fits starts: first come, first served, *with skipping*, as in kube-scheduler. With
scheduling rounds, the walk waits for the next round. Running jobs are not preempted.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.core.fragmentation import Nodes
from model.engine import engines
from model.engine.pools import Pools
from model.engine.ranks import Tie
from model.simulations.baselines import POOL, Baseline
from model.simulations.blocked_starts import BlockedStarts
from model.simulations.learned import Learned
from model.simulations.online import Follower
from model.simulations.replays import engine_of
from model.simulations.reservations import Reservation
from model.simulations.simulated_jobs import Absence, Failures, Kind, Outcome, Tasks, Turns, is_gang

Queue = tuple[Kind, Hashable]
"""Kind and group of its jobs."""
_Place = tuple[int, float, int]
"""(-priority, place, job): heap entries."""

_ABSENT_MILLI: Final = 1 << 40
"""CPU milli subtracted from a failed node, so that nothing fits."""
_LEAVE, _ARRIVE, END, _FAIL, _REPAIRED, _ROUND = range(6)


@dataclass
class Simulation:
    """State between events; `run` is the only public method."""

    tasks: Tasks
    nodes: Nodes
    """Updated in place."""
    policy: Baseline | Learned | Follower
    """A Follower counts each arriving job: it can be used for one simulation only."""
    turns: Turns
    rng: np.random.Generator
    on_end: Callable[[int], None] = lambda _: None
    failures: Failures | None = None
    round_s: float = 0.0
    """Time between scheduling rounds; 0: the queue is walked at every event."""
    model_names: Sequence[str] = ()
    """Names of the models that `nodes.model` indexes."""
    reserve_after_s: float = math.inf
    """Waiting time after which nodes are reserved for the first job in the queue that does not fit."""
    absences: Sequence[Absence] = ()
    """Absences of nodes; their jobs restart elsewhere."""
    count_blocked: bool = False
    """Whether to count blocked starts, which reads the nodes at each event."""

    _events: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Heap of (time, event, job or node, attempt)."""
    _queues: dict[Queue, list[_Place]] = field(default_factory=lambda: defaultdict(list))
    _held: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """(class, node, GPU mask) of each part, by running job."""
    _blocked: set[Kind] = field(default_factory=set)
    """Kinds known not to fit since the last release."""
    _round_due: float = -1.0

    def run(self) -> Outcome:
        """Simulate all jobs from the first submission to the last end."""
        num_jobs = len(self.tasks.submitted_s)
        outcome = Outcome(np.full(num_jobs, math.inf), np.full(num_jobs, math.inf), np.zeros(num_jobs, np.int64))
        self._rank: Learned | None = None
        self._random = isinstance(self.policy, Baseline) and self.policy.tie in (Tie.RANDOM, Tie.SAMPLED)
        self._engine = self._start_engine()
        # Fragments are measured by the same mix for all policies; a follower's engine uses its estimated mix.
        follows = isinstance(self.policy, Follower)
        self._meter = engines.Compiled(self.nodes, self.tasks.asks, self.tasks.mix) if follows else self._engine
        self._reservation = Reservation(self._engine, self.tasks.asks)
        self._blocked_starts = BlockedStarts(self.nodes, self.tasks) if self.count_blocked else None
        self._place = [0.0] * num_jobs
        self._attempt = [0] * num_jobs
        self._waiting_milli = 0
        self._free_milli = int(self.nodes.gpu_free_milli.sum())
        self._used_milli = 0
        self._left = num_jobs
        self._absent: set[int] = set()
        self._events = [(float(at), _ARRIVE, job, 0) for job, at in enumerate(self.tasks.submitted_s)]
        if self.failures:
            for node in range(len(self.nodes.cpu_milli)):
                self._schedule(self._exponential(self.failures.mean_between_s), _FAIL, node)
        for node, begin_s, end_s in self.absences:
            self._events += [(begin_s, _LEAVE, node, 0), (end_s, _REPAIRED, node, 0)]
        heapq.heapify(self._events)
        end_of_window = float(self.tasks.submitted_s[-1])
        now = 0.0
        while self._events and self._left:
            at = self._events[0][0]
            window = max(min(at, end_of_window) - now, 0.0)
            outcome.allocated_gpu_s += window * self._used_milli / WHOLE_MILLI
            outcome.blocked_gpu_s += window * min(self._free_milli, self._waiting_milli) / WHOLE_MILLI
            if window:
                fragments = self._meter.fragment_milli(sorted(self._absent)) / WHOLE_MILLI
                outcome.fragment_gpu_s += window * fragments
                outcome.steps.append((now, now + window, self._used_milli / WHOLE_MILLI, fragments))
            now = at
            due = False
            while self._events and self._events[0][0] == at:
                _, event, subject, attempt = heapq.heappop(self._events)
                due |= self._process(event, subject, attempt, now, outcome)
            if due and self._may_walk(now):
                self._walk(now, outcome)
                if self._blocked_starts:
                    self._blocked_starts.look(self._queues)
        if self._blocked_starts:
            outcome.blocked_jobs = self._blocked_starts.jobs
        return outcome

    def _start_engine(self) -> engines.Engine | Pools:
        tasks, policy = self.tasks, self.policy
        if policy is POOL:
            return Pools(self.nodes, tasks.asks)
        if isinstance(policy, Baseline):
            return engine_of(policy, self.nodes, tasks.asks, tasks.mix, self.model_names, compiled=True)
        engine = engines.Compiled(self.nodes, tasks.asks, tasks.mix)
        if isinstance(policy, Learned):
            engine.follow(policy.outlook, policy.potential)
        return engine

    def _changed(self, node: int) -> None:
        """Invalidate a changed node in the engine and the meter."""
        self._engine.changed(node)
        self._booked(node)

    def _booked(self, node: int) -> None:
        """As `_changed`, for changes made through the engine."""
        if self._meter is not self._engine:
            self._meter.changed(node)

    def _schedule(self, at: float, event: int, subject: int, attempt: int = 0) -> None:
        heapq.heappush(self._events, (at, event, subject, attempt))

    def _exponential(self, mean: float) -> float:
        return float(self.rng.exponential(mean))

    def _may_walk(self, now: float) -> bool:
        """Whether to walk the queue now; otherwise schedule a walk for the next round."""
        if self.round_s <= 0 or now % self.round_s == 0:
            return True
        due = math.ceil(now / self.round_s) * self.round_s
        if due > self._round_due:
            self._round_due = due
            self._schedule(due, _ROUND, 0)
        return now >= due

    def _process(self, event: int, subject: int, attempt: int, now: float, outcome: Outcome) -> bool:
        """Process one event; returns whether the queue must be walked."""
        if event == _ARRIVE:
            self._place[subject] = self.turns.place(subject)
            self._enqueue(subject)
            if isinstance(self.policy, Follower):
                for c, count in self.tasks.kinds[subject]:
                    for _ in range(count):
                        self.policy.add(c)
        elif event == END:
            if attempt != self._attempt[subject]:
                return False  # the job was restarted since
            self._release(subject)
            outcome.ended_s[subject] = now
            self._left -= 1
            self.on_end(subject)
        elif event == _FAIL:
            outcome.num_failures += 1
            self._fail(subject, now, outcome)
        elif event == _LEAVE:
            self._remove_node(subject, outcome)
        elif event == _REPAIRED:
            self._absent.discard(subject)
            self.nodes.cpu_free_milli[subject] += _ABSENT_MILLI
            self._free_milli += int(self.nodes.gpu_free_milli[subject].sum())
            self._changed(subject)
            self._blocked.clear()
        return True

    def _fail(self, node: int, now: float, outcome: Outcome) -> None:
        failures = self.failures
        if failures is None:
            raise AssertionError("a node failed without `failures`")
        self._remove_node(node, outcome)
        back = now + self._exponential(failures.repair_s)
        self._schedule(back, _REPAIRED, node)
        self._schedule(back + self._exponential(failures.mean_between_s), _FAIL, node)

    def _remove_node(self, node: int, outcome: Outcome) -> None:
        """Remove a node; its jobs wait again."""
        for job in [job for job, parts in self._held.items() if any(part[1] == node for part in parts)]:
            self._release(job)
            self._attempt[job] += 1
            outcome.num_restarts[job] += 1
            self._enqueue(job)
        self._absent.add(node)
        self.nodes.cpu_free_milli[node] -= _ABSENT_MILLI
        self._free_milli -= int(self.nodes.gpu_free_milli[node].sum())
        self._changed(node)

    def _enqueue(self, job: int) -> None:
        queue = self._queues[self.tasks.kinds[job], self.turns.group(job)]
        heapq.heappush(queue, (-int(self.tasks.priority[job]), self._place[job], job))
        self._waiting_milli += int(self.tasks.asked_milli[job])

    def _release(self, job: int) -> None:
        freed = np.zeros(len(self.tasks.asks.cpu_milli), np.bool_)
        for c, node, gpus in self._held.pop(job):
            self._engine.give_back(c, node, gpus)
            self._booked(node)
            self._engine.mark_fitting(node, freed)
        self._count(job, -1)
        # A kind that fitted nowhere can now fit only where resources were released; gangs are always tried again.
        self._blocked -= {kind for kind in self._blocked if is_gang(kind) or freed[kind[0][0]]}

    def _count(self, job: int, sign: int) -> None:
        milli = int(self.tasks.asked_milli[job])
        self._used_milli += sign * milli
        self._free_milli -= sign * milli

    def _walk(self, now: float, outcome: Outcome) -> None:
        """Start jobs that fit, in queue order.

        Jobs of a kind fit alike and free resources only shrink during the walk: if one does not fit, later ones of its
        kind don't either. But nodes may be reserved for one of a lower priority that has waited longer.
        """
        if isinstance(self.policy, Follower) and self._rank is not (rank := self.policy.now()):
            self._rank = rank
            if not isinstance(self._engine, Pools):
                self._engine.follow(rank.outlook, rank.potential)
        reserves = self.reserve_after_s < math.inf
        heads = [
            self._head(name)
            for name, queue in self._queues.items()
            if queue and (reserves or name[0] not in self._blocked)
        ]
        heapq.heapify(heads)
        hidden, blocked_by_hiding = False, set()
        while heads:
            (minus_priority, _, job), name = heapq.heappop(heads)
            kind = name[0]
            parts = self._start(kind, outcome) if kind not in self._blocked else None
            if parts is None:
                if hidden and kind not in self._blocked:
                    blocked_by_hiding.add(kind)
                self._blocked.add(kind)
                if reserves and not hidden:
                    if now - self.tasks.submitted_s[job] >= self.reserve_after_s:
                        self._reservation.hide(job, [c for c, count in kind for _ in range(count)])
                        hidden = True
                    elif lower := [place for place in self._queues[name] if place[0] > minus_priority]:
                        heapq.heappush(heads, self._head_of(name, min(lower)))
                continue
            self._begin(name, parts, now, outcome)
            if self._queues[name]:
                heapq.heappush(heads, self._head(name))
        if hidden:
            self._reservation.show()
            self._blocked -= blocked_by_hiding

    def _begin(self, name: Queue, parts: list[tuple[int, int, int]], at: float, outcome: Outcome) -> None:
        """Start the first job of a queue at `at` on the parts booked for it."""
        _, _, job = heapq.heappop(self._queues[name])
        self._held[job] = parts
        for _, node, _ in parts:
            self._booked(node)
        if self._blocked_starts:
            self._blocked_starts.started(job)
        self._waiting_milli -= int(self.tasks.asked_milli[job])
        self._count(job, +1)
        outcome.started_s[job] = min(outcome.started_s[job], at)
        self._schedule(at + float(self.tasks.duration_s[job]), END, job, self._attempt[job])

    def _head(self, name: Queue) -> tuple[_Place, Queue]:
        """Return the queue's first job with its place among the first jobs of all queues."""
        return self._head_of(name, self._queues[name][0])

    def _head_of(self, name: Queue, place_in_queue: _Place) -> tuple[_Place, Queue]:
        minus_priority, place, job = place_in_queue
        return (minus_priority, place + self.turns.held(job), job), name

    def _start(self, kind: Kind, outcome: Outcome) -> list[tuple[int, int, int]] | None:
        """Book all parts of a kind; None if one does not fit."""
        parts: list[tuple[int, int, int]] = []
        for c, count in kind:
            for _ in range(count):
                outcome.decisions += 1
                node = self._engine.decide(c, float(self.rng.random()) if self._random else 0.0)
                if node < 0:
                    for booked in parts:
                        self._engine.give_back(*booked)
                    return None
                parts.append((c, node, self._engine.take(c, node)))
        return parts
