"""Compiled batches of episodes in which pods arrive and leave; each episode advances to its next decision.

K episodes of one scenario have N nodes each: rows k N to (k + 1) N of the same arrays. The actions come from the
caller: place the offered pod on a node, or skip it.
"""

from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.fragmentation import Nodes, PodClasses
from extender.core.valuenet.features import FEATURES, Outlook
from extender.core.valuenet.potentials import Potential
from model.engine import node_values
from model.engine.compiling import compiled
from model.engine.node_scores import Learned, book, evaluate_node, fit_node, learned_on, release
from model.engine.ranks import Rank

TALLIES: Final = ("placed", "failed", "refused", "skips", "given_milli", "held_milli_s", "waited_s")
"""Counters of an episode. Refused: skipped at the last offer; failed: fitted nowhere at the last offer; waited_s:
pod-seconds of waiting so far."""
_PLACED, _FAILED, _REFUSED, _SKIPS, _GIVEN, _HELD, _WAITED = range(len(TALLIES))
_WHOLE_MILLI: Final = WHOLE_MILLI
_NO_RANK: Final = int(Rank.NONE)


class EpisodeBatch(NamedTuple):
    """K episodes of P pods, updated in place."""

    nodes: Nodes
    """(K N,) rows."""
    before: Floats
    """(K N, F) current features of the nodes."""
    after: Floats
    """(K N, F) features with the offered pod on the node; as `before` where it does not fit."""
    fits: Mask
    """(K, N) whether the offered pod fits."""
    gpu: Longs
    """(K N,) GPU that a share would take, else -1."""
    classes: Longs
    """(K, P)."""
    submitted_s: Floats
    """(K, P) ascending."""
    duration_s: Floats
    """(K, P), inf for pods that stay."""
    offered: Longs
    """(K,) the offered pod, -1 when the episode is over."""
    now_s: Floats
    """(K,)."""
    arrived: Longs
    """(K,) number of pods that have arrived."""
    waiting: Longs
    """(K, P) waiting pods in queue order, the first `num_waiting`."""
    num_waiting: Longs
    """(K,)."""
    turn: Longs
    """(K,) position of the offered pod in `waiting`."""
    round: Longs
    """(K,) current round, without departures."""
    freed: Longs
    """(K,) row of the last departure, -1 after an arrival: the other pods fitted nowhere before either."""
    skipped: Mask
    """(K, P) pods that were skipped although they fitted."""
    running: Longs
    """(K, P) running pods in any order, the first `num_running`."""
    num_running: Longs
    """(K,)."""
    end_s: Floats
    """(K, P) end of running pods."""
    row: Longs
    """(K, P) node of a pod, also after its end; -1 if it was never placed."""
    gpus: Longs
    """(K, P) its GPUs as a bit mask."""
    tally: Floats
    """(K, len(TALLIES))."""
    asks: PodClasses
    learned: Learned
    """Rank that chooses the GPU for a share."""
    room: Longs
    """(G,) scratch."""
    gpu_milli: Longs
    """(1,) capacity of a cluster."""
    rounds: Longs
    """(1,) offers of a skipped pod without departures; 0 with departures."""


def empty_batch(
    nodes: Nodes, asks: PodClasses, outlook: Outlook, guide: Potential, num_episodes: int, num_pods: int, rounds: int
) -> EpisodeBatch:
    """Return a batch of episodes before their `begin`."""
    N, K, P = len(nodes.cpu_milli), num_episodes, num_pods  # noqa: N806 - axis letters of EpisodeBatch
    rows = nodes.at(np.tile(np.arange(N), K))
    longs, floats = [np.zeros((K, P), np.int64) for _ in range(5)], [np.zeros((K, P)) for _ in range(3)]
    each = [np.zeros(K, np.int64) for _ in range(7)]
    return EpisodeBatch(
        nodes=rows, before=np.zeros((K * N, len(FEATURES))), after=np.zeros((K * N, len(FEATURES))),
        fits=np.zeros((K, N), np.bool_), gpu=np.zeros(K * N, np.int64), classes=longs[0], submitted_s=floats[0],
        duration_s=floats[1], offered=each[0], now_s=np.zeros(K), arrived=each[1], waiting=longs[1],
        num_waiting=each[2], turn=each[3], round=each[4], freed=each[5], skipped=np.zeros((K, P), np.bool_),
        running=longs[2], num_running=each[6], end_s=floats[2], row=longs[3], gpus=longs[4],
        tally=np.zeros((K, len(TALLIES))), asks=asks, learned=learned_on(rows, outlook, guide),
        room=np.zeros(rows.gpu_free_milli.shape[1], np.int64),
        gpu_milli=np.array([int(nodes.num_gpus.sum()) * WHOLE_MILLI]), rounds=np.array([rounds]),
    )  # fmt: skip


