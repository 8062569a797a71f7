"""Fragmentation: how much idle GPU the pods that are likely to come can't use, and FGD's score from it.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC'23)
and its published simulator (hkust-adsl/kubernetes-scheduler-simulator, pkg/utils/frag.go). FGD's integer scores tie
often, and which of two equal sums comes out larger by a rounding error decides placements: sums are therefore taken
in that program's order, one partial sum per kind of fragment.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Floats, Longs


class TypicalPod(NamedTuple):
    """A class of the mix and how many pods it stands for."""

    cpu_milli: int
    num_gpus: int
    gpu_milli: int
    models: int
    """Bits of the models allowed."""
    num_pods: int


class Mix(NamedTuple):
    """K classes of typical pods as arrays."""

    cpu_milli: Longs
    num_gpus: Longs
    models: Longs
    frequency: Floats
    """(K,) they sum to 1."""
    size: Longs
    """(K,) index into `sizes`."""
    sizes: Longs
    """(U,) distinct GPU milli that the classes ask of each GPU, ascending."""
    num_sizes_within: Longs
    """(1001,) how many of `sizes` each number of milli left on a GPU suffices for."""


def mix_of(pods: Sequence[TypicalPod], num_pods: int) -> Mix:
    """The arrays of a mix drawn from `num_pods` pods; an empty mix finds no fragments."""
    cpu, num, milli, models, count = (np.array([pod[i] for pod in pods], dtype=np.int64) for i in range(5))
    sizes, size = np.unique(milli, return_inverse=True)
    frequency = (count / num_pods) / (count.sum() / num_pods)  # in two steps, as published: each rounds
    num_sizes_within = np.searchsorted(sizes, np.arange(1001), side="right").astype(np.int64)
    return Mix(cpu, num, models, frequency, size.astype(np.int64), sizes, num_sizes_within)


# Kinds of fragments, in the order in which the published program adds them up.
_LACKS_BOTH, _LACKS_GPU, _LACKS_CPU, _NO_GPU_ASKED, _NO_GPU_NO_CPU, _WRONG_MODEL, _NUM_KINDS = range(7)


def fragment_milli(cpu_free_milli: Longs, gpu_free_milli: Longs, model: Longs, mix: Mix) -> Floats:
    """(R,) idle GPU milli that the next pod is expected to be unable to use.

    On a node that can host a class, what is idle on GPUs too small for it; where it can't, or when the class needs
    no GPU, all that is idle. `gpu_free_milli` is (R, G), `model` (R,) with -1 for none.
    """
    idle = gpu_free_milli.sum(axis=1)
    parts = np.zeros((len(idle), _NUM_KINDS))
    every = np.arange(len(idle))
    for k in range(len(mix.frequency)):
        large_enough = gpu_free_milli >= mix.sizes[mix.size[k]]  # (R, G)
        lacks_cpu = cpu_free_milli < mix.cpu_milli[k]
        useless = idle
        if mix.num_gpus[k] == 0:
            kind = np.where(lacks_cpu, _NO_GPU_NO_CPU, _NO_GPU_ASKED)
        else:
            allowed = (model >= 0) & ((int(mix.models[k]) >> np.maximum(model, 0)) & 1 == 1)
            lacks_gpu = large_enough.sum(axis=1) < mix.num_gpus[k]
            kind = np.where(lacks_cpu, np.where(lacks_gpu, _LACKS_BOTH, _LACKS_CPU), _LACKS_GPU)
            kind = np.where(allowed, kind, _WRONG_MODEL)
            hosted = allowed & ~lacks_cpu & ~lacks_gpu
            useless = np.where(hosted, np.where(large_enough, 0, gpu_free_milli).sum(axis=1), idle)
        parts[every, kind] += mix.frequency[k] * useless
    total = np.zeros(len(idle))
    for kind_idx in range(_NUM_KINDS):
        total += parts[:, kind_idx]
    return total


def _percent(gain: float) -> int:
    return int(1 / (1 + math.exp(-gain)) * 100)


def _threshold(percent: int) -> float:
    """The smallest number whose sigmoid in percent is rounded down to no less: by bisection, to the last bit."""
    low, high = -8.0, 8.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _percent(middle) >= percent else (middle, high)
    return high


THRESHOLDS: Final = np.array([_threshold(percent) for percent in range(1, 100)])
"""Where the score steps up: a table, because vectorised exponentials differ from others in their last bit.

A node of 32 GPUs can't reach 100: 1 - sigmoid(32) > 1e-14.
"""


def fgd_score(before: Floats, after: Floats) -> Floats:
    """(R,) int(100 x sigmoid(F_before - F_after)), F in GPUs: 50 when nothing changes, more when fragments shrink."""
    return np.searchsorted(THRESHOLDS, (before - after) / 1000, side="right").astype(np.float64)
