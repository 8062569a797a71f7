"""Evaluation of candidates on episodes, in one or several processes; tasks are built in the worker."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from extender.core.clusters import Floats
from extender.core.valuenet.potentials import Potential
from model.simulations.learned import Foresight
from model.training.tasks import Task, Tasks
from model.workloads.sources import MIXED, source_lookup

Episode = tuple[str, int]
"""Name of a trace or mix, and seed."""


class Play(Protocol):
    """(B, E, loads) gains over FGD of B candidates on E episodes."""

    def __call__(self, episodes: Sequence[Episode], candidates: Sequence[Potential]) -> Floats: ...


class _Player:
    """Worker state. Tasks of traces are cached, because their seeds recur; those of mixes don't."""

    def __init__(self, directory: Path | None, foresight: Foresight) -> None:
        self._tasks = Tasks(source_lookup(directory), foresight)
        self._kept: dict[Episode, Task] = {}

    def gains(self, episode: Episode, candidates: Sequence[Potential]) -> Floats:
        """Return (B, loads) gains over FGD."""
        task = self._kept.get(episode) or self._tasks.task(*episode)
        if not episode[0].startswith(MIXED):
            self._kept[episode] = task
        return np.array([task.gains(potential) for potential in candidates])


_player: list[_Player] = []
"""The worker state of a process."""


def _begin(directory: Path | None, foresight: Foresight) -> None:
    _player[:] = [_Player(directory, foresight)]


def _gains(episode: Episode, candidates: Sequence[Potential]) -> Floats:
    return _player[0].gains(episode, candidates)


@contextmanager
def playing(directory: Path | None, foresight: Foresight, jobs: int) -> Iterator[Play]:
    """Evaluate in `jobs` processes; the gains do not depend on their number."""
    if jobs == 1:
        player = _Player(directory, foresight)
        yield lambda episodes, candidates: np.stack([player.gains(one, candidates) for one in episodes], axis=1)
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    with ProcessPoolExecutor(jobs, context, _begin, (directory, foresight)) as pool:

        def play(episodes: Sequence[Episode], candidates: Sequence[Potential]) -> Floats:
            size = -(-len(candidates) // max(jobs // len(episodes), 1))  # with few episodes, split the candidates
            parts = [candidates[begin : begin + size] for begin in range(0, len(candidates), size)]
            calls = [(episode, part) for episode in episodes for part in parts]
            found = list(pool.map(_gains, *zip(*calls, strict=True)))
            by_episode = [found[begin : begin + len(parts)] for begin in range(0, len(found), len(parts))]
            return np.stack([np.concatenate(each) for each in by_episode], axis=1)

        yield play