def begin(batch: EpisodeBatch, k: int, empty: Nodes, classes: Longs, submitted_s: Floats, duration_s: Floats) -> None:
    """Begin an episode: (P,) pods arrive at (N,) empty nodes."""
    N = len(empty.cpu_milli)
    own = slice(k * N, (k + 1) * N)
    for name in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli"):
        getattr(batch.nodes, name)[own] = getattr(empty, name)
    batch.classes[k], batch.submitted_s[k], batch.duration_s[k] = classes, submitted_s, duration_s
    for column in (batch.arrived, batch.num_waiting, batch.turn, batch.round, batch.num_running):
        column[k] = 0
    batch.tally[k] = 0.0
    batch.now_s[k], batch.freed[k], batch.skipped[k], batch.row[k], batch.gpus[k] = submitted_s[0], -1, False, -1, 0
    _begin(batch, k, N)


@compiled
def _begin(batch: EpisodeBatch, k: int, num_nodes: int) -> None:
    for n in range(num_nodes):
        _changed(batch, k * num_nodes + n)
    _advance(batch, k)


@compiled
def step_all(batch: EpisodeBatch, actions: Longs) -> None:
    """Apply (K,) actions: a node's row among the N, or N to skip. Actions of finished episodes are ignored."""
    for k in range(len(actions)):
        if batch.offered[k] >= 0:
            _step(batch, k, actions[k])


@compiled
def _step(batch: EpisodeBatch, k: int, action: int) -> None:
    """Place the offered pod, or skip it (also if it does not fit on the chosen node), and advance."""
    num_nodes = batch.fits.shape[1]
    pod, turn = batch.offered[k], batch.turn[k]
    c = batch.classes[k, pod]
    if 0 <= action < num_nodes and batch.fits[k, action]:
        row = k * num_nodes + action
        batch.gpus[k, pod] = book(batch.nodes, batch.asks, c, row, batch.gpu[row])
        batch.row[k, pod] = row
        batch.tally[k, _PLACED] += 1
        batch.tally[k, _GIVEN] += batch.asks.num_gpus[c] * batch.asks.gpu_milli[c]
        if batch.duration_s[k, pod] < np.inf:
            batch.end_s[k, pod] = batch.now_s[k] + batch.duration_s[k, pod]
            batch.running[k, batch.num_running[k]] = pod
            batch.num_running[k] += 1
        _changed(batch, row)
        _drop(batch, k, turn)
    else:
        batch.tally[k, _SKIPS] += 1
        batch.skipped[k, pod] = True
        if batch.rounds[0] > 0 and batch.round[k] + 1 >= batch.rounds[0]:
            batch.tally[k, _REFUSED] += 1
            _drop(batch, k, turn)
        else:
            batch.turn[k] += 1
    _advance(batch, k)


@compiled
def _advance(batch: EpisodeBatch, k: int) -> None:
    """Advance to the next pod that fits somewhere."""
    num_pods = batch.classes.shape[1]
    while True:
        while batch.turn[k] < batch.num_waiting[k]:
            pod = batch.waiting[k, batch.turn[k]]
            if _fits(batch, k, pod):
                batch.offered[k] = pod
                _look(batch, k, pod)
                return
            if batch.rounds[0] > 0:  # without departures it never will
                batch.tally[k, _FAILED] += 1
                _drop(batch, k, batch.turn[k])
            else:
                batch.turn[k] += 1
        if batch.arrived[k] == num_pods:
            if batch.rounds[0] == 0 or batch.num_waiting[k] == 0:
                _end(batch, k)
                return
            batch.round[k] += 1
            batch.turn[k] = 0
            batch.freed[k] = -1
            continue
        first, end_s = -1, np.inf
        for i in range(batch.num_running[k]):
            if batch.end_s[k, batch.running[k, i]] < end_s:
                first, end_s = i, batch.end_s[k, batch.running[k, i]]
        arrival_s = batch.submitted_s[k, batch.arrived[k]]
        held = _held(batch, k)
        next_s = min(arrival_s, end_s)
        batch.tally[k, _HELD] += held * (next_s - batch.now_s[k])
        batch.tally[k, _WAITED] += batch.num_waiting[k] * (next_s - batch.now_s[k])
        batch.now_s[k] = next_s
        if arrival_s <= end_s:
            batch.turn[k] = batch.num_waiting[k]
            batch.waiting[k, batch.num_waiting[k]] = batch.arrived[k]
            batch.num_waiting[k] += 1
            batch.arrived[k] += 1
            batch.freed[k] = -1
        else:
            pod = batch.running[k, first]
            batch.num_running[k] -= 1
            batch.running[k, first] = batch.running[k, batch.num_running[k]]
            row = batch.row[k, pod]
            release(batch.nodes, batch.asks, batch.classes[k, pod], row, batch.gpus[k, pod])
            _changed(batch, row)
            batch.freed[k] = row
            batch.turn[k] = 0


