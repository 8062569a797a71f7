"""The table of `kerf top`: at 80 columns names are shortened, and no number is."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from extender.cli.top import _node_picture, _picture


def node(name: str, model: str, **changes: Any) -> dict[str, Any]:
    """As `GET /nodes` tells of one."""
    return {
        **{"node": name, "models": [model], "unit": "WHOLE", "gpus": 8, "gpusBooked": 6.375, "units": 8},
        **{
            "unitsFree": 1,
            "fragments": 1,
            "gpusStranded": 0.84,
            "unhealthy": 0,
            "memoryMiB": 655360,
            "memoryFreeMiB": 100000,
        },
        **{"load": 1.0, "pods": 112, "reservations": 12, "devices": None, "setAside": None},
    } | changes


NODES = [
    node("ip-10-0-142-211.eu-central-1.compute.internal", "NVIDIA-H100-80GB-HBM3"),
    node("gke-research-gpu-pool-a3-megagpu-8g-5f2b7c1d-x9q4", "NVIDIA-H100-80GB-HBM3", units=56, unit="REPLICA"),
    node("aks-gpunp-30128931-vmss00001a", "NVIDIA-A100-SXM4-80GB", unhealthy=2, setAside="quarantined: 3 pods failed"),
    node("node", "T4", load=None, memoryMiB=0, reservations=0, gpusStranded=0.0),
]
DEVICES = {"owned": True, "free": "3 x gpu, 12 x mig-1g.10gb", "pools": []}


def printed(nodes: list[dict[str, Any]], width: int) -> list[str]:
    totals = {
        **{"nodes": 1200, "gpuNodes": 1200, "gpusBooked": 6212.5, "gpus": 9600, "load": 0.5, "gpusStranded": 311.25},
        **{"unhealthy": 12, "reservations": 140, "bindings": 3, "pendingPods": 1234, "waitingPods": 1000},
        **{"gpusReserved": 1.5, "strandedPart": 0.0324},
    }
    text = io.StringIO()
    told: Any = {"totals": totals, "items": nodes}
    Console(file=text, width=width, highlight=False).print(_picture(told, width))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "devices"), [(64, None), *((width, devices) for width in (80, 100, 160) for devices in (None, DEVICES))]
)
def test_no_number_is_cut(width: int, devices: Any) -> None:
    lines = printed([item | {"devices": devices} for item in NODES], width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.search(r" 6\.375 ", line)]
    assert len(rows) == len(NODES)
    for row in rows[:3]:
        assert re.search(r" 6\.375 +1 +0\.8 +85 % +100 % +112 +12(?:\s|$)", row), row
    assert re.search(r" 8 \(56( slices)?\) ", rows[1])
    assert not devices or "mig-1g.10gb" in " ".join(lines)
    assert not [row for row in rows if re.search(r"\d…\s*(?:%|$)", row)]


def test_names_keep_their_ends_and_are_whole_where_there_is_room() -> None:
    narrow, wide = printed(NODES, 80), printed(NODES, 160)
    assert any(line.startswith("ip-10-0") and "internal " in line for line in narrow)
    assert not any(NODES[1]["node"] in line for line in narrow)
    assert all(any(item["node"] in line for line in wide) for item in NODES)
    assert any("STRANDED" in line for line in wide) and any("STRAND " in line for line in narrow)


def test_what_is_stranded_is_told_as_the_part_of_all_gpus() -> None:
    words = " ".join(printed(NODES, 160)[0].split())
    assert "6212.5 of 9600 GPUs booked, 1.5 reserved, 311.2 stranded (3.2 %), load 50 %" in words


def test_marks_are_whole_however_narrow_it_is() -> None:
    words = " ".join(" ".join(printed(NODES, 80)).split())
    assert "(2 unhealthy; quarantined)" in words


def test_what_is_reserved_is_told_beside_what_is_booked() -> None:
    assert "6212.5 of 9600 GPUs booked, 1.5 reserved, " in " ".join(printed([], 160))


def test_without_nodes_there_are_headings() -> None:
    assert any("NODE" in line for line in printed([], 80))


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    """As `GET /nodes/NODE` tells of one."""
    return {
        **{"index": index, "model": "a100-sxm4-80gb", "memoryMiB": 81920, "free": True, "idle": True, "healthy": True},
        **{"freeMilli": 1000, "freeMemoryMiB": 81920},
    } | changes


def node_lines(details: list[dict[str, Any]], **changes: Any) -> list[str]:
    told: Any = node("n", "a100-sxm4-80gb", gpusBooked=0, **changes) | {
        "gpuDetails": details,
        "deviceUses": [],
        "holders": [],
    }
    text = io.StringIO()
    Console(file=text, width=80, highlight=False).print(_node_picture(told))
    return [re.sub(r" {2,}", "  ", line).rstrip() for line in text.getvalue().splitlines()]


def test_a_gpu_that_unknown_processes_use_is_free_only_where_the_policy_does_not_count_it() -> None:
    used = {"unmanagedMiB": 32768, "observed": {"load": 0.3}}
    lines = node_lines([gpu(0, **used, idle=False), gpu(1, **used), gpu(2)])
    assert lines[1:] == [
        "GPU  MODEL  BOOKED  LOAD  HELD BY  FREE",
        "0  a100-sxm4-80gb  0 %  30 %  32 GiB by unknown processes  -",
        "1  a100-sxm4-80gb  0 %  30 %  32 GiB by unknown processes  GPU",
        "2  a100-sxm4-80gb  0 %  -  -  GPU",
    ]


def test_gpus_that_are_handed_out_in_slices_are_told_in_slices() -> None:
    gpus = [gpu(0, slices=4, slicesHeld=3), gpu(1, slices=4, slicesHeld=0)]
    head, _, first, second = node_lines(gpus, gpus=2, units=8, unitsFree=3)
    assert head == "n: 0 of 2 GPUs booked; 3 of 8 time slices free, 2 held on unknown GPUs"
    assert first.endswith("3 of 4 slices  -  -  1 slice")
    assert second.endswith("0 of 4 slices  -  -  4 slices")
    assert node_lines(gpus, gpus=2, units=8, unitsFree=5)[0] == "n: 0 of 2 GPUs booked; 5 of 8 time slices free"
