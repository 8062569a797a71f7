"""The nodes that lack least: what others would have to let go of."""

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fit.relaxations import shortfalls
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node

A100, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("Tesla-T4", 15360)
WHOLE = AskedUnit.WHOLE


def lacking(cluster: Cluster, request: GpuRequest) -> list[tuple[str, str]]:
    found = shortfalls(cluster, request, all_rows(cluster))
    return [(cluster.node_names[one.row], one.text) for one in found]


@pytest.mark.parametrize(
    ("state", "request_", "text"),
    [
        pytest.param(node(T4, held=[0]), GpuRequest(1), "1 more GPU free", id="one"),
        pytest.param(node(T4, T4, T4, held=[0, 1]), GpuRequest(3), "2 more GPUs free", id="two"),
        pytest.param(
            node(T4, held=[0]),
            GpuRequest(0, WHOLE, memory_total_mib=1024),
            "1 more GPU free",
            id="one where no number is asked",
        ),
        pytest.param(
            node(T4, T4, held=[0]), GpuRequest(0, WHOLE, memory_total_mib=20480), "5 GiB more free", id="a total"
        ),
        pytest.param(
            node(T4, used={0: (1000, 0)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_mib=1024),
            "1 milli more free on one GPU",
            id="memory alone needs some compute too",
        ),
        pytest.param(
            node(T4, A100, used={0: (0, 15000), 1: (0, 50000)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_percent=50),
            "9040 MiB more free",
            id="a half of the largest: 40960 - (81920 - 50000)",
        ),
    ],
)
def test_what_is_lacking(state: NodeState, request_: GpuRequest, text: str) -> None:
    assert lacking(cluster_of({"never": node(), "n": state}), request_) == [("n", text)]


def test_mig_devices_are_lacking_where_others_hold_them() -> None:
    offer = node(mig={"1g.5gb": 3}).offer
    arrays = arrays_of({"none": node(mig={"2g.10gb": 1}), "n": NodeState(offer)})
    arrays.set_held(1, Held({}, 0, (("1g.5gb", 2),)))
    cluster = arrays.snapshot()
    (one,) = shortfalls(cluster, GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)), all_rows(cluster))
    assert (one.row, one.missing) == (1, 2)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        pytest.param({"1g.5gb": 1, "2g.10gb": 2}, "1 more MIG device free", id="of one profile, others are enough"),
        pytest.param({"1g.5gb": 3, "2g.10gb": 3}, "4 more MIG devices free", id="of both, together"),
        pytest.param({"1g.5gb": 2}, "1 more MIG device free", id="of the only one"),
    ],
)
def test_mig_devices_of_several_profiles_are_lacking_each_by_itself(asked: dict[str, int], text: str) -> None:
    arrays = arrays_of({"n": NodeState(node(mig={"1g.5gb": 3, "2g.10gb": 3}).offer)})
    arrays.set_held(0, Held({}, 0, (("1g.5gb", 2), ("2g.10gb", 2))))
    request = GpuRequest(sum(asked.values()), AskedUnit.MIG, mig=tuple(asked.items()))
    assert lacking(arrays.snapshot(), request) == [("n", text)]


def test_the_three_nodes_that_lack_least_and_among_equals_the_smaller_names() -> None:
    states = {
        name: node(*[T4] * 4, held=range(gone)) for name, gone in (("e", 2), ("d", 2), ("c", 3), ("b", 2), ("a", 4))
    }
    cluster = cluster_of(states)
    assert lacking(cluster, GpuRequest(4)) == [(name, "2 more GPUs free") for name in ("b", "d", "e")]
    assert lacking(cluster, GpuRequest(3)) == [
        ("b", "1 more GPU free"),
        ("d", "1 more GPU free"),
        ("e", "1 more GPU free"),
    ]
    assert [one.row for one in shortfalls(cluster, GpuRequest(4), np.array([4, 2]))] == [2, 4]


def test_what_lacks_is_compared_by_its_part_of_what_is_asked() -> None:
    cluster = cluster_of(
        {
            "all": node(T4, untracked=1),  # one GPU of one
            "most": node(T4, used={0: (900, 0)}),  # 400 milli of 500
            "some": node(T4, used={0: (0, 14336)}),  # 1 GiB of 2
        }
    )
    assert lacking(cluster, GpuRequest(1, WHOLE, 2048, milli=500)) == [
        ("some", "1 GiB more free"),
        ("most", "400 milli more free on one GPU"),
        ("all", "1 more GPU free"),
    ]
