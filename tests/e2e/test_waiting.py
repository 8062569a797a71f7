"""Every pod that asks for GPUs and has no node is told of, whoever has turned it down, by a real kube-scheduler."""

import json
import time
import urllib.request
from typing import Any

import pytest

from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def listed(cluster: KerfCluster) -> dict[str, Any]:
    """The list as the page is told it, by pod."""
    with urllib.request.urlopen(f"{cluster.kerf.url}/live", timeout=10) as stream:
        for line in stream:
            name, _, data = line.decode().partition(": ")
            told = json.loads(data) if name == "data" else {}
            if "waiting" in told:
                return {item["pod"]: item for item in told["waiting"]["items"]}
    return {}


def test_pods_that_the_schedulers_own_plugins_turn_down_are_listed_with_their_reason(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=1))
    before = time.time()
    cluster.submit("too-large", gpus=8)  # the plugin NodeResourcesFit leaves no node to ask Kerf about
    cluster.submit("gated", gpus=1, schedulingGates=[{"name": "kerf.test/gate"}])
    cluster.submit("plain")

    def told() -> dict[str, Any] | None:
        items = listed(cluster)
        return items if "Insufficient" in items.get("default/too-large", {}).get("why", "") else None

    items = wait_until(told, WITHIN_S, "the list of pods that wait") or {}
    assert items.keys() == {"default/too-large", "default/gated"}
    too_large = items["default/too-large"]
    assert too_large["why"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    assert too_large["request"] == "8 GPUs"
    assert before - 5 <= too_large["since"] <= time.time() + 5
    assert items["default/gated"]["why"] == "held by scheduling gate kerf.test/gate"
    totals = cluster.kerf.get("/nodes")["totals"]
    assert (totals["pendingPods"], totals["waitingPods"]) == (2, 0)
    cluster.delete_pod("too-large")
    wait_until(lambda: cluster.kerf.get("/nodes")["totals"]["pendingPods"] == 1, WITHIN_S, "it is gone")
