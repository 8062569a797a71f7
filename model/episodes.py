"""Scheduling as an episode, in pure functions: initial, observe, transition, reward, terminal.

Pods are offered one after the other; the action is the node that a pod is bound to, or to skip it. A skipped pod
comes back in the next scheduling round, until the rounds are used up. Fit, GPU choice and fragments are those of
`extender.core`, which the service decides by. Nothing here keeps state: all randomness comes through `rng`.
"""

import math
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core import packing
from extender.core.clusters import Floats, Longs, Rows
from extender.core.fragments import Mix, TypicalPod, fragment_milli, mix_of
from extender.core.packing import ANY_MODEL, GPU_MILLI, Asks, Nodes, Rank
from model.configs import EpisodeConfig
from model.traces import read_nodes, read_pods
from model.workloads import classes_of, empty_nodes, typical_pods

Floats32 = npt.NDArray[np.float32]

NODE_FEATURES: Final = (
    "CPU free, of the node's",
    "memory free, of the node's",
    "GPU free, of the node's",
    "GPUs idle, of 8",
    "largest rest of a GPU in use",
    "GPUs, of 8",
    "CPU free per GPU free, of the mean pod's, at most 4",
    "fragment, of the GPU free",
    "fragment more after placing the pod here, in GPUs",
    "node in use at all",
)
POD_FEATURES: Final = (
    "CPU, of the mean node's",
    "memory, of the mean node's",
    "GPUs, of 8",
    "GPU milli of each, of 1000",
    "models allowed, of all",
    "waited, in mean durations, at most 10",
    "rounds left, of all",
    "pods left in the round, of all",
)


LARGEST_FEATURE: Final = 64.0
"""Features are fractions and small counts; what is larger is cut."""


class Scenario(NamedTuple):
    """What episodes are drawn from."""

    nodes: Nodes
    """Empty."""
    asks: Asks
    frequency: Floats
    """(C,) of the classes among arrivals."""
    mean_duration_s: Floats
    """(C,) for departures; durations are exponential about it."""
    mix: Mix

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.nodes.cpu_milli)

    @property
    def gpu_milli(self) -> int:
        """Capacity."""
        return int(self.nodes.num_gpus.sum()) * GPU_MILLI


class State(NamedTuple):
    """An episode between two actions. Never changed: a transition makes a new one."""

    nodes: Nodes
    classes: Longs
    """(P,) class of each arrival."""
    submitted_s: Floats
    """(P,)."""
    duration_s: Floats
    """(P,) inf where pods stay."""
    waiting: tuple[int, ...]
    """Pods still to be offered in this round; the first is the one offered now."""
    skipped: tuple[int, ...]
    """Pods for the next round."""
    round: int
    now_s: float
    running: tuple[tuple[float, int, int, int], ...]
    """(end, pod, node, GPUs) of pods that will leave."""
    num_placed: int
    num_failed: int
    """Pods that fitted nowhere when their last chance came."""
    num_refused: int
    """Pods that fitted somewhere then, and were skipped."""
    num_skips: int
    allocated_milli: int
    """GPU milli given to pods so far, departed ones included."""
    fragment_milli: float
    """Of the whole cluster, now."""
    wait_s: float
    """Time that the pod placed last had waited, 0 when the last action placed none."""


def scenario(config: EpisodeConfig) -> Scenario:
    """The scenario of a configuration: a trace's, or a drawn one."""
    if not config.traces:
        return drawn_scenario(config.num_nodes)
    directory = Path(config.traces)
    node_list, pod_list = read_nodes(directory), read_pods(directory, config.trace)
    model_bits = {name: bit for bit, name in enumerate(sorted(set(node_list.models) - {""}))}
    nodes = empty_nodes(node_list, model_bits, np.arange(len(node_list.names)))
    asks, pod_class = classes_of(pod_list, model_bits)
    count = np.bincount(pod_class, minlength=len(asks.cpu_milli))
    if pod_list.duration_s is None:
        mean_duration_s = np.full(len(count), 3600.0)
    else:
        mean_duration_s = np.maximum(np.bincount(pod_class, pod_list.duration_s, len(count)) / count, 1.0)
    return Scenario(nodes, asks, count / count.sum(), mean_duration_s, typical_pods(pod_list, model_bits))


