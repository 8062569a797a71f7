"""What the allocations on one node come to, worked out by hand: who has GPUs of their own, and what is left."""

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.ledger.allocations import Occupancy
from extender.plugins.holdings import UNKNOWN_GPU, Holding, Part, whole_gpus

GIB = 1024
FULL = 1000, 16 * GIB


def offer(num_gpus: int, unit: GpuUnit, *, max_holders: int = 0, picks: bool = False, units: int = 1) -> NodeOffer:
    gpus = tuple(Gpu(UNKNOWN_MODEL, 16 * GIB, f"GPU-{number}", max_holders=max_holders) for number in range(num_gpus))
    return NodeOffer(gpus, unit, units, allocatable_units=num_gpus * units, plugin_picks=picks)


def share(*parts: Part) -> Holding:
    return Holding(len(parts), parts)


def of(gpu: int, milli: int = 500, mib: int = GIB) -> Part:
    return Part(gpu, milli, mib)


def occupied(offered: NodeOffer, *holdings: Holding) -> Occupancy:
    occupancy = Occupancy(offered)
    occupancy.book(holdings)
    return occupancy


PARTS, WHOLE = offer(2, GpuUnit.PART), offer(2, GpuUnit.WHOLE)
SLICED = offer(2, GpuUnit.REPLICA, units=3)


def test_sums_by_gpu() -> None:
    for offered, holdings, held, untracked, crowded in (
        (PARTS, [], {}, 0, False),
        (PARTS, [share(of(0)), share(of(0))], {0: (1000, 2 * GIB)}, 0, False),
        (PARTS, [share(of(0, 600)), share(of(0, 500))], {0: (1100, 2 * GIB)}, 0, True),
        (PARTS, [share(of(0, 100, 9 * GIB)), share(of(0, 100, 8 * GIB))], {0: (200, 17 * GIB)}, 0, True),
        # A share on an unknown GPU counts as one GPU, and shared GPUs may be the ones that are meant.
        (PARTS, [share(of(7)), share(of(7))], {}, 2, True),
        (PARTS, [share(of(0)), share(of(7)), share(of(8))], {0: FULL}, 2, True),
        # What follows an unknown GPU, or a whole one, is booked all the same.
        (PARTS, [share(of(7), of(1))], {1: (500, GIB)}, 1, True),
        (PARTS, [share(Part(0), of(1))], {0: FULL, 1: (500, GIB)}, 0, False),
        (PARTS, [share(of(1), Part(0))], {0: FULL, 1: (500, GIB)}, 0, False),
        (PARTS, [whole_gpus(1, [0]), whole_gpus(1, [0])], {0: FULL}, 1, True),
        (PARTS, [share(of(0)), whole_gpus(1, [0])], {0: (500, GIB)}, 1, True),
        (PARTS, [share(of(0, 0))], {0: (0, GIB)}, 0, False),
        (WHOLE, [share(of(0, 0))], {0: FULL}, 0, False),
        (WHOLE, [whole_gpus(1)], {}, 1, False),
        (WHOLE, [whole_gpus(1), whole_gpus(2)], {}, 3, True),
        # By the UUID, wherever the index may point.
        (WHOLE, [share(Part(0, uuid="GPU-1"))], {1: FULL}, 0, False),
        (WHOLE, [share(Part(UNKNOWN_GPU, uuid="GPU-9"))], {}, 1, True),
        (WHOLE, [share(Part(0, uuid="GPU-9"))], {}, 1, True),
        (SLICED, [whole_gpus(2, [0, 0]), whole_gpus(4)], {}, 6, False),
        (SLICED, [whole_gpus(7)], {}, 7, True),
    ):
        found = occupied(offered, *holdings)
        assert (found.held, found.untracked, found.overbooked) == (held, untracked, crowded), holdings