@compiled
def _end(batch: EpisodeBatch, k: int) -> None:
    batch.offered[k] = -1
    batch.freed[k] = -1
    for i in range(batch.num_waiting[k]):
        pod = batch.waiting[k, i]
        batch.tally[k, _REFUSED if _fits(batch, k, pod) else _FAILED] += 1
    num_nodes = batch.fits.shape[1]
    batch.fits[k] = False
    batch.after[k * num_nodes : (k + 1) * num_nodes] = batch.before[k * num_nodes : (k + 1) * num_nodes]


@compiled
def _fits(batch: EpisodeBatch, k: int, pod: int) -> bool:
    """Whether a waiting pod fits somewhere now."""
    c = batch.classes[k, pod]
    if batch.freed[k] >= 0 and not batch.skipped[k, pod]:
        return bool(fit_node(batch.nodes, batch.asks, c, batch.freed[k]))
    num_nodes = batch.fits.shape[1]
    for n in range(num_nodes):  # noqa: SIM110 - numba compiles no generator here
        if fit_node(batch.nodes, batch.asks, c, k * num_nodes + n):
            return True
    return False


@compiled
def _drop(batch: EpisodeBatch, k: int, turn: int) -> None:
    """Remove a pod from the queue."""
    batch.num_waiting[k] -= 1
    for i in range(turn, batch.num_waiting[k]):
        batch.waiting[k, i] = batch.waiting[k, i + 1]


@compiled
def _held(batch: EpisodeBatch, k: int) -> float:
    """Allocated GPU milli."""
    num_nodes = batch.fits.shape[1]
    free = 0
    for row in range(k * num_nodes, (k + 1) * num_nodes):
        for g in range(batch.nodes.gpu_free_milli.shape[1]):
            free += batch.nodes.gpu_free_milli[row, g]
    return float(batch.gpu_milli[0] - free)


@compiled
def _changed(batch: EpisodeBatch, row: int) -> None:
    """Update features and value of a changed node."""
    nodes = batch.nodes
    cpu, memory, free = nodes.cpu_free_milli[row], nodes.memory_free_mib[row], nodes.gpu_free_milli[row]
    node_values.node_features(
        nodes, row, cpu, memory, free, (-1, 0), batch.learned.outlook, batch.room, batch.before[row]
    )
    batch.learned.values[row] = node_values.value(batch.before[row], batch.learned.potential)


@compiled
def _look(batch: EpisodeBatch, k: int, pod: int) -> None:
    """Compute each node's features after placing the pod."""
    nodes, asks, c = batch.nodes, batch.asks, batch.classes[k, pod]
    milli = asks.gpu_milli[c]
    share = 0 < milli < _WHOLE_MILLI
    num_nodes = batch.fits.shape[1]
    for n in range(num_nodes):
        row = k * num_nodes + n
        score, gpu = evaluate_node(
            nodes, asks, c, row, _NO_RANK, batch.learned.outlook.mix, batch.learned, 0.0, batch.room.reshape(1, -1)
        )
        batch.fits[k, n] = score > -np.inf
        batch.gpu[row] = gpu
        if not batch.fits[k, n]:
            batch.after[row] = batch.before[row]
        elif share:  # `inputs` may be those of another GPU
            cpu, memory = nodes.cpu_free_milli[row] - asks.cpu_milli[c], nodes.memory_free_mib[row] - asks.memory_mib[c]
            taken, free = (gpu, milli), nodes.gpu_free_milli[row]
            node_values.node_features(
                nodes, row, cpu, memory, free, taken, batch.learned.outlook, batch.room, batch.after[row]
            )
        else:
            batch.after[row] = batch.learned.inputs
