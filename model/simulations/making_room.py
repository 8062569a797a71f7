"""Simulation over time with moves: running jobs are moved to make room for jobs that have waited too long.

As in the service, at intervals the planner (`extender.planning.moves`) finds the cheapest moves for jobs that have
waited for some time, and the best plan is carried out if it is worth its cost. A moved job loses its work since its
start or last checkpoint, and the restart time. The moves of a plan are booked at once and made step by step, so that
no other job takes the places.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import Move, MovePlan, gain_gpu_s, is_worth
from model.engine import engines
from model.engine.node_scores import release, retake
from model.engine.pools import Pools
from model.simulations.queues import END, Queue, Simulation
from model.simulations.replays import InvariantError
from model.simulations.room_problems import Part, RoomProblems, Runner, bits_of_gpus, job_and_part
from model.simulations.simulated_jobs import Kind, Moved, Outcome

_CHECK: Final = 6
"""An event in addition to the queue's; processed last among events at one time."""
_HOUR_S: Final = 3600.0
_RETRY_FACTOR: Final = 1.25
"""Factor on a job's waiting time after which a failed search is repeated."""


@dataclass(frozen=True)
class MakingRoom:
    """When room is made, and the cost of moves; times in seconds."""

    every_s: float = 300.0
    """Interval between checks of waiting jobs."""
    after_s: float = 600.0
    """Least waiting time of a target."""
    least_gain: float = 2.0
    """Least GPU-seconds of waiting saved for each GPU-second lost."""
    restart_s: float = 60.0
    """Time until a moved pod works again and the plan's next step begins."""
    checkpoint_s: float = math.inf
    """Work time between checkpoints; inf: no checkpoints."""
    rest_s: float = 3600.0
    """Cool-down of a moved job."""
    young_rest: bool = False
    """Whether jobs are also exempt until they have run for `rest_s`."""
    moves_an_hour: int = 60
    """Limit of pods moved per hour."""
    most_asked: int = 3
    """Limit of plans at each check."""
    most_rounds: int = 10
    """Limit of search rounds for each plan."""


@dataclass
class _Work:
    """Progress of a moved job."""

    since_s: float
    """When it resumes or resumed work."""
    saved_s: float
    """Work that the restart kept."""
    moved_s: float