def test_slices_are_counted_by_gpu_where_it_is_known() -> None:
    found = occupied(SLICED, Holding(2, (Part(0, uuid="GPU-1"), Part(0))))
    assert (found.held_amounts.slices, found.held_amounts.untracked, found.overbooked) == ({1: 1, 0: 1}, 2, False)
    assert not occupied(SLICED, whole_gpus(3, [0, 0, 0])).overbooked
    assert occupied(SLICED, whole_gpus(4, [0, 0, 0, 0])).overbooked


def test_mig_devices_are_counted_by_profile() -> None:
    offered = NodeOffer(mig=(("1g", 2), ("2g", 1)))
    for devices, crowded in (
        ((("1g", 2),), False),
        ((("1g", 1), ("1g", 1)), False),
        ((("1g", 1), ("1g", 2)), True),
        ((("2g", 1), ("1g", 2)), False),
        ((("2g", 2),), True),
        ((("3g", 1),), True),
    ):
        assert occupied(offered, *(Holding(0, mig=(device,)) for device in devices)).overbooked is crowded
        assert occupied(offered, Holding(0, mig=devices)).overbooked is crowded


def test_a_gpu_has_no_more_than_its_plugins_number_of_holders() -> None:
    offered = offer(2, GpuUnit.PART, max_holders=2)
    for num_holders, held, crowded in ((1, (100, GIB), False), (2, FULL, False), (3, FULL, True)):
        found = occupied(offered, *[share(of(0, 100))] * num_holders)
        assert (found.held, found.overbooked) == ({0: held}, crowded)
    over = occupied(offered, share(of(0, 600)), share(of(0, 600)))
    assert (over.held, over.overbooked) == ({0: (1200, 16 * GIB)}, True), "by compute, not by number"


def test_pods_that_a_plugin_serves_are_apart_from_those_that_it_does_not_know() -> None:
    picks = offer(4, GpuUnit.WHOLE, picks=True)
    served, alone, nothing = whole_gpus(1, [0]), Holding(1, (Part(1),), unserved=True), Holding(0)
    assert occupied(picks, served, alone).overbooked
    for holdings in ([served, served], [alone], [alone, nothing], [served, nothing]):
        found = occupied(picks, *holdings)
        assert (found.num_served, found.num_unserved) == (holdings.count(served), holdings.count(alone))
    assert not occupied(picks, alone, nothing).overbooked
    assert not occupied(offer(4, GpuUnit.WHOLE), served, alone).overbooked


def test_what_a_pod_can_have_been_given() -> None:
    half = share(of(0))
    for unit, holding, uuids, gpus in (
        (GpuUnit.WHOLE, whole_gpus(1, (0,)), ("GPU-1",), (1,)),
        (GpuUnit.WHOLE, whole_gpus(2), ("GPU-0", "GPU-1"), (0, 1)),
        (GpuUnit.WHOLE, whole_gpus(2), ("GPU-1", "GPU-1"), None),  # one GPU is not two
        (GpuUnit.WHOLE, whole_gpus(2), ("GPU-1",), None),
        (GpuUnit.WHOLE, whole_gpus(1), ("GPU-7",), None),
        (GpuUnit.WHOLE, half, ("GPU-1",), None),
        (GpuUnit.WHOLE, Holding(1, unserved=True), ("GPU-1",), None),  # no device plugin gave that
        (GpuUnit.REPLICA, whole_gpus(2, (0, 1)), ("GPU-1", "GPU-1"), (1, 1)),
        (GpuUnit.REPLICA, half, ("GPU-1",), None),
        (GpuUnit.PART, whole_gpus(1, (0,)), ("GPU-1",), None),
        (GpuUnit.CLAIM, whole_gpus(1, (0,)), ("GPU-1",), None),
    ):
        given = Occupancy(offer(2, unit, units=2 if unit is GpuUnit.REPLICA else 1)).as_given(holding, uuids)
        assert (given and given.gpus) == gpus, (unit, holding)
