"""What would make a request fit: each suggestion does, and nothing larger of its kind would."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.relaxations import relaxations, shortfalls
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern

A100, A100_40, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)
UNKNOWN = ("", 0)


def texts(cluster: Cluster, request: GpuRequest) -> list[str]:
    return [relaxation.text for relaxation in relaxations(cluster, request, all_rows(cluster))]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(GpuRequest(5), ["4 GPUs instead of 5"], id="count"),
        pytest.param(GpuRequest(9), ["4 GPUs instead of 9"], id="count, far off"),
        pytest.param(
            GpuRequest(3, memory_each_mib=61440),
            ["2 GPUs instead of 3", "40 GiB instead of 60 GiB each"],
            id="memory or count",
        ),
        pytest.param(
            GpuRequest(1, include=pattern("h100")),
            ["any model instead of model h100 (there is room on a100-sxm4-40gb, a100-sxm4-80gb, t4)"],
            id="model",
        ),
        pytest.param(
            GpuRequest(1, memory_total_mib=102400), ["80 GiB instead of 100 GiB in total"], id="memory in total"
        ),
        pytest.param(
            GpuRequest(5, include=pattern("h100")),
            ["any model instead of model h100, and 4 GPUs instead of 5"],
            id="two conditions",
        ),
        pytest.param(
            GpuRequest(5, memory_each_mib=102400),
            ["80 GiB instead of 100 GiB each, and 2 GPUs instead of 5"],
            id="smaller and fewer",
        ),
        pytest.param(GpuRequest(1, mig=(("1g.5gb", 1),)), [], id="MIG"),
    ],
)
def test_suggestions(request_: GpuRequest, expected: list[str]) -> None:
    cluster = cluster_of(
        {
            "big": node(*[A100] * 4, held=[0, 1]),
            "middle": node(*[A100_40] * 4),
            "small": node(*[T4] * 2),
        }
    )
    assert texts(cluster, request_) == expected


def test_nothing_helps_an_empty_cluster() -> None:
    cluster = cluster_of({"cpu": node()})
    assert texts(cluster, GpuRequest(2, memory_each_mib=1024)) == []
    for request in (GpuRequest(2), GpuRequest(0, memory_total_mib=1024)):
        assert relaxations(cluster, request, np.empty(0, np.intp)) == []


def test_shares() -> None:
    cluster = cluster_of({"n": node(A100, used={0: (700, 40960)})})
    request = GpuRequest(1, AskedUnit.WHOLE, milli=500, memory_each_mib=20480)
    assert texts(cluster, request) == ["300 milli instead of 500 milli of a GPU"]
    (shortfall,) = shortfalls(cluster, request, all_rows(cluster))
    assert shortfall.text == "200 milli more free on one GPU"
    request = GpuRequest(1, AskedUnit.WHOLE, milli=200, memory_each_mib=61440)
    assert texts(cluster, request) == ["40 GiB instead of 60 GiB each"]
    assert shortfalls(cluster, request, all_rows(cluster))[0].text == "20 GiB more free"


def test_the_nodes_that_lack_least() -> None:
    cluster = cluster_of(
        {
            "far": node(*[A100] * 4, held=[0, 1, 2]),
            "near": node(*[A100] * 4, held=[0]),
            "never": node(*[T4] * 2),
        }
    )
    found = shortfalls(cluster, GpuRequest(4), all_rows(cluster))
    assert [(cluster.node_names[one.row], one.text) for one in found] == [
        ("near", "1 more GPU free"),
        ("far", "3 more GPUs free"),
    ]


@given(
    held=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=3),
    count=st.integers(1, 6),
    gib=st.integers(0, 90),
)
def test_each_suggestion_fits_and_is_the_smallest_of_its_kind(held: list[set[int]], count: int, gib: int) -> None:
    models = (A100, A100_40, T4)
    cluster = cluster_of({f"n-{i}": node(*[models[i]] * 4, held=gone) for i, gone in enumerate(held)})
    rows = all_rows(cluster)
    request = GpuRequest(count, memory_each_mib=gib * 1024)
    if fit(cluster, request, rows).fits.any():
        return
    found = {one.change: one for one in relaxations(cluster, request, rows)}
    for one in found.values():
        assert fit(cluster, one.request, one.rows).fits.all()
        assert len(one.rows)
    counts = [n for n in range(1, count) if fit(cluster, replace(request, count=n), rows).fits.any()]
    assert ("count" in found) == bool(counts)
    if counts:
        assert found["count"].request.count == max(counts)
    sizes = [n for n in range(1, gib) if fit(cluster, replace(request, memory_each_mib=n * 1024), rows).fits.any()]
    assert ("memoryEach" in found) == bool(sizes)
    if sizes:  # all sizes in this cluster are whole GiB
        assert found["memoryEach"].request.memory_each_mib == max(sizes) * 1024


UUIDS = frozenset({"GPU-x"})
SLICED = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)
WHOLE, SHARED = AskedUnit.WHOLE, AskedUnit.SHARED


def told(cluster: Cluster, request: GpuRequest) -> list[tuple[str, str, object, list[str]]]:
    """What changes, in words, how much is given up, and on which nodes it fits then."""
    found = relaxations(cluster, request, all_rows(cluster))
    for one in found:
        assert fit(cluster, one.request, one.rows).fits.all()
    return [
        (one.change, one.text, pytest.approx(one.size), [cluster.node_names[row] for row in one.rows]) for one in found
    ]


@pytest.mark.parametrize(
    ("state", "request_", "expected"),
    [
        pytest.param(node(T4), GpuRequest(2), ("count", "1 GPU instead of 2", 1 / 2), id="one of two"),
        pytest.param(node(T4, T4), GpuRequest(4), ("count", "2 GPUs instead of 4", 2 / 4), id="two fewer"),
        pytest.param(
            node(A100),
            GpuRequest(1, memory_each_mib=102400),
            ("memoryEach", "80 GiB instead of 100 GiB each", 0.2),
            id="each",
        ),
        pytest.param(
            node(T4, used={0: (0, 5120)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_mib=15360),
            ("memoryEach", "10 GiB instead of 15 GiB each", 1 / 3),
            id="what is free of a GPU that is shared",
        ),
        pytest.param(
            SLICED,
            GpuRequest(1, SHARED, memory_each_mib=4096),
            ("memoryEach", "3840 MiB instead of 4 GiB each", 1 / 16),
            id="the memory of a time slice",
        ),
        pytest.param(
            node(("odd", 1)),
            GpuRequest(1, memory_total_mib=2),
            ("memoryTotal", "1 MiB instead of 2 MiB in total", 1 / 2),
            id="the least memory",
        ),
        pytest.param(SLICED, GpuRequest(5, SHARED), ("count", "4 GPUs instead of 5", 1 / 5), id="all slices of a GPU"),
        pytest.param(
            node(A100),
            GpuRequest(1, memory_total_mib=102400),
            ("memoryTotal", "80 GiB instead of 100 GiB in total", 0.2),
            id="all that a node has",
        ),
        pytest.param(
            node(*[T4] * 4),
            GpuRequest(2, memory_total_mib=46080),
            ("memoryTotal", "30 GiB instead of 45 GiB in total", 1 / 3),
            id="never fewer than one GPU, though three would hold the total",
        ),
        pytest.param(
            node(T4, used={0: (600, 0)}),
            GpuRequest(1, WHOLE, milli=500),
            ("share", "400 milli instead of 500 milli of a GPU", 0.2),
            id="share",
        ),
        pytest.param(
            node(T4, used={0: (999, 0)}),
            GpuRequest(1, WHOLE, milli=500),
            ("share", "1 milli instead of 500 milli of a GPU", 0.998),
            id="the least share",
        ),
        pytest.param(
            node(T4),
            GpuRequest(1, exclude=pattern("t4")),
            ("model", "any model instead of not model t4 (there is room on t4)", 1),
            id="a model that is not wanted",
        ),
        pytest.param(
            node(T4),
            GpuRequest(1, include=pattern("a100"), exclude=pattern("t4")),
            ("model", "any model instead of model a100 and not model t4 (there is room on t4)", 1),
            id="both",
        ),
        pytest.param(
            node(UNKNOWN),
            GpuRequest(1, include=pattern("a100")),
            ("model", "any model instead of model a100", 1),
            id="no name",
        ),
        pytest.param(
            node(UNKNOWN, T4),
            GpuRequest(1, include=pattern("a100")),
            ("model", "any model instead of model a100 (there is room on t4)", 1),
            id="one of two without a name",
        ),
        pytest.param(
            node(T4, uuids=["GPU-a"]),
            GpuRequest(1, uuids=UUIDS),
            ("uuid", "any GPU instead of the requested UUIDs", 1),
            id="UUID",
        ),
        pytest.param(
            node(T4, uuids=["GPU-x"]),
            GpuRequest(1, uuids_exclude=UUIDS),
            ("uuid", "any GPU instead of the requested UUIDs", 1),
            id="a UUID that is not wanted",
        ),
        pytest.param(
            node(T4, uuids=["GPU-a"]),
            GpuRequest(1, include=pattern("h100"), uuids=UUIDS),
            ("model+uuid", "any model instead of model h100, and any GPU instead of the requested UUIDs", 2),
            id="neither of two conditions alone",
        ),
        pytest.param(
            node(*[T4] * 4),
            GpuRequest(5, include=pattern("h100")),
            ("model+count", "any model instead of model h100, and 4 GPUs instead of 5", 1.2),
            id="model and count",
        ),
        pytest.param(
            node(A100, A100),
            GpuRequest(5, memory_each_mib=102400),
            ("memoryEach+count", "80 GiB instead of 100 GiB each, and 2 GPUs instead of 5", 0.8),
            id="size and count",
        ),
    ],
)
def test_the_one_suggestion(state: NodeState, request_: GpuRequest, expected: tuple[str, str, float]) -> None:
    cluster = cluster_of({"full": node(T4, held=[0]), "n": state})
    assert told(cluster, request_) == [(*expected, ["n"])]


@pytest.mark.parametrize(
    "request_",
    [
        GpuRequest(1, memory_each_mib=1024),
        GpuRequest(1, memory_total_mib=1024),
        GpuRequest(1, WHOLE, 1024, milli=500),
        GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)),
    ],
    ids=str,
)
def test_no_suggestion_gives_a_condition_up_by_the_back_door(request_: GpuRequest) -> None:
    """Neither 0 MiB of a GPU of unknown memory, nor a whole GPU instead of a share, nor fewer MIG devices."""
    cluster = cluster_of({"n": node(UNKNOWN, mig={"1g.5gb": 1})})
    assert told(cluster, request_) == []
    full = cluster_of({"n": node(T4, held=[0])})
    assert told(full, request_) == []


def test_what_is_dropped_is_dropped_alone() -> None:
    cluster = cluster_of({"n": node(T4, T4, uuids=["GPU-a", "GPU-b"])})
    asked = GpuRequest(2, exclude=pattern("h100"), uuids=UUIDS, uuids_exclude=frozenset({"GPU-b"}))
    (one,) = relaxations(cluster, asked, all_rows(cluster))
    assert one.request == replace(asked, uuids=frozenset(), uuids_exclude=frozenset())


def test_conditions_that_help_alike_are_told_by_their_names() -> None:
    cluster = cluster_of({"a": node(T4, uuids=["GPU-x"]), "b": node(A100, uuids=["GPU-b"])})
    asked = GpuRequest(1, include=pattern("a100"), uuids=UUIDS)
    assert [(change, size, nodes) for change, _, size, nodes in told(cluster, asked)] == [
        ("model", 1, ["a"]),
        ("uuid", 1, ["b"]),
    ]


def test_there_is_room_on_the_models_of_gpus_that_have_it_where_the_request_fits() -> None:
    cluster = cluster_of({"a": node(A100, A100, T4, held=[2]), "b": node(A100_40), "c": node(A100_40, T4, held=[0])})
    (text,) = [one.text for one in relaxations(cluster, GpuRequest(2, include=pattern("h100")), all_rows(cluster))]
    assert text == "any model instead of model h100 (there is room on a100-sxm4-80gb)"


def test_the_smaller_change_is_told_first() -> None:
    cluster = cluster_of({"a": node(A100, A100_40), "b": node(T4)})
    request = GpuRequest(2, memory_each_mib=46080, exclude=pattern("h100"))
    assert [(change, size) for change, _, size, _ in told(cluster, request)] == [
        ("memoryEach", 5120 / 46080),
        ("count", 1 / 2),
    ]


@pytest.mark.parametrize(("free", "expected"), [(1, ["9 GiB"]), (7, ["3 GiB"]), (8, ["2 GiB"]), (9, [])])
def test_smaller_and_fewer_looks_at_the_eight_largest_sizes_below(free: int, expected: list[str]) -> None:
    """One GPU on each node, of 10 GiB down to 1 GiB, of which one is free."""
    sizes = [10240 - 1024 * number for number in range(10)]
    states = {
        f"n{size}": node(("Tesla-T4", size), held=[] if number == free else [0]) for number, size in enumerate(sizes)
    }
    found = told(cluster_of(states), GpuRequest(2, memory_each_mib=10240))
    assert [text for _, text, _, _ in found] == [
        f"{size} instead of 10 GiB each, and 1 GPU instead of 2" for size in expected
    ]