@dataclass
class MovingSimulation(Simulation):
    """The simulation with moves. Without a worthwhile plan, results are bit-identical to `Simulation`."""

    making_room: MakingRoom = MakingRoom()

    _is_check_due: bool = False
    _work: dict[int, _Work] = field(default_factory=dict)
    _end_s: dict[int, float] = field(default_factory=dict)
    """End of each job that was moved, by job."""
    _retry_after_s: dict[int, float] = field(default_factory=dict)
    """Waiting time after which a job is tried again, by job."""
    _moved_at: deque[float] = field(default_factory=deque)
    """Times of pod moves in the last hour."""

    def _start_engine(self) -> engines.Engine | Pools:
        engine = super()._start_engine()
        if self.failures is not None or self.absences:
            raise ValueError("moves can't be simulated together with node failures or absences")
        if not isinstance(engine, engines.Compiled):
            raise ValueError("moves can only be simulated with a policy that has a compiled engine")
        self._problems = RoomProblems(self.nodes, self.tasks, self.model_names)
        return engine

    def _process(self, what: int, subject: int, attempt: int, now: float, outcome: Outcome) -> bool:
        if what != _CHECK:
            return super()._process(what, subject, attempt, now, outcome)
        self._is_check_due = False
        if self._check(now, outcome):
            return True
        self._schedule_check(now)
        return False

    def _walk(self, now: float, outcome: Outcome) -> None:
        super()._walk(now, outcome)
        self._schedule_check(now)

    def _schedule_check(self, now: float) -> None:
        """Schedule the next check at the next full interval while jobs wait and jobs run."""
        if self._is_check_due or not self._held or not any(self._queues.values()):
            return
        every_s = self.making_room.every_s
        self._schedule((math.floor(now / every_s) + 1) * every_s, _CHECK, 0)
        self._is_check_due = True

    def _check(self, now: float, outcome: Outcome) -> bool:
        """Carry out the plan with the highest net gain, if any is worthwhile; returns whether there was one."""
        while self._moved_at and self._moved_at[0] <= now - _HOUR_S:
            self._moved_at.popleft()
        max_moves = self.making_room.moves_an_hour - len(self._moved_at)
        best: tuple[float, Queue, MovePlan] | None = None
        for name, job in self._candidates(now) if max_moves > 0 else ():
            found = self._worthwhile(name[0], job, now, max_moves, outcome)
            if found is None:
                self._retry_after_s[job] = _RETRY_FACTOR * (now - float(self.tasks.submitted_s[job]))
            elif best is None or found[0] > best[0]:
                best = found[0], name, found[1]
        if best is None:
            return False
        self._carry_out(best[1], best[2], now, outcome)
        return True

    def _candidates(self, now: float) -> Iterator[tuple[Queue, int]]:
        """Yield up to `most_asked` targets: the first job of each kind, by priority and age."""
        first: dict[Kind, tuple[int, float, int, Queue]] = {}
        for name, queue in self._queues.items():
            if queue:
                minus_priority, _, job = queue[0]
                item = (minus_priority, float(self.tasks.submitted_s[job]), job, name)
                if name[0] not in first or item[:3] < first[name[0]][:3]:
                    first[name[0]] = item
        num_yielded = 0
        for _, submitted_s, job, name in sorted(first.values(), key=lambda item: item[:3]):
            least_s = max(self.making_room.after_s, self._retry_after_s.get(job, 0.0))
            if now - submitted_s < least_s or not self._problems.is_enough(name[0]):
                continue
            yield name, job
            num_yielded += 1
            if num_yielded == self.making_room.most_asked:
                return

    def _worthwhile(
        self, kind: Kind, job: int, now: float, max_moves: int, outcome: Outcome
    ) -> tuple[float, MovePlan] | None:
        """Return the net gain and the plan of moves for a job; None if there is no worthwhile plan."""
        gpus = int(self.tasks.asked_milli[job]) / WHOLE_MILLI
        gain, least_gain = gain_gpu_s(gpus, now - float(self.tasks.submitted_s[job])), self.making_room.least_gain
        running = [self._runner(other, gain, now, outcome) for other in self._held]
        if not is_worth(gain, self._problems.least_cost_gpu_s(kind, running), least_gain):
            return None  # no plan can be worthwhile: skip the expensive search
        problem = self._problems.problem(kind, int(self.tasks.priority[job]), running, max_moves)
        plan = plan_moves(problem, 0, _Rounds(self.making_room.most_rounds))
        if not plan.moves or not is_worth(gain, plan.cost_gpu_s, least_gain):
            return None
        return gain - plan.cost_gpu_s, plan

    def _runner(self, job: int, gain: float, now: float, outcome: Outcome) -> Runner:
        """Return a running job for moves with this gain; it stays if its own cost already exceeds the gain."""
        room, work = self.making_room, self._work.get(job)
        done_s = self._done_s(job, now, outcome)
        loses_s = done_s - self._saved_s(job, done_s) + room.restart_s
        if now < (work.since_s if work else float(outcome.started_s[job])):
            stays = "it has not started yet"
        elif work and now - work.moved_s < room.rest_s:
            stays = "it was moved recently"
        elif room.young_rest and done_s < room.rest_s:
            stays = "it was started recently"
        elif not is_worth(gain, loses_s * int(self.tasks.asked_milli[job]) / WHOLE_MILLI, room.least_gain):
            stays = "its move would cost more than it gains"
        else:
            stays = ""
        return Runner(job, self._held[job], loses_s, stays)

    def _done_s(self, job: int, at: float, outcome: Outcome) -> float:
        """Return the work that a job has done at a time."""
        work = self._work.get(job)
        if work:
            return work.saved_s + max(at - work.since_s, 0.0)
        return self._age_s(job) + max(at - float(outcome.started_s[job]), 0.0)

    def _saved_s(self, job: int, done_s: float) -> float:
        """Return the work that a restart keeps: everything up to the last checkpoint."""
        work, every_s = self._work.get(job), self.making_room.checkpoint_s
        at_checkpoint = math.floor(done_s / every_s) * every_s if every_s < math.inf else 0.0
        return max(at_checkpoint, work.saved_s if work else 0.0)

    def _age_s(self, job: int) -> float:
        return 0.0 if self.tasks.age_s is None else float(self.tasks.age_s[job])

    def _carry_out(self, name: Queue, plan: MovePlan, now: float, outcome: Outcome) -> None:
        """Carry out the moves, reserve the target's nodes, and start it after the last step."""
        touched: set[int] = set()
        target = self._queues[name][0][2]
        num_steps = 0
        for step, of_step in groupby(plan.moves, key=lambda move: move.step):
            by_job = groupby(sorted(of_step, key=lambda move: job_and_part(move.pod)), lambda m: job_and_part(m.pod)[0])
            for job, moves in by_job:
                touched |= self._rebook(job, list(moves))
                self._restart(job, target, now + step * self.making_room.restart_s, outcome)
            num_steps = step + 1
        classes = [c for c, count in name[0] for _ in range(count)]
        parts = [(c, row, bits_of_gpus(gpus)) for c, row, gpus in zip(classes, plan.rows, plan.gpus, strict=True)]
        touched |= self._book(parts)
        for node in sorted(touched):
            self._changed(node)
        reserved_s = num_steps * self.making_room.restart_s
        if now <= self.tasks.submitted_s[-1]:
            outcome.kept_gpu_s += reserved_s * int(self.tasks.asked_milli[target]) / WHOLE_MILLI
        self._begin(name, parts, now + reserved_s, outcome)
        self._retry_after_s.pop(target, None)
        self._moved_at.extend([now] * len(plan.moves))
        self._blocked.clear()

    def _rebook(self, job: int, moves: Sequence[Move]) -> set[int]:
        """Book a job on its new nodes; returns the changed nodes."""
        parts, asks = self._held[job], self.tasks.asks
        new = list(parts)
        for move in moves:
            _, number = job_and_part(move.pod)
            c, _, _ = parts[number]
            new[number] = c, move.row, bits_of_gpus(move.gpus)
        for c, node, gpus in parts:
            release(self.nodes, asks, c, node, gpus)
        self._held[job] = new
        return {node for _, node, _ in parts} | self._book(new)

    def _book(self, parts: Sequence[Part]) -> set[int]:
        for c, node, gpus in parts:
            retake(self.nodes, self.tasks.asks, c, node, gpus)
            free = self.nodes.cpu_free_milli[node], self.nodes.memory_free_mib[node], self.nodes.gpu_free_milli[node]
            if any(np.min(left) < 0 for left in free) or gpus.bit_count() != self.tasks.asks.num_gpus[c]:
                raise InvariantError("a plan books more than a node has")
        return {node for _, node, _ in parts}

    def _restart(self, job: int, target: int, at: float, outcome: Outcome) -> None:
        """Restart a job at a time from its saved work, unless it has ended by then."""
        length_s = self._age_s(job) + float(self.tasks.duration_s[job])
        end_s = self._end_s.get(job, float(outcome.started_s[job]) + float(self.tasks.duration_s[job]))
        if end_s <= at:
            return
        saved_s = self._saved_s(job, self._done_s(job, at, outcome))
        since_s = at + self.making_room.restart_s
        self._work[job] = _Work(since_s, saved_s, at)
        self._end_s[job] = since_s + length_s - saved_s
        self._attempt[job] += 1
        self._schedule(self._end_s[job], END, job, self._attempt[job])
        lost_s = self._end_s[job] - end_s
        gpus = int(self.tasks.asked_milli[job]) / WHOLE_MILLI
        outcome.moves.append(Moved(at, job, target, len(self._held[job]), lost_s, lost_s * gpus))


class _Rounds:
    """A deadline in calls instead of seconds, so that plans do not depend on the machine."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0
