"""Episodes of a cluster that churns, side by side and compiled: each runs on to the next decision that is to be made.

K episodes of one scenario have N nodes each; they are rows k N to (k + 1) N of the same arrays. What is decided here
is nothing: who plays places a pod on a node, or skips it.
"""

from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.fragmentation import Asks, Nodes
from extender.core.valuenet.features import FEATURES, Outlook
from extender.core.valuenet.potentials import Potential
from model.engine import node_values
from model.engine.compiling import compiled
from model.engine.node_scores import Learned, book, evaluate_node, fit_node, learned_on, release
from model.engine.ranks import Rank

TALLIES: Final = ("placed", "failed", "refused", "skips", "given_milli", "held_milli_s", "waited_s")
"""What is counted of an episode. Refused: skipped when their last chance came; failed: fitted nowhere then; waited_s:
pods times how long they waited until now."""
_PLACED, _FAILED, _REFUSED, _SKIPS, _GIVEN, _HELD, _WAITED = range(len(TALLIES))
_WHOLE_MILLI: Final = WHOLE_MILLI
_NO_RANK: Final = int(Rank.NONE)


class Course(NamedTuple):
    """K episodes of P pods, changed in place."""

    nodes: Nodes
    """(K N,) rows."""
    before: Floats
    """(K N, F) features of the nodes now."""
    after: Floats
    """(K N, F) with the pod that is offered on them; as before where it does not fit."""
    fits: Mask
    """(K, N)."""
    gpu: Longs
    """(K N,) that a share would take, else -1."""
    classes: Longs
    """(K, P)."""
    submitted_s: Floats
    """(K, P) ascending."""
    duration_s: Floats
    """(K, P), inf for pods that stay."""
    offered: Longs
    """(K,) the pod that is offered, -1 when the episode is over."""
    now_s: Floats
    """(K,)."""
    arrived: Longs
    """(K,) pods that have come."""
    waiting: Longs
    """(K, P) pods in the order in which they are offered, the first `num_waiting`."""
    num_waiting: Longs
    """(K,)."""
    turn: Longs
    """(K,) whose turn it is of those who wait."""
    round: Longs
    """(K,) of the rounds without departures."""
    freed: Longs
    """(K,) the row that somebody has just left, -1 when a pod has come: the others fitted nowhere before either."""
    skipped: Mask
    """(K, P) pods that would have fitted somewhere."""
    running: Longs
    """(K, P) the first `num_running`, in any order."""
    num_running: Longs
    """(K,)."""
    end_s: Floats
    """(K, P) of those that run."""
    row: Longs
    """(K, P) node that a pod has, or had; -1 without."""
    gpus: Longs
    """(K, P) its GPUs, as bits."""
    tally: Floats
    """(K, len(TALLIES))."""
    asks: Asks
    learned: Learned
    """Which GPU of a node a share takes is decided by this one."""
    room: Longs
    """(G,) to count in."""
    gpu_milli: Longs
    """(1,) of a cluster."""
    rounds: Longs
    """(1,) without departures; 0 with."""


def course(
    nodes: Nodes, asks: Asks, outlook: Outlook, guide: Potential, num_episodes: int, num_pods: int, rounds: int
) -> Course:
    """Episodes that have not begun yet: see `begin`."""
    N, K, P = len(nodes.cpu_milli), num_episodes, num_pods  # noqa: N806 - axis letters of Course
    rows = nodes.at(np.tile(np.arange(N), K))
    longs, floats = [np.zeros((K, P), np.int64) for _ in range(5)], [np.zeros((K, P)) for _ in range(3)]
    each = [np.zeros(K, np.int64) for _ in range(7)]
    return Course(
        nodes=rows, before=np.zeros((K * N, len(FEATURES))), after=np.zeros((K * N, len(FEATURES))),
        fits=np.zeros((K, N), np.bool_), gpu=np.zeros(K * N, np.int64), classes=longs[0], submitted_s=floats[0],
        duration_s=floats[1], offered=each[0], now_s=np.zeros(K), arrived=each[1], waiting=longs[1],
        num_waiting=each[2], turn=each[3], round=each[4], freed=each[5], skipped=np.zeros((K, P), np.bool_),
        running=longs[2], num_running=each[6], end_s=floats[2], row=longs[3], gpus=longs[4],
        tally=np.zeros((K, len(TALLIES))), asks=asks, learned=learned_on(rows, outlook, guide),
        room=np.zeros(rows.gpu_free_milli.shape[1], np.int64),
        gpu_milli=np.array([int(nodes.num_gpus.sum()) * WHOLE_MILLI]), rounds=np.array([rounds]),
    )  # fmt: skip


