"""What the claims on one node come to, worked out by hand: who has room of their own, and what is left of each GPU."""

from collections.abc import Sequence

import pytest

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.ledger.claims import Occupancy
from extender.plugins.holdings import UNKNOWN_GPU, Holding, Part, whole_gpus

GIB = 1024


def offer(
    num_gpus: int, unit: GpuUnit, *, mig: tuple[tuple[str, int], ...] = (), max_holders: int = 0, picks: bool = False
) -> NodeOffer:
    gpus = tuple(Gpu(UNKNOWN_MODEL, 16 * GIB, f"GPU-{number}", max_holders=max_holders) for number in range(num_gpus))
    return NodeOffer(gpus, unit, allocatable_units=num_gpus, mig=mig, plugin_picks=picks)


def share(*parts: Part) -> Holding:
    return Holding(len(parts), parts)


def of(gpu: int, milli: int = 500, mib: int = GIB) -> Part:
    return Part(gpu, milli, mib)


def occupied(offered: NodeOffer, *holdings: Holding) -> Occupancy:
    found = Occupancy(offered)
    found.book(holdings)
    return found


PARTS, WHOLE = offer(2, GpuUnit.PART), offer(2, GpuUnit.WHOLE)
FULL = 1000, 16 * GIB


@pytest.mark.parametrize(
    ("offered", "holdings", "held", "untracked", "crowded"),
    [
        (PARTS, [], {}, 0, False),
        (PARTS, [share(of(0)), share(of(0))], {0: (1000, 2 * GIB)}, 0, False),
        (PARTS, [share(of(0, 600)), share(of(0, 500))], {0: (1100, 2 * GIB)}, 0, True),
        (PARTS, [share(of(0, 100, 9 * GIB)), share(of(0, 100, 8 * GIB))], {0: (200, 17 * GIB)}, 0, True),
        # Nobody knows where they are: each counts for a GPU, and of the others' GPUs nothing is left.
        (PARTS, [share(of(7)), share(of(7))], {}, 2, True),
        (PARTS, [share(of(0)), share(of(7)), share(of(8))], {0: FULL}, 2, True),
        # What follows a GPU that is not there is booked all the same, and what is not whole is no whole GPU.
        (PARTS, [share(of(7), of(1))], {1: (500, GIB)}, 1, True),
        (PARTS, [share(Part(0), of(1))], {0: FULL, 1: (500, GIB)}, 0, False),
        (PARTS, [share(of(1), Part(0))], {0: FULL, 1: (500, GIB)}, 0, False),
        (PARTS, [whole_gpus(1, [0]), whole_gpus(1, [0])], {0: FULL}, 1, True),
        (PARTS, [share(of(0)), whole_gpus(1, [0])], {0: (500, GIB)}, 1, True),
        (WHOLE, [whole_gpus(1)], {}, 1, False),
        (WHOLE, [whole_gpus(1), whole_gpus(2)], {}, 3, True),
        # By the UUID, wherever the index may point.
        (WHOLE, [share(Part(0, uuid="GPU-1"))], {1: FULL}, 0, False),
        (WHOLE, [share(Part(UNKNOWN_GPU, uuid="GPU-9"))], {}, 1, True),
        (WHOLE, [share(Part(0, uuid="GPU-9"))], {}, 1, True),
    ],
)  # fmt: skip
def test_who_holds_what(
    offered: NodeOffer,
    holdings: Sequence[Holding],
    held: dict[int, tuple[int, int]],
    untracked: int,
    crowded: bool,
) -> None:
    found = occupied(offered, *holdings)
    assert (found.held, found.untracked, found.crowded) == (held, untracked, crowded)


@pytest.mark.parametrize(
    ("devices", "crowded"),
    [
        ([("1g", 1)], False),
        ([("1g", 2)], False),
        ([("1g", 1), ("1g", 1)], False),
        ([("1g", 1), ("1g", 2)], True),
        ([("1g", 3)], True),
        ([("2g", 1), ("1g", 2)], False),
        ([("2g", 2)], True),
        ([("3g", 1)], True),
    ],
)
def test_mig_devices_are_counted_by_profile(devices: list[tuple[str, int]], crowded: bool) -> None:
    offered = offer(0, GpuUnit.NONE, mig=(("1g", 2), ("2g", 1)))
    assert occupied(offered, *(Holding(0, mig=(device,)) for device in devices)).crowded is crowded
    assert occupied(offered, Holding(0, mig=tuple(devices))).crowded is crowded


@pytest.mark.parametrize(("num_holders", "left", "crowded"), [(1, False, False), (2, True, False), (3, True, True)])
def test_a_gpu_has_no_more_than_its_plugins_number_of_holders(num_holders: int, left: bool, crowded: bool) -> None:
    found = occupied(offer(2, GpuUnit.PART, max_holders=2), *[share(of(0, 100))] * num_holders)
    assert found.held == {0: FULL if left else (100 * num_holders, num_holders * GIB)}
    assert found.crowded is crowded
    over = occupied(offer(2, GpuUnit.PART, max_holders=2), share(of(0, 600)), share(of(0, 600)))
    assert over.held == {0: (1200, 16 * GIB)}
    assert over.crowded  # by compute, though they are no more than may be


def test_whom_a_plugin_serves_stands_apart_from_whom_it_does_not_know() -> None:
    picks = offer(4, GpuUnit.WHOLE, picks=True)
    served, alone = whole_gpus(1, [0]), Holding(1, (Part(1),), unserved=True)
    nothing = Holding(0)
    assert occupied(picks, served, alone).crowded
    for holdings in ([served, served], [alone], [alone, nothing], [served, nothing]):
        found = occupied(picks, *holdings)
        assert (found.num_served, found.num_unserved) == (holdings.count(served), holdings.count(alone))
    assert not occupied(picks, alone, nothing).crowded
    assert not occupied(offer(4, GpuUnit.WHOLE), served, alone).crowded
