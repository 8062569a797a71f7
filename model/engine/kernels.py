"""Compiled decisions of a simulation: scores cached until a node changes, tie-breaks, booking."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Floats, Longs, Mask
from extender.core.fragmentation import Mix, Nodes, PodClasses
from model.engine import node_values
from model.engine.compiling import compiled
from model.engine.node_scores import Learned, book, evaluate_node, fit_node, release
from model.engine.ranks import Tie, sample_size

_FIRST, _RANDOM, _NEXT, _SAMPLED = int(Tie.FIRST), int(Tie.RANDOM), int(Tie.NEXT), int(Tie.SAMPLED)
_NOWHERE: Final = -np.inf
_RING: Final = 1024  # a power of two, so that modulo is a mask
_sample_size = compiled(sample_size)


class Memo(NamedTuple):
    """Scores cached per class and node until the node changes."""

    score: Floats
    """(C, N)."""
    gpu: npt.NDArray[np.int8]
    """(C, N) GPU for a share."""
    seen: Longs
    """(C,) number of changes applied to the class's row, -1 at first."""
    changed: Longs
    """(_RING,) the last nodes that changed."""
    num_changes: Longs
    """(1,)."""
    checked: Longs
    """(N,) mark of the last refresh of a node, so that each refresh evaluates it once."""
    fragment: Floats
    """(N,) each node's current fragment milli."""
    scratch: Longs
    """(2, U + 1) scratch for a node's count of GPUs and idle milli per size of the mix."""
    twin: Longs
    """(N,) an earlier node with the same initial state; -1 for the first of its kind, or once a node has changed."""
    num_twins: Longs
    """(N,) number of nodes with this one as their twin."""


def memo_of(num_classes: int, nodes: Nodes, mix: Mix) -> Memo:
    """Return an empty memo for nodes in their current state."""
    num_nodes = len(nodes.cpu_milli)
    memo = Memo(
        np.empty((num_classes, num_nodes)),
        np.full((num_classes, num_nodes), -1, np.int8),
        np.full(num_classes, -1, np.int64),
        np.zeros(_RING, np.int64),
        np.zeros(1, np.int64),
        np.full(num_nodes, -1, np.int64),
        np.zeros(num_nodes),
        np.zeros((2, len(mix.sizes) + 1), np.int64),
        *_twins(nodes),
    )
    _fill_fragments(nodes, mix, memo)
    return memo


def _twins(nodes: Nodes) -> tuple[Longs, Longs]:
    columns = [nodes.cpu_milli, nodes.memory_mib, nodes.num_gpus, nodes.model, nodes.cpu_free_milli]
    states = np.column_stack([*columns, nodes.memory_free_mib, nodes.gpu_free_milli])
    _, first, kind = np.unique(states, axis=0, return_index=True, return_inverse=True)
    twin = first[kind.reshape(-1)].astype(np.int64)
    twin[first] = -1
    return twin, np.bincount(twin[twin >= 0], minlength=len(twin)).astype(np.int64)


@compiled
def _fill_fragments(nodes: Nodes, mix: Mix, memo: Memo) -> None:
    """Write the fragment milli of every node."""
    for node in range(len(nodes.cpu_milli)):
        free = nodes.gpu_free_milli[node]
        memo.fragment[node] = node_values.fragment(
            nodes.cpu_free_milli[node], free, -1, 0, nodes.model[node], mix, memo.scratch
        )


@compiled
def fitting(nodes: Nodes, asks: PodClasses, c: int) -> Mask:
    """(N,) whether a class fits on each node."""
    fits = np.zeros(len(nodes.cpu_milli), np.bool_)
    for node in range(len(fits)):
        fits[node] = fit_node(nodes, asks, c, node)
    return fits


@compiled
def can_run(nodes: Nodes, asks: PodClasses) -> Mask:
    """(C,) whether each class fits on any node."""
    fits = np.zeros(len(asks.cpu_milli), np.bool_)
    for node in range(len(nodes.cpu_milli)):
        mark_fitting(nodes, asks, node, fits)
    return fits


@compiled
def mark_fitting(nodes: Nodes, asks: PodClasses, node: int, fitting: Mask) -> None:
    """Set (C,) `fitting` for each class that fits on a node; others keep their value."""
    for c in range(len(fitting)):
        fitting[c] = fitting[c] or fit_node(nodes, asks, c, node)


@compiled
def _refresh(nodes: Nodes, asks: PodClasses, c: int, rank: int, mix: Mix, learned: Learned | None, memo: Memo) -> None:
    """Update a class's cached scores, and with a learned rank V of each node."""
    now = memo.num_changes[0]
    if learned is not None:
        _refresh_values(nodes, learned, memo)
    since = memo.seen[c]
    if since < 0 or now - since > _RING:
        for node in range(len(nodes.cpu_milli)):
            twin = memo.twin[node]
            if twin >= 0:
                memo.score[c, node], memo.gpu[c, node] = memo.score[c, twin], memo.gpu[c, twin]
            else:
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(
                    nodes, asks, c, node, rank, mix, learned, memo.fragment[node], memo.scratch
                )
    else:
        # `mark` is unique to this refresh, so that each changed node is evaluated once.
        mark = -2 - now * len(memo.seen) - c
        for change in range(now - 1, since - 1, -1):
            node = memo.changed[change & (_RING - 1)]
            if memo.checked[node] != mark:
                memo.checked[node] = mark
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(
                    nodes, asks, c, node, rank, mix, learned, memo.fragment[node], memo.scratch
                )
    memo.seen[c] = now


