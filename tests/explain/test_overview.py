"""The cluster at a glance, page by page."""

from typing import Any

from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.explain.sentences.test_pending_pods import held, slices


def page(kerf: Kerf) -> Any:
    answer = kerf.get("/nodes")
    assert answer.status == 200, answer.content
    return answer.json()


def test_totals_and_nodes() -> None:
    objects = [node("n-0", 4), node("n-1", 4), node("cpu-0"), node("slices", shared=4)]
    with running([*objects, held("held", "n-0", "0")]) as kerf:
        kerf.filter(pod("asking", 1), ["n-0"])
        kerf.filter(pod("waiting", 9), ["n-0"])
        told = page(kerf)
    totals, items = told["totals"], {item["node"]: item for item in told["items"]}
    assert (totals["nodes"], totals["gpuNodes"], totals["gpus"]) == (4, 3, 9)
    assert (totals["gpusBooked"], totals["gpusReserved"], totals["fragments"]) == (1.0, 1.0, 2)  # 2 are left of n-0
    assert (totals["reservations"], totals["waitingPods"]) == (1, 1)
    assert list(items) == ["cpu-0", "n-0", "n-1", "slices"]
    one = items["n-0"]
    assert (one["gpusBooked"], one["gpusReserved"], one["pods"], one["reservations"]) == (1.0, 1.0, 1, 1)
    assert (one["unitsFree"], one["memoryFreeMiB"]) == (2, 2 * 81920)
    assert (items["n-1"]["gpusBooked"], items["n-1"]["gpusReserved"]) == (0.0, 0.0)
    assert (items["slices"]["gpus"], items["slices"]["units"], items["slices"]["unit"]) == (1, 4, "REPLICA")
    assert (items["cpu-0"]["gpus"], items["cpu-0"]["models"], told["next"]) == (0, [], None)


def test_shares_and_time_slices_that_are_reserved_are_parts_of_gpus() -> None:
    with running([node("n-0", 2), node("slices", shared=4)]) as kerf:
        kerf.filter(pod("share", annotations={"kerf.dev/gpu-share": "500"}), ["n-0"])
        kerf.filter(slices("slices", 3), ["slices"])
        before = page(kerf)["totals"]
        kerf.clock.now += 31
        after = page(kerf)["totals"]
    assert (before["gpusBooked"], before["gpusReserved"]) == (0.0, 1.25)
    assert (after["gpusBooked"], after["gpusReserved"]) == (0.0, 0.0)


def test_pages() -> None:
    with running([*(node(f"n-{number}", 1) for number in range(5)), node("cpu-0")]) as kerf:
        first = kerf.service.overviews.page(3, "", gpus_only=True)
        second = kerf.service.overviews.page(3, first["next"] or "", gpus_only=True)
    assert [item["node"] for item in first["items"]] == ["n-0", "n-1", "n-2"]
    assert ([item["node"] for item in second["items"]], second["next"]) == (["n-3", "n-4"], None)
    assert first["totals"] == second["totals"]
