"""Replays of a net with attention, which observes the cluster at intervals and sets the potential until the next."""

from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Attention, Sight
from extender.core.valuenet.features import FEATURES, Outlook
from model.engine import node_values
from model.engine.engines import Compiled
from model.simulations import replays
from model.simulations.replays import Replay
from model.workloads.workloads import Workload

_LOOK_FRAC: Final = 0.1
"""Arrivals between two observations, as a fraction of the capacity."""


def replay(offered: Workload, outlook: Outlook, actor: Attention) -> Replay:
    """Offer all arrivals, with an observation every LOOK_FRAC. It is deterministic."""
    board = _Board(offered, outlook)
    arrived = np.cumsum(offered.asked_milli) / offered.gpu_milli
    looks = np.searchsorted(arrived, np.arange(_LOOK_FRAC, arrived[-1], _LOOK_FRAC), side="right")
    for end in np.unique([*looks, len(arrived)]).tolist():
        board.place(end, actor, attention.point(board.sight(), actor))
    done = Replay(board.placed, board.gpus, board.fragment_milli, board.nodes, 0.0)
    replays.check(offered, done)
    return done


class _Board:
    """State of a cluster during the replay."""

    def __init__(self, offered: Workload, outlook: Outlook) -> None:
        self.nodes = offered.nodes.copy()
        num_pods = len(offered.classes)
        self.placed, self.gpus = np.full(num_pods, -1, np.int64), np.zeros(num_pods, np.int64)
        self.fragment_milli = np.zeros(num_pods)
        self._offered, self._outlook, self._begin = offered, outlook, 0
        self._engine = Compiled(self.nodes, offered.asks, outlook.mix)

    def sight(self) -> Sight:
        """Return the actor's current observation."""
        rows = np.empty((len(self.nodes.cpu_milli), len(FEATURES)))
        node_values.fill_features(self.nodes, self._outlook, rows)
        return attention.sight_of(rows, self.nodes, self._outlook)

    def place(self, end: int, actor: Attention, point: Floats) -> None:
        """Offer the arrivals up to `end` under the potential at `point`."""
        part = slice(self._begin, end)
        self._engine.follow(self._outlook, attention.potential_at(point, actor))
        classes = self._offered.classes[part]
        self._engine.place_all(
            classes, np.zeros(len(classes)), self.placed[part], self.gpus[part], self.fragment_milli[part]
        )
        self._begin = end
