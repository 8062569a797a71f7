"""Cells of the map, GPU by GPU."""

from collections.abc import Sequence

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules
from extender.core.resources.nodes import GpuUnit
from extender.explain.overview import Figures
from extender.page.gpu_cells import _UNKNOWN, Mark, cells
from tests.core.builders import NodeState, all_rows, arrays_of, node
from tests.core.observing import observed_cluster

A100 = ("NVIDIA-A100-SXM4-40GB", 40960)
NONE = Mark(0)
Cell = tuple[int, int, int]


def told(cluster: Cluster) -> list[list[Cell]]:
    return [[tuple(cell) for cell in row] for row in cells(cluster, all_rows(cluster), ObservedRules()).tolist()]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(node(A100, A100), [(0, NONE), (0, NONE)], id="free"),
        pytest.param(node(A100, A100, held=[1]), [(0, Mark.FRAGMENT), (100, NONE)], id="a fragment beside a holder"),
        pytest.param(node(A100, held=[0]), [(100, NONE)], id="held whole"),
        # 300 of 1000 milli are 30 %, 20480 of 40960 MiB 50 %: the larger counts.
        pytest.param(node(A100, used={0: (300, 20480)}), [(50, NONE)], id="a share, by memory"),
        pytest.param(node(A100, used={0: (700, 4096)}), [(70, NONE)], id="a share, by compute"),
        pytest.param(node(A100, A100, broken=[0]), [(0, Mark.ERROR), (0, Mark.FRAGMENT)], id="unhealthy"),
        pytest.param(
            node(A100, A100, A100, untracked=2),
            [(100, Mark.UNINDEXED), (100, Mark.UNINDEXED), (0, Mark.FRAGMENT)],
            id="two held, nobody knows which",
        ),
        # Of 2 x 4 slices 5 are held: one GPU wholly, a quarter of the next.
        pytest.param(
            node(A100, A100, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=5),
            [(100, Mark.UNINDEXED), (25, Mark.UNINDEXED | Mark.FRAGMENT)],
            id="time slices",
        ),
        # Of the second GPU 3 of 4; two more are somewhere: the first free ones.
        pytest.param(
            node(A100, A100, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=5, slices={1: 3}),
            [(50, Mark.UNINDEXED | Mark.FRAGMENT), (75, Mark.FRAGMENT)],
            id="time slices of a known GPU",
        ),
        pytest.param(node(), [], id="no GPUs"),
    ],
)
def test_bookings(state: NodeState, expected: list[tuple[int, Mark]]) -> None:
    (row,) = told(arrays_of({"n": state}).snapshot())
    assert [(booked, marks) for booked, _, marks in row[: len(expected)]] == expected
    assert all(used == _UNKNOWN for _, used, _ in row[: len(expected)])


def test_a_slot_without_a_gpu_is_nothing() -> None:
    small, large = told(arrays_of({"small": node(A100), "large": node(A100, A100)}).snapshot())
    assert small == [(0, _UNKNOWN, 0), (0, 0, 0)]
    assert len(large) == 2


def test_load_and_memory_in_use() -> None:
    samples: dict[Gauge, Sequence[float]] = {Gauge.LOAD: [0.426, 0.9, np.nan], Gauge.MEMORY_USED: [30000, 40000, 5000]}
    (row,) = told(observed_cluster({"n": node(A100, A100, A100, held=[0])}, {"n": samples}))
    assert row == [
        (100, 43, 0),
        (0, 90, Mark.FRAGMENT | Mark.UNMANAGED),
        (0, _UNKNOWN, Mark.FRAGMENT | Mark.UNMANAGED),  # 5000 MiB is more than a driver takes
    ]


def test_pods_on_gpus_of_unknown_index_explain_memory_in_use() -> None:
    samples: dict[Gauge, Sequence[float]] = {Gauge.LOAD: [0.0, 0.8], Gauge.MEMORY_USED: [0, 30000]}
    (row,) = told(observed_cluster({"n": node(A100, A100, untracked=1)}, {"n": samples}))
    assert not any(marks & Mark.UNMANAGED for _, _, marks in row)


def test_errors_and_age() -> None:
    nodes = {"faulty": node(A100), "old": node(A100, held=[0]), "never": node(A100)}
    cluster = observed_cluster(nodes, {"faulty": {Gauge.XID: [79]}}, age_s=0)
    assert [row[0][2] for row in told(cluster)] == [Mark.ERROR, 0, 0]
    cluster = observed_cluster(nodes, {"old": {Gauge.LOAD: [0.5]}}, age_s=100)
    assert [row[0] for row in told(cluster)] == [(0, _UNKNOWN, 0), (100, _UNKNOWN, Mark.STALE), (0, _UNKNOWN, 0)]


def test_the_map_adds_up_to_the_totals() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        nodes = {f"n-{number}": _random_node(rng) for number in range(6)}
        cluster = arrays_of(nodes).snapshot()
        shown = cells(cluster, all_rows(cluster), ObservedRules())
        totals = Figures(cluster).sums()
        healthy = cluster.gpu_healthy.sum()
        assert shown[:, :, 0].sum() / 100 == pytest.approx(totals["gpusBooked"] - (totals["gpus"] - healthy))
        fragments = (shown[:, :, 2] & Mark.FRAGMENT > 0).sum()
        assert fragments == totals["fragments"]


def _random_node(rng: np.random.Generator) -> NodeState:
    count = int(rng.integers(1, 9))
    held = [index for index in range(count) if rng.random() < 0.3]
    broken = [index for index in range(count) if index not in held and rng.random() < 0.1]
    most = count - len(held) - len(broken)
    return node(*[A100] * count, held=held, broken=broken, untracked=int(rng.integers(0, most + 1)))
