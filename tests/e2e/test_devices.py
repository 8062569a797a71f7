"""Row A6 of the systems Kerf takes up: parts of GPUs, one request on one single GPU, on a real kube-scheduler."""

import json
from collections import Counter
from typing import Any

import pytest

from extender.plugins.kerf import GPUS
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def share(milli: int, memory: str = "", **more: str) -> dict[str, str]:
    """Annotations that ask for a part of one GPU."""
    return {"kerf.dev/gpu-share": str(milli)} | ({"kerf.dev/gpu-memory-each": memory} if memory else {}) | more


def gpu_of(found: Manifest) -> int:
    """The one GPU that a pod shares."""
    (gpu,) = assigned_gpus(found)
    return gpu


def booked(found: Manifest) -> tuple[str, str]:
    """Compute and memory as they are written on a pod."""
    annotations = found["metadata"]["annotations"]
    return annotations["kerf.dev/assigned-share"], annotations["kerf.dev/assigned-memory-mib"]


def mixed_node(name: str, **unhealthy: int) -> Manifest:
    """A node whose GPUs Kerf's own annotation describes: an A100 of 80 GiB, one of 40, a T4."""
    products = [("A100-SXM4-80GB", 81920), ("A100-SXM4-40GB", 40960), ("Tesla-T4", 15360)]
    gpus: list[dict[str, Any]] = [
        {"index": index, "uuid": f"GPU-{name}-{index}", "model": model, "memory_mib": memory_mib}
        for index, (model, memory_mib) in enumerate(products)
    ]
    for index in unhealthy.values():
        gpus[index]["healthy"] = False
    node = cpu_node(name)
    node["metadata"]["annotations"] = {GPUS: json.dumps(gpus)}
    return node


def test_a6_shares_fill_one_gpu_before_another_is_begun(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=2))
    for name in ("a", "b"):
        cluster.submit(name, annotations=share(500, "8Gi"))
    assert [gpu_of(cluster.bound(name)) for name in ("a", "b")] == [0, 0]
    assert booked(cluster.bound("a")) == ("500", "8192")
    cluster.submit("whole", annotations={"kerf.dev/gpu-count": "1"})
    assert gpu_of(cluster.bound("whole")) == 1
    cluster.submit("c", annotations=share(1))
    assert "best here: 0 milli of one GPU free" in cluster.pending("c", "needs 1 milli of a GPU")
    cluster.delete_pod("b")
    assert gpu_of(cluster.bound("c")) == 0


def test_a6_three_of_400_milli_need_two_gpus(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=2))
    names = [f"p{number}" for number in range(4)]
    for name in names:
        cluster.submit(name, annotations=share(400))
    assert sorted(Counter(gpu_of(cluster.bound(name)) for name in names).items()) == [(0, 2), (1, 2)]
    # 200 + 200 milli are left, and no GPU has 400 of them.
    cluster.submit("fifth", annotations=share(400))
    assert "best here: 200 milli of one GPU free" in cluster.pending("fifth", "needs 400 milli of a GPU")
    cluster.submit("whole", labels={"genius/gpu-number": "1"})
    assert "best here: 0 free" in cluster.pending("whole", "needs 1 GPU")


def test_a6_memory_of_one_gpu_is_never_booked_twice(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=2))  # of 80 GiB
    names = [f"p{number}" for number in range(4)]
    for name in names:
        cluster.submit(name, annotations=share(100, "40Gi"))
    assert sorted(Counter(gpu_of(cluster.bound(name)) for name in names).items()) == [(0, 2), (1, 2)]
    cluster.submit("fifth", annotations=share(100, "1Gi"))
    assert "best here: 0 MiB of one GPU free" in cluster.pending("fifth", "needs 100 milli of a GPU with 1 GiB")


def test_a6_spread_takes_the_emptiest_gpu(cluster: KerfCluster) -> None:
    cluster.add_nodes(gpu_node("node", gpus=2))
    spread = {"kerf.dev/policy": "spread"}
    for name in ("a", "b"):
        cluster.submit(name, annotations=share(300) | spread)
        cluster.bound(name)
    assert {gpu_of(cluster.bound(name)) for name in ("a", "b")} == {0, 1}
    cluster.submit("packed", annotations=share(300) | {"kerf.dev/policy": "binpack"})
    assert gpu_of(cluster.bound("packed")) == 0


