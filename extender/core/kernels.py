"""Compiled twins of `packing` and `fragments`, for simulations: the same bits, a node at a time.

Needs numba, which the service does without: import it only where simulations run.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from extender.core import packing
from extender.core.clusters import Floats, Longs, Mask
from extender.core.fragments import THRESHOLDS, Mix
from extender.core.packing import Asks, Nodes, Rank, Tie

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FGD, _BESTFIT, _BINPACK, _SPREAD, _KUBE = (
    int(rank) for rank in (Rank.FGD, Rank.BESTFIT, Rank.BINPACK, Rank.SPREAD, Rank.KUBE)
)
_FIRST, _RANDOM, _NEXT, _SAMPLED = int(Tie.FIRST), int(Tie.RANDOM), int(Tie.NEXT), int(Tie.SAMPLED)
_GPU_MILLI: Final = packing.GPU_MILLI
_KUBE_CPU, _KUBE_MEMORY = packing.KUBE_CPU_MILLI, packing.KUBE_MEMORY_MIB
_BESTFIT_CPU, _BESTFIT_GPU = packing.BESTFIT_CPU_MILLI, packing.BESTFIT_GPU_MILLI
_NOWHERE: Final = -np.inf
_RING: Final = 1024  # a power of two: its remainders are cheap


def compiled(function: _Function) -> _Function:
    """Compile on first use and keep the result on disk; where no folder is writable, compile in each process."""
    try:
        made: Any = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba: "no locator available"
        made = numba.njit(error_model="numpy")(function)
    return cast("_Function", made)


class Memo(NamedTuple):
    """Scores remembered per class and node until the node changes."""

    score: Floats
    """(C, N)."""
    gpu: npt.NDArray[np.int8]
    """(C, N) GPU of a share."""
    seen: Longs
    """(C,) number of changes that the class's row knows of, -1 at first."""
    changed: Longs
    """(_RING,) the nodes that changed last."""
    num_changes: Longs
    """(1,)."""
    checked: Longs
    """(N,) number of changes at the last look at a node, to look once at a node that changed often."""
    fragment: Floats
    """(N,) each node's fragment milli now."""
    scratch: Longs
    """(2, U + 1) room for a node's count of GPUs and idle milli per size of the mix."""
    twin: Longs
    """(N,) an earlier node that began in the same state, -1 for the first of its kind or once a node has changed."""
    num_twins: Longs
    """(N,) how many nodes have this one as their twin."""


def memo_of(num_classes: int, nodes: Nodes, mix: Mix) -> Memo:
    """An empty memo for nodes in their present state."""
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
    fill_fragments(nodes, mix, memo)
    return memo


def _twins(nodes: Nodes) -> tuple[Longs, Longs]:
    columns = [nodes.cpu_milli, nodes.memory_mib, nodes.num_gpus, nodes.model, nodes.cpu_free_milli]
    states = np.column_stack([*columns, nodes.memory_free_mib, nodes.gpu_free_milli])
    _, first, kind = np.unique(states, axis=0, return_index=True, return_inverse=True)
    twin = first[kind.reshape(-1)].astype(np.int64)
    twin[first] = -1
    return twin, np.bincount(twin[twin >= 0], minlength=len(twin)).astype(np.int64)


@compiled
def fill_fragments(nodes: Nodes, mix: Mix, memo: Memo) -> None:
    """Write the fragment milli of every node."""
    for node in range(len(nodes.cpu_milli)):
        free = nodes.gpu_free_milli[node]
        memo.fragment[node] = fragment(nodes.cpu_free_milli[node], free, -1, 0, nodes.model[node], mix, memo.scratch)


