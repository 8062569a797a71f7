"""Who waits: all pods that ask for GPUs and have no node, how long since they were made, and why."""

import json
import time
from datetime import UTC, datetime
from typing import Any

from extender.queueing.pods.objects import GATE
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, running
from tests.ledger.builders import until


def made(name: str, gpus: int | None, ago_s: float, *, message: str = "", **options: Any) -> Manifest:
    """A pod that was created so long ago."""
    manifest = pod(name, gpus, **options)
    manifest["metadata"]["creationTimestamp"] = datetime.fromtimestamp(time.time() - ago_s, UTC).isoformat(
        timespec="seconds"
    )
    if message:
        manifest["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        ]
    return manifest


def told(kerf: Kerf) -> dict[str, Any]:
    """The list that the page shows."""
    waiting: dict[str, Any] = kerf.streams.view.panels["waiting"]()
    return {item["pod"]: item for item in waiting["items"]} | {"total": waiting["total"]}


def told_once(kerf: Kerf, total: int) -> dict[str, Any]:
    """The same once so many wait."""
    kerf.run(until(lambda: told(kerf)["total"] == total))
    return told(kerf)


def age_s(item: dict[str, Any]) -> float:
    return time.time() - float(item["since"])


def test_pods_that_kerf_was_never_asked_about_wait_too() -> None:
    why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    with running([node("n", 4)]) as kerf:
        kerf.create(made("refused", 8, 3600, message=why))
        kerf.create(made("plain", 0, 60))
        found = told_once(kerf, 1)
        totals = json.loads(kerf.get("/nodes").content)["totals"]
    assert found["total"] == 1
    item = found["default/refused"]
    assert (item["request"], item["why"], item["where"]) == ("8 GPUs", why.removesuffix("."), "scheduler")
    assert 3600 <= age_s(item) < 3700
    assert (totals["pendingPods"], totals["waitingPods"]) == (1, 0)


def test_the_age_of_a_rejected_pod_is_that_since_its_creation_however_often_it_is_asked_about() -> None:
    with running([node("n", 4)]) as kerf:
        asking = kerf.create(made("asking", 5, 7200))
        for _ in range(3):
            kerf.filter(asking, ["n"])
            kerf.clock.now += 100
        item = told_once(kerf, 1)["default/asking"]
        by_hand = made("by-hand", 5, 1800)  # of no API server: Kerf has only what came with the request
        kerf.filter(by_hand, ["n"])
        other = told(kerf)["default/by-hand"]
    assert item["why"] == "needs 5 GPUs; n is nearest with 4 installed"
    assert 7200 <= age_s(item) < 7300
    assert 1800 <= age_s(other) < 1900


def test_a_pod_that_is_gone_waits_no_longer() -> None:
    with running([node("n", 4)]) as kerf:
        asking = kerf.create(made("asking", 5, 60))
        kerf.filter(asking, ["n"])
        kerf.run(until(lambda: told(kerf)["total"] == 1))
        kerf.cluster.delete(asking)
        told_once(kerf, 0)
        assert kerf.metric("kerf_pods_waiting") == 0


def test_with_the_queue_on_one_watch_tells_of_those_at_the_gate_and_of_all_others() -> None:
    with running([node("n", 4)], queue__enabled=True) as kerf:
        kerf.create(made("gated", 8, 600, schedulingGates=[{"name": GATE}]))
        kerf.create(made("refused", 8, 60, message="0/1 nodes are available"))
        found = told_once(kerf, 2)
    assert found["total"] == 2
    assert (found["default/gated"]["where"], found["default/refused"]["where"]) == ("queue", "scheduler")
    assert 600 <= age_s(found["default/gated"]) < 700
