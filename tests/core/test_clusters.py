"""The arrays of a cluster: selections of rows, a single node, sums over GPUs."""

from dataclasses import fields

import numpy as np

from extender.core.clusters import OFFERED, Cluster, _is_every_row, num_true, totals
from extender.core.fit.fittings import state_of
from extender.core.gauges import Gauge
from tests.core.builders import A100, T4, cluster_of, node
from tests.core.observing import observed_cluster


def test_rows_taken_equal_indexing_and_all_rows_are_not_copied() -> None:
    for rows in ([], [0], [0, 1], [0, 1, 2, 3]):
        assert _is_every_row(np.array(rows, np.intp)), rows
    for rows in ([1], [1, 0], [0, 0], [0, 2], [1, 2], [0, 2, 1, 3], [0, 1, 1, 3], [0, 1, 2, 4]):
        assert not _is_every_row(np.array(rows, np.intp)), rows
    cluster = cluster_of({"a": node(T4), "b": node(A100, held=[0]), "c": node(A100, T4)})
    for array in (cluster.gpu_memory_mib, cluster.units_per_gpu):
        assert cluster.take_rows(array, np.arange(3)) is array
        for rows in ([], [0], [2, 1, 0], [1, 1], [0, 1], [0, 1, 1]):
            index = np.array(rows, np.intp)
            assert cluster.take_rows(array, index).tolist() == array[index].tolist()


def test_a_single_node_is_a_cluster_of_one_row() -> None:
    nodes = {
        "a": node(T4, uuids=["GPU-0"]),
        "b": node(A100, T4, A100, held=[1], uuids=["GPU-1", "", "GPU-2"]),
        "c": node(T4, T4, uuids=["GPU-3", "GPU-4"]),
    }
    cluster = observed_cluster(nodes, {"b": {Gauge.MEMORY_USED: [0, 5000, 0]}})
    alone = cluster.only(1)
    assert (alone.num_nodes, alone.node_names, dict(alone.row_of)) == (1, ("b",), {"b": 0})
    assert alone.gpu_uuids == (("GPU-1", "", "GPU-2"),)
    assert alone.gpu_at == {"GPU-1": (0, 0), "GPU-2": (0, 2)}
    assert alone.observed is None
    assert alone.version == cluster.version
    arrays = [field.name for field in fields(Cluster) if isinstance(getattr(cluster, field.name), np.ndarray)]
    assert arrays
    for name in arrays:
        assert getattr(alone, name).tolist() == getattr(cluster, name)[1:2].tolist()


def test_idle_gpus_are_healthy_and_without_bookings() -> None:
    used = node(T4, T4, T4, T4, T4, held=[0], used={1: (1, 0), 2: (0, 1)}, broken=[3])
    cluster = cluster_of({"a": used, "b": node(T4), "c": node()})
    assert cluster.num_nodes == 3
    assert cluster.gpu_idle.tolist() == [[False] * 4 + [True], [True] + [False] * 4, [False] * 5]


def test_sums_over_the_last_axis_do_not_overflow() -> None:
    mask = np.zeros((2, 3, 127), np.bool_)
    mask[1, 2, :] = True
    mask[0, 1, 5] = True
    assert num_true(mask).tolist() == [[0, 1, 0], [0, 0, 127]]
    assert num_true(np.ones((2, 0), np.bool_)).tolist() == [0, 0]
    most = np.iinfo(np.int32).max
    assert totals(np.array([[most, most, most], [1, 2, -4]], np.int32)).tolist() == [3 * most, -1]
    assert totals(np.array([100, 100], np.int8)).tolist() == 200


def test_a_copy_with_another_offer_or_other_amounts_has_another_state() -> None:
    cluster = cluster_of({"n": node(A100, T4)}).changed(mig_installed=np.ones((1, 1), np.int32))
    before = state_of(cluster, 0)
    assert state_of(cluster.changed(version=9), 0) == before
    for name in (*sorted(OFFERED), "gpu_free_milli", "gpu_free_mib", "gpu_slices", "untracked_units", "num_served",
                 "num_unserved", "closed", "cpu_free_milli", "memory_free_mib"):  # fmt: skip
        value = getattr(cluster, name)
        other = ~value if value.dtype == np.bool_ else value + 1
        assert state_of(cluster.changed(**{name: other}), 0) != before, name