@compiled
def fragment(
    cpu_free: int, free: npt.NDArray[np.int32], gpu: int, milli: int, model: int, mix: Mix, scratch: Longs
) -> float:
    """`fragments.fragment_milli` of one node, `milli` less on one of its GPUs."""
    idle = 0
    num_sizes = len(mix.sizes)
    for u in range(num_sizes + 1):
        scratch[0, u] = 0
        scratch[1, u] = 0
    for g in range(len(free)):
        left = free[g] - (milli if g == gpu else 0)
        if left > 0:
            idle += left
            within = mix.num_sizes_within[left]  # it is too small for the sizes from there on
            scratch[0, within] += 1
            scratch[1, within] += left
    if idle == 0:
        return 0.0
    # From counts by the largest size that a GPU suffices for to: GPUs large enough for a size, milli on the others.
    num_enough, too_small = 0, idle
    for u in range(num_sizes, 0, -1):
        num_enough += scratch[0, u]
        too_small -= scratch[1, u]
        scratch[0, u] = num_enough
        scratch[1, u] = too_small
    lacks_both, lacks_gpu, lacks_cpu, no_gpu_asked, no_gpu_no_cpu, wrong_model = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(len(mix.frequency)):
        all_idle = mix.frequency[k] * idle
        enough_cpu = cpu_free >= mix.cpu_milli[k]
        num = mix.num_gpus[k]
        if num == 0:
            if enough_cpu:
                no_gpu_asked += all_idle
            else:
                no_gpu_no_cpu += all_idle
        elif (mix.models[k] >> model) & 1 == 0:
            wrong_model += all_idle
        elif scratch[0, mix.size[k] + 1] >= num:
            if enough_cpu:
                lacks_gpu += mix.frequency[k] * scratch[1, mix.size[k] + 1]
            else:
                lacks_cpu += all_idle
        elif enough_cpu:
            lacks_gpu += all_idle
        else:
            lacks_both += all_idle
    return ((((lacks_both + lacks_gpu) + lacks_cpu) + no_gpu_asked) + no_gpu_no_cpu) + wrong_model


