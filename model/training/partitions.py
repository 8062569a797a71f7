"""Learning of the weights in a GPU's worth (`extender.core.dra.packing`) on mixes of partitions by CMA-ES.

The fitness of a candidate is the fraction of requested GPU that it places, with departures. The states of a GPU and
their room for each kind of partition do not depend on the weights: they are cached, so that a replay takes
milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.packing import GPU, Weights, kind_of, room_of, worth_of
from model.simulations.partitions import Memory, Offer, Policy, kerf, placed
from model.training import strategies
from model.workloads import partition_mixes
from model.workloads.nvidia import GPUS, GpuKind, inventory
from model.workloads.partition_mixes import Requests

_SIGMA: Final = 0.7
"""Initial step size in log weights."""
_LIMIT: Final = 4.0
"""Bound of the absolute log weights."""
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """Workloads for candidates."""

    kinds: tuple[str, ...]
    mixes: tuple[str, ...] = partition_mixes.names()
    num_gpus: int = 32
    load: float = 1.0
    num_requests: int = 500


class _Rooms:
    """Cache of a GPU's states: room for each kind of partition, and possible placements."""

    def __init__(self, kind: GpuKind) -> None:
        self.inventory = inventory(kind, 1)
        devices = self.inventory.devices
        consumes = tuple(device.consumes for device in devices)
        self.names = tuple(dict.fromkeys(map(kind_of, devices)))
        """(K,) names of the kinds."""
        alone = [Weights({name: 1.0}, 0.0) for name in self.names]
        self._rooms = [room_of(devices, consumes, self.inventory.counters, GPU, weights) for weights in alone]
        self._shares: dict[int, Floats] = {}
        self._given: dict[tuple[int, DeviceClaims], list[tuple[int, NodeDevices]]] = {}

    def share(self, state: NodeDevices) -> Floats:
        """(K,) room for each kind, as a fraction of a free GPU's."""
        if state.taken not in self._shares:
            # The worth with one kind only is the square of its room.
            worth = [worth_of(room, state.taken, state.left) / GPU for room in self._rooms]
            self._shares[state.taken] = np.sqrt(worth)
        return self._shares[state.taken]

    def given(self, state: NodeDevices, request: DeviceClaims) -> list[tuple[int, NodeDevices]]:
        """Return the devices that match a request, with the state after each."""
        key = state.taken, request
        if key not in self._given:
            (ask,) = request.claims[0].requests[0].alternatives
            self._given[key] = [
                (index, state.taking([Taking(index)]))
                for index, device in enumerate(self.inventory.devices)
                if not state.taken >> index & 1
                and all(state.left[counter] >= amount for counter, amount in device.consumes)
                and all(selector.matches(device) for selector in ask.selectors)
            ]
        return self._given[key]


def _quick(rooms: _Rooms, weights: Weights) -> Policy:
    """Return a fast equivalent of `kerf` with these weights."""
    weight_of = np.array([weights.of(name) for name in rooms.names], float)
    weight_of /= weight_of.sum()

    def worth(state: NodeDevices) -> int:
        return round(GPU * float(weight_of @ rooms.share(state)) ** 2)

    def offer(state: NodeDevices, request: DeviceClaims) -> Offer | None:
        before = worth(state)
        losses = [(before - worth(after), device) for device, after in rooms.given(state, request)]
        return Offer(*min(losses)) if losses else None

    return Policy("quick", offer, kerf(weights).order)


def _learned(
    plan: _Plan, seeds: Sequence[int], num_generations: int, on_step: Callable[[str], None]
) -> tuple[tuple[float, ...], list[float]]:
    """Return weights in the order of `GpuKind.profiles`, and the best fitness of each generation."""
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
        on_step(f"generation {generation + 1}: {best[-1]:.3f} %")
    return tuple(np.exp(np.clip(state.mean, -_LIMIT, _LIMIT)).tolist()), best


def _by_kind(kind: GpuKind, weights: Sequence[float]) -> Weights:
    """Return weights by profile name; a whole GPU has weight 1."""
    return Weights({profile.name: weight for profile, weight in zip(kind.profiles, weights, strict=True)})


class _Trial:
    """Fitness of candidates on lists of requests."""

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
        """Return the placed fraction of requested GPU in percent: the mean over all lists."""
        return float(np.mean(self.each(weights)))

    def each(self, weights: Sequence[float]) -> list[float]:
        """Return the placed fraction for each list."""
        memories = {
            kind: Memory(GPUS[kind], _quick(rooms, _by_kind(GPUS[kind], weights)))
            for kind, rooms in self._rooms.items()
        }
        return [self._share(memories[kind], requests) for kind, requests in self._requests]

    def _share(self, memory: Memory, requests: Requests) -> float:
        placed_ = np.array(placed(memory, self._plan.num_gpus, requests))
        counted = slice(len(placed_) // 3, None)
        return 100 * float(requests.share[counted][placed_[counted]].sum() / requests.share[counted].sum())
