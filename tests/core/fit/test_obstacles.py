"""What keeps a request from each single GPU: what a person reads in the picture of a node."""

import numpy as np
import pytest

from extender.core.dra.devices import NodeDevices, Taking
from extender.core.fit.relaxations import obstacles
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern
from tests.core.dra.machines import a100_node, partition
from tests.core.fit.claims import ask, asked, gpus, owned

A100, T4 = ("NVIDIA-A100-SXM4-80GB", 81920), ("Tesla-T4", 15360)
WHOLE = AskedUnit.WHOLE


@pytest.mark.parametrize(
    ("state", "request_", "texts"),
    [
        pytest.param(node(T4, T4), GpuRequest(1), ["", ""], id="room on each"),
        pytest.param(node(T4, T4), GpuRequest(3), ["", ""], id="each by itself"),
        pytest.param(node(T4, T4, held=[1]), GpuRequest(1), ["", "in use"], id="held"),
        pytest.param(node(T4, T4, used={0: (1, 0), 1: (0, 1)}), GpuRequest(1), ["in use"] * 2, id="shared"),
        pytest.param(node(T4, T4, broken=[0]), GpuRequest(1), ["unhealthy", ""], id="broken"),
        pytest.param(node(T4), GpuRequest(1, AskedUnit.SHARED), ["not of the requested kind"], id="no slices"),
        pytest.param(
            node(T4, T4, uuids=["GPU-a", "GPU-b"]),
            GpuRequest(1, uuids=frozenset({"GPU-b"})),
            ["another UUID", ""],
            id="UUID",
        ),
        pytest.param(
            node(T4, T4, uuids=["GPU-a", "GPU-b"]),
            GpuRequest(1, uuids_exclude=frozenset({"GPU-b"})),
            ["", "another UUID"],
            id="UUID excluded",
        ),
        pytest.param(node(T4, A100), GpuRequest(1, include=pattern("a100")), ["another model", ""], id="model"),
        pytest.param(node(T4, A100), GpuRequest(1, exclude=pattern("a100")), ["", "another model"], id="not the model"),
        pytest.param(
            node(T4, A100), GpuRequest(1, memory_each_mib=20480), ["too small: 15 GiB of 20 GiB", ""], id="small"
        ),
        pytest.param(
            node(T4, A100, held=[0]), GpuRequest(1, memory_each_mib=15360), ["in use", ""], id="exactly the size"
        ),
        pytest.param(
            node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(1, AskedUnit.SHARED, memory_each_mib=4096),
            ["too small: 3840 MiB of 4 GiB"],
            id="the size of a slice is its part of the GPU",
        ),
        pytest.param(
            node(T4, T4, T4, used={0: (501, 0), 1: (500, 0)}, held=[2]),
            GpuRequest(1, WHOLE, milli=500),
            ["499 of 500 milli free", "", "0 of 500 milli free"],
            id="compute",
        ),
        pytest.param(
            node(T4, T4, used={0: (500, 13313), 1: (500, 13312)}),
            GpuRequest(1, WHOLE, 2048, milli=500),
            ["2047 MiB of 2 GiB free", ""],
            id="memory",
        ),
        pytest.param(
            node(T4, A100, unit=GpuUnit.PART, used={0: (0, 7681), 1: (0, 40960)}),
            GpuRequest(1, memory_each_percent=50),
            ["7679 MiB of 7680 MiB free", ""],
            id="memory in percent",
        ),
        pytest.param(
            node(T4, T4, T4, unit=GpuUnit.PART, used={0: (999, 0), 1: (999, 15360)}, held=[2]),
            GpuRequest(1, memory_each_mib=1024),
            ["", "0 MiB of 1 GiB free", "0 of 1 milli free"],
            id="memory alone needs some compute too",
        ),
        pytest.param(
            node(A100, T4, T4, T4, broken=[0, 1], held=[2], uuids=["GPU-a", "GPU-b", "GPU-c", "GPU-d"]),
            GpuRequest(1, include=pattern("t4"), uuids=frozenset({"GPU-a", "GPU-c"})),
            ["unhealthy", "unhealthy", "in use", "another UUID"],
            id="the first that fails is told",
        ),
        pytest.param(
            node(T4, mig={"1g.5gb": 1}), GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)), [""], id="MIG is no GPU's"
        ),
    ],
)
def test_obstacles(state: NodeState, request_: GpuRequest, texts: list[str]) -> None:
    cluster = cluster_of({"n": state})
    assert obstacles(cluster, request_, all_rows(cluster)) == [texts]


def test_each_row_tells_of_its_own_node() -> None:
    cluster = cluster_of(
        {
            "held": node(T4, held=[0]),
            "sliced": node(A100, unit=GpuUnit.REPLICA, units_per_gpu=2),
            "free": node(T4, T4),
            "part": node(T4, used={0: (300, 0)}, unit=GpuUnit.PART),
        }
    )
    rows = np.array([3, 1, 0, 2, 1])
    request = GpuRequest(1)
    assert obstacles(cluster, request, rows) == [
        ["in use", ""],
        ["not of the requested kind", ""],
        ["in use", ""],
        ["", ""],
        ["not of the requested kind", ""],
    ]


def test_where_claims_ask_what_is_gone_of_each_gpu_is_told() -> None:
    inventory = a100_node("parts", 3)
    parts = NodeDevices.of(inventory, [Taking(0), Taking(partition(inventory, 1, "1g.5gb", 0))])
    arrays = owned({"free": gpus(1), "parts": parts, "none": None}, broken=[2])
    cluster = arrays.snapshot()
    request = GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))
    assert obstacles(cluster, request, np.array([1, 2, 0])) == [
        ["in use", "partly in use", "unhealthy"],
        ["", "", ""],
        ["", "", ""],
    ]
