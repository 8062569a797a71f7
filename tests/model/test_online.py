"""What a rank that is told nothing expects, and how it packs."""

from pathlib import Path

import numpy as np
import pytest

from extender.core import potentials
from extender.core.features import FEATURES
from model import learned, online
from model.online import Watch
from model.replays import Engine
from model.traces import read_nodes, read_pods
from model.workloads import Workload, workload
from tests.model.builders import write_openb

WATCH = Watch(half_life_pods=50, prior_pods=10, first_pods=16, growth=2, last_pods=32)


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    directory: Path = write_openb(tmp_path_factory.mktemp("openb"), num_nodes=8, num_pods=90)
    return workload(directory, "small", 1, read_nodes(directory), read_pods(directory, "small"))


def test_pieces_cover_all_arrivals_and_grow_up_to_a_length() -> None:
    pieces = [(piece.start, piece.stop) for piece in WATCH.pieces(130)]
    assert pieces == [(0, 16), (16, 32), (32, 64), (64, 96), (96, 128), (128, 130)]


def test_nothing_of_a_pod_is_known_before_it_comes(arrivals: Workload) -> None:
    """Other pods from the 32nd on change nothing of what was expected of those before."""
    other = arrivals.classes.copy()
    other[32:] = other[32:][::-1]
    changed = Workload(**{**arrivals.__dict__, "classes": other})
    one, two = (list(online.outlooks(offered, WATCH, 1.0)) for offered in (arrivals, changed))
    for (piece, right), (_, found) in list(zip(one, two, strict=True))[:3]:
        assert piece.start <= 32
        assert np.array_equal(found.worth, right.worth)
        assert np.array_equal(found.mix.frequency, right.mix.frequency)
    assert not np.array_equal(one[-1][1].mix.frequency, two[-1][1].mix.frequency)


def test_at_first_rare_models_are_expected_to_be_wanted_more(arrivals: Workload) -> None:
    _, first = next(online.outlooks(arrivals, WATCH, 1.0))
    held = np.bincount(arrivals.nodes.model[arrivals.nodes.model >= 0], minlength=len(first.wanted) - 1)
    gpus = np.array([arrivals.nodes.num_gpus[arrivals.nodes.model == m].sum() for m in range(len(held))])
    assert len(gpus) > 1
    assert (np.argsort(first.wanted[:-1]) == np.argsort(-gpus)).all()


def test_what_was_seen_takes_the_place_of_the_guess(arrivals: Workload) -> None:
    *_, (_, last) = online.outlooks(arrivals, Watch(half_life_pods=5, prior_pods=10, first_pods=64), 1.0)
    seen = {(int(arrivals.asks.cpu_milli[c]), int(arrivals.asks.num_gpus[c])) for c in arrivals.classes.tolist()}
    assert set(zip(last.mix.cpu_milli.tolist(), last.mix.num_gpus.tolist(), strict=True)) <= seen


def test_engines_place_the_same_in_pieces(arrivals: Workload) -> None:
    potential = potentials.linear(np.random.default_rng(0).normal(size=len(FEATURES)), 0.1)
    compiled, plain = (
        learned.replay_pieces(arrivals, online.outlooks(arrivals, WATCH, 1.0), potential, engine) for engine in Engine
    )
    assert np.array_equal(compiled.placed, plain.placed)
    assert np.array_equal(compiled.gpus, plain.gpus)
