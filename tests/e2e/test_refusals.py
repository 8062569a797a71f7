"""Pods that kube-scheduler refuses for what Kerf can't know, on a real control plane: others get the GPUs."""

import json
import time
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.e2e.fixtures import Clusters
from tests.e2e.test_direct import PLAIN
from tests.e2e.test_queueing import GATED, annotation

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.usefixtures("judged")]

OTHERS_WITHIN_S = 15.0
PICKY = "picky-scheduler"
"""A profile with a rule of its administrator's, of which only kube-scheduler knows."""
PROFILE = f"""
  - schedulerName: {PICKY}
    pluginConfig:
      - name: NodeAffinity
        args:
          addedAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms: [{{matchExpressions: [{{key: test.dev/nowhere, operator: Exists}}]}}]
"""


@pytest.fixture(params=[True, False], ids=["extender", "direct"])
def queue(clusters: Clusters, request: pytest.FixtureRequest) -> KerfCluster:
    """A queue whose kube-scheduler has a second profile."""
    default = "  - schedulerName: default-scheduler"
    plain = f"{PLAIN}profiles:\n{default}\n"
    text = (SCHEDULER_CONFIG / "decisive.yaml").read_text() if request.param else plain
    config = clusters.plane.directory / f"picky-{request.param}.yaml"
    config.write_text(text.replace(default, default + PROFILE.rstrip("\n")))
    clusters.plane.apply(QUEUE_RBAC)
    options: dict[str, Any] = {"enabled": True, "extender": request.param, "reserve_after_s": 1, "order": "fifo"}
    return clusters.open(config, *(f"--set=queue.{name}={json.dumps(value)}" for name, value in options.items()))


@pytest.mark.parametrize("num_refused", [1, 12])
def test_pods_that_kube_scheduler_alone_knows_to_refuse_keep_the_gpus_from_nobody(
    queue: KerfCluster, num_refused: int
) -> None:
    queue.add_nodes(gpu_node("a", gpus=8), gpu_node("b", gpus=8))
    refused = [f"refused-{number}" for number in range(num_refused)]
    for name in refused:
        queue.submit(name, gpus=8, schedulerName=PICKY, **GATED)
    wait_until(lambda: queue.pending_message("refused-0"), WITHIN_S, "kube-scheduler has refused the first")
    began = time.monotonic()
    for name in ("x", "y", "z"):
        queue.submit(name, gpus=4, **GATED)
    for name in ("x", "y", "z"):
        queue.bound(name)
    assert time.monotonic() - began < OTHERS_WITHIN_S
    words = "node(s) didn't match"
    assert words in queue.event("refused-0", "NominationRefused")

    def told() -> bool:
        return words in annotation(queue.pod("refused-0"), "skipped")

    wait_until(told, 40.0, "the pod says what kube-scheduler said")
    listed = {item["pod"]: item for item in queue.kerf.get("/pending")["pods"]}
    assert listed.keys() == {f"default/{name}" for name in refused}
    assert words in listed["default/refused-0"]["sentence"]
    assert words in queue.kerf.get("/explain/pod/default/refused-0")["sentence"]
