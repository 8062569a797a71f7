"""`GET /pending`: who waits, in whose turn, where, and which node comes nearest."""

import time
from typing import Any

from tests.api.bodies import node
from tests.api.services import Kerf, Shared, running
from tests.explain.sentences.test_pending_pods import held
from tests.explain.test_waiting_pods import made, told_once


def told(kerf: Kerf, query: str = "") -> Any:
    answer = kerf.get(f"/pending{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def test_each_pod_has_its_place_its_reason_and_what_comes_nearest() -> None:
    with running([node("small", 4), node("large", 8)]) as kerf:
        kerf.create(held("held", "large", "0,1,2,3,4,5"))
        kerf.filter(kerf.create(made("refused", 8, 7200)), ["small", "large"])
        kerf.create(made("unasked", 9, 3600, message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu."))
        kerf.create(made("odd", 1, 60, annotations={"kerf.dev/gpu-memory-each": "plenty"}))
        kerf.create(made("plain", 0, 60))
        told_once(kerf, 3)
        found, totals = told(kerf), kerf.get("/nodes").json()["totals"]
    assert (found["total"], found["more"], found["atLeast"]) == (3, 0, False)
    assert (totals["pendingPods"], totals["waitingPods"]) == (3, 1)
    refused, unasked, odd = found["pods"]  # the oldest first
    assert (refused["pod"], refused["where"], refused["request"]) == ("default/refused", "kerf", "8 GPUs")
    assert refused["nearest"] == "needs 8 GPUs; large has 2 free"
    assert refused["explain"] == "kerf explain default/refused"
    assert (unasked["where"], unasked["nearest"]) == ("scheduler", "needs 9 GPUs; large is nearest with 8 installed")
    assert (unasked["request"], unasked["why"]) == (
        *("9 GPUs", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"),
    )
    assert 3600 <= time.time() - unasked["since"] < 3700
    assert (odd["nearest"], "plenty" in odd["why"]) == (None, True)


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


def test_of_many_different_requests_a_bounded_number_is_compared_with_the_nodes() -> None:
    with running([node("n", 1)]) as kerf:
        for number in range(70):
            kerf.create(made(f"pod-{number:02}", number + 2, 60))
        told_once(kerf, 70)
        items = told(kerf)["pods"]
    assert len(items) == 70
    assert sum(item["nearest"] is not None for item in items) == 64


def test_what_is_out_of_range_is_refused(shared: Shared) -> None:
    kerf = shared([node("n", 1)])
    for query in ("limit=0", "limit=1001", "limit=x", f"namespace={'n' * 64}"):
        assert kerf.get(f"/pending?{query}").status == 422
