"""Without Kerf the cluster goes on: pods without GPUs are scheduled, those that ask wait and are never placed blind.

Each shipped configuration on a real kube-scheduler, with Kerf dead, hanging, starting and on standby.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.plugins.pod_resources import _managed_resources
from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfProcess, Manifest, scheduler_name
from tests.e2e.fixtures import Clusters
from tests.e2e.test_contracts import asking, gpushare_node, hami_node, sharing

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

FILES = ("decisive.yaml", "scores.yaml", "second-scheduler.yaml", "hami.yaml")
UNMARKED = {"kerf.dev/gpu-count": "1"}


def nodes(file: str) -> list[Manifest]:
    found = [
        *(cpu_node("plain-a"), cpu_node("plain-b"), gpu_node("whole", gpus=8), gpushare_node("memory", 2, 15)),
        gpu_node("sliced", gpus=1, allocatable={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}),
        gpu_node("cut", gpus=1, allocatable={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}),
    ]
    if file == "hami.yaml":
        parts = hami_node("parts", {"GPU-0": 15360})
        parts["spec"] = {"taints": [{"key": "parts", "effect": "NoSchedule"}]}  # its pods are bound one by one
        found.append(parts)
    return found


def ways(file: str) -> dict[str, Manifest]:
    """A pod of each documented way to ask."""
    name = scheduler_name(SCHEDULER_CONFIG / file)
    found = {
        "resource": pod("resource", gpus=1, scheduler_name=name),
        "initial": pod("initial", scheduler_name=name, initContainers=[init({"nvidia.com/gpu": "1"})]),
        "shared": asking("shared", {"nvidia.com/gpu.shared": "1"}, scheduler_name=name),
        "mig": asking("mig", {"nvidia.com/mig-1g.5gb": "1"}, scheduler_name=name),
        "annotation": pod("annotation", annotations={"kerf.dev/gpu-memory-each": "8Gi"}, scheduler_name=name),
        "share": pod("share", annotations={"kerf.dev/gpu-share": "300"}, scheduler_name=name),
        "genius": pod("genius", labels={"genius/gpu-number": "1"}, scheduler_name=name),
        "gpushare": asking("gpushare", {"aliyun.com/gpu-mem": "3"}, scheduler_name=name),
    }
    if file == "hami.yaml":
        found["hami"] = sharing("hami", 5000, 25, scheduler_name=name, tolerations=[{"operator": "Exists"}])
    return found


def init(limits: dict[str, str]) -> Manifest:
    return {"name": "init", "image": "i", "resources": {"limits": limits}}


class Outage:
    """A cluster whose Kerf goes away and comes back."""

    def __init__(self, clusters: Clusters, file: str) -> None:
        self.file = file
        self.name = scheduler_name(SCHEDULER_CONFIG / file)
        mode = ("--mode", "scores") if file == "scores.yaml" else ()
        self.clusters = clusters
        self.cluster = clusters.open(SCHEDULER_CONFIG / file, *mode)
        self.cluster.add_nodes(*nodes(file))

    def others_go_on(self, when: str) -> None:
        """Pods without GPUs are bound, those of every way to ask wait."""
        waiting = [found["metadata"]["name"] for found in self.cluster.pods() if not found["spec"].get("nodeName")]
        assert waiting
        for number in range(3):
            self.cluster.submit(f"{when}-{number}", scheduler_name=self.name)
        for number in range(3):
            self.cluster.bound(f"{when}-{number}")
        for name in waiting:
            assert self.cluster.pending(name)

    def ask(self) -> None:
        for manifest in ways(self.file).values():
            self.cluster.create(manifest)

    def all_are_placed(self) -> None:
        """Each with what Kerf writes."""
        for name in ways(self.file):
            assert "kerf.dev/assigned-by" in self.cluster.bound(name)["metadata"]["annotations"], name


@pytest.mark.parametrize("file", FILES)
def test_while_kerf_is_gone(clusters: Clusters, file: str) -> None:
    outage = Outage(clusters, file)
    outage.cluster.kerf.process.kill()
    outage.ask()
    outage.others_go_on("dead")
    clusters.restart_kerf()
    outage.all_are_placed()


@pytest.mark.parametrize("file", FILES)
def test_while_kerf_hangs(clusters: Clusters, file: str) -> None:
    """Connections are taken, nothing is answered: each call costs its entry's time-out, and no more."""
    outage = Outage(clusters, file)
    name = outage.name
    outage.cluster.kerf.process.pause()
    try:
        for number in range(3):
            outage.cluster.submit(f"hung-{number}", scheduler_name=name)
        for number in range(3):
            outage.cluster.bound(f"hung-{number}")
        outage.cluster.submit("waits", gpus=1, scheduler_name=name)
        outage.cluster.pending("waits", "context deadline exceeded")
        outage.cluster.submit("after", scheduler_name=name)
        outage.cluster.bound("after")
    finally:
        outage.cluster.kerf.process.signal(signal.SIGCONT)
    assert "kerf.dev/assigned-by" in outage.cluster.bound("waits")["metadata"]["annotations"]