@compiled
def _refresh_values(nodes: Nodes, learned: Learned, memo: Memo) -> None:
    now, known = memo.num_changes[0], learned.known[0]
    outlook, potential, scratch, inputs = learned.outlook, learned.potential, learned.scratch, learned.inputs
    if known < 0 or now - known > _RING:
        for node in range(len(learned.values)):
            learned.values[node] = node_values.value_now(nodes, node, outlook, potential, scratch, inputs)
    else:
        for change in range(known, now):
            node = memo.changed[change & (_RING - 1)]
            learned.values[node] = node_values.value_now(nodes, node, outlook, potential, scratch, inputs)
    learned.known[0] = now


@compiled
def pick(score: Floats, tie: int, draw: float, last: int) -> tuple[int, int]:
    """Return the node chosen by (N,) scores, -1 if none fits, and `last` for the next decision.

    `draw` is uniform in [0, 1). `last` is the node chosen last (NEXT; -1 at first) or where the next sample begins
    (SAMPLED; 0 at first).
    """
    num_nodes = len(score)
    if tie == _FIRST:
        best, best_score = -1, _NOWHERE
        for node in range(num_nodes):
            if score[node] > best_score:
                best, best_score = node, score[node]
        return best, last
    begin, num_checked = 0, num_nodes
    if tie == _SAMPLED:
        wanted = _sample_size(num_nodes)
        begin = last
        num_feasible = 0
        for step in range(num_nodes):
            if score[(begin + step) % num_nodes] > _NOWHERE:
                num_feasible += 1
                if num_feasible == wanted:
                    num_checked = step + 1
                    break
    top, num_best = _NOWHERE, 0
    for step in range(num_checked):
        node = begin + step
        value = score[node if node < num_nodes else node - num_nodes]
        if value > top:
            top, num_best = value, 1
        elif value == top:
            num_best += 1
    if top == _NOWHERE:
        return -1, last
    skip = int(draw * num_best) if tie in (_RANDOM, _SAMPLED) else 0
    first = -1
    for node in range(num_nodes):
        if score[node] == top and (node - begin) % num_nodes < num_checked:
            if first < 0:
                first = node
            if tie == _NEXT:
                if node > last:
                    return node, node
            elif skip == 0:
                return node, (begin + num_checked) % num_nodes if tie == _SAMPLED else last
            skip -= 1
    return first, first


@compiled
def take(nodes: Nodes, asks: PodClasses, c: int, node: int, mix: Mix, memo: Memo) -> int:
    """Book a class on a node, on the cached GPU, and update the memo. Returns the GPUs taken as a bit mask."""
    taken = book(nodes, asks, c, node, memo.gpu[c, node])
    note_change(nodes, node, mix, memo)
    return taken


@compiled
def give_back(nodes: Nodes, asks: PodClasses, c: int, node: int, gpus: int, mix: Mix, memo: Memo) -> None:
    """Undo `take`, which returned `gpus`, and update the memo."""
    release(nodes, asks, c, node, gpus)
    note_change(nodes, node, mix, memo)


@compiled
def note_change(nodes: Nodes, node: int, mix: Mix, memo: Memo) -> None:
    """Record in the memo that a node changed."""
    free = nodes.gpu_free_milli[node]
    memo.fragment[node] = node_values.fragment(
        nodes.cpu_free_milli[node], free, -1, 0, nodes.model[node], mix, memo.scratch
    )
    if memo.twin[node] >= 0:
        memo.num_twins[memo.twin[node]] -= 1
        memo.twin[node] = -1
    elif memo.num_twins[node] > 0:
        # The first of its kind changed: the next one takes its place.
        heir = -1
        for other in range(node + 1, len(memo.twin)):
            if memo.twin[other] == node:
                if heir < 0:
                    heir = other
                    memo.twin[other] = -1
                else:
                    memo.twin[other] = heir
        memo.num_twins[heir] = memo.num_twins[node] - 1
        memo.num_twins[node] = 0
    memo.changed[memo.num_changes[0] & (_RING - 1)] = node
    memo.num_changes[0] += 1


@compiled
def decide(
    nodes: Nodes,
    asks: PodClasses,
    c: int,
    rank: int,
    tie: int,
    mix: Mix,
    learned: Learned | None,
    memo: Memo,
    draw: float,
    last: int,
) -> tuple[int, int]:
    """Return the node for a class, -1 if none fits, and `last` for the next decision."""
    _refresh(nodes, asks, c, rank, mix, learned, memo)
    return pick(memo.score[c], tie, draw, last)


@compiled
def place_all(
    nodes: Nodes,
    asks: PodClasses,
    classes: Longs,
    rank: int,
    tie: int,
    mix: Mix,
    learned: Learned | None,
    memo: Memo,
    draws: Floats,
    placed: Longs,
    gpus: Longs,
    fragments: Floats,
) -> None:
    """Offer P pods one after the other; none departs.

    `classes` and `draws` are (P,). Writes (P,) `placed`, the node or -1; (P,) `gpus`, the mask of GPUs taken; and (P,)
    `fragments`, the cluster's fragment milli afterwards.
    """
    total = 0.0
    for node in range(len(memo.fragment)):  # in order: a pairwise sum rounds differently
        total += memo.fragment[node]
    last = 0 if tie == _SAMPLED else -1
    for p in range(len(classes)):
        c = classes[p]
        node, last = decide(nodes, asks, c, rank, tie, mix, learned, memo, draws[p], last)
        placed[p] = node
        gpus[p] = 0
        if node >= 0:
            before = memo.fragment[node]
            gpus[p] = take(nodes, asks, c, node, mix, memo)
            total += memo.fragment[node] - before
        fragments[p] = total