def begin(of: Course, k: int, empty: Nodes, classes: Longs, submitted_s: Floats, duration_s: Floats) -> None:
    """Begin an episode: (P,) pods come to (N,) empty nodes."""
    N = len(empty.cpu_milli)
    own = slice(k * N, (k + 1) * N)
    for name in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli"):
        getattr(of.nodes, name)[own] = getattr(empty, name)
    of.classes[k], of.submitted_s[k], of.duration_s[k] = classes, submitted_s, duration_s
    for column in (of.arrived, of.num_waiting, of.turn, of.round, of.num_running):
        column[k] = 0
    of.tally[k] = 0.0
    of.now_s[k], of.freed[k], of.skipped[k], of.row[k], of.gpus[k] = submitted_s[0], -1, False, -1, 0
    _begin(of, k, N)


@compiled
def _begin(of: Course, k: int, num_nodes: int) -> None:
    for n in range(num_nodes):
        _changed(of, k * num_nodes + n)
    _advance(of, k)


@compiled
def step_all(of: Course, actions: Longs) -> None:
    """Carry out (K,) actions: a node's row among the N, or N to skip; those of episodes that are over are nothing."""
    for k in range(len(actions)):
        if of.offered[k] >= 0:
            _step(of, k, actions[k])


@compiled
def _step(of: Course, k: int, action: int) -> None:
    """Place the pod that is offered on a node, or skip it: so is one that does not fit there. Then run on."""
    num_nodes = of.fits.shape[1]
    pod, turn = of.offered[k], of.turn[k]
    c = of.classes[k, pod]
    if 0 <= action < num_nodes and of.fits[k, action]:
        row = k * num_nodes + action
        of.gpus[k, pod] = book(of.nodes, of.asks, c, row, of.gpu[row])
        of.row[k, pod] = row
        of.tally[k, _PLACED] += 1
        of.tally[k, _GIVEN] += of.asks.num_gpus[c] * of.asks.gpu_milli[c]
        if of.duration_s[k, pod] < np.inf:
            of.end_s[k, pod] = of.now_s[k] + of.duration_s[k, pod]
            of.running[k, of.num_running[k]] = pod
            of.num_running[k] += 1
        _changed(of, row)
        _drop(of, k, turn)
    else:
        of.tally[k, _SKIPS] += 1
        of.skipped[k, pod] = True
        if of.rounds[0] > 0 and of.round[k] + 1 >= of.rounds[0]:
            of.tally[k, _REFUSED] += 1
            _drop(of, k, turn)
        else:
            of.turn[k] += 1
    _advance(of, k)


@compiled
def _advance(of: Course, k: int) -> None:
    """Run on to the next pod that fits somewhere."""
    num_pods = of.classes.shape[1]
    while True:
        while of.turn[k] < of.num_waiting[k]:
            pod = of.waiting[k, of.turn[k]]
            if _fits(of, k, pod):
                of.offered[k] = pod
                _look(of, k, pod)
                return
            if of.rounds[0] > 0:  # nothing leaves
                of.tally[k, _FAILED] += 1
                _drop(of, k, of.turn[k])
            else:
                of.turn[k] += 1
        if of.arrived[k] == num_pods:
            if of.rounds[0] == 0 or of.num_waiting[k] == 0:
                _end(of, k)
                return
            of.round[k] += 1
            of.turn[k] = 0
            of.freed[k] = -1
            continue
        first, end_s = -1, np.inf
        for i in range(of.num_running[k]):
            if of.end_s[k, of.running[k, i]] < end_s:
                first, end_s = i, of.end_s[k, of.running[k, i]]
        comes_s = of.submitted_s[k, of.arrived[k]]
        held = _held(of, k)
        at = min(comes_s, end_s)
        of.tally[k, _HELD] += held * (at - of.now_s[k])
        of.tally[k, _WAITED] += of.num_waiting[k] * (at - of.now_s[k])
        of.now_s[k] = at
        if comes_s <= end_s:
            of.turn[k] = of.num_waiting[k]
            of.waiting[k, of.num_waiting[k]] = of.arrived[k]
            of.num_waiting[k] += 1
            of.arrived[k] += 1
            of.freed[k] = -1
        else:
            pod = of.running[k, first]
            of.num_running[k] -= 1
            of.running[k, first] = of.running[k, of.num_running[k]]
            row = of.row[k, pod]
            release(of.nodes, of.asks, of.classes[k, pod], row, of.gpus[k, pod])
            _changed(of, row)
            of.freed[k] = row
            of.turn[k] = 0


