"""What kube-scheduler's own queue does to jobs: one attempt at a time, and what failed waits, and goes to the back.

The simulator's order `fifo` tries all that wait, the oldest first, as soon as GPUs are freed. kube-scheduler orders
pods by when they came into its queue *last* (every failed attempt renews that time), tries those that failed less than
their back-off ago when it has nothing else to do, and learns of freed GPUs in the middle of its attempts
(pkg/scheduler/backend/queue of Kubernetes 1.36). Where jobs end every hour that is the same; where they end several
times in a back-off it is not: small pods that come next take what old large ones are not tried for.
"""

import heapq
import math

import numpy as np

from extender.core.clusters import Floats
from model.workloads.jobs import GPUS_PER_NODE, JobList

ATTEMPT_S = 0.005
BACKOFF_S = 1.0


def started_s(
    jobs: JobList, num_nodes: int, rng: np.random.Generator, attempt_s: float = ATTEMPT_S, backoff_s: float = BACKOFF_S
) -> Floats:
    """(J,) when jobs of whole GPUs of up to a node start, each on the node with the most free GPUs."""
    return _Scheduler(jobs, num_nodes, rng, attempt_s, backoff_s).run()


class _Scheduler:
    def __init__(
        self, jobs: JobList, num_nodes: int, rng: np.random.Generator, attempt_s: float, backoff_s: float
    ) -> None:
        self._submitted: list[float] = jobs.submitted_s.tolist()
        self._duration: list[float] = jobs.duration_s.tolist()
        self._gpus: list[int] = jobs.num_gpus.tolist()
        self._rng = rng
        self._attempt_s, self._backoff_s = attempt_s, backoff_s
        self._free = np.full(num_nodes, GPUS_PER_NODE)
        self._active: list[tuple[float, int]] = []
        """Heap of what is to be tried: when it came into the queue last, job."""
        self._backing_off: list[tuple[float, int]] = []
        """Heap of what would be tried, had it not failed just now: when it failed, job."""
        self._failed: dict[int, float] = {}
        """What waits until something changes, and when it failed."""
        self._ends: list[tuple[float, int, int]] = []
        """Heap of what runs: end, job, node."""
        self._num_come = 0
        self._num_ended = 0

    def run(self) -> Floats:
        started = np.full(len(self._gpus), math.nan)
        now = 0.0
        while np.isnan(started).any():
            now = self._pass(now)
            job = heapq.heappop(self._active or self._backing_off)[1]
            num_ended, wanted = self._num_ended, self._gpus[job]
            most = self._free.max()
            now += self._attempt_s
            if most >= wanted:
                node = int(self._rng.choice(np.flatnonzero(self._free == most)))
                self._free[node] -= wanted
                started[job] = now
                heapq.heappush(self._ends, (now + self._duration[job], job, node))
                continue
            self._happen(now)
            if self._num_ended > num_ended:  # what was freed during the attempt may do
                heapq.heappush(self._backing_off, (now, job))
            else:
                self._failed[job] = now
        return started

    def _pass(self, now: float) -> float:
        """Let time pass until there is something to try."""
        self._happen(now)
        while not self._active and not self._backing_off:
            now = min(self._next_end(), self._next_submission())
            self._happen(now)
        while self._backing_off and self._backing_off[0][0] + self._backoff_s <= now:
            heapq.heappush(self._active, heapq.heappop(self._backing_off))
        return now

    def _happen(self, until: float) -> None:
        """Jobs end and come."""
        while min(self._next_end(), self._next_submission()) <= until:
            if self._next_end() <= self._next_submission():
                end, job, node = heapq.heappop(self._ends)
                self._free[node] += self._gpus[job]
                self._num_ended += 1
                for waiting, failed in self._failed.items():
                    queue = self._active if failed + self._backoff_s <= end else self._backing_off
                    heapq.heappush(queue, (failed, waiting))
                self._failed.clear()
            else:
                heapq.heappush(self._active, (self._next_submission(), self._num_come))
                self._num_come += 1

    def _next_end(self) -> float:
        return self._ends[0][0] if self._ends else math.inf

    def _next_submission(self) -> float:
        return self._submitted[self._num_come] if self._num_come < len(self._submitted) else math.inf
