"""`GET /pending`: who waits, in whose turn, where, and which node comes nearest."""

import json
from typing import Any

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.resources.requests import GpuRequest
from extender.explain.sentences.nearest import nearest_of
from extender.queueing.pods.objects import GATE
from tests.api.bodies import node, pod
from tests.api.services import Kerf, Shared, running
from tests.explain.test_waiting_pods import made, told_once


def told(kerf: Kerf, query: str = "") -> Any:
    answer = kerf.get(f"/pending{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def test_each_pod_has_its_place_its_reason_and_what_comes_nearest() -> None:
    with running([node("small", 4), node("large", 8)]) as kerf:
        gpus = {"kerf.dev/assigned-gpus": "0,1,2,3,4,5"}
        kerf.create(pod("held", 6, node_name="large", annotations=gpus))
        kerf.filter(kerf.create(made("refused", 8, 7200)), ["small", "large"])
        kerf.create(made("unasked", 9, 600, message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu."))
        told_once(kerf, 2)
        found = told(kerf)
    assert (found["total"], found["more"], found["atLeast"]) == (2, 0, False)
    refused, unasked = found["pods"]  # the older one first
    assert (refused["pod"], refused["where"], refused["request"]) == ("default/refused", "kerf", "8 GPUs")
    assert refused["nearest"] == "needs 8 GPUs; large has 2 free"
    assert refused["explain"] == "kerf explain default/refused"
    assert (unasked["where"], unasked["nearest"]) == ("scheduler", "needs 9 GPUs; large is nearest with 8 installed")
    assert unasked["why"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"


def test_room_that_is_there_is_said() -> None:
    with running([node("n", 4)]) as kerf:
        kerf.create(made("tainted", 2, 60, message="0/1 nodes are available: 1 had untolerated taint"))
        told_once(kerf, 1)
        (item,) = told(kerf)["pods"]
    assert item["nearest"] == "needs 2 GPUs; there is room now on n"


def test_of_several_nodes_with_room_none_is_named() -> None:
    """Which it would be is the policy's to say, and explain asks it."""
    why = "0/3 nodes are available: 3 had untolerated taint"
    with running([node("big", 8), node("cpu"), node("some", 4), node("tight", 2)]) as kerf:
        kerf.create(made("asks", 2, 60, message=why))
        told_once(kerf, 1)
        (item,) = told(kerf)["pods"]
        explained = kerf.get("/explain/pod/default/asks").json()
    assert item["nearest"] == "needs 2 GPUs; there is room now on 3 nodes"
    assert item["sentence"] == f"needs 2 GPUs; there is room on 3 nodes, but kube-scheduler says: {why}"
    assert explained["sentence"] == f"needs 2 GPUs; there is room on tight, but kube-scheduler says: {why}"


def test_a_pod_that_has_a_reservation_is_said_to_have_it() -> None:
    with running([node("n", 4), node("other", 8)]) as kerf:
        asking = kerf.create(made("asking", 2, 60) | {"status": {"phase": "Pending"}})
        told_once(kerf, 1)
        kerf.filter(asking, ["n"])
        (reserved,) = told(kerf)["pods"]
        kerf.clock.now += 31
        (waits,) = told(kerf)["pods"]
        explained = kerf.get("/explain/pod/default/asking").json()
    assert reserved["sentence"] == "reserved on n, not bound yet"
    assert (reserved["remedy"], reserved["nearest"]) == (None, None)
    words = (
        f"was given n at {explained['decidedAt'][11:19]} UTC but not bound there; needs 2 GPUs; there is room now on "
    )
    assert waits["sentence"] == f"{words}2 nodes; kube-scheduler has not retried it yet"
    assert explained["sentence"] == f"{words}n; kube-scheduler has not retried it yet"
    assert waits["remedy"] == explained["remedies"][0]


def test_the_page_is_bounded_sorted_by_turn_and_of_one_namespace_where_that_is_asked() -> None:
    with running([node("n", 1)]) as kerf:
        for name, ago_s, priority in (("young", 10, 0), ("old", 900, 0), ("urgent", 5, 7)):
            kerf.create(made(name, 2, ago_s, priority=priority))
        other = made("other", 2, 60)
        other["metadata"]["namespace"] = "team"
        kerf.create(other)
        told_once(kerf, 4)
        page, team, nobody = (told(kerf, query) for query in ("?limit=2", "?namespace=team", "?namespace=tea"))
    assert [item["pod"] for item in page["pods"]] == ["default/urgent", "default/old"]
    assert [item["priority"] for item in page["pods"]] == [7, 0]
    assert (page["total"], page["more"]) == (4, 2)
    assert ([item["pod"] for item in team["pods"]], team["total"]) == (["team/other"], 1)
    assert (nobody["pods"], nobody["total"]) == ([], 0)


def test_the_queue_tells_the_gang_and_why() -> None:
    with running([node("n", 4)], queue__enabled=True) as kerf:
        marks = {"kerf.dev/gang": "ring", "kerf.dev/gang-size": "2"}
        kerf.create(made("gated", 1, 60, annotations=marks, schedulingGates=[{"name": GATE}]))
        told_once(kerf, 1)
        (item,) = told(kerf)["pods"]
    assert (item["where"], item["gang"]) == ("queue", "default/ring")


def test_a_request_that_can_not_be_understood_is_listed_with_the_fault() -> None:
    with running([node("n", 4)]) as kerf:
        kerf.create(made("odd", 1, 60, annotations={"kerf.dev/gpu-memory-each": "plenty"}))
        told_once(kerf, 1)
        (item,) = told(kerf)["pods"]
    assert item["nearest"] is None
    assert "plenty" in item["why"]


def test_of_many_different_requests_a_bounded_number_is_compared_with_the_nodes() -> None:
    with running([node("n", 1)]) as kerf:
        for number in range(70):
            kerf.create(made(f"pod-{number:02}", number + 2, 60))
        told_once(kerf, 70)
        items = told(kerf)["pods"]
    assert len(items) == 70
    assert sum(item["nearest"] is not None for item in items) == 64


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?limit=x", f"?namespace={'n' * 64}"])
def test_what_is_out_of_range_is_refused(query: str, shared: Shared) -> None:
    kerf = shared([node("n", 1)])
    assert kerf.get(f"/pending{query}").status == 422


def _by_hand(cluster: Cluster, count: int) -> str:
    """The node with the most GPUs free, of those with enough installed, node by node."""
    best, most = "", -1
    for name in sorted(cluster.row_of, key=lambda name: cluster.tie_rank[cluster.row_of[name]]):
        found = fit(cluster, GpuRequest(count), np.array([cluster.row_of[name]]))
        if found.reason[0] == Reason.BUSY and found.available[0] > most:
            best, most = name, int(found.available[0])
    return f"needs {count} GPUs; {best} has {most} free"


def test_the_nearest_node_is_that_of_a_search_by_hand() -> None:
    nodes = [node(f"n-{number}", 8) for number in range(6)]
    held = [
        pod(f"held-{n}", n, node_name=f"n-{n}", annotations={"kerf.dev/assigned-gpus": ",".join(map(str, range(n)))})
        for n in (1, 2, 3, 4, 5)
    ]
    taken = pod("all", 8, node_name="n-0", annotations={"kerf.dev/assigned-gpus": "0,1,2,3,4,5,6,7"})
    with running([*nodes, *held, taken]) as kerf:
        cluster = kerf.service.placer.snapshot()
    rows = np.arange(len(cluster.row_of))
    assert (
        nearest_of(cluster, GpuRequest(8), None, rows).words == _by_hand(cluster, 8) == "needs 8 GPUs; n-1 has 7 free"
    )
    assert json.dumps(nearest_of(cluster, GpuRequest(8), None, rows[:0]).words) == '"there are no nodes"'