def drawn_scenario(num_nodes: int) -> Scenario:
    """A small cluster in the proportions of openb, always the same one for a number of nodes.

    Every third node has 8 GPUs and 96 cores, every third 4 and 64, every third 2 and 32; half of the pods ask for a
    share (250, 500 or 750 milli), a third for one GPU, the rest for 2, 4, 8 or none.
    """
    sizes = np.array([8, 4, 2])[np.arange(num_nodes) % 3].astype(np.int64)
    cpu = np.array([96000, 64000, 32000])[np.arange(num_nodes) % 3].astype(np.int64)
    free = np.where(np.arange(8) < sizes[:, None], GPU_MILLI, 0).astype(np.int32)
    memory = cpu * 4
    nodes = Nodes(cpu, memory, sizes, np.zeros(num_nodes, np.int64), cpu.copy(), memory.copy(), free)
    rows = [  # cpu_milli, num_gpus, gpu_milli, per thousand, mean duration
        (4000, 1, 250, 150, 3600), (6000, 1, 500, 200, 3600), (8000, 1, 750, 150, 7200), (8000, 1, 1000, 330, 7200),
        (16000, 2, 1000, 60, 14400), (32000, 4, 1000, 30, 14400), (64000, 8, 1000, 20, 28800), (8000, 0, 0, 60, 1800),
    ]  # fmt: skip
    cpus, num, milli, per_mille, durations = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(5))
    asks = Asks(cpus, cpus * 2, num, milli, np.full(len(rows), ANY_MODEL))
    mix = mix_of([TypicalPod(row[0], row[1], row[2], ANY_MODEL, row[3]) for row in rows], 1000)
    return Scenario(nodes, asks, per_mille / 1000, durations.astype(np.float64), mix)


def initial(drawn_from: Scenario, config: EpisodeConfig, rng: np.random.Generator) -> State:
    """An empty cluster and a list of pods to come."""
    classes = rng.choice(len(drawn_from.frequency), config.num_pods, p=drawn_from.frequency).astype(np.int64)
    submitted, duration = np.zeros(config.num_pods), np.full(config.num_pods, math.inf)
    if config.departures:
        duration = rng.exponential(drawn_from.mean_duration_s[classes])
        work = float((duration * asked_milli(drawn_from, classes)).sum())
        span_s = max(work / (config.load * drawn_from.gpu_milli), 1.0)
        submitted = np.sort(rng.random(config.num_pods)) * span_s
    nodes = packing.copy_of(drawn_from.nodes)
    state = State(
        nodes, classes, submitted, duration,
        waiting=tuple(range(config.num_pods)), skipped=(), round=0, now_s=float(submitted[0]), running=(),
        num_placed=0, num_failed=0, num_refused=0, num_skips=0, allocated_milli=0,
        fragment_milli=float(_fragments(drawn_from, nodes).sum()), wait_s=0.0,
    )  # fmt: skip
    return state


