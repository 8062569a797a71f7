"""A cluster over time, in discrete events: jobs come, wait, run and go; nodes fail and return.

A job is one or more parts that start together or not at all (a gang). Whenever something ends or comes, the queue is
walked in its order and whatever fits starts: first come first served *with skipping* over what does not fit, which is
what kube-scheduler does. With scheduling rounds the walk waits for the next round. Nothing that runs is preempted.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core import kernels, packing, potential_kernels
from extender.core.clusters import Floats, Longs
from extender.core.fragments import Mix
from extender.core.packing import Asks, Nodes, Tie
from model.baselines import Baseline
from model.learned import Learned
from model.online import Follower
from model.reservations import Reservation

Kind = tuple[tuple[int, int], ...]
"""Parts of a job: classes, each with how many there are of it."""

CPU_MILLI_PER_GPU: Final = 12_000
MEMORY_MIB_PER_GPU: Final = 96 * 1024

_Queue = tuple[Kind, Hashable]
"""Jobs of a kind and a group."""
_Place = tuple[int, float, int]
"""(-priority, place, job): heaps of them."""

_GONE: Final = 1 << 40
"""CPU milli taken from a node that failed, so that nothing fits."""
_COME, _END, _FAIL, _REPAIRED, _ROUND = range(5)


@dataclass(frozen=True)
class Tasks:
    """J jobs by time of submission, in terms of the classes of `asks`."""

    submitted_s: Floats
    duration_s: Floats
    kinds: tuple[Kind, ...]
    priority: Longs
    asked_milli: Longs
    """(J,) GPU milli of all parts."""
    asks: Asks
    mix: Mix


@dataclass(frozen=True)
class Failures:
    """How nodes fail: both times are drawn from exponential distributions."""

    mean_between_s: float
    """Of one node."""
    repair_s: float


@dataclass
class Outcome:
    """What became of J jobs. Times are inf where it did not happen."""

    started_s: Floats
    """(J,) the first start."""
    ended_s: Floats
    num_restarts: Longs
    """(J,) how often a failing node threw the job back to its beginning."""
    allocated_gpu_s: float = 0.0
    """GPU seconds in use, in the window from the first to the last submission."""
    blocked_gpu_s: float = 0.0
    """In that window, GPU seconds that were free while jobs waited for so many or more."""
    num_failures: int = 0
    decisions: int = 0


Ended = Callable[[int], None]


@dataclass(frozen=True)
class Turns:
    """Whose turn it is among equals in priority: the job whose place plus what it is held back is smallest."""

    place: Callable[[int], float]
    """Told when a job is submitted."""
    held: Callable[[int], float] = lambda _: 0.0
    """Asked at each walk, of the first of a group: what is learned meanwhile counts."""
    group: Callable[[int], Hashable] = lambda _: None
    """Jobs of a group are held back alike."""


@dataclass
class Simulation:
    """The state between events; `run` is all that is called from outside."""

    tasks: Tasks
    nodes: Nodes
    """Filled in place."""
    policy: Baseline | Learned | Follower
    """A Follower is told of each job as it comes: it serves one simulation."""
    turns: Turns
    rng: np.random.Generator
    tell_ended: Ended = lambda _: None
    failures: Failures | None = None
    round_s: float = 0.0
    """Time between scheduling rounds; 0 walks the queue at every event."""
    reserve_after_s: float = math.inf
    """When the first in the queue has waited so long without room, nodes are kept for it from those behind it."""

    _events: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Heap of (time, what, job or node, attempt)."""
    _queues: dict[_Queue, list[_Place]] = field(default_factory=lambda: defaultdict(list))
    _held: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Per running job its (class, node, GPUs)."""
    _blocked: set[Kind] = field(default_factory=set)
    """Kinds known not to fit since something was last given back."""
    _last: int = 0
    _round_due: float = -1.0

    def run(self) -> Outcome:
        """All jobs from the first submission to the last end."""
        num_jobs = len(self.tasks.submitted_s)
        outcome = Outcome(np.full(num_jobs, math.inf), np.full(num_jobs, math.inf), np.zeros(num_jobs, np.int64))
        self._memo = kernels.memo_of(len(self.tasks.asks.cpu_milli), self.nodes, self.tasks.mix)
        self._reservation = Reservation(self.nodes, self.tasks.asks, self.tasks.mix, self._memo)
        self._last = 0 if isinstance(self.policy, Baseline) and self.policy.tie is Tie.SAMPLED else -1
        self._rank = self.policy if isinstance(self.policy, Learned) else None
        self._values, self._known = np.zeros(len(self.nodes.cpu_milli)), np.array([-1])
        self._place = [0.0] * num_jobs
        self._attempt = [0] * num_jobs
        self._waiting_milli = 0
        self._free_milli = int(self.nodes.gpu_free_milli.sum())
        self._used_milli = 0
        self._left = num_jobs
        self._events = [(float(at), _COME, job, 0) for job, at in enumerate(self.tasks.submitted_s)]
        if self.failures:
            for node in range(len(self.nodes.cpu_milli)):
                self._plan(self._drawn(self.failures.mean_between_s), _FAIL, node)
        heapq.heapify(self._events)
        end_of_window = float(self.tasks.submitted_s[-1])
        now = 0.0
        while self._events and self._left:
            at = self._events[0][0]
            window = max(min(at, end_of_window) - now, 0.0)
            outcome.allocated_gpu_s += window * self._used_milli / 1000
            outcome.blocked_gpu_s += window * min(self._free_milli, self._waiting_milli) / 1000
            now = at
            due = False
            while self._events and self._events[0][0] == at:
                _, what, subject, attempt = heapq.heappop(self._events)
                due |= self._happen(what, subject, attempt, now, outcome)
            if due and self._may_walk(now):
                self._walk(now, outcome)
        return outcome

    def _plan(self, at: float, what: int, subject: int, attempt: int = 0) -> None:
        heapq.heappush(self._events, (at, what, subject, attempt))

    def _drawn(self, mean: float) -> float:
        return float(self.rng.exponential(mean))

    def _may_walk(self, now: float) -> bool:
        """Whether the queue is walked now; otherwise it is planned for the next round."""
        if self.round_s <= 0 or now % self.round_s == 0:
            return True
        due = math.ceil(now / self.round_s) * self.round_s
        if due > self._round_due:
            self._round_due = due
            self._plan(due, _ROUND, 0)
        return now >= due

    def _happen(self, what: int, subject: int, attempt: int, now: float, outcome: Outcome) -> bool:
        """One event; returns whether the queue has to be walked."""
        if what == _COME:
            self._place[subject] = self.turns.place(subject)
            self._enqueue(subject)
            if isinstance(self.policy, Follower):
                for c, count in self.tasks.kinds[subject]:
                    for _ in range(count):
                        self.policy.add(c)
        elif what == _END:
            if attempt != self._attempt[subject]:
                return False  # the job was thrown back since
            self._release(subject)
            outcome.ended_s[subject] = now
            self._left -= 1
            self.tell_ended(subject)
        elif what == _FAIL:
            outcome.num_failures += 1
            self._fail(subject, now, outcome)
        elif what == _REPAIRED:
            self.nodes.cpu_free_milli[subject] += _GONE
            self._free_milli += int(self.nodes.gpu_free_milli[subject].sum())
            kernels.note_change(self.nodes, subject, self.tasks.mix, self._memo)
            self._blocked.clear()
        return True

    def _fail(self, node: int, now: float, outcome: Outcome) -> None:
        failures = self.failures
        if failures is None:
            raise AssertionError("a failure that nobody planned")
        for job in [job for job, parts in self._held.items() if any(part[1] == node for part in parts)]:
            self._release(job)
            self._attempt[job] += 1
            outcome.num_restarts[job] += 1
            self._enqueue(job)
        self.nodes.cpu_free_milli[node] -= _GONE
        self._free_milli -= int(self.nodes.gpu_free_milli[node].sum())
        kernels.note_change(self.nodes, node, self.tasks.mix, self._memo)
        back = now + self._drawn(failures.repair_s)
        self._plan(back, _REPAIRED, node)
        self._plan(back + self._drawn(failures.mean_between_s), _FAIL, node)

    def _enqueue(self, job: int) -> None:
        queue = self._queues[self.tasks.kinds[job], self.turns.group(job)]
        heapq.heappush(queue, (-int(self.tasks.priority[job]), self._place[job], job))
        self._waiting_milli += int(self.tasks.asked_milli[job])

    def _release(self, job: int) -> None:
        freed = np.zeros(len(self.tasks.asks.cpu_milli), np.bool_)
        for c, node, gpus in self._held.pop(job):
            kernels.give_back(self.nodes, self.tasks.asks, c, node, gpus, self.tasks.mix, self._memo)
            kernels.mark_fitting(self.nodes, self.tasks.asks, node, freed)
        self._count(job, -1)
        # A kind that did not fit anywhere can fit now only where something was given back; a gang is simply tried.
        self._blocked -= {kind for kind in self._blocked if _is_gang(kind) or freed[kind[0][0]]}

    def _count(self, job: int, sign: int) -> None:
        milli = int(self.tasks.asked_milli[job])
        self._used_milli += sign * milli
        self._free_milli -= sign * milli

    def _walk(self, now: float, outcome: Outcome) -> None:
        """Start what fits, in the order of the queue.

        Jobs of a kind fit alike and room only shrinks on the way: the first one of a kind that does not fit speaks
        for those behind it.
        """
        if isinstance(self.policy, Follower) and self._rank is not (rank := self.policy.now()):
            self._rank = rank
            self._memo.seen[:] = self._known[0] = -1  # nothing that is remembered holds
        reserves = self.reserve_after_s < math.inf
        heads = [
            self._turn(name)
            for name, queue in self._queues.items()
            if queue and (reserves or name[0] not in self._blocked)
        ]
        heapq.heapify(heads)
        hidden, blocked_by_that = False, set()
        while heads:
            (_, _, job), name = heapq.heappop(heads)
            kind = name[0]
            parts = self._start(kind, outcome) if kind not in self._blocked else None
            if parts is None:
                if hidden and kind not in self._blocked:
                    blocked_by_that.add(kind)
                self._blocked.add(kind)
                if reserves and not hidden and now - self.tasks.submitted_s[job] >= self.reserve_after_s:
                    self._reservation.hide(job, [c for c, count in kind for _ in range(count)])
                    hidden = True
                continue
            queue = self._queues[name]
            heapq.heappop(queue)
            if queue:
                heapq.heappush(heads, self._turn(name))
            self._held[job] = parts
            self._waiting_milli -= int(self.tasks.asked_milli[job])
            self._count(job, +1)
            outcome.started_s[job] = min(outcome.started_s[job], now)
            self._plan(now + float(self.tasks.duration_s[job]), _END, job, self._attempt[job])
        if hidden:
            self._reservation.show()
            self._blocked -= blocked_by_that

    def _turn(self, name: _Queue) -> tuple[_Place, _Queue]:
        """The first of a queue, and its place among the first of all."""
        minus_priority, place, job = self._queues[name][0]
        return (minus_priority, place + self.turns.held(job), job), name

    def _start(self, kind: Kind, outcome: Outcome) -> list[tuple[int, int, int]] | None:
        """Book all parts of a kind, or none."""
        asks, mix = self.tasks.asks, self.tasks.mix
        parts: list[tuple[int, int, int]] = []
        for c, count in kind:
            for _ in range(count):
                outcome.decisions += 1
                node = self._decide(c)
                if node < 0:
                    for booked in parts:
                        kernels.give_back(self.nodes, asks, *booked, mix, self._memo)
                    return None
                parts.append((c, node, kernels.take(self.nodes, asks, c, node, mix, self._memo)))
        return parts

    def _decide(self, c: int) -> int:
        """The node for a class, -1 when none fits."""
        asks, policy, rank = self.tasks.asks, self.policy, self._rank
        if rank is not None:
            return potential_kernels.decide(
                self.nodes, asks, c, rank.outlook, rank.potential, self._memo, self._values, self._known
            )
        if not isinstance(policy, Baseline):
            raise AssertionError("a rank that was never asked what it expects")
        draw = float(self.rng.random()) if policy.tie in (Tie.RANDOM, Tie.SAMPLED) else 0.0
        node, self._last = kernels.decide(
            self.nodes, asks, c, int(policy.rank), int(policy.tie), self.tasks.mix, self._memo, draw, self._last
        )
        return node


def _is_gang(kind: Kind) -> bool:
    return len(kind) > 1 or kind[0][1] > 1


def whole_gpu_nodes(num_gpus: int, per_node: int) -> Nodes:
    """Nodes of one model of GPU, with CPU and memory in proportion; the last one has what remains.

    Jobs that ask in proportion never lack either: kube-scheduler's own scores go by nothing else.
    """
    sizes = [per_node] * (num_gpus // per_node) + ([num_gpus % per_node] if num_gpus % per_node else [])
    num = np.array(sizes, dtype=np.int64)
    free = np.where(np.arange(per_node) < num[:, None], packing.GPU_MILLI, 0).astype(np.int32)
    cpu_milli, memory_mib = num * CPU_MILLI_PER_GPU, num * MEMORY_MIB_PER_GPU
    return Nodes(cpu_milli, memory_mib, num, np.zeros(len(num), np.int64), cpu_milli.copy(), memory_mib.copy(), free)
