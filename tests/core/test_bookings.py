"""What a pod takes of a node, and that giving it back leaves the node as it was."""

from dataclasses import fields

import numpy as np
import pytest

from extender.core.bookings import Booking, book, bookable, booked_each, booking
from extender.core.clusters import Cluster
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, cluster_of, node

A100, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("Tesla-T4", 15360)
WHOLE = node(A100, T4)
PARTS = node(A100, T4, unit=GpuUnit.PART)
SLICED = node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, led=True)


@pytest.mark.parametrize(
    ("state", "request_", "gpus", "booked"),
    [
        pytest.param(WHOLE, GpuRequest(2), (0, 1), Booking((0, 1), served=1), id="whole GPUs"),
        pytest.param(WHOLE, GpuRequest(1, AskedUnit.WHOLE), (1,), Booking((1,), unserved=1), id="by annotation alone"),
        pytest.param(WHOLE, GpuRequest(1), (), Booking(unknown=1, served=1), id="one that nobody knows"),
        pytest.param(WHOLE, GpuRequest(2), (), Booking(unknown=2, served=1), id="two that nobody knows"),
        pytest.param(
            WHOLE,
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=1),
            (),
            Booking(unknown=1, unserved=1),
            id="at least one where no number is asked",
        ),
        pytest.param(
            WHOLE,
            GpuRequest(2, AskedUnit.WHOLE, 4096, milli=300),
            (0, 1),
            Booking((0, 1), 300, (4096, 4096), unserved=1),
            id="a share of each",
        ),
        pytest.param(
            WHOLE,
            GpuRequest(1, AskedUnit.WHOLE, milli=300),
            (),
            Booking(unknown=1, unserved=1),
            id="a share of a GPU that nobody knows is all of it",
        ),
        pytest.param(
            PARTS,
            GpuRequest(2, memory_each_percent=25),
            (0, 1),
            Booking((0, 1), 0, (20480, 3840), served=1),
            id="a quarter of the memory of each",
        ),
        pytest.param(
            WHOLE, GpuRequest(1, memory_each_mib=4096), (1,), Booking((1,), served=1), id="all of it elsewhere"
        ),
        pytest.param(
            SLICED,
            GpuRequest(2, AskedUnit.SHARED),
            (0, 1),
            Booking(slices=(0, 1), unknown=2, served=1),
            id="a time slice of each",
        ),
    ],
)
def test_what_a_pod_takes(state: NodeState, request_: GpuRequest, gpus: tuple[int, ...], booked: Booking) -> None:
    assert booking(cluster_of({"n": state}), 0, request_, gpus) == booked


def test_cpu_and_main_memory_are_taken_beside_gpus_and_mig_devices() -> None:
    cluster = cluster_of({"n": node(T4, mig={"1g.5gb": 7})})
    profiles = (("1g.5gb", 2),)
    asked = GpuRequest(2, AskedUnit.MIG, mig=profiles)
    assert booking(cluster, 0, asked, ()) == Booking(mig=profiles)
    assert booking(cluster, 0, asked, (), 500, 1024) == Booking(mig=profiles, cpu_milli=500, memory_mib=1024)
    assert booking(cluster, 0, GpuRequest(1), (0,), 500, 1024) == Booking(
        (0,), served=1, cpu_milli=500, memory_mib=1024
    )


@pytest.mark.parametrize(
    ("request_", "each"),
    [
        pytest.param(GpuRequest(2), (1000, ()), id="whole"),
        pytest.param(GpuRequest(2, memory_each_mib=100), (0, (100, 100)), id="memory alone"),
        pytest.param(
            GpuRequest(2, memory_each_mib=100, memory_total_mib=1000), (1000, ()), id="a total is of whole ones"
        ),
        pytest.param(GpuRequest(2, milli=1), (1, (0, 0)), id="compute alone"),
        pytest.param(GpuRequest(2, memory_each_mib=4000, memory_each_percent=25), (0, (20480, 4000)), id="the larger"),
    ],
)
def test_what_is_booked_of_each_gpu(request_: GpuRequest, each: tuple[int, tuple[int, ...]]) -> None:
    assert booked_each(cluster_of({"n": PARTS}), 0, request_, (0, 1)) == each


def changed(before: Cluster, after: Cluster) -> dict[str, list[int]]:
    """The second node's values of those arrays that differ; the first node's never do."""
    found = {}
    for field in fields(Cluster):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if isinstance(old, np.ndarray) and not np.array_equal(old, new):
            assert np.array_equal(old[0], new[0])
            found[field.name] = new[1].tolist()
    return found


TWO_PROFILES = node(T4, mig={"1g.5gb": 7, "2g.10gb": 3})


@pytest.mark.parametrize(
    ("state", "booked", "expected"),
    [
        pytest.param(
            WHOLE,
            Booking((1,), served=1),
            {"gpu_free_milli": [1000, 0], "gpu_free_mib": [81920, 0], "num_served": 1},
            id="a whole GPU",
        ),
        pytest.param(
            WHOLE,
            Booking((0, 1), 300, (4096, 1024), unserved=1),
            {"gpu_free_milli": [700, 700], "gpu_free_mib": [77824, 14336], "num_unserved": 1},
            id="shares",
        ),
        pytest.param(WHOLE, Booking(unknown=2), {"untracked_units": 2}, id="of unknown index"),
        pytest.param(
            SLICED, Booking(slices=(1,), unknown=1), {"gpu_slices": [0, 1], "untracked_units": 1}, id="a time slice"
        ),
        pytest.param(TWO_PROFILES, Booking(mig=(("2g.10gb", 2),)), {"mig_free": [7, 1]}, id="MIG devices"),
        pytest.param(
            TWO_PROFILES, Booking(mig=(("2g.10gb", 3), ("1g.5gb", 2))), {"mig_free": [5, 0]}, id="of two profiles"
        ),
        pytest.param(
            WHOLE,
            Booking(cpu_milli=500, memory_mib=1024),
            {"cpu_free_milli": -500, "memory_free_mib": -1024},
            id="CPU and main memory",
        ),
    ],
)
def test_booking_takes_it_off_and_giving_back_restores(
    state: NodeState, booked: Booking, expected: dict[str, object]
) -> None:
    cluster = cluster_of({"other": state, "n": state})
    planned = bookable(cluster)
    book(planned, 1, booked)
    assert changed(cluster, planned) == expected
    book(planned, 1, booked, +1)
    assert changed(cluster, planned) == {}
