"""Scheduling as an episode, in pure functions: initial, observe, transition, reward, terminal.

Pods are offered one after the other; the action is the node that a pod is bound to, or to skip it. A skipped pod
comes back in the next scheduling round, until the rounds are used up. Fit and GPU choice are the compiled
twins of what the service decides by. Nothing here keeps state: all randomness comes through `rng`.
"""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation.arrays import ANY_MODEL, MAX_MODELS, Nodes
from model.engine import kernels
from model.engine.node_scores import fit_node, release
from model.simulations.configs import EpisodeConfig
from model.simulations.scenarios import Scenario

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


def initial(drawn_from: Scenario, config: EpisodeConfig, rng: np.random.Generator) -> State:
    """An empty cluster and a list of pods to come."""
    classes = rng.choice(len(drawn_from.frequency), config.num_pods, p=drawn_from.frequency).astype(np.int64)
    submitted, duration = np.zeros(config.num_pods), np.full(config.num_pods, math.inf)
    if config.departures:
        duration = rng.exponential(drawn_from.mean_duration_s[classes])
        work = float((duration * drawn_from.asked_milli(classes)).sum())
        span_s = max(work / (config.load * drawn_from.gpu_milli), 1.0)
        submitted = np.sort(rng.random(config.num_pods)) * span_s
    nodes = drawn_from.nodes.copy()
    return State(
        nodes, classes, submitted, duration,
        waiting=tuple(range(config.num_pods)), skipped=(), round=0, now_s=float(submitted[0]), running=(),
        num_placed=0, num_failed=0, num_refused=0, num_skips=0, allocated_milli=0,
        fragment_milli=float(drawn_from.fragments(nodes).sum()), wait_s=0.0,
    )  # fmt: skip


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
    fit = kernels.fitting(nodes, asks, c)
    free = nodes.gpu_free_milli.astype(np.int64)
    free_sum = free.sum(axis=1)
    fragments = drawn_from.fragments(nodes)
    more = np.zeros(num_nodes)
    where = np.flatnonzero(fit)
    if len(where):
        after = nodes.copy()
        for node in where.tolist():
            drawn_from.place(after, c, node)
        more[where] = (drawn_from.fragments(after, where) - fragments[where]) / WHOLE_MILLI
    mean_cpu = float((drawn_from.frequency * asks.cpu_milli).sum())
    mean_gpu = float((drawn_from.frequency * asks.num_gpus * asks.gpu_milli).sum())
    cpu_need = np.maximum(free_sum * mean_cpu / max(mean_gpu, 1.0), 1.0)
    features = np.stack(
        [
            nodes.cpu_free_milli / nodes.cpu_milli,
            nodes.memory_free_mib / nodes.memory_mib,
            free_sum / np.maximum(nodes.num_gpus * WHOLE_MILLI, 1),
            (free == WHOLE_MILLI).sum(axis=1) / 8,
            np.where(free < WHOLE_MILLI, free, 0).max(axis=1, initial=0) / WHOLE_MILLI,
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
        asks.gpu_milli[c] / WHOLE_MILLI,
        1.0 if asks.models[c] == ANY_MODEL else int(asks.models[c]).bit_count() / MAX_MODELS,
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
    fits_there = placing and fit_node(state.nodes, drawn_from.asks, c, action)
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


def _bounded(features: Floats) -> Floats32:
    return np.clip(features, -LARGEST_FEATURE, LARGEST_FEATURE).astype(np.float32)


def _place(drawn_from: Scenario, state: State, pod: int, node: int) -> State:
    c = int(state.classes[pod])
    row = np.array([node])
    nodes = state.nodes.copy()
    before = float(drawn_from.fragments(nodes, row)[0])
    gpus = drawn_from.place(nodes, c, node)
    end = state.now_s + float(state.duration_s[pod])
    return state._replace(
        nodes=nodes,
        waiting=state.waiting[1:],
        running=(*state.running, (end, pod, node, gpus)) if math.isfinite(end) else state.running,
        num_placed=state.num_placed + 1,
        allocated_milli=state.allocated_milli + int(drawn_from.asked_milli(state.classes[pod : pod + 1])[0]),
        fragment_milli=state.fragment_milli + float(drawn_from.fragments(nodes, row)[0]) - before,
        wait_s=state.now_s - float(state.submitted_s[pod]),
    )


def _skip(drawn_from: Scenario, config: EpisodeConfig, state: State, pod: int) -> State:
    last = state.round + 1 >= config.rounds
    fitted = bool(kernels.fitting(state.nodes, drawn_from.asks, int(state.classes[pod])).any())
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
        nodes = state.nodes.copy()
        for _, pod, node, gpus in due:
            release(nodes, drawn_from.asks, int(state.classes[pod]), node, gpus)
        rows = np.unique([node for _, _, node, _ in due])
        change = drawn_from.fragments(nodes, rows).sum() - drawn_from.fragments(state.nodes, rows).sum()
        state = state._replace(
            nodes=nodes,
            running=tuple(entry for entry in state.running if entry[0] > now),
            fragment_milli=state.fragment_milli + float(change),
        )
    return state._replace(now_s=now)
