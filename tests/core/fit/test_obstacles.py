"""What keeps a request from each single GPU, for the picture of a node."""

import numpy as np

from extender.core.dra.devices import NodeDevices, Taking
from extender.core.fit.relaxations import obstacles
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100, ONE, T4, all_rows, cluster_of, node, pattern
from tests.core.dra.machines import a100_node, partition
from tests.core.fit.claims import ask, asked, gpus, owned

BARE, PART = AskedUnit.WHOLE, GpuUnit.PART
A100S, OF_UUIDS = pattern("a100"), node(T4, T4, uuids=["GPU-a", "GPU-b"])
B = frozenset({"GPU-b"})
SLICED = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4)
NO_MEMORY, NO_NAME = ("NVIDIA-GB10", 0), ("", 15360)


def test_the_first_failing_check_excludes_a_gpu() -> None:
    by_compute = node(T4, T4, T4, used={0: (501, 0), 1: (500, 0)}, held=[2])
    by_mib = node(T4, T4, used={0: (500, 13313), 1: (500, 13312)})
    by_percent = node(T4, A100, unit=PART, used={0: (0, 7681), 1: (0, 40960)})
    by_both = node(T4, T4, T4, unit=PART, used={0: (999, 0), 1: (999, 15360)}, held=[2])
    several = node(A100, T4, T4, T4, broken=[0, 1], held=[2], uuids=["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    of_several = GpuRequest(1, include=pattern("t4"), uuids=frozenset({"GPU-a", "GPU-c"}))
    for state, request, texts in (
        (node(T4, T4), GpuRequest(3), ["", ""]),  # each GPU by itself
        (node(T4, T4, held=[1]), ONE, ["", "in use"]),
        (node(T4, T4, used={0: (1, 0), 1: (0, 1)}), ONE, ["in use"] * 2),
        (node(T4, T4, broken=[0]), ONE, ["unhealthy", ""]),
        (node(T4), GpuRequest(1, AskedUnit.SHARED), ["not of the requested kind"]),
        (OF_UUIDS, GpuRequest(1, uuids=B), ["another UUID", ""]),
        (OF_UUIDS, GpuRequest(1, uuids_exclude=B), ["", "another UUID"]),
        (node(T4, A100, NO_NAME), GpuRequest(1, include=A100S), ["another model", "", "model unknown"]),
        (node(T4, A100), GpuRequest(1, exclude=A100S), ["", "another model"]),
        (node(NO_NAME), GpuRequest(1, include=A100S), ["model unknown"]),
        (node(T4, A100), GpuRequest(1, memory_each_mib=20480), ["too small: 15 GiB of 20 GiB", ""]),
        (node(T4, A100, held=[0]), GpuRequest(1, memory_each_mib=15360), ["in use", ""]),
        (SLICED, GpuRequest(1, AskedUnit.SHARED, memory_each_mib=4096), ["too small: 3840 MiB of 4 GiB"]),
        (node(NO_MEMORY), GpuRequest(1, memory_each_mib=65536), ["memory unknown"]),
        (node(NO_MEMORY), GpuRequest(0, memory_total_mib=65536), [""]),
        (by_compute, GpuRequest(1, BARE, milli=500), ["499 of 500 milli free", "", "0 of 500 milli free"]),
        (by_mib, GpuRequest(1, BARE, 2048, milli=500), ["2047 MiB of 2 GiB free", ""]),
        (by_percent, GpuRequest(1, memory_each_percent=50), ["7679 MiB of 7680 MiB free", ""]),
        (by_both, GpuRequest(1, memory_each_mib=1024), ["", "0 MiB of 1 GiB free", "0 of 1 milli free"]),
        (several, of_several, ["unhealthy", "unhealthy", "in use", "another UUID"]),  # the first check that fails
        (node(T4, mig={"1g.5gb": 1}), GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)), [""]),
    ):
        cluster = cluster_of({"n": state})
        assert obstacles(cluster, request, all_rows(cluster)) == [texts], request


def test_each_row_reports_its_own_node() -> None:
    cluster = cluster_of(
        {
            "held": node(T4, held=[0]),
            "sliced": node(A100, unit=GpuUnit.REPLICA, units_per_gpu=2),
            "free": node(T4, T4),
            "part": node(T4, used={0: (300, 0)}, unit=PART),
        }
    )
    in_use, other_kind = ["in use", ""], ["not of the requested kind", ""]
    found = obstacles(cluster, ONE, np.array([3, 1, 0, 2, 1]))
    assert found == [in_use, other_kind, in_use, ["", ""], other_kind]


def test_for_claims_the_use_of_each_gpu_is_reported() -> None:
    inventory = a100_node("parts", 3)
    parts = NodeDevices.of(inventory, [Taking(0), Taking(partition(inventory, 1, "1g.5gb", 0))])
    cluster = owned({"free": gpus(1), "parts": parts, "none": None}, broken=[2]).snapshot()
    request = GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))
    assert obstacles(cluster, request, np.array([1, 2, 0])) == [
        ["in use", "partly in use", "unhealthy"],
        ["", "", ""],
        ["", "", ""],
    ]
