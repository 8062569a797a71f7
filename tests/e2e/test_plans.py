"""Joint plans on a real control plane: rows M1 to M4, M6, M7 and M9, by `kerf plan --apply` and by the queue."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import GATED, annotation, gated, open_queue, skipped

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.usefixtures("judged")]

FUNCTION = "com.openfaas.function.spec"


def plan(cluster: KerfCluster, *arguments: str) -> str:
    """`kerf plan` of the cluster's waiting pods, as its user runs it."""
    command = [sys.executable, "-m", "extender", "plan", "--kubeconfig", str(cluster.plane.kubeconfig()), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def demo(cluster: KerfCluster) -> None:
    """M3: three nodes of 8 CPU and 16384 MiB, 20 pods behind the gate, one of which no node can ever hold."""
    cluster.add_nodes(*(cpu_node(f"node{number}", cpu="8", memory="16384Mi") for number in range(3)))
    for number in range(19):
        cluster.submit(f"pod{number:02}", cpu="1", memory="1Gi", **GATED)
    cluster.submit("huge", cpu="9", memory="1Gi", **GATED)


def on_nodes(cluster: KerfCluster) -> list[Manifest]:
    return [found for found in cluster.pods() if found["spec"].get("nodeName")]


def all_but_huge(cluster: KerfCluster) -> Counter[str]:
    """Wait until 19 pods are bound; how many each node has."""
    wait_until(lambda: len(on_nodes(cluster)) == 19, WITHIN_S, "19 pods are bound")
    assert gated(cluster, "huge")
    counts = Counter(str(found["spec"]["nodeName"]) for found in on_nodes(cluster))
    assert max(counts.values()) <= 8  # of 1 CPU each, on nodes of 8
    return counts


@pytest.mark.parametrize("planner", ["greedy", "genetic", "q-learning", "exact"])
def test_m1_to_m4_and_m9_the_demo_is_planned_reported_and_carried_out(clusters: Clusters, planner: str) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    demo(cluster)
    report: dict[str, Any] = json.loads(plan(cluster, "--planner", planner, "--apply", "-o", "json"))
    assert (report["planner"], report["pods"], report["placed"]) == (planner, 20, 19)
    reason = "needs 9 CPU and 1024 MiB, no node has that much"
    assert report["unassigned"] == [{"pod": "default/huge", "reason": reason}]
    counts = all_but_huge(cluster)
    for found in on_nodes(cluster):
        assert annotation(found, "planned-node") == found["spec"]["nodeName"]  # kube-scheduler agreed to each
        assert annotation(found, "planned-by") == planner
    for load in report["nodes"]:
        assert len(load["pods"]) == counts[load["node"]]
        assert load["cpuPercent"] == 12.5 * counts[load["node"]]
        assert load["memoryPercent"] == round(6.25 * counts[load["node"]], 1)


@pytest.mark.parametrize("planner", ["genetic", "q-learning"])
def test_m1_m4_the_queue_plans_the_demo(clusters: Clusters, planner: str) -> None:
    cluster = open_queue(clusters, planner=planner)
    demo(cluster)
    all_but_huge(cluster)
    assert "needs 9 CPU" in skipped(cluster, "huge", "no node has that much")


def test_m6_m7_functions_by_their_spec_beside_what_runs_and_a_reserve(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(cpu_node("node", cpu="10", memory="10Gi"))
    cluster.submit("runs", cpu="2", memory="1Gi")
    cluster.bound("runs")
    # By their own requests of 100m all three would fit; by the function's three CPU, of 10 - 2 in use - 2 kept, two do.
    spec = {FUNCTION: json.dumps({"limits": {"cpu": "3000m", "memory": "128Mi"}})}
    for name in ("f0", "f1", "f2"):
        cluster.submit(name, annotations=spec, **GATED)
    picture = tmp_path / "plan.svg"
    report = json.loads(plan(cluster, "--reserve", "0.2", "--apply", "-o", "json", "--picture", str(picture)))
    placed = [entry["pod"] for entry in report["assignments"]]
    assert len(placed) == 2
    assert [entry["reason"] for entry in report["unassigned"]] == [
        "needs 3 CPU and 128 MiB, no node has that much free"
    ]
    assert [load["cpuPercent"] for load in report["nodes"]] == [100.0]  # in use, planned and kept: 2 + 6 + 2 of 10
    for key in placed:
        assert cluster.node_of(key.removeprefix("default/")) == "node"
    assert sum(gated(cluster, name) for name in ("f0", "f1", "f2")) == 1
    assert "<svg" in picture.read_text()


def test_m9_the_table_names_nodes_and_who_waits(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("gpus", gpus=4), cpu_node("plain", cpu="4"))
    cluster.submit("train", gpus=2, **GATED)
    cluster.submit("large", gpus=8, **GATED)
    table = plan(cluster)
    assert "greedy: 1 of 2 pods" in table
    assert "gpus" in table
    assert "unassigned default/large: needs 8 GPUs" in table
    assert gated(cluster, "train")  # without --apply nothing is written
