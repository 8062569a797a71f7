"""A cluster over time on which room is made: what runs is moved for jobs that have waited too long.

As the service's policy does: again and again it looks at those that have waited for some time, asks the planner
(`extender.planning.moves`) what the cheapest moves are, and makes those of the best plan that are worth it. A moved job
loses its work since its start, or since its last checkpoint, and the time until it works again. The moves
of a plan are booked at once and made one step after the other; nobody else gets those places meanwhile.
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

_LOOK: Final = 6
"""An event beside those of the queue; of those at one time the last."""
_HOUR_S: Final = 3600.0
_AGAIN: Final = 1.25
"""A job for which nothing was found is looked at again when it has waited so many times as long."""


@dataclass(frozen=True)
class MakingRoom:
    """When room is made, and what that costs; times in seconds."""

    every_s: float = 300.0
    """Between two looks at those that wait."""
    after_s: float = 600.0
    """How long somebody has to have waited."""
    least_gain: float = 2.0
    """GPU-seconds of waiting that moves spare for each that they lose."""
    restart_s: float = 60.0
    """Until a moved pod works again, and the next step of a plan begins."""
    checkpoint_s: float = math.inf
    """Of work between two checkpoints; inf: there are none."""
    rest_s: float = 3600.0
    """For so long a job that was moved is left alone."""
    young_rest: bool = False
    """Whether those too are left alone that have not run for so long yet."""
    moves_an_hour: int = 60
    """Most pods moved."""
    most_asked: int = 3
    """Jobs for which a plan is made at each look."""
    most_rounds: int = 10
    """Rounds of search for each plan."""


@dataclass
class _Work:
    """What a job has done that has been moved."""

    since_s: float
    """When it works again, or did."""
    saved_s: float
    """Of its work, what it did not have to do again."""
    moved_s: float


@dataclass
class MovingSimulation(Simulation):
    """The same simulation with moves. Without a plan that is worth it, it is the same to the bit."""

    making_room: MakingRoom = MakingRoom()

    _is_look_due: bool = False
    _work: dict[int, _Work] = field(default_factory=dict)
    _end_s: dict[int, float] = field(default_factory=dict)
    """When each job ends that has been moved or kept waiting."""
    _again_s: dict[int, float] = field(default_factory=dict)
    """How long a job has to have waited until it is looked at again."""
    _moved_at: deque[float] = field(default_factory=deque)
    """A time for each pod moved in the last hour."""

    def _begun(self) -> engines.Engine | Pools:
        engine = super()._begun()
        if self.failures is not None or self.absences:
            raise ValueError("where room is made, nodes neither fail nor leave")
        if not isinstance(engine, engines.Compiled):
            raise ValueError("where room is made, the policy must be one with a compiled twin")
        self._problems = RoomProblems(self.nodes, self.tasks, self.model_names)
        return engine

    def _happen(self, what: int, subject: int, attempt: int, now: float, outcome: Outcome) -> bool:
        if what != _LOOK:
            return super()._happen(what, subject, attempt, now, outcome)
        self._is_look_due = False
        if self._look(now, outcome):
            return True
        self._plan_look(now)
        return False

    def _walk(self, now: float, outcome: Outcome) -> None:
        super()._walk(now, outcome)
        self._plan_look(now)

    def _plan_look(self, now: float) -> None:
        """Look again at the next full interval, as long as somebody waits and anybody runs."""
        if self._is_look_due or not self._held or not any(self._queues.values()):
            return
        every_s = self.making_room.every_s
        self._plan((math.floor(now / every_s) + 1) * every_s, _LOOK, 0)
        self._is_look_due = True

    def _look(self, now: float, outcome: Outcome) -> bool:
        """Make the moves that gain most, if any are worth it; whether there were any."""
        while self._moved_at and self._moved_at[0] <= now - _HOUR_S:
            self._moved_at.popleft()
        max_moves = self.making_room.moves_an_hour - len(self._moved_at)
        best: tuple[float, Queue, MovePlan] | None = None
        for name, job in self._candidates(now) if max_moves > 0 else ():
            found = self._worthwhile(name[0], job, now, max_moves, outcome)
            if found is None:
                self._again_s[job] = _AGAIN * (now - float(self.tasks.submitted_s[job]))
            elif best is None or found[0] > best[0]:
                best = found[0], name, found[1]
        if best is None:
            return False
        self._carry_out(best[1], best[2], now, outcome)
        return True

    def _candidates(self, now: float) -> Iterator[tuple[Queue, int]]:
        """Those for whom room is looked for: the first of each kind, by priority and age, few of them."""
        first: dict[Kind, tuple[int, float, int, Queue]] = {}
        for name, queue in self._queues.items():
            if queue:
                minus_priority, _, job = queue[0]
                item = (minus_priority, float(self.tasks.submitted_s[job]), job, name)
                if name[0] not in first or item[:3] < first[name[0]][:3]:
                    first[name[0]] = item
        num_asked = 0
        for _, submitted_s, job, name in sorted(first.values(), key=lambda item: item[:3]):
            least_s = max(self.making_room.after_s, self._again_s.get(job, 0.0))
            if now - submitted_s < least_s or not self._problems.is_enough(name[0]):
                continue
            yield name, job
            num_asked += 1
            if num_asked == self.making_room.most_asked:
                return

    def _worthwhile(
        self, kind: Kind, job: int, now: float, max_moves: int, outcome: Outcome
    ) -> tuple[float, MovePlan] | None:
        """The moves for a job, and what they gain beyond their cost; None where there are none that are worth it."""
        gpus = int(self.tasks.asked_milli[job]) / WHOLE_MILLI
        gain, least_gain = gain_gpu_s(gpus, now - float(self.tasks.submitted_s[job])), self.making_room.least_gain
        running = [self._runner(other, gain, now, outcome) for other in self._held]
        if not is_worth(gain, self._problems.least_cost_gpu_s(kind, running), least_gain):
            return None  # no plan can be: most of the time would go into plans that are not made
        problem = self._problems.problem(kind, int(self.tasks.priority[job]), running, max_moves)
        plan = plan_moves(problem, 0, _Rounds(self.making_room.most_rounds))
        if not plan.moves or not is_worth(gain, plan.cost_gpu_s, least_gain):
            return None
        return gain - plan.cost_gpu_s, plan

    def _runner(self, job: int, gain: float, now: float, outcome: Outcome) -> Runner:
        """A job that runs, for moves that gain so much: alone, it must not cost more than they may."""
        room, work = self.making_room, self._work.get(job)
        done_s = self._done_s(job, now, outcome)
        loses_s = done_s - self._saved_s(job, done_s) + room.restart_s
        if now < (work.since_s if work else float(outcome.started_s[job])):
            stays = "it does not run yet"
        elif work and now - work.moved_s < room.rest_s:
            stays = "it has just been moved"
        elif room.young_rest and done_s < room.rest_s:
            stays = "it has just been started"
        elif not is_worth(gain, loses_s * int(self.tasks.asked_milli[job]) / WHOLE_MILLI, room.least_gain):
            stays = "it would lose more than is gained"
        else:
            stays = ""
        return Runner(job, self._held[job], loses_s, stays)

    def _done_s(self, job: int, at: float, outcome: Outcome) -> float:
        """What a job has done of its work at a time."""
        work = self._work.get(job)
        if work:
            return work.saved_s + max(at - work.since_s, 0.0)
        return self._age_s(job) + max(at - float(outcome.started_s[job]), 0.0)

    def _saved_s(self, job: int, done_s: float) -> float:
        """What a restart leaves of that: all up to the last checkpoint."""
        work, every_s = self._work.get(job), self.making_room.checkpoint_s
        at_checkpoint = math.floor(done_s / every_s) * every_s if every_s < math.inf else 0.0
        return max(at_checkpoint, work.saved_s if work else 0.0)

    def _age_s(self, job: int) -> float:
        return 0.0 if self.tasks.age_s is None else float(self.tasks.age_s[job])

    def _carry_out(self, name: Queue, plan: MovePlan, now: float, outcome: Outcome) -> None:
        """Move, and let the target start once the last step is made; its nodes are kept for it meanwhile."""
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
        kept_s = num_steps * self.making_room.restart_s
        if now <= self.tasks.submitted_s[-1]:
            outcome.kept_gpu_s += kept_s * int(self.tasks.asked_milli[target]) / WHOLE_MILLI
        self._begin(name, parts, now + kept_s, outcome)
        self._again_s.pop(target, None)
        self._moved_at.extend([now] * len(plan.moves))
        self._blocked.clear()

    def _rebook(self, job: int, moves: Sequence[Move]) -> set[int]:
        """Book a job elsewhere; returns the nodes that have changed."""
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
                raise InvariantError("a plan gives away what there is not")
        return {node for _, node, _ in parts}

    def _restart(self, job: int, target: int, at: float, outcome: Outcome) -> None:
        """A job begins anew at a time, from what it has saved. One that has ended by then is not restarted."""
        length_s = self._age_s(job) + float(self.tasks.duration_s[job])
        end_s = self._end_s.get(job, float(outcome.started_s[job]) + float(self.tasks.duration_s[job]))
        if end_s <= at:
            return
        saved_s = self._saved_s(job, self._done_s(job, at, outcome))
        since_s = at + self.making_room.restart_s
        self._work[job] = _Work(since_s, saved_s, at)
        self._end_s[job] = since_s + length_s - saved_s
        self._attempt[job] += 1
        self._plan(self._end_s[job], END, job, self._attempt[job])
        lost_s = self._end_s[job] - end_s
        gpus = int(self.tasks.asked_milli[job]) / WHOLE_MILLI
        outcome.moves.append(Moved(at, job, target, len(self._held[job]), lost_s, lost_s * gpus))


class _Rounds:
    """Says that time is up after so many questions: the same plan on any machine."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0
