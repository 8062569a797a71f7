"""Partitions placed by policies."""

import numpy as np
import pytest

from extender.core.dra.allocator import _allocate
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.first_fit import first_fit
from extender.core.dra.packing import Weights
from model.evaluation.partitions import _gpus_bound
from model.simulations.partitions import (
    _GPUS_PER_NODE,
    BEST_FIT,
    FIRST_FIT,
    KUBE_SCHEDULER,
    Memory,
    Policy,
    _Placing,
    gpus_needed,
    kerf,
    placed,
)
from model.workloads.nvidia import GPUS, inventory
from model.workloads.partition_mixes import Requests, _weights_of, ask_for, leaving, names, staying

A100 = GPUS["a100-40gb"]
BY_NAME = {profile.name: number for number, profile in enumerate(A100.profiles)}
POLICIES = (FIRST_FIT, KUBE_SCHEDULER, BEST_FIT, kerf(Weights()))


def requests(*profiles: str) -> Requests:
    """In this order; they stay."""
    numbers = np.array([BY_NAME[name] for name in profiles])
    share = np.array([A100.profiles[number].share for number in numbers])
    return Requests(numbers, share, np.arange(len(numbers), dtype=float), np.full(len(numbers), np.inf))


class Slowly:
    """Whole nodes, read for each request: what `_Placing` must do."""

    def __init__(self, policy: str, num_nodes: int) -> None:
        self.policy = policy
        self.nodes = [NodeDevices.of(inventory(A100, _GPUS_PER_NODE)) for _ in range(num_nodes)]

    def place(self, profile: int) -> tuple[int, int] | None:
        asked = ask_for(A100.profiles[profile])
        offers: list[tuple[tuple[float, ...], int, int]] = []
        for row, node in enumerate(self.nodes):
            devices = enumerate(node.inventory.devices)
            taken = sum(device.milli for index, device in devices if node.taken >> index & 1)
            if self.policy == "kerf":
                if found := _allocate(node, asked):
                    offers.append(((found.loss, -taken, row), row, found.takings[0].device))
            elif picked := first_fit(node, asked):
                rank = (row,) if self.policy == "first-fit" else (taken, row)
                offers.append((rank, row, picked[0][2].device))
        if not offers:
            return None
        _, row, device = min(offers)
        self.nodes[row] = self.nodes[row].taking([Taking(device)])
        return row, device

    def give_back(self, row: int, device: int) -> None:
        self.nodes[row] = self.nodes[row].giving_back([Taking(device)])


@pytest.mark.parametrize("policy", [FIRST_FIT, KUBE_SCHEDULER, kerf(Weights())], ids=lambda policy: policy.name)
def test_gpu_by_gpu_is_as_on_whole_nodes(policy: Policy) -> None:
    rng = np.random.default_rng(7)
    quick, slow = _Placing(Memory(A100, policy), 2 * _GPUS_PER_NODE), Slowly(policy.name, 2)
    per_gpu = len(inventory(A100, 1).devices)
    there: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for _ in range(60):
        if there and rng.random() < 0.35:
            mine, its = there.pop(int(rng.integers(len(there))))
            quick.give_back(*mine)
            slow.give_back(*its)
            continue
        profile = int(rng.integers(len(A100.profiles)))
        mine_or_none, its_or_none = quick.place(profile), slow.place(profile)
        assert (mine_or_none is None) == (its_or_none is None)
        if mine_or_none and its_or_none:
            gpu, device = mine_or_none
            row, position = divmod(gpu, _GPUS_PER_NODE)
            assert (row, position * per_gpu + device) == its_or_none
            there.append((mine_or_none, its_or_none))
    assert len(there) > 15


def test_first_fit_spoils_a_gpu_for_larger_partitions_and_kerf_does_not() -> None:
    # First fit puts 1g.5gb on memory slice 0, where alone 4g.20gb could begin; Kerf puts it on 4 or later.
    given = requests("1g.5gb", "4g.20gb")
    assert gpus_needed(Memory(A100, FIRST_FIT), given) == 2
    assert gpus_needed(Memory(A100, kerf(Weights())), given) == 1


def test_best_fit_takes_the_gpu_with_least_left() -> None:
    # 2g.10gb at 0 keeps 4g.20gb off GPU 0. Then 5/7 are left of that, 3/7 of GPU 1, and one more 2g.10gb fits on both.
    for policy, gpus in ((FIRST_FIT, [0, 1, 0]), (BEST_FIT, [0, 1, 1])):
        placing = _Placing(Memory(A100, policy), 2)
        found = [placing.place(BY_NAME[name]) for name in ("2g.10gb", "4g.20gb", "2g.10gb")]
        assert [at and at[0] for at in found] == gpus


def test_those_who_leave_make_room() -> None:
    given = requests("7g.40gb", "7g.40gb")
    stays = Requests(given.profiles, given.share, np.array([0.0, 2.0]), np.array([3.0, 1.0]))
    leaves = Requests(given.profiles, given.share, np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    memory = Memory(A100, FIRST_FIT)
    assert placed(memory, 1, stays) == [True, False]
    assert placed(memory, 1, leaves) == [True, True]
    assert (stays.most_at_once, leaves.most_at_once) == (2.0, 1.0)


def test_nobody_passes_the_bound() -> None:
    for mix in names():
        for given in (staying(A100, mix, 8, 1.0, 3), leaving(A100, mix, 8, 0.9, 3, 80)):
            bound = _gpus_bound("a100-40gb", given)
            assert bound >= given.most_at_once / 2
            assert all(gpus_needed(Memory(A100, policy), given) >= bound for policy in POLICIES)
    # 3 x 4g.20gb need 3 GPUs, beside which 3 x 3g.20gb find room; a fourth 3g.20gb is half a GPU more.
    assert _gpus_bound("a100-40gb", requests(*["4g.20gb"] * 3, *["3g.20gb"] * 3)) == 3
    assert _gpus_bound("a100-40gb", requests(*["4g.20gb"] * 3, *["3g.20gb"] * 4)) == 4


def test_requests_are_drawn_by_seed_and_mix() -> None:
    def drawn(seed: int, mix: str = "drawn") -> list[int]:
        numbers: list[int] = leaving(A100, mix, 8, 1.0, seed, 50).profiles.tolist()
        return numbers

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1, "small") != drawn(1, "large")
    assert not set(drawn(1, "inference")) & {BY_NAME["7g.40gb"]}
    with pytest.raises(ValueError, match="unknown mix 'tiny'"):
        _weights_of("tiny", 1)


def test_work_that_leaves_is_as_much_as_was_asked_for() -> None:
    given = leaving(A100, "uniform", 64, 0.9, 1, 60_000)
    work = float((given.share * given.duration).sum()) / float(given.arrived[-1])
    assert work == pytest.approx(0.9 * 64, rel=0.03)
