"""What would make a request fit: each suggestion does, and nothing larger of its kind would."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.relaxations import relaxations, shortfalls
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import all_rows, cluster_of, node, pattern

A100, A100_40, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)


def texts(cluster: Cluster, request: GpuRequest) -> list[str]:
    return [relaxation.text for relaxation in relaxations(cluster, request, all_rows(cluster))]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(GpuRequest(5), ["1 GPU fewer (4 instead of 5)"], id="count"),
        pytest.param(GpuRequest(9), ["5 GPUs fewer (4 instead of 9)"], id="count, far off"),
        pytest.param(
            GpuRequest(3, memory_each_mib=61440),
            ["1 GPU fewer (2 instead of 3)", "40 GiB instead of 60 GiB each"],
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
            ["any model instead of model h100, and 1 GPU fewer (4 instead of 5)"],
            id="two conditions",
        ),
        pytest.param(
            GpuRequest(5, memory_each_mib=102400),
            ["80 GiB instead of 100 GiB each, and 3 GPUs fewer (2 instead of 5)"],
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
    assert relaxations(cluster, GpuRequest(2), np.empty(0, np.intp)) == []


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
