"""The writer's arrays: rows that are used again, growth, and snapshots that never change."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.resources.nodes import NO_GPUS, GpuUnit, NodeOffer
from extender.ledger.arrays import _FIELDS, ClusterArrays, HeldAmounts
from tests.core.builders import arrays_of, node, wholly

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
ARRAYS = [name for name in _FIELDS if name != "devices"] + ["tie_rank"]
FREE = HeldAmounts({}, 0)


def test_an_empty_cluster_has_no_rows() -> None:
    cluster = ClusterArrays().snapshot()
    assert (cluster.num_nodes, cluster.node_names, dict(cluster.row_of)) == (0, (), {})
    assert cluster.gpu_idle.shape[0] == 0


def test_a_node_is_written_in_full() -> None:
    arrays = ClusterArrays()
    row = arrays.set_node("n", node(A100, T4, withheld=1).offer)
    assert not arrays.snapshot().gpu_idle.any(), "nothing is free before its holders are known"
    arrays.set_held(row, HeldAmounts(wholly(arrays.offer(row), [1]), 1))
    cluster = arrays.snapshot()
    assert cluster.row_of == {"n": 0}
    assert [cluster.models[index].name for index in cluster.gpu_model[0]] == ["a100-sxm4-80gb", "t4"]
    assert cluster.gpu_memory_mib[0].tolist() == [81920, 15360]
    assert cluster.gpu_idle[0].tolist() == [True, False]
    assert (cluster.unit[0], cluster.units_per_gpu[0], cluster.untracked_units[0]) == (GpuUnit.WHOLE, 1, 1)
    arrays.set_held(row, HeldAmounts({}, 2 * (2**31 - 1)))
    assert arrays.snapshot().untracked_units[0] == 2**31 - 1, "as many as an integer counts"


def test_a_removed_node_leaves_a_row_that_offers_nothing_and_is_used_again() -> None:
    arrays = ClusterArrays()
    for name in ("a", "b"):
        arrays.set_held(arrays.set_node(name, node(T4, T4).offer), FREE)
    arrays.remove_node("a")
    cluster = arrays.snapshot()
    assert (cluster.node_names, dict(cluster.row_of)) == (("", "b"), {"b": 1})
    assert cluster.unit.tolist() == [GpuUnit.NONE, GpuUnit.WHOLE]
    assert not cluster.gpu_idle[0].any()
    assert (cluster.gpu_model[0] == -1).all()
    assert arrays.set_node("c", node(A100).offer) == 0
    arrays.set_held(0, FREE)
    cluster = arrays.snapshot()
    assert cluster.node_names == ("c", "b")
    assert (cluster.gpu_idle[0].tolist(), cluster.gpu_memory_mib[0].tolist()) == ([True, False], [81920, 0])
    assert (cluster.gpu_model[0] >= 0).tolist() == [True, False]


def test_arrays_grow_in_rows_and_slots() -> None:
    arrays = ClusterArrays()
    for number in range(200):
        arrays.set_held(arrays.set_node(f"n{number}", node(T4).offer), FREE)
    arrays.set_held(arrays.set_node("wide", node(*[T4] * 64).offer), HeldAmounts({63: (1000, 15360)}, 0))
    cluster = arrays.snapshot()
    assert cluster.gpu_idle.shape == (201, 64)
    assert cluster.gpu_idle.sum() == 200 + 63
    assert cluster.units_per_gpu.tolist() == [1] * 201


def test_models_keep_their_index_and_ties_are_ranked_by_name() -> None:
    arrays = ClusterArrays()
    arrays.set_node("a", node(T4).offer)
    before = arrays.snapshot()
    arrays.remove_node("a")
    for name in ("c", "a", "b"):
        arrays.set_node(name, node(A100, T4).offer)
    after = arrays.snapshot()
    assert after.models[: len(before.models)] == before.models
    assert after.gpu_model.tolist() == [[1, 0]] * 3
    assert after.tie_rank.tolist() == [2, 0, 1]


# Snapshots.


def copied(cluster: Cluster) -> dict[str, object]:
    arrays = {name: getattr(cluster, name).tolist() for name in ARRAYS}
    return {**arrays, "row_of": dict(cluster.row_of), "names": cluster.node_names, "models": cluster.models}


OFFERS = st.sampled_from([NO_GPUS, node(T4).offer, node(A100, T4).offer, node(*[T4] * 3).offer])
NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(NAMES, OFFERS | st.none(), st.sets(st.integers(0, 2)), st.integers(0, 3)), max_size=20))
def test_no_later_change_reaches_a_snapshot(
    changes: list[tuple[str, NodeOffer | None, set[int], int]],
) -> None:
    arrays = ClusterArrays()
    taken: list[tuple[Cluster, dict[str, object]]] = []
    for name, offer, held, untracked in changes:
        if offer is not None:
            row = arrays.set_node(name, offer)
            gpus = wholly(offer, {index for index in held if index < len(offer.gpus)})
            arrays.set_held(row, HeldAmounts(gpus, untracked))
        elif name in arrays.row_of:
            arrays.remove_node(name)
        cluster = arrays.snapshot()
        taken.append((cluster, copied(cluster)))
    for cluster, state in taken:
        assert copied(cluster) == state
    versions = [cluster.version for cluster, _ in taken]
    assert versions == sorted(versions)
    assert all(np.all(cluster.row_version <= cluster.version) for cluster, _ in taken)


def test_a_snapshot_cannot_be_written() -> None:
    cluster = arrays_of({"n": node(T4)}).snapshot()
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(cluster, name)[0] = 0


def test_a_snapshot_copies_what_has_changed_since_the_last_one_and_shares_the_rest() -> None:
    arrays = arrays_of({"a": node(T4, T4), "b": node(T4)})
    before = arrays.snapshot()
    arrays.set_held(0, HeldAmounts({1: (1000, 15360)}, 0))
    after = arrays.snapshot()
    own = {field.name for field in fields(Cluster) if getattr(after, field.name) is not getattr(before, field.name)}
    assert own == {"version", "row_version", "gpu_free_milli", "gpu_free_mib", "states"}
    assert before.gpu_free_milli.tolist() == [[1000, 1000], [1000, 0]]
    assert after.gpu_free_milli.tolist() == [[1000, 0], [1000, 0]]
    assert (after.row_version > before.version).tolist() == [True, False]
    arrays.set_held(0, HeldAmounts({1: (1000, 15360)}, 0))
    assert arrays.snapshot() is after, "nothing has changed"


def test_a_change_of_capacity_is_one_of_the_inventory() -> None:
    """Readers that cache something about the inventory watch the identity of one of its arrays."""
    arrays = arrays_of({"a": node(T4, T4)})
    before = arrays.snapshot()
    arrays.set_capacity(0, 64000, 1024)
    after = arrays.snapshot()
    assert after.gpu_model is not before.gpu_model
    assert after.row_of is not before.row_of
    assert after.gpu_free_milli is before.gpu_free_milli
