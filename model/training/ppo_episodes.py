"""Packing as episodes of few steps, in pure functions: each step looks at the cluster and sets the potential.

The action is a point: the weights of the potential that ranks nodes until the next look
(`extender.core.valuenet.attention`). Choosing nodes at random instead would undo what is learned: that equals go to
the first of them in a fixed order is worth points, and no exploration by nodes can keep to it. The reward is the GPU
held beyond what FGD holds after the same arrivals: most of the luck of an order is in both.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Attention, Sight
from extender.core.valuenet.features import FEATURES, Outlook
from model.engine import node_values
from model.engine.engines import Compiled
from model.simulations import learned, replays
from model.simulations.baselines import BASELINES
from model.simulations.learned import Foresight
from model.simulations.replays import Replay
from model.workloads.traces import TraceError, read_nodes, read_pods
from model.workloads.workloads import ARRIVED_FRAC, Workload, bits_of, classes_of, workload

LOOK_FRAC: Final = 0.1
"""Of the capacity: arrivals between two looks at the cluster when a trained actor is replayed."""
_FIRST_LOOK, _LAST_LOOK = 0.15, 0.97
"""Between these parts of the capacity lie the looks of an episode after the first; two more follow at 100 %."""


class Source(NamedTuple):
    """A trace that scenes are drawn from."""

    trace: str
    offered: Workload
    """In some order; scenes have their own."""
    classes: Longs
    """(P,) of the pods of the list, in its order."""
    outlook: Outlook


class Scene(NamedTuple):
    """A part of a trace's nodes, and pods in an order."""

    offered: Workload
    outlook: Outlook
    ends: Longs
    """(T,) arrivals at the end of each step; the last is P."""
    fgd_percent: Floats
    """(T,) GPU that FGD holds at each end, of the capacity."""
    weight: Floats
    """(T,) of what is gained in a step: what comes before 100 % counts at 100 % and at the end."""


class Episode(NamedTuple):
    """What became of a scene, T steps."""

    sights: tuple[Sight, ...]
    points: Floats
    """(T, D) tried."""
    rewards: Floats
    """(T,) percentage points more than FGD; they add up to the mean gain at 100 % and at the end."""


def source(directory: Path, trace: str, foresight: Foresight) -> Source:
    """A trace with its prices, which take seconds."""
    node_list, pod_list = read_nodes(directory), read_pods(directory, trace)
    offered = workload(directory, trace, 0, node_list, pod_list)
    _, classes = classes_of(pod_list, bits_of(node_list))
    outlook = learned.told(offered.nodes, offered.asks, offered.mix, node_list, pod_list, foresight)
    return Source(trace, offered, classes, outlook)


def scene(drawn_from: Source, num_nodes: int, num_steps: int, rng: np.random.Generator) -> Scene:
    """So many nodes of a trace, or all, and as many of its pods as it takes; `num_steps` 2 and more.

    Raises TraceError when none of the nodes drawn has a GPU.
    """
    whole = drawn_from.offered
    rows = rng.permutation(len(whole.node_names))[:num_nodes]
    nodes = whole.nodes.at(rows)
    capacity = float(nodes.num_gpus.sum()) * WHOLE_MILLI
    if capacity == 0:
        raise TraceError(
            f"none of {len(rows)} nodes drawn from trace {drawn_from.trace} has a GPU: train on more nodes"
        )
    asked = whole.asks.num_gpus * whole.asks.gpu_milli
    pods = rng.permutation(len(drawn_from.classes))
    repeats = int(np.ceil(1.5 * ARRIVED_FRAC * capacity / float(asked[drawn_from.classes].sum())))
    pods = np.concatenate([pods, *(rng.permutation(len(pods)) for _ in range(repeats - 1))])
    classes = drawn_from.classes[pods]
    arrived = np.cumsum(asked[classes]) / capacity
    enough = int(np.searchsorted(arrived, ARRIVED_FRAC)) + 1
    pods, classes, arrived = pods[:enough], classes[:enough], arrived[:enough]
    names = tuple(whole.node_names[i] for i in rows)
    offered = replace(whole, node_names=names, nodes=nodes, pods=pods, classes=classes, asked_milli=asked[classes])
    strata = np.linspace(_FIRST_LOOK, _LAST_LOOK, num_steps - 1)
    cuts = strata[:-1] + np.diff(strata) * rng.random(num_steps - 2)
    ends = np.append(np.searchsorted(arrived, [*cuts, 1.0], side="right"), enough)
    ends = np.unique(ends[ends > 0])
    fgd = replays.replay(offered, BASELINES["fgd"], 0).placed
    weight = np.where(arrived[ends - 1] > 1.0, 0.5, 1.0)
    return Scene(offered, drawn_from.outlook, ends, held_percent(offered, fgd, ends), weight)


