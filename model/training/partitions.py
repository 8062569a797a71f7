"""Weights of the worth of what a GPU has left (`extender.core.dra.packing`), learned on mixes of partitions by CMA-ES.

A candidate is tried by how much of what was asked for it has placed, by GPUs, of requests that come and go. The states
of a GPU, and how many partitions of each kind they have room for, do not depend on the weights: they are worked out
once, so that a replay costs milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.packing import GPU, Weights, kind_of, room_of, worth_of
from model.simulations.partitions import Memory, Offer, Policy, kerf, placed
from model.training import strategies
from model.workloads import partition_mixes
from model.workloads.nvidia import GPUS, GpuKind, inventory
from model.workloads.partition_mixes import Requests

_SIGMA: Final = 0.7
"""Of the first generation, in logarithms of weights."""
_LIMIT: Final = 4.0
"""Of logarithms of weights, either way: a kind of more, or of less, counts for all or for nothing."""
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What candidates are tried on."""

    kinds: tuple[str, ...]
    mixes: tuple[str, ...] = partition_mixes.names()
    num_gpus: int = 32
    load: float = 1.0
    num_requests: int = 500


class _Rooms:
    """The states of one GPU: what there is room for in each, and what may be given there."""

    def __init__(self, kind: GpuKind) -> None:
        self.inventory = inventory(kind, 1)
        devices = self.inventory.devices
        consumes = tuple(device.consumes for device in devices)
        self.names = tuple(dict.fromkeys(map(kind_of, devices)))
        """(K,) of the kinds."""
        alone = [Weights({name: 1.0}, 0.0) for name in self.names]
        self._rooms = [room_of(devices, consumes, self.inventory.counters, GPU, weights) for weights in alone]
        self._shares: dict[int, Floats] = {}
        self._given: dict[tuple[int, DevicesAsked], list[tuple[int, NodeDevices]]] = {}

    def share(self, state: NodeDevices) -> Floats:
        """(K,) how much room for each kind is there, of that of a free GPU."""
        if state.taken not in self._shares:
            # The worth of room for one kind alone is the square of that.
            worth = [worth_of(room, state.taken, state.left) / GPU for room in self._rooms]
            self._shares[state.taken] = np.sqrt(worth)
        return self._shares[state.taken]

    def given(self, state: NodeDevices, asked: DevicesAsked) -> list[tuple[int, NodeDevices]]:
        """The devices that do for one who asks for one, and the state after each."""
        key = state.taken, asked
        if key not in self._given:
            (ask,) = asked.claims[0].requests[0].alternatives
            self._given[key] = [
                (index, state.taking([Taking(index)]))
                for index, device in enumerate(self.inventory.devices)
                if not state.taken >> index & 1
                and all(state.left[counter] >= amount for counter, amount in device.consumes)
                and all(selector.matches(device) for selector in ask.selectors)
            ]
        return self._given[key]


def _quick(rooms: _Rooms, weights: Weights) -> Policy:
    """What `kerf` does with these weights, of what is known of the states."""
    of = np.array([weights.of(name) for name in rooms.names], float)
    of /= of.sum()

    def worth(state: NodeDevices) -> int:
        return round(GPU * float(of @ rooms.share(state)) ** 2)

    def offer(state: NodeDevices, asked: DevicesAsked) -> Offer | None:
        before = worth(state)
        losses = [(before - worth(after), device) for device, after in rooms.given(state, asked)]
        return Offer(*min(losses)) if losses else None

    return Policy("quick", offer, kerf(weights).order)


def _learned(
    plan: _Plan, seeds: Sequence[int], num_generations: int, tell: Callable[[str], None]
) -> tuple[tuple[float, ...], list[float]]:
    """Weights of the profiles in the order of `GpuKind.profiles`, and what the best of each generation has placed."""
    trial = _Trial(plan, seeds)
    num_profiles = len(GPUS[plan.kinds[0]].profiles)
    state = strategies.begin(np.zeros(num_profiles), _SIGMA)
    num = strategies.population_size(num_profiles)
    best: list[float] = []
    for generation in range(num_generations):
        tried = strategies.candidates(state, num, _SEED)
        success = np.array([trial.placed(np.exp(np.clip(row, -_LIMIT, _LIMIT)).tolist()) for row in tried])
        state = strategies.updated(state, tried, success)
        best.append(float(success.max()))
        tell(f"generation {generation + 1}: {best[-1]:.3f} %")
    return tuple(np.exp(np.clip(state.mean, -_LIMIT, _LIMIT)).tolist()), best


def _by_kind(kind: GpuKind, weights: Sequence[float]) -> Weights:
    """Weights of the profiles in their order, by name; a GPU published as a whole has the weight 1."""
    return Weights({profile.name: weight for profile, weight in zip(kind.profiles, weights, strict=True)})


class _Trial:
    """Requests on which candidates are tried."""

    def __init__(self, plan: _Plan, seeds: Sequence[int]) -> None:
        self._plan = plan
        self._rooms = {kind: _Rooms(GPUS[kind]) for kind in plan.kinds}
        self._requests = [
            (
                kind,
                partition_mixes.leaving(GPUS[kind], mix, plan.num_gpus, plan.load, seed, plan.num_requests),
            )
            for kind in plan.kinds
            for mix in plan.mixes
            for seed in seeds
        ]

    def placed(self, weights: Sequence[float]) -> float:
        """What was placed of what was asked for, by GPUs, in percent: the mean over all lists."""
        return float(np.mean(self.each(weights)))

    def each(self, weights: Sequence[float]) -> list[float]:
        """The same of each list."""
        memories = {
            kind: Memory(GPUS[kind], _quick(rooms, _by_kind(GPUS[kind], weights)))
            for kind, rooms in self._rooms.items()
        }
        return [self._share(memories[kind], requests) for kind, requests in self._requests]

    def _share(self, memory: Memory, requests: Requests) -> float:
        placed_ = np.array(placed(memory, self._plan.num_gpus, requests))
        counted = slice(len(placed_) // 3, None)
        return 100 * float(requests.share[counted][placed_[counted]].sum() / requests.share[counted].sum())