def observe(drawn_from: Scenario, config: EpisodeConfig, state: State) -> dict[str, Floats32 | npt.NDArray[np.int8]]:
    """What an agent sees: `nodes` (N, len(NODE_FEATURES)), `pod` (len(POD_FEATURES),), `mask` (N + 1,).

    The mask is 1 for nodes that the pod fits and, last, for the skip where that is allowed.
    """
    num_nodes = drawn_from.num_nodes
    if terminal(state):
        return {
            "nodes": np.zeros((num_nodes, len(NODE_FEATURES)), np.float32),
            "pod": np.zeros(len(POD_FEATURES), np.float32),
            "mask": np.append(np.zeros(num_nodes, np.int8), np.int8(1)),
        }
    nodes, asks, pod = state.nodes, drawn_from.asks, state.waiting[0]
    c = int(state.classes[pod])
    rows = np.arange(num_nodes)
    fit = packing.fits(nodes, asks, c, rows)
    free = nodes.gpu_free_milli.astype(np.int64)
    free_sum = free.sum(axis=1)
    fragments = _fragments(drawn_from, nodes)
    more = np.zeros(num_nodes)
    where = np.flatnonzero(fit)
    if len(where):
        _, gpu = packing.evaluate(nodes, asks, c, where, Rank.FGD, drawn_from.mix)
        after = packing.copy_of(nodes)
        for node, share in zip(where.tolist(), gpu.tolist(), strict=True):
            packing.take(after, asks, c, node, share)
        more[where] = (_fragments(drawn_from, after, where) - fragments[where]) / GPU_MILLI
    mean_cpu = float((drawn_from.frequency * asks.cpu_milli).sum())
    mean_gpu = float((drawn_from.frequency * asks.num_gpus * asks.gpu_milli).sum())
    cpu_need = np.maximum(free_sum * mean_cpu / max(mean_gpu, 1.0), 1.0)
    features = np.stack(
        [
            nodes.cpu_free_milli / nodes.cpu_milli,
            nodes.memory_free_mib / nodes.memory_mib,
            free_sum / np.maximum(nodes.num_gpus * GPU_MILLI, 1),
            (free == GPU_MILLI).sum(axis=1) / 8,
            np.where(free < GPU_MILLI, free, 0).max(axis=1, initial=0) / GPU_MILLI,
            nodes.num_gpus / 8,
            np.minimum(nodes.cpu_free_milli / cpu_need, 4.0),
            fragments / np.maximum(free_sum, 1),
            more,
            nodes.cpu_free_milli < nodes.cpu_milli,
        ],
        axis=1,
    )
    waited = state.now_s - float(state.submitted_s[pod])
    pod_features = [
        asks.cpu_milli[c] / nodes.cpu_milli.mean(),
        asks.memory_mib[c] / nodes.memory_mib.mean(),
        asks.num_gpus[c] / 8,
        asks.gpu_milli[c] / GPU_MILLI,
        1.0 if asks.models[c] == ANY_MODEL else int(asks.models[c]).bit_count() / packing.MAX_MODELS,
        min(waited / float(drawn_from.mean_duration_s.mean()), 10.0),
        (config.rounds - state.round) / config.rounds,
        len(state.waiting) / len(state.classes),
    ]
    may_skip = state.num_skips < config.max_skips or not fit.any()
    mask = np.append(fit, may_skip).astype(np.int8)
    return {"nodes": _bounded(features), "pod": _bounded(np.array(pod_features)), "mask": mask}


def transition(drawn_from: Scenario, config: EpisodeConfig, state: State, action: int) -> State:
    """The state after an action: a node's row, or N to skip. A node that the pod does not fit is a skip too."""
    if terminal(state):
        raise ValueError("the episode has ended")
    pod = state.waiting[0]
    c = int(state.classes[pod])
    placing = 0 <= action < drawn_from.num_nodes
    fits_there = placing and bool(packing.fits(state.nodes, drawn_from.asks, c, np.array([action]))[0])
    after = _place(drawn_from, state, pod, action) if fits_there else _skip(drawn_from, config, state, pod)
    return _advance(drawn_from, config, after)


def reward(drawn_from: Scenario, config: EpisodeConfig, before: State, after: State) -> float:
    """What a transition is worth, by the configuration.

    Allocation: GPU milli given, by capacity. Fragmentation: growth of the cluster's fragments by capacity, negative.
    JCT: time that the pod waited by the mean duration, negative, and by the number of pods.
    """
    capacity = drawn_from.gpu_milli
    allocated = (after.allocated_milli - before.allocated_milli) / capacity
    fragmented = (after.fragment_milli - before.fragment_milli) / capacity
    waited = after.wait_s / float(drawn_from.mean_duration_s.mean()) / len(after.classes)
    match config.reward:
        case "allocation":
            return allocated
        case "fragmentation":
            return -fragmented
        case "jct":
            return -waited
        case _:
            return (
                config.allocation_weight * allocated
                - config.fragmentation_weight * fragmented
                - config.jct_weight * waited
            )


