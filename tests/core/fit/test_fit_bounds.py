"""What a fit reports beside the verdict, its helper functions at their bounds, and the types of its arrays."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.dra.asks import DeviceClaims
from extender.core.fit import checks, fittings
from extender.core.fit.fits import (
    LARGEST_MIB,
    asked_fraction,
    enough_compute,
    exclusion_codes,
    fit,
    free_fraction,
    smallest_mib,
)
from extender.core.fit.fittings import keep, mig_devices, most_memory_mib, nth_largest, share_mib, state_of
from extender.core.fit.reasons import Fit, Reason
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, GpuUnit, LeftOut, read_node
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import (
    A100,
    ONE,
    T4,
    UNKNOWN,
    NodeState,
    all_rows,
    arrays_of,
    cluster_of,
    fit_all,
    node,
    pattern,
    verdict,
)
from tests.nvidia import GPU_RESOURCE

BARE, SHARED, MIG = AskedUnit.WHOLE, AskedUnit.SHARED, AskedUnit.MIG
BY_MEMORY = GpuRequest(1, memory_each_mib=1024)


def test_mig_profiles_not_installed_are_reported_before_busy_ones() -> None:
    arrays = arrays_of({"n": node(T4, T4, mig={"1g.5gb": 2, "2g.10gb": 1})})
    arrays.set_held(0, HeldAmounts({}, 0, (("1g.5gb", 1),)))
    for asked, reason, available in (
        ((("1g.5gb", 1), ("2g.10gb", 1)), Reason.FITS, 2),
        ((("1g.5gb", 2), ("2g.10gb", 1)), Reason.BUSY, 1),
        ((("1g.5gb", 2), ("2g.10gb", 2)), Reason.TOO_FEW_INSTALLED, 1),
        ((("2g.10gb", 2), ("1g.5gb", 2)), Reason.TOO_FEW_INSTALLED, 1),
    ):
        request = GpuRequest(sum(count for _, count in asked), MIG, mig=asked)
        checked = fit_all(arrays.snapshot(), request)
        assert (Reason(checked.reason[0]), checked.available[0]) == (reason, available)
        assert (checked.taken_units.tolist(), checked.free_units.tolist()) == ([request.count], [2])
        assert checked.shares.tolist() == [False]
        assert checked.room.tolist() == checked.idle.tolist() == [[False, False]]


def test_which_nodes_give_shares_and_which_gpus_are_idle() -> None:
    cluster = cluster_of(
        {"whole": node(T4, T4, used={1: (0, 1)}), "parts": node(T4, T4, used={1: (1, 0)}, unit=GpuUnit.PART)}
    )
    by_memory = fit_all(cluster, BY_MEMORY)
    assert by_memory.shares.tolist() == [False, True]
    assert by_memory.room.tolist() == [[True, False], [True, True]]
    assert by_memory.idle.tolist() == [[True, False], [True, False]]
    assert fit_all(cluster, GpuRequest(1, BARE, milli=1000)).shares.tolist() == [True, True]
    assert fit_all(cluster, replace(BY_MEMORY, memory_total_mib=1024)).shares.tolist() == [False, False]


def test_a_node_reserved_for_a_move_reports_its_healthy_gpus() -> None:
    arrays = arrays_of({"n": node(T4, T4, T4, broken=[0])})
    arrays.set_closed(0, closed=True)
    checked = fit_all(arrays.snapshot())
    assert (checked.reason.tolist(), checked.available.tolist()) == ([Reason.KEPT_FOR_MOVE], [2])


def test_with_several_vendors_requests_match_their_own_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, fittings):
        monkeypatch.setattr(module, "SEVERAL", True)
    sliced = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)
    cluster = cluster_of({"own": node(T4, T4), "other": node(T4), "none": node(), "sliced": sliced})
    cluster = replace(cluster, vendor=np.array([0, 1, 0, 0], np.int8))
    first, second = (fit_all(cluster, GpuRequest(1, vendor=vendor)) for vendor in (0, 1))
    assert first.reason.tolist() == [Reason.FITS, Reason.NOT_THIS_KIND, Reason.NO_GPUS, Reason.NOT_THIS_KIND]
    assert first.available.tolist() == [2, 2**24 + 1, 0, 4]
    assert second.reason.tolist() == [Reason.NOT_THIS_KIND, Reason.FITS, Reason.NO_GPUS, Reason.NOT_THIS_KIND]
    assert second.available.tolist() == [2**24, 1, 0, 2**24]


def test_gpus_that_are_left_out_fit_nothing() -> None:
    for left_out in (LeftOut.UNREADABLE, LeftOut.PLUGIN_GONE, LeftOut.ONE_BY_ONE):
        state = node(T4, T4)
        state = replace(state, offer=replace(state.offer, left_out=left_out))
        for request in (ONE, GpuRequest(1, mig=(("1g.5gb", 1),)), GpuRequest(1, memory_total_mib=1)):
            assert verdict(state, request) == (Reason.NO_GPUS, left_out)


def test_a_node_of_500_gpus_gives_64() -> None:
    """The virtual node of another cluster."""
    offer = read_node({GPU_RESOURCE: "500"}, {})
    assert (len(offer.gpus), offer.left_out) == (MAX_GPUS_PER_NODE, LeftOut.TOO_MANY)
    full, too_many = NodeState(offer, held=frozenset(range(60))), LeftOut.TOO_MANY
    for state, request, expected in (
        (NodeState(offer), GpuRequest(8), (Reason.FITS, 64)),
        (NodeState(offer), GpuRequest(64), (Reason.FITS, 64)),
        (NodeState(offer), GpuRequest(65), (Reason.NO_GPUS, too_many)),
        (full, GpuRequest(4), (Reason.FITS, 4)),
        (full, GpuRequest(8), (Reason.NOT_COUNTED, too_many)),
        (full, GpuRequest(1, include=pattern("t4")), (Reason.MODEL_UNKNOWN, 0)),
    ):
        assert verdict(state, request) == expected


def test_cpu_and_main_memory_are_enough_to_the_last() -> None:
    arrays = arrays_of({"a": node(T4), "b": node(T4)})
    for row, (cpu_milli, memory_mib) in enumerate([(500, 1024), (501, 1023)]):
        arrays.set_compute(row, cpu_milli, memory_mib)
    cluster = arrays.snapshot()
    for cpu_milli, memory_mib, enough in ((501, 1023, [False, True]), (500, 1024, [True, False])):
        assert enough_compute(cluster, cpu_milli, memory_mib, all_rows(cluster)).tolist() == enough
        assert enough_compute(cluster, cpu_milli, memory_mib, np.array([1])).tolist() == enough[1:]


def test_memory_of_a_share() -> None:
    for each_mib, percent, mib in (
        (1000, 0, [1000, 1000, 1000]),
        (0, 50, [40960, 7680, 0]),
        (0, 33, [27033, 5068, 0]),
        (0, 100, [81920, 15360, 0]),
        (8000, 50, [40960, 8000, 8000]),
    ):
        request = GpuRequest(1, memory_each_mib=each_mib, memory_each_percent=percent)
        assert share_mib(request, np.array([81920, 15360, 0], np.int32)).tolist() == mib


def test_fractions_of_a_gpu_that_are_free_and_requested() -> None:
    cluster = cluster_of({"other": node(A100, A100), "n": node(T4, UNKNOWN, used={0: (300, 3840)})})
    rows = np.array([1])
    compute, memory = GpuRequest(1, BARE, 1024, milli=250), GpuRequest(1, memory_each_mib=7680)
    assert free_fraction(cluster, compute, rows).tolist() == [[0.7, 1.0]]
    assert asked_fraction(cluster, compute, rows).tolist() == [[0.25, 0.25]]
    assert free_fraction(cluster, memory, rows).tolist() == [[0.75, 0.0]]
    assert asked_fraction(cluster, memory, rows).tolist() == [[0.5, 7680.0]]
    cluster, one_mib = cluster_of({"n": node(("odd", 1))}), GpuRequest(1, memory_each_mib=1)
    for fraction in (free_fraction, asked_fraction):
        assert fraction(cluster, one_mib, all_rows(cluster)).tolist() == [[1.0]]


def test_the_smallest_gpu_with_room() -> None:
    for none, mib in ((cluster_of({"cpu": node()}), [LARGEST_MIB]), (cluster_of({}), [])):
        assert smallest_mib(none, all_rows(none), fit_all(none)).tolist() == mib
    cluster = cluster_of({"a": node(A100, T4), "b": node(A100, T4, held=[1]), "c": node(T4, held=[0])})
    rows = np.array([2, 1, 0])
    assert smallest_mib(cluster, rows, fit(cluster, ONE, rows)).tolist() == [LARGEST_MIB, 81920, 15360]


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=4), st.integers(1, 5))
def test_the_nth_largest_of_each_row(values: list[list[int]], nth: int) -> None:
    found = nth_largest(np.array(values, np.int32).reshape(-1, 3), nth)
    assert found.tolist() == [sorted([*row, 0, 0], reverse=True)[nth - 1] for row in values]
    assert found.dtype == np.int64


def test_the_most_memory_that_is_surely_free_and_the_units_for_it() -> None:
    sliced, three_lost, five_lost = (
        node(A100, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=untracked) for untracked in (0, 3, 5)
    )
    for state, count, unit, total, most, units in (
        (node(T4, A100), 1, AskedUnit.GPU, 1, 81920, 1),
        (node(T4, A100), 5, AskedUnit.GPU, 1, 97280, 5),
        (node(T4, A100), 0, BARE, 81920, 97280, 1),
        (node(T4, A100), 0, BARE, 81921, 97280, 2),
        (node(T4, A100, A100, untracked=1), 0, BARE, 81921, 97280, 2),  # without the largest
        (sliced, 5, SHARED, 1, 81920 + 3840, 5),  # four of 20480 and one of 3840
        (sliced, 0, SHARED, 81920 + 3841, 97280, 6),
        (three_lost, 0, SHARED, 20480 + 2 * 3840, 20480 + 15360, 3),
        (five_lost, 2, SHARED, 1, 2 * 3840, 2),
        (node(UNKNOWN, ("odd", 1), ("odd", 1)), 0, BARE, 2, 2, 2),
    ):
        cluster = cluster_of({"first": node(*[A100] * 4), "n": state})
        installed, request = cluster.gpu_model >= 0, GpuRequest(count, unit, memory_total_mib=total)
        columns = cluster.gpu_memory_mib, cluster.units_per_gpu, installed, cluster.untracked_units
        found, taken = most_memory_mib(*columns, request)
        assert (found[1], taken[1]) == (most, units)
        assert found.dtype == taken.dtype == np.int64


def test_gpus_lost_are_coded_by_the_check_that_excludes_them() -> None:
    cluster = cluster_of({"n": node(T4, A100, held=[0])})
    _, codes = exclusion_codes(cluster, GpuRequest(1, include=pattern("t4")), all_rows(cluster))
    assert codes.tolist() == [[Reason.BUSY, Reason.WRONG_MODEL]]
    assert codes.dtype == np.uint8


def test_results_have_the_same_types_for_every_kind_of_request() -> None:
    with_mig = node(T4, mig={"1g.5gb": 2})
    cluster = cluster_of(
        {
            "none": node(),
            "mig": with_mig,
            "left out": replace(with_mig, offer=replace(with_mig.offer, left_out=LeftOut.UNREADABLE)),
            "busy": node(T4, T4, held=[0]),
            "part": node(T4, A100, used={0: (600, 12_000), 1: (1000, 0)}, unit=GpuUnit.PART),
            "aside": node(T4, A100, aside=2, untracked=1),
        }
    )
    types = [np.uint8, np.int64, np.bool_, np.bool_, np.int64, np.int64, np.bool_]
    for request in (
        GpuRequest(0, AskedUnit.NONE),
        ONE,
        GpuRequest(2, include=pattern("t4")),
        GpuRequest(1, memory_each_mib=2**14),
        GpuRequest(0, BARE, memory_total_mib=20_000),
        GpuRequest(2, memory_total_mib=20_000),
        GpuRequest(1, BARE, 4096, milli=500),
        GpuRequest(1, memory_each_percent=50),
        GpuRequest(2, MIG, mig=(("1g.5gb", 2),)),
        GpuRequest(3, MIG, mig=(("1g.5gb", 3),)),
        GpuRequest(1, MIG, mig=(("7g.80gb", 1),)),
        GpuRequest(1, AskedUnit.CLAIM, devices=DeviceClaims(())),
    ):
        for rows in (all_rows(cluster), np.array([3]), np.empty(0, np.intp)):
            checked = fit(cluster, request, rows)
            assert [getattr(checked, field.name).dtype for field in fields(Fit)] == types, request
            assert {len(getattr(checked, field.name)) for field in fields(Fit)} == {len(rows)}
    for profile in ("1g.5gb", "7g.80gb"):
        assert {column.dtype for column in mig_devices(cluster, profile, all_rows(cluster))} == {np.dtype(np.int64)}


APART = {"row_version", "tie_rank", "devices", "withheld_units"}
"""Columns that identify a row, that no request looks up, or that `untracked_units` includes."""


def test_every_column_of_a_row_counts_and_no_other_row() -> None:
    cluster = cluster_of({name: node(T4, T4, mig={"1g.10gb": 2}) for name in "abc"})
    assert state_of(cluster, 0) == state_of(cluster, 2)
    columns = {field.name for field in fields(Cluster) if isinstance(getattr(cluster, field.name), np.ndarray)}
    assert len(columns - APART) > 20
    for name in columns - APART:
        column = getattr(cluster, name).copy()
        column[1] = ~column[1] if column.dtype == np.bool_ else column[1] + 1
        changed = replace(cluster, **{name: column})
        assert state_of(changed, 1) != state_of(cluster, 1), name
        assert state_of(changed, 2) == state_of(cluster, 2), name


def test_a_full_cache_drops_its_oldest_entry() -> None:
    known: dict[int, str] = {}
    for state in range(2050):
        keep(known, state, f"row {state}")
    assert list(known) == list(range(2, 2050))
    assert known[2049] == "row 2049"