def test_a6_mixed_sizes_in_one_node(cluster: KerfCluster) -> None:
    cluster.add_nodes(mixed_node("mixed"))
    cluster.submit("small", annotations=share(500, "10Gi"))
    assert gpu_of(cluster.bound("small")) == 2  # the smallest that has it
    cluster.submit("large", annotations=share(500, "30Gi"))
    assert gpu_of(cluster.bound("large")) == 1
    cluster.submit("by-uuid", annotations=share(200, **{"kerf.dev/gpu-uuid": "GPU-mixed-0"}))
    found = cluster.bound("by-uuid")
    assert gpu_of(found) == 0
    assert found["metadata"]["annotations"]["kerf.dev/assigned-uuids"] == "GPU-mixed-0"
    cluster.submit("too-large", annotations=share(500, "79Gi", **{"kerf.dev/gpu-uuid-exclude": "GPU-mixed-0"}))
    assert "best here: 0 of that size" in cluster.pending("too-large", "needs 500 milli of a GPU not of UUID")


def test_a_broken_gpu_is_not_given_to_anybody(cluster: KerfCluster) -> None:
    cluster.add_nodes(mixed_node("mixed", broken=2))
    cluster.submit("small", annotations=share(500, "10Gi"))
    assert gpu_of(cluster.bound("small")) == 1
    cluster.submit("three", annotations={"kerf.dev/gpu-count": "3"})
    assert "best here: 2 healthy" in cluster.pending("three", "needs 3 GPUs")


def test_mig_devices_are_counted_by_profile(cluster: KerfCluster) -> None:
    cluster.add_nodes(cpu_node("mig", allocatable={"nvidia.com/mig-1g.5gb": "3"}))

    def asking(name: str, devices: int) -> Manifest:
        manifest = pod(name)
        manifest["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.5gb": str(devices)}
        return manifest

    cluster.create(asking("two", 2))
    assert cluster.node_of("two") == "mig"
    cluster.create(asking("one", 1))
    assert cluster.node_of("one") == "mig"
    assert cluster.kerf.post("filter", {"Pod": asking("more", 1), "NodeNames": ["mig"]})["FailedNodes"] == {
        "mig": "needs 1 x mig-1g.5gb, best here: 0 free"
    }


def test_a6_shares_survive_a_restart_in_the_middle(clusters: Clusters) -> None:
    clusters.close()
    plane, config = clusters.plane, SCHEDULER_CONFIG / "decisive.yaml"
    first = KerfProcess(plane, "kerf-shares-before")
    scheduler = plane.start_scheduler(config, name="scheduler-shares-before", extender_url=first.url)
    cluster = KerfCluster(plane, first)
    running = [scheduler]
    try:
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.submit("a", annotations=share(600, "50Gi"))
        cluster.submit("b", annotations=share(600, "20Gi"))
        before = {name: (gpu_of(cluster.bound(name)), booked(cluster.bound(name))) for name in ("a", "b")}
        first.process.stop(grace_s=0)  # kill -9
        scheduler.stop()
        cluster.kerf = KerfProcess(plane, "kerf-shares-after")
        running.append(plane.start_scheduler(config, name="scheduler-shares-after", extender_url=cluster.kerf.url))
        # 400 milli are left of each; 30 GiB of one, 60 of the other.
        cluster.submit("c", annotations=share(400, "40Gi"))
        assert gpu_of(cluster.bound("c")) == before["b"][0]
        cluster.submit("d", annotations=share(400, "40Gi"))
        assert "best here: 30 GiB of one GPU free" in cluster.pending("d", "needs 400 milli of a GPU with 40 GiB")
        after = {name: (gpu_of(cluster.pod(name)), booked(cluster.pod(name))) for name in ("a", "b")}
        assert after == before
        cluster.delete_pod("a")
        assert gpu_of(cluster.bound("d")) == before["a"][0]
        wait_until(lambda: cluster.kerf.metric("kerf_nodes_overbooked") == 0, WITHIN_S, "nothing is overbooked")
    finally:
        cluster.clean()
        running[-1].stop()
        cluster.kerf.stop()