@compiled
def _end(of: Course, k: int) -> None:
    of.offered[k] = -1
    of.freed[k] = -1
    for i in range(of.num_waiting[k]):
        pod = of.waiting[k, i]
        of.tally[k, _REFUSED if _fits(of, k, pod) else _FAILED] += 1
    num_nodes = of.fits.shape[1]
    of.fits[k] = False
    of.after[k * num_nodes : (k + 1) * num_nodes] = of.before[k * num_nodes : (k + 1) * num_nodes]


@compiled
def _fits(of: Course, k: int, pod: int) -> bool:
    """Whether a pod that waits fits somewhere now."""
    c = of.classes[k, pod]
    if of.freed[k] >= 0 and not of.skipped[k, pod]:
        return bool(fit_node(of.nodes, of.asks, c, of.freed[k]))
    num_nodes = of.fits.shape[1]
    for n in range(num_nodes):  # noqa: SIM110 - numba compiles no generator here
        if fit_node(of.nodes, of.asks, c, k * num_nodes + n):
            return True
    return False


@compiled
def _drop(of: Course, k: int, turn: int) -> None:
    """A pod waits no longer."""
    of.num_waiting[k] -= 1
    for i in range(turn, of.num_waiting[k]):
        of.waiting[k, i] = of.waiting[k, i + 1]


@compiled
def _held(of: Course, k: int) -> float:
    """GPU milli that pods have."""
    num_nodes = of.fits.shape[1]
    free = 0
    for row in range(k * num_nodes, (k + 1) * num_nodes):
        for g in range(of.nodes.gpu_free_milli.shape[1]):
            free += of.nodes.gpu_free_milli[row, g]
    return float(of.gpu_milli[0] - free)


@compiled
def _changed(of: Course, row: int) -> None:
    """Features and value of a node that has changed."""
    nodes = of.nodes
    cpu, memory, free = nodes.cpu_free_milli[row], nodes.memory_free_mib[row], nodes.gpu_free_milli[row]
    node_values.node_features(nodes, row, cpu, memory, free, (-1, 0), of.learned.outlook, of.room, of.before[row])
    of.learned.values[row] = node_values.value(of.before[row], of.learned.potential)


@compiled
def _look(of: Course, k: int, pod: int) -> None:
    """What becomes of each node if it takes the pod."""
    nodes, asks, c = of.nodes, of.asks, of.classes[k, pod]
    milli = asks.gpu_milli[c]
    share = 0 < milli < _WHOLE_MILLI
    num_nodes = of.fits.shape[1]
    for n in range(num_nodes):
        row = k * num_nodes + n
        score, gpu = evaluate_node(
            nodes, asks, c, row, _NO_RANK, of.learned.outlook.mix, of.learned, 0.0, of.room.reshape(1, -1)
        )
        of.fits[k, n] = score > -np.inf
        of.gpu[row] = gpu
        if not of.fits[k, n]:
            of.after[row] = of.before[row]
        elif share:  # the GPU looked at last need not be the one taken
            cpu, memory = nodes.cpu_free_milli[row] - asks.cpu_milli[c], nodes.memory_free_mib[row] - asks.memory_mib[c]
            taken, free = (gpu, milli), nodes.gpu_free_milli[row]
            node_values.node_features(nodes, row, cpu, memory, free, taken, of.learned.outlook, of.room, of.after[row])
        else:
            of.after[row] = of.learned.inputs
