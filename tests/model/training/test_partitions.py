"""Learning what the room for each kind of partition is worth."""

import numpy as np
import pytest

from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.packing import Weights
from model.simulations.partitions import kerf
from model.training.partitions import _by_kind, _learned, _Plan, _quick, _Rooms, _Trial
from model.workloads.nvidia import GPUS
from model.workloads.partition_mixes import ask_for


@pytest.mark.parametrize("kind", ["a100-40gb", "h100-80gb"])
def test_the_quick_choice_is_the_services_own(kind: str) -> None:
    rng, gpu = np.random.default_rng(3), GPUS[kind]
    rooms = _Rooms(gpu)
    asks = [ask_for(profile) for profile in gpu.profiles]
    for weights in (Weights(), _by_kind(gpu, rng.lognormal(0, 1, 7).tolist())):
        fast, slow = _quick(rooms, weights), kerf(weights)
        for _ in range(12):
            state = NodeDevices.of(rooms.inventory)
            for number in rng.integers(0, len(asks), 4).tolist():
                offers = fast.offer(state, asks[number]), slow.offer(state, asks[number])
                assert (offers[0] and offers[0].device) == (offers[1] and offers[1].device)
                if offers[0]:
                    state = state.taking([Taking(offers[0].device)])


def test_learning_is_the_same_each_time_and_finds_no_less_than_it_began_with() -> None:
    told: list[str] = []
    few = _Plan(("a100-40gb",), ("uniform", "large"), 8, 1.1, 40)
    weights, best = _learned(few, (1001, 1002), 2, told.append)
    assert _learned(few, (1001, 1002), 2, told.append) == (weights, best)
    assert len(told) == 4
    assert max(best) >= _Trial(few, (1001, 1002)).placed([1.0] * 7)


def test_only_the_proportions_of_weights_count() -> None:
    trial = _Trial(_Plan(("a100-40gb",), ("uniform", "large"), 16, 1.1, 120), (1, 2, 3))
    equal = trial.each([1.0] * 7)
    assert np.array_equal(trial.each([2.0] * 7), equal)
    # With nothing but the room for 1g.5gb worth something, GPUs are broken up that others could use.
    assert np.mean(trial.each([1.0, 0, 0, 0, 0, 0, 0])) < np.mean(equal)