@compiled
def fgd(before: float, after: float) -> int:
    """`fragments.fgd_score` of one node."""
    gain = (before - after) / 1000
    low, high = 0, len(THRESHOLDS)
    while low < high:
        middle = (low + high) // 2
        if gain >= THRESHOLDS[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def fit_node(nodes: Nodes, asks: Asks, c: int, node: int) -> bool:
    """`packing.fits` of one node."""
    if nodes.cpu_free_milli[node] < asks.cpu_milli[c] or nodes.memory_free_mib[node] < asks.memory_mib[c]:
        return False
    num = asks.num_gpus[c]
    if num == 0:
        return True
    if nodes.model[node] < 0 or (asks.models[c] >> nodes.model[node]) & 1 == 0:
        return False
    found = 0
    for g in range(nodes.gpu_free_milli.shape[1]):
        if nodes.gpu_free_milli[node, g] >= asks.gpu_milli[c]:
            found += 1
            if found >= num:
                return True
    return False


@compiled
def mark_fitting(nodes: Nodes, asks: Asks, node: int, fitting: Mask) -> None:
    """Set (C,) `fitting` for each class that a node has room for; others are left as they are."""
    for c in range(len(fitting)):
        fitting[c] = fitting[c] or fit_node(nodes, asks, c, node)


@compiled
def balance(cpu_used: int, cpu: int, memory_used: int, memory: int) -> int:
    """`packing._balance` of one node."""
    cpu_frac = min(cpu_used / max(cpu, 1), 1.0)
    memory_frac = min(memory_used / max(memory, 1), 1.0)
    return int((1 - abs((cpu_frac - memory_frac) / 2)) * 100)


@compiled
def kube(nodes: Nodes, asks: Asks, c: int, node: int) -> int:
    """`packing._kube_score` of one node."""
    cpu, memory = nodes.cpu_milli[node], nodes.memory_mib[node]
    cpu_free, memory_free = nodes.cpu_free_milli[node], nodes.memory_free_mib[node]
    asked_cpu, asked_memory = asks.cpu_milli[c], asks.memory_mib[c]
    least = max(cpu_free - (asked_cpu if asked_cpu > 0 else _KUBE_CPU), 0) * 100 // max(cpu, 1)
    least += max(memory_free - (asked_memory if asked_memory > 0 else _KUBE_MEMORY), 0) * 100 // max(memory, 1)
    least //= 2
    if asked_cpu == 0 and asked_memory == 0:
        return int(least)
    after = balance(cpu - cpu_free + asked_cpu, cpu, memory - memory_free + asked_memory, memory)
    before = balance(cpu - cpu_free, cpu, memory - memory_free, memory)
    return int(least + 50 + (50 + after - before) // 2)


@compiled
def evaluate_node(nodes: Nodes, asks: Asks, c: int, node: int, rank: int, mix: Mix, memo: Memo) -> tuple[float, int]:
    """`packing.evaluate` of one node."""
    if not fit_node(nodes, asks, c, node):
        return _NOWHERE, -1
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    free = nodes.gpu_free_milli[node]
    cpu_left = nodes.cpu_free_milli[node] - asks.cpu_milli[c]
    share = 0 < milli < _GPU_MILLI
    gpu = -1
    score = 0.0
    if rank == _FGD:
        model = nodes.model[node]
        before = memo.fragment[node]
        if share:
            score = -1.0
            for g in range(len(free)):
                if free[g] < milli:
                    continue
                known = False  # equal remainders give equal scores, and the first one wins
                for earlier in range(g):
                    known = known or free[earlier] == free[g]
                if known:
                    continue
                value = fgd(before, fragment(cpu_left, free, g, milli, model, mix, memo.scratch))
                if value > score:
                    score, gpu = float(value), g
            return score, gpu
        after = free.copy()
        taken = 0
        for g in range(len(free)):
            if taken < num and free[g] == _GPU_MILLI:
                after[g] = 0
                taken += 1
        return float(fgd(before, fragment(cpu_left, after, -1, 0, model, mix, memo.scratch))), -1
    if share:
        for g in range(len(free)):
            if free[g] < milli:
                continue
            if (
                gpu < 0
                or ((rank in (_BESTFIT, _BINPACK)) and free[g] < free[gpu])
                or (rank == _SPREAD and free[g] > free[gpu])
            ):
                gpu = g
    gpu_left = -num * milli
    for g in range(len(free)):
        gpu_left += free[g]
    if rank == _BESTFIT:
        score = np.trunc((1 - (0.5 * cpu_left / _BESTFIT_CPU + 0.5 * gpu_left / _BESTFIT_GPU)) * 100)
    elif rank in (_BINPACK, _SPREAD):
        if num > 0:
            score = 1 - gpu_left / max(nodes.num_gpus[node] * _GPU_MILLI, 1)
        else:
            score = 1 - cpu_left / max(nodes.cpu_milli[node], 1)
        if rank == _SPREAD:
            score = -score
    elif rank == _KUBE:
        score = float(kube(nodes, asks, c, node))
    return score, gpu


@compiled
def refresh(nodes: Nodes, asks: Asks, c: int, rank: int, mix: Mix, memo: Memo) -> None:
    """Bring a class's remembered scores up to date."""
    now = memo.num_changes[0]
    since = memo.seen[c]
    if since < 0 or now - since > _RING:
        for node in range(len(nodes.cpu_milli)):
            twin = memo.twin[node]
            if twin >= 0:
                memo.score[c, node], memo.gpu[c, node] = memo.score[c, twin], memo.gpu[c, twin]
            else:
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(nodes, asks, c, node, rank, mix, memo)
    else:
        # From the newest change back: a node is looked at once, `checked` has a value of this look only.
        mark = -2 - now * len(memo.seen) - c
        for change in range(now - 1, since - 1, -1):
            node = memo.changed[change & (_RING - 1)]
            if memo.checked[node] != mark:
                memo.checked[node] = mark
                memo.score[c, node], memo.gpu[c, node] = evaluate_node(nodes, asks, c, node, rank, mix, memo)
    memo.seen[c] = now


@compiled
def pick(score: Floats, tie: int, draw: float, last: int) -> tuple[int, int]:
    """`packing.pick`."""
    num_nodes = len(score)
    if tie == _FIRST:
        best, best_score = -1, _NOWHERE
        for node in range(num_nodes):
            if score[node] > best_score:
                best, best_score = node, score[node]
        return best, last
    begin, looked_at = 0, num_nodes
    if tie == _SAMPLED:
        wanted = num_nodes if num_nodes < 100 else max(num_nodes * max(50 - num_nodes // 125, 5) // 100, 100)
        begin = last
        found = 0
        for step in range(num_nodes):
            if score[(begin + step) % num_nodes] > _NOWHERE:
                found += 1
                if found == wanted:
                    looked_at = step + 1
                    break
    top, num_best = _NOWHERE, 0
    for step in range(looked_at):
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
        if score[node] == top and (node - begin) % num_nodes < looked_at:
            if first < 0:
                first = node
            if tie == _NEXT:
                if node > last:
                    return node, node
            elif skip == 0:
                return node, (begin + looked_at) % num_nodes if tie == _SAMPLED else last
            skip -= 1
    return first, first


@compiled
def take(nodes: Nodes, asks: Asks, c: int, node: int, mix: Mix, memo: Memo) -> int:
    """`packing.take` of what was remembered for a class on a node; the memo hears of it."""
    nodes.cpu_free_milli[node] -= asks.cpu_milli[c]
    nodes.memory_free_mib[node] -= asks.memory_mib[c]
    num, milli = asks.num_gpus[c], asks.gpu_milli[c]
    taken = 0
    if num > 0 and milli < _GPU_MILLI:
        gpu = memo.gpu[c, node]
        nodes.gpu_free_milli[node, gpu] -= milli
        taken = 1 << gpu
    elif num > 0:
        for g in range(nodes.gpu_free_milli.shape[1]):
            if num > 0 and nodes.gpu_free_milli[node, g] == _GPU_MILLI:
                nodes.gpu_free_milli[node, g] = 0
                taken |= 1 << g
                num -= 1
    note_change(nodes, node, mix, memo)
    return taken


@compiled
def give_back(nodes: Nodes, asks: Asks, c: int, node: int, gpus: int, mix: Mix, memo: Memo) -> None:
    """`packing.give_back`; the memo hears of it."""
    nodes.cpu_free_milli[node] += asks.cpu_milli[c]
    nodes.memory_free_mib[node] += asks.memory_mib[c]
    for g in range(nodes.gpu_free_milli.shape[1]):
        if (gpus >> g) & 1 == 1:
            nodes.gpu_free_milli[node, g] += asks.gpu_milli[c]
    note_change(nodes, node, mix, memo)


@compiled
def note_change(nodes: Nodes, node: int, mix: Mix, memo: Memo) -> None:
    """Tell the memo that a node changed."""
    free = nodes.gpu_free_milli[node]
    memo.fragment[node] = fragment(nodes.cpu_free_milli[node], free, -1, 0, nodes.model[node], mix, memo.scratch)
    if memo.twin[node] >= 0:
        memo.num_twins[memo.twin[node]] -= 1
        memo.twin[node] = -1
    elif memo.num_twins[node] > 0:
        # The first of its kind changes: the next one takes its place.
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
    nodes: Nodes, asks: Asks, c: int, rank: int, tie: int, mix: Mix, memo: Memo, draw: float, last: int
) -> tuple[int, int]:
    """The node for a class, -1 when none fits, and `last` for the next decision."""
    refresh(nodes, asks, c, rank, mix, memo)
    return pick(memo.score[c], tie, draw, last)


@compiled
def place_all(
    nodes: Nodes,
    asks: Asks,
    classes: Longs,
    rank: int,
    tie: int,
    mix: Mix,
    memo: Memo,
    draws: Floats,
    placed: Longs,
    gpus: Longs,
    fragments: Floats,
) -> None:
    """Offer P pods one after the other; none departs.

    `classes` and `draws` are (P,). Writes (P,) `placed`, the node or -1, (P,) `gpus`, the bits taken, and (P,)
    `fragments`, the cluster's fragment milli afterwards.
    """
    total = 0.0
    for node in range(len(memo.fragment)):  # one after the other: a sum by halves rounds otherwise
        total += memo.fragment[node]
    last = 0 if tie == _SAMPLED else -1
    for p in range(len(classes)):
        c = classes[p]
        node, last = decide(nodes, asks, c, rank, tie, mix, memo, draws[p], last)
        placed[p] = node
        gpus[p] = 0
        if node >= 0:
            before = memo.fragment[node]
            gpus[p] = take(nodes, asks, c, node, mix, memo)
            total += memo.fragment[node] - before
        fragments[p] = total