def held_percent(offered: Workload, placed: Longs, ends: Longs) -> Floats:
    """(T,) GPU held after so many arrivals, of the capacity."""
    held = np.cumsum(np.where(placed >= 0, offered.asked_milli, 0))
    percent: Floats = 100 * held[ends - 1] / offered.gpu_milli
    return percent


def episode(drawn: Scene, actor: Attention, away: Floats) -> Episode:
    """Play a scene, each step `away` (T, D) from the actor's point."""
    board = Board(drawn.offered, drawn.outlook)
    sights, points = [], []
    for end, offset in zip(drawn.ends.tolist(), away, strict=True):
        seen = board.sight()
        sights.append(seen)
        points.append(attention.point(seen, actor) + offset)
        board.place(end, actor, points[-1])
    gain = held_percent(drawn.offered, board.placed, drawn.ends) - drawn.fgd_percent
    return Episode(tuple(sights), np.array(points), np.diff(gain, prepend=0.0) * drawn.weight)


def replay(offered: Workload, outlook: Outlook, actor: Attention) -> Replay:
    """Offer all arrivals to a trained actor, with a look at the cluster every LOOK_FRAC; nothing is random."""
    board = Board(offered, outlook)
    arrived = np.cumsum(offered.asked_milli) / offered.gpu_milli
    looks = np.searchsorted(arrived, np.arange(LOOK_FRAC, arrived[-1], LOOK_FRAC), side="right")
    for end in np.unique([*looks, len(arrived)]).tolist():
        board.place(end, actor, attention.point(board.sight(), actor))
    done = Replay(board.placed, board.gpus, board.fragment_milli, board.nodes, 0.0)
    replays.check(offered, done)
    return done


class Board:
    """A cluster as it fills."""

    def __init__(self, offered: Workload, outlook: Outlook) -> None:
        self.nodes = offered.nodes.copy()
        num_pods = len(offered.classes)
        self.placed, self.gpus = np.full(num_pods, -1, np.int64), np.zeros(num_pods, np.int64)
        self.fragment_milli = np.zeros(num_pods)
        self._offered, self._outlook, self._begin = offered, outlook, 0
        self._engine = Compiled(self.nodes, offered.asks, outlook.mix)

    def sight(self) -> Sight:
        """What the actor sees now."""
        rows = np.empty((len(self.nodes.cpu_milli), len(FEATURES)))
        node_values.fill_features(self.nodes, self._outlook, rows)
        return attention.sight_of(rows, self.nodes, self._outlook)

    def place(self, end: int, actor: Attention, point: Floats) -> None:
        """Offer the arrivals up to `end` under the potential of a point."""
        part = slice(self._begin, end)
        self._engine.follow(self._outlook, attention.potential_at(point, actor))
        classes = self._offered.classes[part]
        self._engine.place_all(
            classes, np.zeros(len(classes)), self.placed[part], self.gpus[part], self.fragment_milli[part]
        )
        self._begin = end
