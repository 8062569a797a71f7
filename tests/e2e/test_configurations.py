"""The shipped KubeSchedulerConfiguration files, and what only some of them do; each test runs the file itself."""

import pytest
import yaml

from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, steered
from tests.e2e.clusters import KerfCluster, KerfProcess, assigned_gpus, scheduler_name
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


@pytest.mark.parametrize(
    ("file", "mode"),
    [
        ("decisive.yaml", "decisive"),
        ("scores.yaml", "scores"),
        ("second-scheduler.yaml", "decisive"),
        ("hami.yaml", "decisive"),
    ],
)
def test_file_places_gpu_and_cpu_pods(clusters: Clusters, file: str, mode: str) -> None:
    config = SCHEDULER_CONFIG / file
    name = scheduler_name(config)
    cluster = clusters.open(config, "--mode", mode)
    cluster.add_nodes(gpu_node("eight", gpus=8), gpu_node("two", gpus=2), cpu_node("plain"))
    cluster.submit("gpu", gpus=1, scheduler_name=name)
    bound = cluster.bound("gpu")
    assert bound["spec"]["nodeName"] == "two"  # the other stays whole
    assert assigned_gpus(bound) == [0]
    cluster.submit("web", scheduler_name=name)
    assert cluster.node_of("web") == "plain"
    cluster.submit("huge", gpus=9, scheduler_name=name)
    cluster.pending("huge", "nvidia.com/gpu")


def test_decisive_filter_leaves_soft_preferences_to_the_plugins(cluster: KerfCluster) -> None:
    cluster.add_nodes(*(gpu_node(f"node-{letter}", gpus=2, labels={"zone": letter}) for letter in "abcd"))
    cluster.submit("plain", gpus=1)
    assert cluster.node_of("plain") == "node-a"
    preference = {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]},
    }
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    cluster.submit("prefers-c", gpus=1, affinity=affinity)
    assert cluster.node_of("prefers-c") == "node-c"  # the rank alone would fill node-a


def test_the_one_file_install_carries_the_same_configuration() -> None:
    documents = list(yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()))
    (files,) = (document["data"] for document in documents if document["kind"] == "ConfigMap")
    assert yaml.safe_load(files["scheduler.yaml"]) == yaml.safe_load(
        (SCHEDULER_CONFIG / "second-scheduler.yaml").read_text()
    )


def test_a_restarted_kerf_knows_who_holds_what(clusters: Clusters) -> None:
    """Everything is rebuilt from the API server alone."""
    clusters.close()
    kerf_plane = clusters.plane
    first = KerfProcess(kerf_plane, "kerf-before")
    scheduler = kerf_plane.start_scheduler(
        SCHEDULER_CONFIG / "decisive.yaml", name="scheduler-before", extender_url=first.url
    )
    cluster = KerfCluster(kerf_plane, first)
    cluster.add_nodes(steered(gpu_node("node", gpus=4)))
    cluster.submit("one", gpus=1)
    cluster.submit("two", labels={"genius/gpu-number": "2"})
    cluster.bound("one")
    cluster.bound("two")
    scheduler.stop()
    first.process.stop(grace_s=0)  # kill -9

    second = KerfProcess(kerf_plane, "kerf-after")
    cluster.kerf = second
    try:
        assert second.metric("kerf_gpu_units_free") == 1
        pod = {
            "metadata": {"name": "next", "namespace": "default", "uid": "next", "labels": {"genius/gpu-number": "2"}}
        }
        answer = second.post("filter", {"Pod": pod, "NodeNames": ["node"]})
        assert answer["FailedNodes"] == {"node": "needs 2 GPUs, best here: 1 free"}
        pod["metadata"]["labels"] = {"genius/gpu-number": "1"}
        assert second.post("filter", {"Pod": pod, "NodeNames": ["node"]})["NodeNames"] == ["node"]
        taken = sorted(assigned_gpus(cluster.pod("one")) + assigned_gpus(cluster.pod("two")))
        explained = second.get("/explain/pod/default/next")["nodes"][0]["gpus"]
        assert [gpu["index"] for gpu in explained if not gpu["free"]] == taken
    finally:
        cluster.clean()
        second.stop()
