"""Relaxed requests that fit, of which none larger of its kind would, and the nodes that lack least."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.relaxations import Relaxation, relaxations, shortfalls
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import (
    A100,
    A100_40,
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
)
from tests.golden import Golden

BARE, SHARED, PART = AskedUnit.WHOLE, AskedUnit.SHARED, GpuUnit.PART
H100, OTHER_UUIDS = pattern("h100"), frozenset({"GPU-x"})
SLICED = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)


def relaxed(cluster: Cluster, request: GpuRequest) -> list[Relaxation]:
    """Relaxations on all nodes; each fits where it says."""
    found = relaxations(cluster, request, all_rows(cluster))
    for one in found:
        assert len(one.rows)
        assert fit(cluster, one.request, one.rows).fits.all()
    return found


def test_what_is_suggested(golden: Golden) -> None:
    lines = []
    for state, request in (
        (node(T4), GpuRequest(2)),
        (node(T4, T4), GpuRequest(9)),
        (SLICED, GpuRequest(5, SHARED)),
        (node(A100), GpuRequest(1, memory_each_mib=102400)),
        (node(T4, used={0: (0, 5120)}, unit=PART), GpuRequest(1, memory_each_mib=15360)),  # what is free of it
        (SLICED, GpuRequest(1, SHARED, memory_each_mib=4096)),
        (node(A100), GpuRequest(1, memory_total_mib=102400)),
        (node(("odd", 1)), GpuRequest(1, memory_total_mib=2)),
        (node(*[T4] * 4), GpuRequest(2, memory_total_mib=46080)),  # never fewer GPUs, though three would hold it
        (node(A100, used={0: (700, 40960)}), GpuRequest(1, BARE, 20480, milli=500)),
        (node(A100, used={0: (700, 40960)}), GpuRequest(1, BARE, 61440, milli=200)),
        (node(T4, used={0: (999, 0)}), GpuRequest(1, BARE, milli=500)),
        (node(T4), GpuRequest(1, exclude=pattern("t4"))),
        (node(T4), GpuRequest(1, include=H100, exclude=pattern("t4"))),
        (node(UNKNOWN), GpuRequest(1, include=H100)),
        (node(UNKNOWN, T4), GpuRequest(1, include=H100)),
        (node(T4, uuids=["GPU-a"]), GpuRequest(1, uuids=OTHER_UUIDS)),
        (node(T4, uuids=["GPU-x"]), GpuRequest(1, uuids_exclude=OTHER_UUIDS)),
        (node(T4, uuids=["GPU-a"]), GpuRequest(1, include=H100, uuids=OTHER_UUIDS)),  # no single one is enough
        (node(*[T4] * 4), GpuRequest(5, include=H100)),
        (node(A100, A100), GpuRequest(5, memory_each_mib=102400)),
    ):
        (one,) = relaxed(cluster_of({"full": node(T4, held=[0]), "n": state}), request)
        assert one.rows.tolist() == [1]
        lines.append(f"{request}: {one.text} ({one.change} {one.size:.4g})")
    golden("core/relaxations.txt", lines)


def test_a_cluster_offers_the_largest_of_each_kind_smallest_change_first() -> None:
    cluster = cluster_of(
        {"big": node(*[A100] * 4, held=[0, 1]), "middle": node(*[A100_40] * 4), "small": node(*[T4] * 2)}
    )
    three = GpuRequest(3, memory_each_mib=61440)
    for request, expected in (
        (three, [replace(three, count=2), replace(three, memory_each_mib=40960)]),
        (GpuRequest(1, include=H100), [ONE]),
        (GpuRequest(5, include=H100), [GpuRequest(4)]),
        (GpuRequest(5, memory_each_mib=102400), [GpuRequest(2, memory_each_mib=81920)]),
    ):
        assert [one.request for one in relaxed(cluster, request)] == expected
    cluster = cluster_of({"a": node(A100, A100_40), "b": node(T4)})
    found = relaxed(cluster, GpuRequest(2, memory_each_mib=46080, exclude=H100))
    assert [(one.change, one.size) for one in found] == [("memoryEach", 5120 / 46080), ("count", 1 / 2)]


@given(
    held=st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=3), count=st.integers(1, 6), gib=st.integers(0, 90)
)
def test_each_suggestion_fits_and_is_the_smallest_change_of_its_kind(
    held: list[set[int]], count: int, gib: int
) -> None:
    models = (A100, A100_40, T4)
    cluster = cluster_of({f"n-{i}": node(*[models[i]] * 4, held=gone) for i, gone in enumerate(held)})
    request = GpuRequest(count, memory_each_mib=gib * 1024)
    if fit_all(cluster, request).fits.any():
        return
    found = {one.change: one for one in relaxed(cluster, request)}
    counts = [n for n in range(1, count) if fit_all(cluster, replace(request, count=n)).fits.any()]
    assert ("count" in found) == bool(counts)
    if counts:
        assert found["count"].request.count == max(counts)
    sizes = [n for n in range(1, gib) if fit_all(cluster, replace(request, memory_each_mib=n * 1024)).fits.any()]
    assert ("memoryEach" in found) == bool(sizes)
    if sizes:  # all sizes in this cluster are whole GiB
        assert found["memoryEach"].request.memory_each_mib == max(sizes) * 1024


def test_no_suggestion_gives_up_what_was_requested() -> None:
    """Neither 0 MiB of a GPU of unknown memory, nor a whole GPU instead of a share, nor fewer MIG devices."""
    nothing = cluster_of({"cpu": node()})
    for request in (
        GpuRequest(1, memory_each_mib=1024),
        GpuRequest(1, memory_total_mib=1024),
        GpuRequest(1, BARE, 1024, milli=500),
        GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)),
    ):
        for state in (node(UNKNOWN, mig={"1g.5gb": 1}), node(T4, held=[0])):
            assert relaxed(cluster_of({"n": state}), request) == []
        assert relaxed(nothing, request) == []
        assert relaxations(nothing, request, np.empty(0, np.intp)) == []


def test_a_dropped_condition_is_dropped_alone_and_those_that_help_alike_are_sorted_by_name() -> None:
    cluster = cluster_of({"n": node(T4, T4, uuids=["GPU-a", "GPU-b"])})
    asked = GpuRequest(2, exclude=H100, uuids=OTHER_UUIDS, uuids_exclude=frozenset({"GPU-b"}))
    assert [one.request for one in relaxed(cluster, asked)] == [
        replace(asked, uuids=frozenset(), uuids_exclude=frozenset())
    ]
    cluster = cluster_of({"a": node(T4, uuids=["GPU-x"]), "b": node(A100, uuids=["GPU-b"])})
    found = relaxed(cluster, GpuRequest(1, include=pattern("a100"), uuids=OTHER_UUIDS))
    assert [(one.change, one.size, one.rows.tolist()) for one in found] == [("model", 1, [0]), ("uuid", 1, [1])]


def test_the_models_with_room_are_those_of_free_gpus_where_the_request_fits() -> None:
    cluster = cluster_of({"a": node(A100, A100, T4, held=[2]), "b": node(A100_40), "c": node(A100_40, T4, held=[0])})
    (one,) = relaxed(cluster, GpuRequest(2, include=H100))
    assert one.text.endswith("(there is room on a100-sxm4-80gb)")
    (one,) = relaxed(cluster, GpuRequest(1, include=H100))
    assert one.text.endswith("(there is room on a100-sxm4-40gb, a100-sxm4-80gb, t4)")


def test_smaller_and_fewer_tries_the_eight_largest_sizes_below() -> None:
    """One GPU on each node, of 10 GiB down to 1 GiB, one of them free."""
    for free, size in ((1, 9), (7, 3), (8, 2), (9, 0)):
        states = {f"n{at}": node(("Tesla-T4", 1024 * (10 - at)), held=[] if at == free else [0]) for at in range(10)}
        found = relaxed(cluster_of(states), GpuRequest(2, memory_each_mib=10240))
        assert [one.request for one in found] == ([GpuRequest(1, memory_each_mib=1024 * size)] if size else [])


def lacking(cluster: Cluster, request: GpuRequest) -> list[tuple[str, str]]:
    found = shortfalls(cluster, request, all_rows(cluster))
    return [(cluster.node_names[one.row], one.text) for one in found]


def test_what_a_node_lacks() -> None:
    busy_share, of_half = node(A100, used={0: (700, 40960)}), GpuRequest(1, memory_each_percent=50)
    for state, request, text in (
        (node(T4, held=[0]), ONE, "1 more GPU free"),
        (node(T4, T4, T4, held=[0, 1]), GpuRequest(3), "2 more GPUs free"),
        (node(T4, held=[0]), GpuRequest(0, BARE, memory_total_mib=1024), "1 more GPU free"),
        (node(T4, T4, held=[0]), GpuRequest(0, BARE, memory_total_mib=20480), "5 GiB more free"),
        (busy_share, GpuRequest(1, BARE, 20480, milli=500), "200 milli more free on one GPU"),
        (busy_share, GpuRequest(1, BARE, 61440, milli=200), "20 GiB more free"),
        # Memory alone needs some compute, too.
        (node(T4, used={0: (1000, 0)}, unit=PART), GpuRequest(1, memory_each_mib=1024), "1 milli more free on one GPU"),
        # Half of the largest: 40960 - (81920 - 50000).
        (node(T4, A100, used={0: (0, 15000), 1: (0, 50000)}, unit=PART), of_half, "9040 MiB more free"),
    ):
        assert lacking(cluster_of({"never": node(), "n": state}), request) == [("n", text)]


def test_missing_mig_devices_are_summed_over_profiles() -> None:
    arrays = arrays_of({"none": node(mig={"7g.40gb": 1}), "n": NodeState(node(mig={"1g.5gb": 3, "2g.10gb": 3}).offer)})
    arrays.set_held(1, HeldAmounts({}, 0, (("1g.5gb", 2), ("2g.10gb", 2))))
    for asked, text in (
        ({"1g.5gb": 1, "2g.10gb": 2}, "1 more MIG device free"),
        ({"1g.5gb": 3, "2g.10gb": 3}, "4 more MIG devices free"),
        ({"1g.5gb": 2}, "1 more MIG device free"),
    ):
        request = GpuRequest(sum(asked.values()), AskedUnit.MIG, mig=tuple(asked.items()))
        assert lacking(arrays.snapshot(), request) == [("n", text)]


def test_the_three_nodes_that_lack_least_with_ties_by_name() -> None:
    states = {name: node(*[T4] * 4, held=range(gone)) for name, gone in zip("edcba", (2, 2, 3, 2, 4), strict=True)}
    cluster = cluster_of(states | {"never": node(T4)})
    assert lacking(cluster, GpuRequest(4)) == [(name, "2 more GPUs free") for name in "bde"]
    assert lacking(cluster, GpuRequest(3)) == [(name, "1 more GPU free") for name in "bde"]
    assert [one.row for one in shortfalls(cluster, GpuRequest(4), np.array([4, 2]))] == [2, 4]


def test_shortfalls_are_compared_as_fractions_of_the_request() -> None:
    cluster = cluster_of(
        {
            "all": node(T4, untracked=1),  # one GPU of one
            "most": node(T4, used={0: (900, 0)}),  # 400 milli of 500
            "some": node(T4, used={0: (0, 14336)}),  # 1 GiB of 2
        }
    )
    request = GpuRequest(1, BARE, 2048, milli=500)
    assert [name for name, _ in lacking(cluster, request)] == ["some", "most", "all"]
