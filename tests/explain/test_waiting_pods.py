"""Who waits: all pods that ask for GPUs and have no node, how long since they were made, and why."""

import time
from datetime import UTC, datetime
from typing import Any

from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, running
from tests.ledger.builders import until


def made(name: str, gpus: int | None, ago_s: float, *, message: str = "", **options: Any) -> Manifest:
    """A pod that was created so long ago."""
    manifest = pod(name, gpus, **options)
    created = datetime.fromtimestamp(time.time() - ago_s, UTC)
    manifest["metadata"]["creationTimestamp"] = created.isoformat(timespec="seconds")
    if message:
        manifest["status"]["conditions"][0]["message"] = message
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


def test_a_rejected_pod_waits_since_its_creation_until_it_is_gone_however_often_it_is_asked_about() -> None:
    with running([node("n", 4)]) as kerf:
        asking = kerf.create(made("asking", 5, 7200))
        for _ in range(3):
            kerf.filter(asking, ["n"])
            kerf.clock.now += 100
        item = told_once(kerf, 1)["default/asking"]
        by_hand = made("by-hand", 5, 1800)  # of no API server: Kerf has only what came with the request
        kerf.filter(by_hand, ["n"])
        other = told(kerf)["default/by-hand"]
        kerf.cluster.delete(asking)
        told_once(kerf, 1)
        assert kerf.metric("kerf_pods_waiting") == 1
    assert item["why"] == "needs 5 GPUs; n is nearest with 4 installed"
    assert 7200 <= age_s(item) < 7300
    assert 1800 <= age_s(other) < 1900
