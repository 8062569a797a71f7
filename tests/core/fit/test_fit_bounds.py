"""Edges of the fit that random clusters seldom meet, and what it tells beside the verdict."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit import checks, fittings
from extender.core.fit.checks import TABLE, resolvable
from extender.core.fit.fits import LARGEST_MIB, asked_fraction, enough_compute, fit, free_fraction, smallest_mib
from extender.core.fit.fittings import _model_mask, nth_largest, share_mib, uuid_mask
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node, pattern

A100, T4, UNKNOWN = ("NVIDIA-A100-SXM4-80GB", 81920), ("Tesla-T4", 15360), ("", 0)
WHOLE = AskedUnit.WHOLE


@pytest.mark.parametrize(
    ("state", "request_", "reason", "available"),
    [
        pytest.param(
            node(T4, used={0: (999, 0)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_mib=1024),
            Reason.FITS,
            1,
            id="memory alone needs the least of the compute",
        ),
        pytest.param(
            node(T4, used={0: (1000, 0)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_mib=1024),
            Reason.COMPUTE_BUSY,
            0,
            id="and that it needs",
        ),
        pytest.param(
            node(T4, T4, used={0: (100, 15360), 1: (900, 0)}),
            GpuRequest(1, WHOLE, 100, milli=500),
            Reason.MEMORY_BUSY,
            0,
            id="memory of a GPU that lacks compute is none",
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.PART, used={0: (0, 40961), 1: (0, 7681)}),
            GpuRequest(1, memory_each_percent=50),
            Reason.MEMORY_BUSY,
            40959,
            id="one MiB less than half of each",
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.PART, used={0: (0, 40961), 1: (0, 7680)}),
            GpuRequest(1, memory_each_percent=50),
            Reason.FITS,
            1,
            id="half of the smaller one",
        ),
        pytest.param(
            node(mig={"1g.5gb": 2}), GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)), Reason.FITS, 2, id="all of MIG"
        ),
        pytest.param(
            node(mig={"1g.5gb": 2}),
            GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)),
            Reason.TOO_FEW_INSTALLED,
            2,
            id="one more MIG device than there is",
        ),
        pytest.param(
            node(T4, unit=GpuUnit.CLAIM), GpuRequest(1, AskedUnit.CLAIM), Reason.FITS, 1, id="claims where they are"
        ),
        pytest.param(node(T4, unit=GpuUnit.CLAIM), GpuRequest(1), Reason.FITS, 1, id="by number too"),
        pytest.param(
            node(T4, unit=GpuUnit.CLAIM), GpuRequest(1, WHOLE), Reason.NOT_THIS_KIND, 1, id="not by annotation alone"
        ),
        pytest.param(
            node(T4, unit=GpuUnit.OWNED),
            GpuRequest(1),
            Reason.NOT_THIS_KIND,
            1,
            id="not by number where Kerf allocates",
        ),
        pytest.param(node(T4), GpuRequest(1, AskedUnit.CLAIM), Reason.NOT_THIS_KIND, 1, id="no claims elsewhere"),
        pytest.param(
            node(T4, unit=GpuUnit.PART), GpuRequest(1, AskedUnit.PART, 1024), Reason.FITS, 1, id="parts where they are"
        ),
        pytest.param(node(T4), GpuRequest(1, AskedUnit.PART, 1024), Reason.NOT_THIS_KIND, 1, id="no parts elsewhere"),
        pytest.param(
            node(T4, uuids=["GPU-a"], unit=GpuUnit.CLAIM),
            GpuRequest(1, AskedUnit.CLAIM, uuids=frozenset({"GPU-a"})),
            Reason.FITS,
            1,
            id="UUIDs of claims are known",
        ),
        pytest.param(
            node(T4, uuids=["GPU-a"], unit=GpuUnit.REPLICA, units_per_gpu=2),
            GpuRequest(1, AskedUnit.SHARED, uuids_exclude=frozenset({"GPU-b"})),
            Reason.NOT_THIS_KIND,
            2,
            id="those of slices are not",
        ),
        pytest.param(
            node(T4, A100, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(4, AskedUnit.SHARED, 20480, include=pattern("a100")),
            Reason.FITS,
            4,
            id="all slices of the model and size",
        ),
        pytest.param(node(), GpuRequest(1, memory_total_mib=1024), Reason.NO_GPUS, 0, id="a total where no GPU is"),
        pytest.param(
            node(T4, UNKNOWN),
            GpuRequest(0, WHOLE, memory_total_mib=15360),
            Reason.FITS,
            2,
            id="what is known is enough",
        ),
        pytest.param(
            node(T4, UNKNOWN),
            GpuRequest(0, WHOLE, memory_total_mib=15361),
            Reason.MEMORY_UNKNOWN,
            15360,
            id="what is known is not enough",
        ),
        pytest.param(
            node(T4, UNKNOWN),
            GpuRequest(2, memory_each_mib=1024, memory_total_mib=1024),
            Reason.MEMORY_UNKNOWN,
            1,
            id="the memory of one of two is not known, of which each is to have some",
        ),
        pytest.param(
            node(T4, UNKNOWN),
            GpuRequest(1, memory_each_mib=1024, memory_total_mib=15361),
            Reason.TOTAL_TOO_SMALL,
            15360,
            id="and one that has it is not enough in total",
        ),
        pytest.param(node(T4, T4, aside=1), GpuRequest(1), Reason.SET_ASIDE, 1, id="set aside after one pod"),
        pytest.param(node(T4, picks=True, unserved=1), GpuRequest(1), Reason.KEPT_APART, 1, id="beside one unserved"),
        pytest.param(node(T4, picks=True, unserved=1), GpuRequest(1, WHOLE), Reason.FITS, 1, id="as it is unserved"),
        pytest.param(
            node(T4, picks=True, served=1), GpuRequest(1, WHOLE), Reason.KEPT_APART, 1, id="beside one served"
        ),
        pytest.param(node(T4, picks=True, served=1), GpuRequest(1), Reason.FITS, 1, id="as it is served"),
        pytest.param(node(T4, served=1, unserved=1), GpuRequest(1), Reason.FITS, 1, id="where Kerf picks"),
    ],
)
def test_fit_at_its_edges(state: NodeState, request_: GpuRequest, reason: Reason, available: int) -> None:
    cluster = cluster_of({"n": state})
    checked = fit(cluster, request_, all_rows(cluster))
    assert (Reason(checked.reason[0]), checked.available[0]) == (reason, available)


@pytest.mark.parametrize(
    ("asked", "reason", "available"),
    [
        pytest.param((("1g.5gb", 1), ("2g.10gb", 1)), Reason.FITS, 2, id="what is free of both"),
        pytest.param((("1g.5gb", 2), ("2g.10gb", 1)), Reason.BUSY, 1, id="held by others"),
        pytest.param((("1g.5gb", 2), ("2g.10gb", 2)), Reason.TOO_FEW_INSTALLED, 1, id="not there at all"),
        pytest.param((("2g.10gb", 2), ("1g.5gb", 2)), Reason.TOO_FEW_INSTALLED, 1, id="in the other order"),
    ],
)
def test_what_is_not_installed_of_two_mig_profiles_is_told_before_what_is_busy(
    asked: tuple[tuple[str, int], ...], reason: Reason, available: int
) -> None:
    arrays = arrays_of({"n": node(T4, T4, mig={"1g.5gb": 2, "2g.10gb": 1})})
    arrays.set_held(0, Held({}, 0, (("1g.5gb", 1),)))
    cluster = arrays.snapshot()
    request = GpuRequest(sum(count for _, count in asked), AskedUnit.MIG, mig=asked)
    checked = fit(cluster, request, all_rows(cluster))
    assert (Reason(checked.reason[0]), checked.available[0]) == (reason, available)
    assert checked.taken_units.tolist() == [request.count]
    assert checked.free_units.tolist() == [2]
    assert checked.shares.tolist() == [False]
    assert checked.room.tolist() == checked.idle.tolist() == [[False, False]]


def test_a_pod_without_gpus_has_room_on_none_and_leaves_all_idle() -> None:
    cluster = cluster_of({"a": node(T4, T4, T4, held=[0], used={1: (0, 1)}), "b": node(A100)})
    rows = np.array([1, 0])
    checked = fit(cluster, GpuRequest(0, AskedUnit.NONE), rows)
    assert checked.room.tolist() == [[False] * 3] * 2
    assert checked.idle.tolist() == [[True, False, False], [False, False, True]]
    assert checked.available.tolist() == checked.taken_units.tolist() == [0, 0]
    assert checked.free_units.tolist() == [1, 1]
    assert checked.shares.tolist() == [False, False]


def test_each_row_tells_its_own_number_and_how_much_is_free() -> None:
    cluster = cluster_of(
        {
            "free": node(T4, T4, T4, T4, untracked=1),
            "sliced": node(T4, T4, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4, untracked=2),
            "busy": node(T4, T4, T4, held=[0, 1]),
            "small": node(T4),
            "lost": node(T4, T4, untracked=5),
        }
    )
    checked = fit(cluster, GpuRequest(2), all_rows(cluster))
    assert checked.reason.tolist() == [
        *(Reason.FITS, Reason.FITS, Reason.BUSY),
        *(Reason.TOO_FEW_INSTALLED, Reason.BUSY),
    ]
    assert checked.available.tolist() == [3, 6, 1, 1, 0]
    assert checked.free_units.tolist() == [3, 6, 1, 1, 0]


def test_where_shares_are_given_and_which_gpus_are_idle() -> None:
    cluster = cluster_of(
        {"whole": node(T4, T4, used={1: (0, 1)}), "parts": node(T4, T4, used={1: (1, 0)}, unit=GpuUnit.PART)}
    )
    by_memory = fit(cluster, GpuRequest(1, memory_each_mib=1024), all_rows(cluster))
    assert by_memory.shares.tolist() == [False, True]
    assert by_memory.room.tolist() == [[True, False], [True, True]]
    assert by_memory.idle.tolist() == [[True, False], [True, False]]
    by_compute = fit(cluster, GpuRequest(1, WHOLE, milli=1000), all_rows(cluster))
    assert by_compute.shares.tolist() == [True, True]
    total = fit(cluster, GpuRequest(1, memory_each_mib=1024, memory_total_mib=1024), all_rows(cluster))
    assert total.shares.tolist() == [False, False]


MODELS = cluster_of({"a": node(T4, uuids=["GPU-a"]), "b": node(A100, UNKNOWN, uuids=["GPU-b", ""])})


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        pytest.param(GpuRequest(1), [True, True, True], id="any"),
        pytest.param(GpuRequest(1, include=pattern("t4")), [True, False, False], id="one"),
        pytest.param(GpuRequest(1, exclude=pattern("t4")), [False, True, False], id="not one"),
    ],
)
def test_no_model_is_asked_of_a_gpu_that_is_not_there(request_: GpuRequest, allowed: list[bool]) -> None:
    assert _model_mask(MODELS, request_).tolist() == [*allowed, False]


@pytest.mark.parametrize(
    ("uuids", "excluded", "allowed"),
    [
        pytest.param(set(), set(), [[True, True], [True, True]], id="any"),
        pytest.param({"GPU-b", "GPU-gone"}, set(), [[False, False], [True, False]], id="listed"),
        pytest.param(set(), {"GPU-a", "GPU-gone"}, [[False, True], [True, True]], id="excluded"),
        pytest.param({"GPU-a", "GPU-b"}, {"GPU-b"}, [[True, False], [False, False]], id="listed and excluded"),
    ],
)
def test_which_uuids_are_allowed(uuids: set[str], excluded: set[str], allowed: list[list[bool]]) -> None:
    request = GpuRequest(1, uuids=frozenset(uuids), uuids_exclude=frozenset(excluded))
    assert uuid_mask(MODELS, request).tolist() == allowed


def test_a_node_that_is_kept_for_a_move_tells_what_of_it_is_healthy() -> None:
    arrays = arrays_of({"n": node(T4, T4, T4, broken=[0])})
    arrays.set_closed(0, closed=True)
    cluster = arrays.snapshot()
    checked = fit(cluster, GpuRequest(1), all_rows(cluster))
    assert (checked.reason.tolist(), checked.available.tolist()) == ([Reason.KEPT_FOR_MOVE], [2])


def test_where_there_are_several_vendors_each_gives_its_own_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, fittings):
        monkeypatch.setattr(module, "SEVERAL", True)
    sliced = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)
    cluster = cluster_of({"own": node(T4, T4), "other": node(T4), "none": node(), "sliced": sliced})
    cluster = replace(cluster, vendor=np.array([0, 1, 0, 0], np.int8))
    first, second = (fit(cluster, GpuRequest(1, vendor=vendor), all_rows(cluster)) for vendor in (0, 1))
    assert first.reason.tolist() == [Reason.FITS, Reason.NOT_THIS_KIND, Reason.NO_GPUS, Reason.NOT_THIS_KIND]
    assert first.available.tolist() == [2, 2**24 + 1, 0, 4]
    assert second.reason.tolist() == [Reason.NOT_THIS_KIND, Reason.FITS, Reason.NO_GPUS, Reason.NOT_THIS_KIND]
    assert second.available.tolist() == [2**24, 1, 0, 2**24]


def test_cpu_and_main_memory_are_enough_to_the_last() -> None:
    arrays = arrays_of({"a": node(T4), "b": node(T4)})
    for row, (cpu_milli, memory_mib) in enumerate([(500, 1024), (501, 1023)]):
        arrays.set_compute(row, cpu_milli, memory_mib)
    cluster = arrays.snapshot()
    for cpu_milli, memory_mib, enough in (
        (500, 1023, [True, True]),
        (501, 1023, [False, True]),
        (500, 1024, [True, False]),
        (501, 1024, [False, False]),
    ):
        assert enough_compute(cluster, cpu_milli, memory_mib, all_rows(cluster)).tolist() == enough
        assert enough_compute(cluster, cpu_milli, memory_mib, np.array([1])).tolist() == enough[1:]


@pytest.mark.parametrize(
    ("request_", "mib"),
    [
        (GpuRequest(1, memory_each_mib=1000), [1000, 1000, 1000]),
        (GpuRequest(1, memory_each_percent=50), [40960, 7680, 0]),
        (GpuRequest(1, memory_each_percent=33), [27033, 5068, 0]),
        (GpuRequest(1, memory_each_percent=100), [81920, 15360, 0]),
        (GpuRequest(1, memory_each_mib=8000, memory_each_percent=50), [40960, 8000, 8000]),
    ],
    ids=str,
)
def test_memory_of_a_share(request_: GpuRequest, mib: list[int]) -> None:
    assert share_mib(request_, np.array([81920, 15360, 0], np.int32)).tolist() == mib


def test_how_much_of_a_gpu_is_free_and_how_much_is_asked() -> None:
    cluster = cluster_of({"other": node(A100, A100), "n": node(T4, UNKNOWN, used={0: (300, 3840)})})
    rows = np.array([1])
    compute, memory = GpuRequest(1, WHOLE, 1024, milli=250), GpuRequest(1, memory_each_mib=7680)
    assert free_fraction(cluster, compute, rows).tolist() == [[0.7, 1.0]]
    assert asked_fraction(cluster, compute, rows).tolist() == [[0.25, 0.25]]
    assert free_fraction(cluster, memory, rows).tolist() == [[0.75, 0.0]]
    assert asked_fraction(cluster, memory, rows).tolist() == [[0.5, 7680.0]]


def test_a_gpu_of_the_least_memory_is_a_whole_one() -> None:
    cluster = cluster_of({"n": node(("odd", 1))})
    one = GpuRequest(1, memory_each_mib=1)
    assert free_fraction(cluster, one, all_rows(cluster)).tolist() == [[1.0]]
    assert asked_fraction(cluster, one, all_rows(cluster)).tolist() == [[1.0]]


def test_the_smallest_gpu_with_room() -> None:
    for none, mib in ((cluster_of({"cpu": node()}), [LARGEST_MIB]), (cluster_of({}), [])):
        assert smallest_mib(none, all_rows(none), fit(none, GpuRequest(1), all_rows(none))).tolist() == mib
    cluster = cluster_of({"a": node(A100, T4), "b": node(A100, T4, held=[1]), "c": node(T4, held=[0])})
    rows = np.array([2, 1, 0])
    assert smallest_mib(cluster, rows, fit(cluster, GpuRequest(1), rows)).tolist() == [LARGEST_MIB, 81920, 15360]


def test_reasons_are_resolvable_one_by_one() -> None:
    reasons = np.array([[Reason.FITS, Reason.BUSY], [Reason.KEPT_APART, Reason.TOO_SMALL]], np.uint8)
    assert resolvable(reasons).tolist() == [[False, True], [True, False]]
    assert resolvable(np.array(Reason, np.uint8)).tolist() == [TABLE[reason].resolvable for reason in Reason]


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=4), st.integers(1, 5))
def test_nth_largest(values: list[list[int]], nth: int) -> None:
    def slow(row: Sequence[int]) -> int:
        return sorted(row, reverse=True)[nth - 1] if nth <= len(row) else 0

    assert nth_largest(np.array(values, np.int32).reshape(-1, 3), nth).tolist() == [slow(row) for row in values]
