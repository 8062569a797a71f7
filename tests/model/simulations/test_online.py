"""Learned ranks with and without prior knowledge: what they expect, and when."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.valuenet import potentials
from extender.core.valuenet.features import FEATURES, Outlook
from model.simulations import learned, online
from model.simulations.learned import Foresight, Learned
from model.simulations.online import Follower, Watch
from model.simulations.queues import Simulation
from model.simulations.replays import Engine
from model.simulations.simulated_jobs import Tasks, Turns
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.core.valuenet.builders import random_outlook, random_potential
from tests.model.builders import random_asks, random_mix, random_nodes, write_openb

WATCH = Watch(half_life_pods=50, prior_pods=10, first_pods=16, growth=2, last_pods=32)


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = write_openb(tmp_path_factory.mktemp("openb"), num_nodes=8, num_pods=90)
    return workload(directory, "small", 1, read_nodes(directory), read_pods(directory, "small"))


def test_the_outlook_of_a_trace_does_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=8, num_pods=90)
    nodes, pods = read_nodes(tmp_path), read_pods(tmp_path, "small")
    found = (workload(tmp_path, "small", seed, nodes, pods) for seed in (1, 2))
    one, other = (learned.trace_outlook(each.nodes, each.asks, each.mix, nodes, pods, Foresight()) for each in found)
    assert one.worth.left == pytest.approx(other.worth.left)
    assert one.worth.compute == pytest.approx(other.worth.compute)
    assert (one.cpu_need_milli, one.memory_need_mib) == (other.cpu_need_milli, other.memory_need_mib)


def test_pieces_cover_all_arrivals_and_grow_up_to_a_length() -> None:
    pieces = [(piece.start, piece.stop) for piece in WATCH.pieces(130)]
    assert pieces == [(0, 16), (16, 32), (32, 64), (64, 96), (96, 128), (128, 130)]


@pytest.mark.slow
def test_nothing_of_a_pod_is_known_before_it_comes(arrivals: Workload) -> None:
    """Other pods from the 32nd on change nothing of what was expected of those before."""
    other = arrivals.classes.copy()
    other[32:] = other[32:][::-1]
    changed = Workload(**{**arrivals.__dict__, "classes": other})
    one, two = (list(online.outlooks(offered, WATCH, 1.0)) for offered in (arrivals, changed))
    for (piece, right), (_, found) in list(zip(one, two, strict=True))[:3]:
        assert piece.start <= 32
        assert all(np.array_equal(*pair) for pair in zip(found.worth, right.worth, strict=True))
        assert np.array_equal(found.mix.frequency, right.mix.frequency)
    assert not np.array_equal(one[-1][1].mix.frequency, two[-1][1].mix.frequency)


@pytest.mark.slow
def test_engines_place_the_same_in_pieces(arrivals: Workload) -> None:
    potential = random_potential(np.random.default_rng(0), 2)
    compiled, plain = (
        learned.replay_pieces(arrivals, online.outlooks(arrivals, WATCH, 1.0), potential, engine) for engine in Engine
    )
    assert np.array_equal(compiled.placed, plain.placed)
    assert np.array_equal(compiled.gpus, plain.gpus)


class Told(online.Seen):
    """Stands for the pods seen: expects one thing, and then another."""

    def __init__(self, outlooks: list[Outlook]) -> None:
        self.outlooks = outlooks

    def add(self, c: int) -> None:
        """Nothing is learned."""

    def outlook(self) -> Outlook:
        return self.outlooks.pop(0)


def test_a_follower_prices_when_enough_pods_have_come(arrivals: Workload) -> None:
    rng = np.random.default_rng(1)
    potential = potentials.linear(rng.normal(size=len(FEATURES)), 0.1)
    follower = Follower(potential, Told([random_outlook(rng) for _ in range(3)]), WATCH)
    ranks = []
    for c in arrivals.classes[:40].tolist():
        ranks.append(follower.now())
        follower.add(c)
    changes = [k for k in range(1, 40) if ranks[k] is not ranks[k - 1]]
    assert changes == [16, 32]


def test_a_run_goes_by_the_new_outlook_alone_once_there_is_one() -> None:
    """The second of two batches, on the cluster that the first one left empty, is placed as if it came alone."""
    rng = np.random.default_rng(5)
    num_jobs = 40
    asks, mix = random_asks(rng, 6), random_mix(rng, 6)
    nodes = random_nodes(rng, 80)  # many that the first batch leaves alone
    classes = rng.integers(0, 6, num_jobs)
    potential = potentials.linear(rng.normal(size=len(FEATURES)), 0.05)
    before, after = random_outlook(rng), random_outlook(rng)

    def held(policy: Follower | Learned, batches: int) -> list[int]:
        """GPU milli left when the first job of the last batch ends."""
        chosen = np.tile(classes, batches)
        at = np.repeat(np.arange(batches) * 1e6, num_jobs) + np.tile(np.arange(num_jobs), batches)
        last = at >= (batches - 1) * 1e6
        kinds = tuple(((int(c), 1),) for c in chosen)
        asked = (asks.num_gpus * asks.gpu_milli)[chosen]
        tasks = Tasks(at, np.where(last, 1e9, 1e3), kinds, np.zeros(len(at), np.int64), asked, asks, mix)
        own = nodes.copy()
        free: list[int] = []

        def ended(job: int) -> None:
            if last[job] and not free:
                free.extend(own.gpu_free_milli.reshape(-1).tolist())

        Simulation(tasks, own, policy, Turns(lambda job: float(at[job])), rng, ended).run()
        return free

    changing = Follower(potential, Told([before, after]), Watch(first_pods=num_jobs + 1, growth=100, last_pods=10000))
    assert held(changing, 2) == held(Learned(potential, after), 1)
    assert held(Learned(potential, before), 2) != held(Learned(potential, after), 1)
