"""What a rank that is told nothing expects, and how it packs."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.valuenet import potentials
from extender.core.valuenet.features import FEATURES, Outlook
from model.simulations import learned, online
from model.simulations.learned import Learned
from model.simulations.online import Follower, Watch
from model.simulations.queues import Simulation
from model.simulations.replays import Engine
from model.simulations.simulated_jobs import Tasks, Turns
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import Workload, workload
from tests.core.valuenet.builders import random_outlook
from tests.model.builders import random_asks, random_mix, random_nodes, write_openb

WATCH = Watch(half_life_pods=50, prior_pods=10, first_pods=16, growth=2, last_pods=32)


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = write_openb(tmp_path_factory.mktemp("openb"), num_nodes=8, num_pods=90)
    return workload(directory, "small", 1, read_nodes(directory), read_pods(directory, "small"))


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


def test_at_first_rare_models_are_expected_to_be_wanted_more(arrivals: Workload) -> None:
    _, first = next(online.outlooks(arrivals, WATCH, 1.0))
    held = np.bincount(arrivals.nodes.model[arrivals.nodes.model >= 0], minlength=len(first.wanted) - 1)
    gpus = np.array([arrivals.nodes.num_gpus[arrivals.nodes.model == m].sum() for m in range(len(held))])
    assert len(gpus) > 1
    assert (np.argsort(first.wanted[:-1]) == np.argsort(-gpus)).all()


@pytest.mark.slow
def test_what_was_seen_takes_the_place_of_the_guess(arrivals: Workload) -> None:
    *_, (_, last) = online.outlooks(arrivals, Watch(half_life_pods=5, prior_pods=10, first_pods=64), 1.0)
    seen = {(int(arrivals.asks.cpu_milli[c]), int(arrivals.asks.num_gpus[c])) for c in arrivals.classes.tolist()}
    assert set(zip(last.mix.cpu_milli.tolist(), last.mix.num_gpus.tolist(), strict=True)) <= seen


@pytest.mark.slow
def test_engines_place_the_same_in_pieces(arrivals: Workload) -> None:
    potential = potentials.linear(np.random.default_rng(0).normal(size=len(FEATURES)), 0.1)
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
    """Two batches, the second on the cluster that the first one left empty: as if the second had come alone."""
    rng = np.random.default_rng(5)
    num_jobs = 40
    asks, mix = random_asks(rng, 6), random_mix(rng, 6)
    nodes = random_nodes(rng, 80)  # many that the first batch leaves alone
    classes = rng.integers(0, 6, num_jobs)
    potential = potentials.linear(rng.normal(size=len(FEATURES)), 0.05)
    before, after = random_outlook(rng), random_outlook(rng)

    def held(policy: Follower | Learned, batches: int) -> list[int]:
        """GPU milli left on each node at the end of the last batch's submissions."""
        chosen = np.tile(classes, batches)
        at = np.repeat(np.arange(batches) * 1e6, num_jobs) + np.tile(np.arange(num_jobs), batches)
        last = np.repeat(np.arange(batches) == batches - 1, num_jobs)
        asked = (asks.num_gpus * asks.gpu_milli)[chosen]
        kinds = tuple(((int(c), 1),) for c in chosen)
        tasks = Tasks(at, np.where(last, 1e9, 1e3), kinds, np.zeros(len(at), np.int64), asked, asks, mix)
        here = nodes.copy()
        free: list[int] = []

        def ended(job: int) -> None:
            if last[job] and not free:
                free.extend(here.gpu_free_milli.reshape(-1).tolist())

        Simulation(tasks, here, policy, Turns(lambda job: float(at[job])), rng, ended).run()
        return free

    changing = Follower(potential, Told([before, after]), Watch(first_pods=num_jobs + 1, growth=100, last_pods=10000))
    assert held(changing, 2) == held(Learned(potential, after), 1)
    assert held(Learned(potential, before), 2) != held(Learned(potential, after), 1)
