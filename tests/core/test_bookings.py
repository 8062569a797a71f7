"""What a pod takes from a node, and that releasing it restores the node."""

from dataclasses import fields

import numpy as np

from extender.core.bookings import Booking, book, booking, writable_copy
from extender.core.clusters import Cluster
from extender.core.fit.fittings import state_of
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100, ONE, T4, cluster_of, node

WHOLE = node(A100, T4)
PARTS = node(A100, T4, unit=GpuUnit.PART)
SLICED = node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, led=True)
BARE = AskedUnit.WHOLE
"""GPUs requested by annotation alone."""


def test_the_booking_of_a_request() -> None:
    for state, request, gpus, expected in (
        (WHOLE, GpuRequest(2), (0, 1), Booking((0, 1), served=1)),
        (WHOLE, GpuRequest(1, BARE), (1,), Booking((1,), unserved=1)),
        (WHOLE, GpuRequest(2), (), Booking(unknown=2, served=1)),
        (WHOLE, GpuRequest(0, BARE, memory_total_mib=1), (), Booking(unknown=1, unserved=1)),
        (WHOLE, GpuRequest(2, BARE, 4096, milli=300), (0, 1), Booking((0, 1), 300, (4096, 4096), unserved=1)),
        (WHOLE, GpuRequest(1, BARE, milli=300), (), Booking(unknown=1, unserved=1)),  # of an unknown GPU: all of it
        (WHOLE, GpuRequest(1, memory_each_mib=4096), (1,), Booking((1,), served=1)),  # shares on PARTS alone
        (PARTS, GpuRequest(2), (0, 1), Booking((0, 1), served=1)),
        (PARTS, GpuRequest(2, memory_each_mib=100), (0, 1), Booking((0, 1), 0, (100, 100), served=1)),
        (PARTS, GpuRequest(2, memory_each_percent=25), (0, 1), Booking((0, 1), 0, (20480, 3840), served=1)),
        (PARTS, GpuRequest(1, BARE, 4000, memory_each_percent=25), (1,), Booking((1,), 0, (4000,), unserved=1)),
        (PARTS, GpuRequest(2, memory_each_mib=100, memory_total_mib=1000), (0, 1), Booking((0, 1), served=1)),
        (PARTS, GpuRequest(2, milli=1), (0, 1), Booking((0, 1), 1, (0, 0), served=1)),
        (SLICED, GpuRequest(2, AskedUnit.SHARED), (0, 1), Booking(slices=(0, 1), unknown=2, served=1)),
    ):
        assert booking(cluster_of({"n": state}), 0, request, gpus) == expected


def test_cpu_and_main_memory_are_booked_with_gpus_and_mig_devices() -> None:
    cluster = cluster_of({"n": node(T4, mig={"1g.5gb": 7})})
    mig = (("1g.5gb", 2),)
    asked = GpuRequest(2, AskedUnit.MIG, mig=mig)
    assert booking(cluster, 0, asked, ()) == Booking(mig=mig)
    assert booking(cluster, 0, asked, (), 500, 1024) == Booking(mig=mig, cpu_milli=500, memory_mib=1024)
    assert booking(cluster, 0, ONE, (0,), 500, 1024) == Booking((0,), served=1, cpu_milli=500, memory_mib=1024)


def changed(before: Cluster, after: Cluster) -> dict[str, list[int]]:
    """The second node's values of those arrays that differ; the first node's never do."""
    found = {}
    for field in fields(Cluster):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if isinstance(old, np.ndarray) and not np.array_equal(old, new):
            assert np.array_equal(old[0], new[0])
            found[field.name] = new[1].tolist()
    return found


def test_booking_subtracts_and_releasing_restores() -> None:
    profiles = node(T4, mig={"1g.5gb": 7, "2g.10gb": 3})
    whole: dict[str, object] = {"gpu_free_milli": [1000, 0], "gpu_free_mib": [81920, 0], "num_served": 1}
    shares: dict[str, object] = {"gpu_free_milli": [700, 700], "gpu_free_mib": [77824, 14336], "num_unserved": 1}
    for state, booked, expected in (
        (WHOLE, Booking((1,), served=1), whole),
        (WHOLE, Booking((0, 1), 300, (4096, 1024), unserved=1), shares),
        (WHOLE, Booking(unknown=2), {"untracked_units": 2}),
        (SLICED, Booking(slices=(1,), unknown=1), {"gpu_slices": [0, 1], "untracked_units": 1}),
        (profiles, Booking(mig=(("2g.10gb", 3), ("1g.5gb", 2))), {"mig_free": [5, 0]}),
        (WHOLE, Booking(cpu_milli=500, memory_mib=1024), {"cpu_free_milli": -500, "memory_free_mib": -1024}),
    ):
        cluster = cluster_of({"other": state, "n": state})
        planned = writable_copy(cluster)
        book(planned, 1, booked)
        assert changed(cluster, planned) == expected
        book(planned, 1, booked, +1)
        assert changed(cluster, planned) == {}


def test_a_row_that_is_written_in_place_has_another_state() -> None:
    cluster = writable_copy(cluster_of({"n": node(T4)}))
    before = state_of(cluster, 0)
    booked = booking(cluster, 0, GpuRequest(1), (0,), 0, 0)
    book(cluster, 0, booked)
    assert state_of(cluster, 0) != before
    book(cluster, 0, booked, 1)
    assert state_of(cluster, 0) == before
