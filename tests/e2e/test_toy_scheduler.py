"""The rows T of the systems Kerf takes up (toy-scheduler), on a real kube-scheduler."""

from pathlib import Path

import pytest
import yaml

from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, pod, steered
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

SAMPLES = ROOT / "manifests" / "samples"


def test_t1_serves_only_the_pods_meant_for_it(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "second-scheduler.yaml")
    cluster.add_nodes(gpu_node("node", gpus=8))
    cluster.submit("mine", gpus=1, scheduler_name="kerf-scheduler")
    cluster.submit("others", gpus=1, scheduler_name="somebody-else")
    assert cluster.node_of("mine") == "node"
    cluster.submit("mine-too", gpus=1, scheduler_name="kerf-scheduler")
    assert cluster.node_of("mine-too") == "node"  # the queue has gone on, and
    assert "nodeName" not in cluster.pod("others")["spec"]
    assert not cluster.pending_message("others")


def test_t2_policies_are_chosen_per_deployment_and_per_pod(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--policy", "spread")
    cluster.add_nodes(gpu_node("large", gpus=8), gpu_node("small", gpus=2))
    cluster.submit("first", gpus=1)
    assert cluster.node_of("first") == "large"  # 7/8 free afterwards, against 1/2
    cluster.submit("second", gpus=1, annotations={"kerf.dev/policy": "tightest"})
    assert cluster.node_of("second") == "small"  # leaves 1, against 6
    cluster.submit("third", gpus=1, annotations={"kerf.dev/policy": "binpack"})
    assert cluster.node_of("third") == "small"  # full, against 2/8
    cluster.submit("fourth", gpus=1, annotations={"kerf.dev/policy": "tarot"})
    assert "use one of tightest, binpack, spread" in cluster.pending("fourth", "tarot")


def test_t3_pods_of_every_scheduler_count_and_finished_ones_release(cluster: KerfCluster) -> None:
    cluster.add_nodes(steered(gpu_node("node", gpus=4)))
    # Bound by hand, as another scheduler would: no index is known of it.
    cluster.submit("foreign", gpus=2, nodeName="node")
    cluster.submit("init", initContainers=_init_gpus(1), gpus=1)
    cluster.bound("init")
    cluster.submit("label-only", labels={"genius/gpu-number": "2"})
    assert "best here: 1 free" in cluster.pending("label-only", "needs 2 GPUs")  # 4 - 2 - 1
    cluster.set_phase("foreign", "Succeeded")
    assert cluster.node_of("label-only") == "node"


def test_t3_init_containers_and_overhead_are_counted(cluster: KerfCluster) -> None:
    cluster.add_nodes(steered(gpu_node("node", gpus=4)))
    cluster.submit("big-init", gpus=1, initContainers=_init_gpus(3))  # max(1, 3)
    assert len(assigned_gpus(cluster.bound("big-init"))) == 3
    cluster.submit("next", labels={"genius/gpu-number": "2"})
    assert "best here: 1 free" in cluster.pending("next", "needs 2 GPUs")


def test_t3_terminating_pods_hold_their_gpus(cluster: KerfCluster) -> None:
    cluster.add_nodes(steered(gpu_node("node", gpus=1)))
    cluster.submit("leaving", gpus=1)
    cluster.bound("leaving")
    cluster.delete_pod("leaving", grace_s=300)
    cluster.submit("waiting", labels={"genius/gpu-number": "1"})
    assert "best here: 0 free" in cluster.pending("waiting", "needs 1 GPU")
    cluster.delete_pod("leaving")
    assert cluster.node_of("waiting") == "node"


def test_t4_best_fit_looks_at_the_whole_node(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--policy", "tightest")
    cluster.add_nodes(gpu_node("eight", gpus=8), gpu_node("two", gpus=2))
    cluster.submit("four", gpus=4, nodeSelector={"kubernetes.io/hostname": "eight"})
    cluster.submit("one", gpus=1, nodeSelector={"kubernetes.io/hostname": "two"})
    cluster.bound("four")
    cluster.bound("one")
    cluster.submit("next", gpus=1)
    assert cluster.node_of("next") == "two"  # leaves 0 of 2, against 3 of 8


def test_t4_ties_are_deterministic_and_cpu_pods_keep_off_gpu_nodes(cluster: KerfCluster) -> None:
    cluster.add_nodes(*(gpu_node(name, gpus=2) for name in ("c", "a", "b")), cpu_node("plain"))
    for name, expected in (("first", "a"), ("second", "a"), ("third", "b"), ("fourth", "b")):
        cluster.submit(name, gpus=1)
        assert cluster.node_of(name) == expected
    for number in range(5):
        cluster.submit(f"web-{number}", cpu="1")
        assert cluster.node_of(f"web-{number}") == "plain"


def test_t5_node_selector_taints_cpu_and_memory_are_honoured(cluster: KerfCluster) -> None:
    tainted = gpu_node("tainted", gpus=1)
    tainted["spec"] = {"taints": [{"key": "reserved", "value": "yes", "effect": "NoSchedule"}]}
    cluster.add_nodes(tainted, gpu_node("weak", gpus=1, cpu="1"), gpu_node("zoned", gpus=8, labels={"zone": "b"}))
    cluster.submit("heavy", gpus=1, cpu="4")
    assert cluster.node_of("heavy") == "zoned"  # not tainted, nor weak
    cluster.submit("selected", gpus=1, nodeSelector={"zone": "b"})
    assert cluster.node_of("selected") == "zoned"
    cluster.submit("tolerant", gpus=1, cpu="4", tolerations=[{"key": "reserved", "operator": "Exists"}])
    assert cluster.node_of("tolerant") == "tainted"


def test_t6_the_binding_and_its_event_name_the_gpus(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=4, product="NVIDIA-A100-SXM4-80GB"))
    cluster.submit("first", gpus=2)
    cluster.submit("second", gpus=1, annotations={"kept": "as it was"})
    annotations = cluster.bound("second")["metadata"]["annotations"]
    assert annotations["kept"] == "as it was"
    assert annotations["kerf.dev/assigned-gpus"] == "2"
    assert annotations["kerf.dev/assigned-model"] == "a100-sxm4-80gb"
    assert annotations["kerf.dev/assigned-by"].endswith(" tightest")
    assert assigned_gpus(cluster.bound("first")) == [0, 1]
    message = cluster.event("first", "GPUsAssigned")
    assert message == "Assigned GPUs 0,1 (a100-sxm4-80gb) on node node by policy tightest"
    assert "Successfully assigned default/first to node" in cluster.event("first", "Scheduled")


def test_t7_no_fit_is_requeued_without_a_bind_call(cluster: KerfCluster) -> None:
    cluster.add_nodes(steered(gpu_node("node", gpus=2)))
    cluster.submit("running", gpus=2)
    cluster.bound("running")
    binds = _bind_calls(cluster)
    cluster.submit("waiting", labels={"genius/gpu-number": "2"})
    cluster.pending("waiting", "best here: 0 free")
    assert _bind_calls(cluster) == binds
    cluster.delete_pod("running")
    assert cluster.node_of("waiting") == "node"
    assert _bind_calls(cluster) == binds + 1


def test_t9_starts_in_a_pod_and_places_the_sample_pods(clusters: Clusters, tmp_path: Path) -> None:
    """As in a pod: the API server's address in the environment, token and CA in the service account's folder."""
    user = yaml.safe_load(clusters.plane.kubeconfig("kerf").read_text())["users"][0]["user"]
    (tmp_path / "token").write_text(user["token"])
    (tmp_path / "ca.crt").write_text(clusters.plane.certificate.read_text())
    host, _, port = clusters.plane.url.removeprefix("https://").partition(":")
    cluster = clusters.open(
        SCHEDULER_CONFIG / "second-scheduler.yaml",
        KUBERNETES_SERVICE_HOST=host,
        KUBERNETES_SERVICE_PORT=port,
        KERF_CLUSTER__SERVICE_ACCOUNT_DIR=str(tmp_path),
    )
    cluster.add_nodes(
        steered(gpu_node("a100", gpus=8, product="NVIDIA-A100-SXM4-40GB", memory_mib=40536)),
        steered(gpu_node("v100", gpus=8, product="Tesla-V100-SXM2-32GB", memory_mib=32510)),
        cpu_node("plain"),
    )
    manifests = [yaml.safe_load(sample.read_text()) for sample in SAMPLES.glob("*.yaml")]
    assert len(manifests) == 5
    for manifest in manifests:
        cluster.create(manifest)
    nodes = {manifest["metadata"]["name"]: cluster.node_of(manifest["metadata"]["name"]) for manifest in manifests}
    assert nodes["two-large-gpus"] == "a100"
    assert nodes["genius-labels"] == "v100"
    assert nodes["cpu-only"] == "plain"


def test_burst_of_500_pods_fills_nodes_of_8_gpus_and_no_more(cluster: KerfCluster) -> None:
    """60 x 8 = 480 GPUs for 500 pods. By label alone, so that kube-scheduler's own count of GPUs is no help."""
    cluster.add_nodes(*(gpu_node(f"node-{number:02d}", gpus=8) for number in range(60)))
    for number in range(500):
        cluster.create(pod(f"burst-{number}", labels={"genius/gpu-number": "1"}, cpu="10m"))

    def bound() -> list[tuple[str, int]]:
        return [
            (found["spec"]["nodeName"], index)
            for found in cluster.pods()
            if "nodeName" in found["spec"]
            for index in assigned_gpus(found)
        ]

    wait_until(lambda: len(bound()) >= 480, 60.0, "480 pods are bound", interval_s=0.5)
    taken = bound()
    assert len(taken) == 480
    assert len(set(taken)) == 480  # every GPU of every node once
    assert cluster.kerf.metric("kerf_gpu_units_free") == 0


def _init_gpus(number: int) -> list[dict[str, object]]:
    limits = {"nvidia.com/gpu": str(number)}
    return [{"name": "prepare", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": limits}}]


def _bind_calls(cluster: KerfCluster) -> int:
    text = cluster.kerf.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith('kerf_request_seconds_count{verb="bind"}')]
    return int(float(lines[0].split()[-1])) if lines else 0


def test_t7_a_pod_rejected_too_early_is_woken(cluster: KerfCluster) -> None:
    """Nothing happens in the cluster that would make kube-scheduler ask again: Kerf itself has to wake the pod."""
    cluster.add_nodes(gpu_node("node", gpus=1))
    # A decision that is never bound, as of a pod that kube-scheduler dropped: it holds the GPU until its TTL ends.
    pod_of_nobody: Manifest = {"metadata": {"name": "dropped", "namespace": "default", "uid": "dropped"}}
    pod_of_nobody["metadata"] |= {"labels": {"genius/gpu-number": "1"}}
    assert cluster.kerf.post("filter", {"Pod": pod_of_nobody, "NodeNames": ["node"]})["NodeNames"] == ["node"]
    cluster.submit("waiting", labels={"genius/gpu-number": "1"})
    cluster.pending("waiting", "best here: 0 free")
    release = pod_of_nobody["metadata"] | {"labels": {"genius/gpu-number": "2"}}
    cluster.kerf.post("filter", {"Pod": {"metadata": release}, "NodeNames": ["node"]})  # fits nowhere: gives back
    assert cluster.bound("waiting")["metadata"]["annotations"]["kerf.dev/woken"] == "1"
