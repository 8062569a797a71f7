"""The cluster at a glance, page by page."""

import json
from typing import Any

from tests.api.bodies import node, pod
from tests.api.services import Kerf, running


def page(kerf: Kerf) -> Any:
    answer = kerf.get("/nodes")
    assert answer.status == 200, answer.content
    return json.loads(answer.content)


def test_totals_and_nodes() -> None:
    objects = [node("n-0", 4), node("n-1", 4), node("cpu-0"), node("slices", shared=4)]
    with running([*objects, pod("held", 1, node_name="n-0", annotations={"kerf.dev/assigned-gpus": "0"})]) as kerf:
        kerf.filter(pod("asking", 1), ["n-0"])
        kerf.filter(pod("waiting", 9), ["n-0"])
        told = page(kerf)
    totals, items = told["totals"], {item["node"]: item for item in told["items"]}
    assert (totals["nodes"], totals["gpuNodes"], totals["gpus"]) == (4, 3, 9)
    assert (totals["gpusBooked"], totals["gpusReserved"], totals["fragments"]) == (1.0, 1.0, 2)  # 2 are left of n-0
    assert (items["n-0"]["gpusBooked"], items["n-0"]["gpusReserved"]) == (1.0, 1.0)
    assert (items["n-1"]["gpusBooked"], items["n-1"]["gpusReserved"]) == (0.0, 0.0)
    assert (totals["reservations"], totals["waitingPods"]) == (1, 1)
    assert list(items) == ["cpu-0", "n-0", "n-1", "slices"]
    assert (items["n-0"]["pods"], items["n-0"]["reservations"]) == (1, 1)
    assert (items["n-0"]["unitsFree"], items["n-0"]["memoryFreeMiB"]) == (2, 2 * 81920)
    assert (items["slices"]["gpus"], items["slices"]["units"], items["slices"]["unit"]) == (1, 4, "REPLICA")
    assert (items["cpu-0"]["gpus"], items["cpu-0"]["models"]) == (0, [])
    assert told["next"] is None


def test_shares_and_time_slices_that_are_reserved_are_parts_of_gpus() -> None:
    with running([node("n-0", 2), node("slices", shared=4)]) as kerf:
        kerf.filter(pod("share", None, annotations={"kerf.dev/gpu-share": "500"}), ["n-0"])
        slices = pod("slices", None)
        slices["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu.shared": "3"}
        kerf.filter(slices, ["slices"])
        before = page(kerf)["totals"]
        kerf.clock.now += 31
        after = page(kerf)["totals"]
    assert (before["gpusBooked"], before["gpusReserved"]) == (0.0, 1.25)
    assert (after["gpusBooked"], after["gpusReserved"]) == (0.0, 0.0)


def test_pages() -> None:
    with running([*(node(f"n-{number}", 1) for number in range(5)), node("cpu-0")]) as kerf:
        overviews = kerf.service.overviews
        first = overviews.page(3, "", gpus_only=True)
        second = overviews.page(3, first["next"] or "", gpus_only=True)
    assert [item["node"] for item in first["items"]] == ["n-0", "n-1", "n-2"]
    assert [item["node"] for item in second["items"]] == ["n-3", "n-4"]
    assert second["next"] is None
    assert first["totals"] == second["totals"]
