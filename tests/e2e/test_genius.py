"""The rows G of the systems Kerf takes up (Genius), on a real kube-scheduler. Pods carry Genius' labels as they are."""

from pathlib import Path

import pytest

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, assigned_gpus
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def test_g2_gpu_number_counts_free_gpus(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("two", gpus=2))
    cluster.submit("wants-3", labels={"genius/gpu-number": "3"})
    assert "needs 3 GPUs, best here: 2 installed" in cluster.pending("wants-3", "installed")

    cluster.submit("wants-1", labels={"genius/gpu-number": "1"})
    assert cluster.node_of("wants-1") == "two"
    # One is taken now. Genius would still count two.
    cluster.submit("wants-2", labels={"genius/gpu-number": "2"})
    assert "needs 2 GPUs, best here: 1 free" in cluster.pending("wants-2", "free")


def test_g3_memory_each_works_with_and_without_a_number(cluster: KerfCluster) -> None:
    cluster.add_nodes(
        gpu_node("small", gpus=4, product="Tesla-T4", memory_mib=15360),
        gpu_node("large", gpus=2, product="Tesla-V100-SXM2-32GB", memory_mib=32510),
    )
    cluster.submit("one", labels={"genius/gpu-memory-each": "20000"})
    bound = cluster.bound("one")
    assert bound["spec"]["nodeName"] == "large"
    assert len(assigned_gpus(bound)) == 1

    cluster.submit("two", labels={"genius/gpu-number": "2", "genius/gpu-memory-each": "20000"})
    message = cluster.pending("two", "best here")
    assert "needs 2 GPUs with 20000 MiB, best here: 1 free" in message  # of large
    assert "needs 2 GPUs with 20000 MiB, best here: 0 of that size" in message  # of small

    cluster.submit("small-two", labels={"genius/gpu-number": "2", "genius/gpu-memory-each": "15000"})
    assert cluster.node_of("small-two") == "small"


def test_g4_memory_total_is_the_sum_of_free_gpus(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("pair", gpus=2, product="Tesla-T4", memory_mib=15360))
    cluster.submit("too-much", labels={"genius/gpu-memory-total": "40000"})
    assert "best here: 30 GiB installed" in cluster.pending("too-much", "installed")

    cluster.submit("both", labels={"genius/gpu-memory-total": "30000"})
    assert assigned_gpus(cluster.bound("both")) == [0, 1]  # 15360 < 30000 <= 30720
    cluster.submit("later", labels={"genius/gpu-memory-total": "10000"})
    assert "free" in cluster.pending("later", "best here: 0")


def test_g5_the_same_gpus_satisfy_model_and_memory(cluster: KerfCluster) -> None:
    cluster.add_nodes(
        gpu_node("a100-40", gpus=4, product="NVIDIA-A100-SXM4-40GB", memory_mib=40536),
        gpu_node("v100", gpus=4, product="Tesla-V100-SXM2-32GB", memory_mib=32510),
        gpu_node("h100", gpus=4, product="NVIDIA-H100-80GB-HBM3", memory_mib=81559),
    )
    cluster.submit("pattern", labels={"genius/gpu-model": "v100.sxm2.32gb"})
    assert cluster.node_of("pattern") == "v100"
    cluster.submit("forty", labels={"genius/gpu-model": "a100", "genius/gpu-memory-each": "40960"})
    assert cluster.node_of("forty") == "a100-40"  # a 40536 MiB card is a 40 GiB card
    cluster.submit("both", labels={"genius/gpu-model": "a100", "genius/gpu-memory-each": "50000"})
    message = cluster.pending("both", "of that size")  # memory is on h100, the model on a100-40
    assert "needs 1 GPU of model a100 with 50000 MiB, best here: 0 of that size" in message
    assert "needs 1 GPU of model a100 with 50000 MiB, best here: 0 of that model" in message


def test_g5_alias_stands_for_models(clusters: Clusters, tmp_path: Path) -> None:
    settings = tmp_path / "kerf.yaml"
    settings.write_text("models: {aliases: {big: [NVIDIA-H100-80GB-HBM3, NVIDIA-A100-SXM4-80GB]}}")
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--config", str(settings))
    cluster.add_nodes(
        gpu_node("t4", gpus=1, product="Tesla-T4", memory_mib=15360),
        gpu_node("h100", gpus=8, product="NVIDIA-H100-80GB-HBM3", memory_mib=81559),
    )
    cluster.submit("big", labels={"genius/gpu-model": "big"})
    assert cluster.node_of("big") == "h100"


def test_g6_a_failing_pod_says_why_in_event_and_log(cluster: KerfCluster) -> None:
    cluster.add_nodes(
        gpu_node("t4", gpus=4, product="Tesla-T4", memory_mib=15360),
        gpu_node("a100", gpus=1, product="NVIDIA-A100-SXM4-80GB", memory_mib=81920),
        cpu_node("plain"),
    )
    cluster.submit("picky", annotations={"kerf.dev/gpu-count": "2", "kerf.dev/gpu-memory-each": "40Gi"})
    event = cluster.event("picky", "FailedScheduling")
    assert "0/3 nodes are available" in event
    for reason in (
        "1 needs 2 GPUs with 40 GiB, best here: 0 of that size",
        "1 needs 2 GPUs with 40 GiB, best here: 1 installed",
        "1 needs 2 GPUs with 40 GiB, no GPUs here",
    ):
        assert reason in event
    log = cluster.kerf.log.read_text()
    assert "t4: needs 2 GPUs with 40 GiB, best here: 0 of that size" in log
    explained = cluster.kerf.get("/explain/pod/default/picky")
    assert {node["node"]: (node["reason"], node["available"]) for node in explained["nodes"]} == {
        "t4": ("TOO_SMALL", 0),
        "a100": ("TOO_FEW_INSTALLED", 1),
        "plain": ("NO_GPUS", 0),
    }


def test_g6_a_request_that_cannot_be_understood_says_what_would_be_right(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=1))
    cluster.submit("typo", annotations={"kerf.dev/gpu-memory-each": "16Qi"})
    message = cluster.pending("typo", "kerf.dev/gpu-memory-each")
    assert '"16Qi"' in message
    assert "16Gi" in message


def test_g13_cpu_only_and_unlabelled_nodes_are_survived(cluster: KerfCluster) -> None:
    unlabelled = gpu_node("unlabelled", gpus=2)
    unlabelled["metadata"]["labels"] = {}
    cluster.add_nodes(cpu_node("plain"), unlabelled)
    cluster.submit("gpu", gpus=1)
    assert cluster.node_of("gpu") == "unlabelled"
    cluster.submit("picky", gpus=1, annotations={"kerf.dev/gpu-memory-each": "8Gi"})
    cluster.pending("picky", "the memory of the GPUs here is not known")  # of unknown size: not promised


def test_g13_back_to_back_pods_never_over_commit(cluster: KerfCluster) -> None:
    """By label alone: kube-scheduler counts nothing here, so only Kerf's reservations stand in the way."""
    cluster.add_nodes(*(gpu_node(f"node-{number}", gpus=8) for number in range(3)))
    for number in range(40):
        cluster.submit(f"pod-{number}", labels={"genius/gpu-number": "1"})
    wait_until(lambda: sum("nodeName" in pod["spec"] for pod in cluster.pods()) >= 24, WITHIN_S, "24 pods are bound")
    taken = [
        (pod["spec"]["nodeName"], index)
        for pod in cluster.pods()
        if "nodeName" in pod["spec"]
        for index in assigned_gpus(pod)
    ]
    assert len(taken) == 24
    assert len(set(taken)) == 24  # every GPU once
