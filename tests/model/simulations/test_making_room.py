"""Moves in a simulated cluster: when they are made, and what they cost."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extender.core.clusters import WHOLE_MILLI
from model.simulations import delays
from model.simulations.baselines import BASELINES, POOL
from model.simulations.departures import PeriodicWorkload, simulate_churn
from model.simulations.making_room import MakingRoom, MovingSimulation
from model.simulations.simulated_jobs import Failures, Outcome, Turns, whole_gpu_nodes
from tests.model.simulations.test_queues import Rows, jobs_of

HALF_FREE: Rows = [(0, 20000, 4, "a", 0), (0, 100, 4, "a", 0), (0, 20000, 4, "a", 0)]
"""Two nodes of 8, on each of which from 100 on a job of 4 runs: the job of 100 s lay beside the first."""
WAITS: Rows = [*HALF_FREE, (200, 1000, 8, "b", 0)]
ALWAYS = MakingRoom(least_gain=0.0)


def churn_of(rows: Rows, num_gpus: int = 16, **tasks: Any) -> PeriodicWorkload:
    jobs = jobs_of(rows)
    owners = [delays.owners_of(jobs, job) for job in range(len(rows))]
    made = replace(delays.tasks_of(jobs), **tasks)
    return PeriodicWorkload(made, whole_gpu_nodes(num_gpus, 8), ("GPU",), owners, 0, 0, 1.0)


def simulated(rows: Rows, room: MakingRoom | None, num_gpus: int = 16, order: str = "fifo", **tasks: Any) -> Outcome:
    return simulate_churn(churn_of(rows, num_gpus, **tasks), BASELINES["bestfit"], order, 0, room=room).outcome


def drawn_rows(seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1, 1, 2, 4, 8, 12, 16], 60)
    return [
        (int(rng.integers(0, 40_000)), int(rng.integers(100, 12_000)), int(size), str(rng.choice(["a", "b"])), 0)
        for size in sizes
    ]


def test_one_move_ends_a_long_wait() -> None:
    assert simulated(WAITS, None).started_s[3] == 20000
    # Looked at at 300, 600 and 900, when it has waited 700 s: 8 x 700 GPU-seconds beside 4 x (900 + 60).
    made = simulated(WAITS, MakingRoom(least_gain=1.0))
    assert (made.started_s[3], made.ended_s[3]) == (960, 1960)  # once the moved job runs again
    (move,) = made.moves
    assert (move.at_s, move.target, move.num_pods, move.lost_s, move.lost_gpu_s) == (900, 3, 1, 960, 3840)
    assert made.ended_s[move.job] == 20000 + 960
    assert made.kept_gpu_s == 0  # it was after the last submission
    gang: Rows = [*HALF_FREE, (200, 1000, 16, "b", 0)]  # on 24 GPUs: two nodes half free, a third free
    assert (simulated(gang, None, 24).started_s[3], simulated(gang, ALWAYS, 24).started_s[3]) == (20000, 960)


def test_moves_by_their_settings() -> None:
    def first(**settings: Any) -> float | None:
        moves = simulated(WAITS, replace(ALWAYS, **settings)).moves
        return moves[0].at_s if moves else None

    assert first(least_gain=2.0) is None  # 8 (t - 200) never is twice 4 (t + 60)
    assert (first(least_gain=1.0, restart_s=5000.0) or 0) >= 5400  # 8 (t - 200) is 4 (t + 5000) at 5400
    assert (first(after_s=5000.0), first(after_s=20000.0)) == (5400, None)
    assert first(young_rest=True) == 3600
    # Of checkpointed work only the rest is lost: at 900 all but 300 s is saved, 4 x (300 + 60) GPU-seconds are lost.
    made = simulated(WAITS, MakingRoom(least_gain=2.0, checkpoint_s=600.0))
    assert [(move.at_s, move.lost_s) for move in made.moves] == [(900, 360)]
    assert made.ended_s[made.moves[0].job] == 20360


def test_what_was_done_before_the_period_counts_as_well() -> None:
    made = simulated(WAITS, ALWAYS, age_s=np.array([5000.0, 0, 0, 0]))
    assert [(move.job, move.lost_s) for move in made.moves] == [(2, 960)]
    made = simulated(WAITS, ALWAYS, age_s=np.array([5000.0, 0, 9000.0, 0]))
    assert [(move.job, move.lost_s) for move in made.moves] == [(0, 5960)]


def test_nothing_moves_where_too_little_is_free_or_of_a_higher_priority() -> None:
    assert simulated([*HALF_FREE, (150, 30000, 1, "a", 0), (200, 1000, 8, "b", 0)], ALWAYS).moves == []
    above: Rows = [(at, duration, gpus, team, 1) for at, duration, gpus, team, _ in HALF_FREE]
    assert simulated([*above, WAITS[3]], ALWAYS).moves == []


def test_a_moved_job_has_its_rest() -> None:
    # Job 2 moves at 900. From 2100 on it is alone on its node again, and has less to lose than job 4 on the other one.
    rows: Rows = [(0, 2100, 4, "a", 0), *WAITS[1:], (2000, 20000, 4, "a", 0), (2200, 1000, 8, "b", 0)]
    age_s = np.array([5000.0, 0, 0, 0, 9000, 0])
    at_once = simulated(rows, replace(ALWAYS, rest_s=0.0), age_s=age_s).moves
    assert [(move.at_s, move.job) for move in at_once] == [(900, 2), (3000, 2)]
    rested = simulated(rows, ALWAYS, age_s=age_s).moves
    assert [(move.at_s, move.job) for move in rested] == [(900, 2), (3000, 4)]


def test_no_more_pods_move_in_an_hour_than_allowed() -> None:
    # Four nodes, each half free; two jobs of 8 wait, for each of which one pod has to move.
    rows = [*HALF_FREE[:2] * 4, (200, 15000, 8, "b", 0), (201, 15000, 8, "b", 0)]
    assert [move.at_s for move in simulated(rows, ALWAYS, 32).moves] == [900, 1200]
    first, second = simulated(rows, replace(ALWAYS, moves_an_hour=1), 32).moves
    assert first.at_s == 900
    assert second.at_s >= 900 + 3600


def test_without_worthwhile_moves_all_is_as_without_moves_at_all() -> None:
    rows = drawn_rows(1)
    for order in ("fifo", "kerf"):
        plain, moving = (simulated(rows, room, 32, order) for room in (None, MakingRoom(least_gain=1e12)))
        assert moving.moves == []
        assert moving.started_s.tobytes() == plain.started_s.tobytes()
        assert moving.ended_s.tobytes() == plain.ended_s.tobytes()
        assert moving.allocated_gpu_s == plain.allocated_gpu_s


@pytest.mark.parametrize("seed", range(4))
def test_gpu_time_in_use_is_work_done_and_work_lost(seed: int) -> None:
    rows = [*drawn_rows(seed), (1_000_000, 1, 1, "a", 0)]  # the window ends when all others have
    jobs = jobs_of(rows)
    tasks, nodes = delays.tasks_of(jobs), whole_gpu_nodes(32, 8)
    room = MakingRoom(least_gain=0.5, checkpoint_s=1800.0 if seed % 2 else math.inf, rest_s=600.0)
    simulation = MovingSimulation(
        *(tasks, nodes, BASELINES["bestfit"], Turns(lambda job: float(tasks.submitted_s[job]))),
        *(np.random.default_rng(0),), making_room=room,
    )  # fmt: skip
    outcome = simulation.run()
    lost_s = np.zeros(len(rows))
    for move in outcome.moves:
        lost_s[move.job] += move.lost_s
    np.testing.assert_allclose(outcome.ended_s - outcome.started_s, jobs.duration_s + lost_s, rtol=0, atol=1e-6)
    lost_gpu_s = sum(move.lost_gpu_s for move in outcome.moves)
    assert lost_gpu_s == pytest.approx(float((lost_s * jobs.num_gpus).sum()))
    assert outcome.allocated_gpu_s == pytest.approx(float(jobs.gpu_s[:-1].sum()) + lost_gpu_s + outcome.kept_gpu_s)
    assert (nodes.gpu_free_milli == WHOLE_MILLI).all()
    assert (nodes.cpu_free_milli == nodes.cpu_milli).all()
    for job in {move.job for move in outcome.moves}:
        times = [move.at_s for move in outcome.moves if move.job == job]
        assert all(later - before >= 600 for before, later in itertools.pairwise(times))
    assert outcome.moves or seed


def test_failing_nodes_and_pools_are_refused() -> None:
    offered = churn_of(WAITS)
    with pytest.raises(ValueError, match="node failures or absences"):
        simulate_churn(offered, BASELINES["bestfit"], "fifo", 0, Failures(1000, 100), room=ALWAYS)
    with pytest.raises(ValueError, match="compiled engine"):
        simulate_churn(offered, POOL, "fifo", 0, room=ALWAYS)


def test_a_job_that_never_fits_keeps_nobody_looking_for_ever() -> None:
    assert simulated([(0, 5000, 4, "a", 0), (0, 10, 32, "a", 0)], ALWAYS).started_s.tolist() == [0, math.inf]
