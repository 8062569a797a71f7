"""What a check comes to is in arrays of the same types, whatever is asked."""

from dataclasses import fields, replace

import numpy as np
import pytest

from extender.core.dra.asks import DevicesAsked
from extender.core.fit.fits import fit, lost
from extender.core.fit.fittings import mig_devices, most_memory_mib, nth_largest
from extender.core.fit.reasons import Fit, Reason
from extender.core.resources.nodes import GpuUnit, LeftOut
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
TYPES = {
    "reason": np.uint8,
    "available": np.int64,
    "room": np.bool_,
    "idle": np.bool_,
    "free_units": np.int64,
    "taken_units": np.int64,
    "shares": np.bool_,
}
WITH_MIG = node(T4, mig={"1g.5gb": 2})
LEFT_OUT = replace(WITH_MIG, offer=replace(WITH_MIG.offer, left_out=LeftOut.UNREADABLE))


@pytest.mark.parametrize(
    "request_",
    [
        GpuRequest(0, AskedUnit.NONE),
        GpuRequest(1),
        GpuRequest(2, include=pattern("t4")),
        GpuRequest(1, memory_each_mib=2**14),
        GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20_000),
        GpuRequest(2, memory_total_mib=20_000),
        GpuRequest(1, AskedUnit.WHOLE, 4096, milli=500),
        GpuRequest(1, memory_each_percent=50),
        GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)),
        GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)),
        GpuRequest(1, AskedUnit.MIG, mig=(("7g.80gb", 1),)),
        GpuRequest(1, AskedUnit.CLAIM, devices=DevicesAsked(())),
    ],
    ids=str,
)
def test_each_kind_of_request_is_answered_in_arrays_of_the_same_types(request_: GpuRequest) -> None:
    states: dict[str, NodeState] = {
        "none": node(),
        "mig": WITH_MIG,
        "left out": LEFT_OUT,
        "busy": node(T4, T4, held=[0]),
        "part": node(T4, A100, used={0: (600, 12_000), 1: (1000, 0)}, unit=GpuUnit.PART),
        "aside": node(T4, A100, aside=2, untracked=1),
    }
    cluster = cluster_of(states)
    for rows in (all_rows(cluster), np.array([3]), np.empty(0, np.intp)):
        checked = fit(cluster, request_, rows)
        assert {field.name: getattr(checked, field.name).dtype for field in fields(Fit)} == TYPES
        assert {len(getattr(checked, field.name)) for field in fields(Fit)} == {len(rows)}
    for profile in ("1g.5gb", "7g.80gb"):
        assert {column.dtype for column in mig_devices(cluster, profile, all_rows(cluster))} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("state", "request_", "most", "units"),
    [
        pytest.param(node(T4, A100), GpuRequest(1, memory_total_mib=1), 81920, 1, id="the largest"),
        pytest.param(node(T4, A100), GpuRequest(2, memory_total_mib=1), 97280, 2, id="both"),
        pytest.param(node(T4, A100), GpuRequest(5, memory_total_mib=1), 97280, 5, id="no more than there are"),
        pytest.param(node(T4, A100), GpuRequest(0, memory_total_mib=81920), 97280, 1, id="as few as hold the total"),
        pytest.param(node(T4, A100), GpuRequest(0, memory_total_mib=81921), 97280, 2, id="one MiB more"),
        pytest.param(
            node(T4, A100, A100, untracked=1), GpuRequest(0, memory_total_mib=81921), 97280, 2, id="without the largest"
        ),
        pytest.param(node(T4, untracked=5), GpuRequest(0, memory_total_mib=1), 0, 0, id="nothing is left"),
        pytest.param(
            node(A100, T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(5, AskedUnit.SHARED, memory_total_mib=1),
            81920 + 3840,
            5,
            id="five slices: four of 20480 and one of 3840",
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(0, AskedUnit.SHARED, memory_total_mib=81920 + 3841),
            97280,
            6,
            id="six slices: four of 20480 and two of 3840",
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=3),
            GpuRequest(0, AskedUnit.SHARED, memory_total_mib=20480 + 2 * 3840),
            20480 + 15360,
            3,
            id="three of the larger slices may be taken",
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=5),
            GpuRequest(2, AskedUnit.SHARED, memory_total_mib=1),
            2 * 3840,
            2,
            id="five of eight may be taken",
        ),
        pytest.param(
            node(("odd", 4), unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(0, AskedUnit.SHARED, memory_total_mib=3),
            4,
            3,
            id="slices of the least memory",
        ),
        pytest.param(
            node(("", 0), ("odd", 1), ("odd", 1)), GpuRequest(0, memory_total_mib=2), 2, 2, id="of the least memory"
        ),
    ],
)
def test_the_most_memory_that_is_surely_to_be_had_and_the_units_for_it(
    state: NodeState, request_: GpuRequest, most: int, units: int
) -> None:
    cluster = cluster_of({"first": node(*[A100] * 4), "n": state})
    found, taken = most_memory_mib(
        cluster.gpu_memory_mib, cluster.units_per_gpu, cluster.gpu_model >= 0, cluster.untracked_units, request_
    )
    assert (found[1], taken[1]) == (most, units)
    assert {found.dtype, taken.dtype} == {np.dtype(np.int64)}


def test_what_takes_gpus_away_is_told_in_codes() -> None:
    cluster = cluster_of({"n": node(T4, A100, held=[0])})
    _, codes = lost(cluster, GpuRequest(1, include=pattern("t4")), all_rows(cluster))
    assert codes.tolist() == [[Reason.BUSY, Reason.WRONG_MODEL]]
    assert codes.dtype == np.uint8


def test_the_nth_largest_of_each_row_is_counted_in_64_bits() -> None:
    values = np.array([[3, 1, 2], [0, 5, 5]], np.int32)
    for nth, expected in ((1, [3, 5]), (2, [2, 5]), (3, [1, 0]), (4, [0, 0])):
        found = nth_largest(values, nth)
        assert found.tolist() == expected
        assert found.dtype == np.int64