def terminal(state: State) -> bool:
    """Whether no pod is left to be offered."""
    return not state.waiting


def asked_milli(drawn_from: Scenario, classes: Longs) -> Longs:
    """(P,) GPU milli that pods of these classes ask for."""
    asked: Longs = (drawn_from.asks.num_gpus * drawn_from.asks.gpu_milli)[classes]
    return asked


def _bounded(features: Floats) -> Floats32:
    return np.clip(features, -LARGEST_FEATURE, LARGEST_FEATURE).astype(np.float32)


def _place(drawn_from: Scenario, state: State, pod: int, node: int) -> State:
    c = int(state.classes[pod])
    row = np.array([node])
    nodes = packing.copy_of(state.nodes)
    before = float(_fragments(drawn_from, nodes, row)[0])
    _, gpu = packing.evaluate(nodes, drawn_from.asks, c, row, Rank.FGD, drawn_from.mix)
    gpus = packing.take(nodes, drawn_from.asks, c, node, int(gpu[0]))
    end = state.now_s + float(state.duration_s[pod])
    return state._replace(
        nodes=nodes,
        waiting=state.waiting[1:],
        running=(*state.running, (end, pod, node, gpus)) if math.isfinite(end) else state.running,
        num_placed=state.num_placed + 1,
        allocated_milli=state.allocated_milli + int(asked_milli(drawn_from, state.classes[pod : pod + 1])[0]),
        fragment_milli=state.fragment_milli + float(_fragments(drawn_from, nodes, row)[0]) - before,
        wait_s=state.now_s - float(state.submitted_s[pod]),
    )


def _skip(drawn_from: Scenario, config: EpisodeConfig, state: State, pod: int) -> State:
    last = state.round + 1 >= config.rounds
    every = np.arange(drawn_from.num_nodes)
    fitted = bool(packing.fits(state.nodes, drawn_from.asks, int(state.classes[pod]), every).any())
    return state._replace(
        waiting=state.waiting[1:],
        skipped=state.skipped if last else (*state.skipped, pod),
        num_failed=state.num_failed + (last and not fitted),
        num_refused=state.num_refused + (last and fitted),
        num_skips=state.num_skips + fitted,
        wait_s=0.0,
    )


def _advance(drawn_from: Scenario, config: EpisodeConfig, state: State) -> State:
    """On to the next pod: to its submission or, at the end of a round, to the next end of a pod; who is due leaves."""
    now = state.now_s
    if not state.waiting and state.skipped:
        if state.running:
            now = max(now, min(state.running)[0])
        state = state._replace(waiting=state.skipped, skipped=(), round=state.round + 1)
    if state.waiting:
        now = max(now, float(state.submitted_s[state.waiting[0]]))
    due = [entry for entry in state.running if entry[0] <= now]
    if due:
        nodes = packing.copy_of(state.nodes)
        for _, pod, node, gpus in due:
            packing.give_back(nodes, drawn_from.asks, int(state.classes[pod]), node, gpus)
        rows = np.unique([node for _, _, node, _ in due])
        change = _fragments(drawn_from, nodes, rows).sum() - _fragments(drawn_from, state.nodes, rows).sum()
        state = state._replace(
            nodes=nodes,
            running=tuple(entry for entry in state.running if entry[0] > now),
            fragment_milli=state.fragment_milli + float(change),
        )
    return state._replace(now_s=now)


def _fragments(drawn_from: Scenario, nodes: Nodes, rows: Rows | None = None) -> Floats:
    """(R,) fragment milli of rows, of all nodes without any."""
    rows = np.arange(drawn_from.num_nodes) if rows is None else rows
    free = nodes.gpu_free_milli[rows].astype(np.int64)
    return fragment_milli(nodes.cpu_free_milli[rows], free, nodes.model[rows], drawn_from.mix)
