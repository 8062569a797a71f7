from collections.abc import Sequence

from extender.dra.objects import ResourceSlice
from extender.dra.published import _gather_pools, _NodePool
from tests.dra.builders import consuming, counters, device, resource_slice


def gathered(*slices: ResourceSlice) -> list[_NodePool]:
    return _gather_pools("n1", slices)


def names(pools: Sequence[_NodePool]) -> list[list[str]]:
    return [[device.name for device in pool.devices] for pool in pools]


def test_pools_come_by_driver_and_name_and_devices_by_slice() -> None:
    pools = gathered(
        resource_slice(device("d"), device("c"), name="b", count=2),
        resource_slice(device("z"), name="a", count=2),
        resource_slice(device("x"), name="x", driver="a.example.com", pool="q"),
        resource_slice(device("y"), name="y", driver="a.example.com", pool="B"),
    )
    assert [(pool.id.driver, pool.id.pool) for pool in pools] == [
        ("a.example.com", "B"),
        ("a.example.com", "q"),
        ("gpu.nvidia.com", "p"),
    ]
    assert names(pools) == [["y"], ["x"], ["z", "d", "c"]]


def test_only_the_newest_generation_counts() -> None:
    old, new = resource_slice(device("old")), resource_slice(device("new"), name="s1", generation=2)
    assert names(gathered(new, old)) == [["new"]]


def test_a_pool_waits_for_its_slices() -> None:
    (pool,) = gathered(resource_slice(device("a"), count=2), resource_slice(device("o"), name="s1", generation=0))
    assert pool.incomplete == "1 of its 2 slices exist"


def test_slices_of_other_nodes_make_a_pool_complete() -> None:
    near = resource_slice(device("a"), count=2)
    (pool,) = gathered(near, resource_slice(device("b"), name="s1", count=2, nodeName="n2"))
    assert (pool.incomplete, names([pool])) == ("", [["a"]])
    assert [item.metadata.name for item in pool.other_nodes] == ["s1"]
    assert gathered(near, resource_slice(device("b"), name="s1", generation=2, nodeName="n2")) == []  # being replaced


def test_a_pool_whose_slices_are_all_of_the_node_needs_no_others() -> None:
    replaced = resource_slice(device("b"), name="s1", generation=2, nodeName="n2")
    assert names(gathered(resource_slice(device("a")), replaced)) == [["a"]]
    assert gathered(resource_slice(device("b"), nodeName="n2")) == [], "a pool of another node"


def test_contradictions_make_a_pool_invalid() -> None:
    part = resource_slice(device("a", **consuming("g", m="1")), count=2)
    for slices, reason in (
        ([resource_slice(device("a"), device("a"))], "device name a"),
        ([resource_slice(device("a"), name=name, count=2) for name in ("s0", "s1")], "device name a"),
        ([counters(("g", {"m": "1"}), name=name, count=2) for name in ("c0", "c1")], "counter set g"),
        ([resource_slice(device("a", **consuming("g", m="1")))], "counter set g of device a"),
        ([counters(("g", {"n": "1"}), count=2), part], "counter m of device a"),
        (
            [
                resource_slice(device("b"), count=2),
                resource_slice(device("a", **consuming("g", m="1")), name="s1", count=2, nodeName="n2"),
            ],
            "counter set g of device a",
        ),
    ):
        (pool,) = gathered(*slices)
        assert reason in pool.invalid