@pytest.mark.parametrize("why", ["starting", "standby"])
def test_while_kerf_does_not_decide(clusters: Clusters, why: str) -> None:
    """It has never synced, or nobody leads. It knows at least who may not be placed blind."""
    outage = Outage(clusters, "decisive.yaml")
    port = outage.cluster.kerf.port
    outage.cluster.kerf.process.kill()
    options = {"starting": ("--kubeconfig", str(clusters.plane.kubeconfig("nobody"))), "standby": ()}[why]
    never = ("--set", "leader_election.mode=never") if why == "standby" else ()
    idle = KerfProcess(clusters.plane, f"kerf-{why}", *options, *never, port=port, ready_path="/healthz")
    try:
        if why == "standby":
            wait_until(lambda: idle.metric("kerf_nodes") > 0, WITHIN_S, "it has the nodes")
        outage.ask()
        outage.cluster.submit("unmarked", annotations=UNMARKED, marked=False)
        outage.others_go_on(why)
    finally:
        idle.process.kill()
    clusters.restart_kerf()
    outage.all_are_placed()
    assert "docs/guides/requests.md" in outage.cluster.pending("unmarked", "kerf.dev/gpu")


def test_without_kerf_pods_without_gpus_evict(clusters: Clusters) -> None:
    """Room for a pod of higher priority is made as ever."""
    outage = Outage(clusters, "decisive.yaml")
    outage.cluster.kerf.process.kill()
    plane = clusters.plane
    plane.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "above"}, "value": 9}
    )
    num_nodes = len(nodes(outage.file))
    try:
        for number in range(num_nodes):
            outage.cluster.submit(f"low-{number}", cpu="90", terminationGracePeriodSeconds=0)
        for number in range(num_nodes):
            outage.cluster.bound(f"low-{number}")
        outage.cluster.submit("high", cpu="90", priorityClassName="above")
        assert outage.cluster.node_of("high")
    finally:
        clusters.restart_kerf()


def test_one_entry_as_before_binds_by_kerf(clusters: Clusters, tmp_path: Path) -> None:
    """A configuration of before: no marker is needed, and everything waits for Kerf."""
    config = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
    (first, _) = config["extenders"]
    del first["managedResources"]
    config["extenders"] = [first]
    file = tmp_path / "one-entry.yaml"
    file.write_text(yaml.safe_dump(config))
    cluster = clusters.open(file)
    cluster.add_nodes(gpu_node("node", gpus=2), cpu_node("plain"))
    cluster.submit("unmarked", annotations=UNMARKED, marked=False)
    assert "kerf.dev/assigned-gpus" in cluster.bound("unmarked")["metadata"]["annotations"]
    cluster.submit("web")
    assert cluster.node_of("web") == "plain"


def entries(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The extenders of each KubeSchedulerConfiguration in a file, also inside of ConfigMaps."""
    for document in yaml.safe_load_all(path.read_text()):
        if "extenders" in document:
            yield document["extenders"]
        elif document["kind"] == "ConfigMap":
            yield yaml.safe_load(document["data"]["scheduler.yaml"])["extenders"]


SHIPPED = [*SCHEDULER_CONFIG.glob("*.yaml"), ROOT / "manifests" / "install.yaml"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_configuration_has_both_entries(path: Path) -> None:
    ((first, second),) = entries(path)
    assert (first["ignorable"], second["ignorable"]) == (False, True)
    names = [item["name"] for item in first["managedResources"]]
    assert names[0] == "kerf.dev/gpu"
    assert first["managedResources"][0]["ignoredByScheduler"]
    assert set(names) - {"nvidia.com/priority"} == set(_managed_resources())
    assert second["urlPrefix"] == first["urlPrefix"] + "/others"
    assert {key for key in second if key.endswith("Verb")} == {"filterVerb", "prioritizeVerb"}
    assert "managedResources" not in second
    assert second["weight"] == first["weight"]
    assert second.get("tlsConfig") == first.get("tlsConfig")
    assert second["httpTimeout"] == "500ms"
