"""What users of other GPU schedulers complain about, one test for each: issue numbers are of the project named.

docs/reference/guarantees.md has the table. Pods ask by label where kube-scheduler's own count would help otherwise.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import cpu_node, gpu_node, pod, steered
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.proxies import HoldingProxy

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

BURST_S = 60.0


def asks(gpus: int) -> dict[str, str]:
    """Labels of a pod that asks for so many GPUs."""
    return {"genius/gpu-number": str(gpus)}


def booked(cluster: KerfCluster) -> list[tuple[str, int]]:
    """Node and index of every GPU that a bound pod has; pods without labels ask for none."""
    return [
        (found["spec"]["nodeName"], index)
        for found in cluster.pods()
        if "nodeName" in found["spec"] and found["metadata"].get("labels")
        for index in assigned_gpus(found)
    ]


def bind(cluster: KerfCluster, name: str, node: str, **changes: str) -> str:
    """The `Error` of a bind call for a pod."""
    body = {
        "PodName": name,
        "PodNamespace": "default",
        "PodUID": cluster.pod(name)["metadata"]["uid"],
        "Node": node,
        **changes,
    }
    return str(cluster.kerf.post("bind", body)["Error"])


@contextmanager
def holding(clusters: Clusters) -> Iterator[tuple[KerfCluster, HoldingProxy]]:
    """A cluster whose Kerf has a network in front of the API server that can keep Bindings on their way."""
    clusters.close()
    with HoldingProxy(clusters.plane) as proxy:
        kubeconfig = proxy.kubeconfig(clusters.plane)
        yield clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--kubeconfig", str(kubeconfig)), proxy
        proxy.let_go()
        clusters.close()


def test_a_failed_bind_leaves_neither_reservation_nor_annotation(cluster: KerfCluster) -> None:
    """HAMi #1106, #2308, #2923; gpushare #201: GPUs that nobody has stay taken."""
    cluster.add_nodes(gpu_node("node", gpus=1))
    # Of a scheduler that nobody runs: the calls are the test's.
    cluster.submit("failing", labels=asks(1), scheduler_name="nobody", schedulingGates=[{"name": "kerf.test/gate"}])
    assert cluster.kerf.post("filter", {"Pod": cluster.pod("failing"), "NodeNames": ["node"]})["NodeNames"]
    assert cluster.kerf.metric("kerf_reservations") == 1
    assert "schedulingGates" in bind(cluster, "failing", "node")  # the API server refuses a gated pod
    assert cluster.kerf.metric("kerf_reservations") == 0
    assert cluster.kerf.metric("kerf_gpu_units_free") == 1
    assert not cluster.pod("failing")["metadata"].get("annotations")
    cluster.submit("next", labels=asks(1))
    assert cluster.node_of("next") == "node"


def test_a_pod_of_a_namespace_that_goes_holds_nothing(cluster: KerfCluster) -> None:
    """kubernetes #38612, #43806: its Binding is refused forever, in the API server's words."""
    plane, path = cluster.plane, "/api/v1/namespaces/goes"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "goes"}})
    cluster.add_nodes(gpu_node("node", gpus=1))
    cluster.submit("holder", labels=asks(1))
    cluster.bound("holder")
    leaving = pod("leaving", labels=asks(1))
    leaving["metadata"]["namespace"] = "goes"
    cluster.create(leaving)
    plane.request("DELETE", path)  # nobody ends it here: it stays as it is
    cluster.delete_pod("holder")

    def refused() -> bool:
        conditions = plane.request("GET", f"{path}/pods/leaving")["status"].get("conditions", [])
        return any("being terminated" in condition.get("message", "") for condition in conditions)

    wait_until(refused, WITHIN_S, "its Binding is refused, in words")
    cluster.submit("next", labels=asks(1))
    assert assigned_gpus(cluster.bound("next")) == [0]
    assert "nodeName" not in plane.request("GET", f"{path}/pods/leaving")["spec"]
    wait_until(lambda: cluster.kerf.metric("kerf_reservations") == 0, WITHIN_S, "nothing is held")
    plane.request("DELETE", f"{path}/pods/leaving?gracePeriodSeconds=0")


def test_a_pod_deleted_while_it_is_bound_leaks_no_gpu(clusters: Clusters) -> None:
    """HAMi #594; device plugin #26: the GPU of a pod that was never there."""
    with holding(clusters) as (cluster, network):
        cluster.add_nodes(gpu_node("node", gpus=1))
        network.hold_bindings()
        cluster.submit("gone", labels=asks(1))
        assert network.held.wait(WITHIN_S)
        cluster.delete_pod("gone")
        cluster.submit("gone", labels=asks(1), scheduler_name="nobody")  # another pod of that name
        network.let_go()
        cluster.submit("next", labels=asks(1))
        assert cluster.node_of("next") == "node"
        wait_until(lambda: network.statuses, WITHIN_S, "the Binding has arrived")
        assert network.statuses[0] in (404, 409)
        assert "nodeName" not in cluster.pod("gone")["spec"]


def test_a_burst_on_few_nodes_binds_without_a_failed_bind(cluster: KerfCluster) -> None:
    """HAMi #1367, #1577, #810: 40 pods take a quarter of an hour behind a lock for each node."""
    cluster.add_nodes(*(gpu_node(f"node-{number}", gpus=8) for number in range(5)))
    failed = cluster.kerf.metric("kerf_failed_binds_total")
    for number in range(40):
        cluster.create(pod(f"burst-{number}", labels=asks(1), cpu="10m"))
    wait_until(lambda: len(booked(cluster)) == 40, BURST_S, "all 40 pods are bound", interval_s=0.2)
    assert len(set(booked(cluster))) == 40
    assert cluster.kerf.metric("kerf_failed_binds_total") == failed


def test_parallel_calls_never_promise_a_gpu_twice(cluster: KerfCluster) -> None:
    """HAMi: of 40 parallel filter calls for a node of 8 GPUs 9 passed; gpushare dies of concurrent map access."""
    cluster.add_nodes(gpu_node("node", gpus=8))

    def passes(number: int) -> bool:
        metadata = {"name": f"p{number}", "namespace": "default", "uid": f"p{number}", "labels": asks(1)}
        return bool(cluster.kerf.post("filter", {"Pod": {"metadata": metadata}, "NodeNames": ["node"]})["NodeNames"])

    with ThreadPoolExecutor(16) as callers:
        assert sum(callers.map(passes, range(40))) == 8


def test_a_pending_pod_says_why_with_numbers(cluster: KerfCluster) -> None:
    """HAMi #2286, #29: Pending without a reason."""
    cluster.add_nodes(
        gpu_node("small", gpus=4, product="Tesla-T4", memory_mib=15360),
        steered(gpu_node("busy", gpus=4)),
        cpu_node("plain"),
    )
    cluster.submit("holder", gpus=3, nodeSelector={"kubernetes.io/hostname": "busy"})
    cluster.bound("holder")
    cluster.submit("asking", labels=asks(2), annotations={"kerf.dev/gpu-memory-each": "40Gi"})
    message = cluster.pending("asking", "needs 2 GPUs with 40 GiB")
    for part in ("best here: 1 free", "best here: 0 of that size", "no GPUs here"):
        assert part in message
    assert "best here: 1 free" in cluster.event("asking", "FailedScheduling")
    explained = cluster.kerf.get("/explain/pod/default/asking")
    assert {item["node"]: item["reason"] for item in explained["nodes"]} == {
        "small": "TOO_SMALL",
        "busy": "BUSY",
        "plain": "NO_GPUS",
    }


def test_a_pod_says_on_itself_why_it_waits_and_what_it_got(clusters: Clusters) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--set=decisions.explain_after_s=1")
    cluster.add_nodes(gpu_node("a", gpus=2), gpu_node("b", gpus=1))

    def note(name: str) -> str:
        return str(cluster.pod(name)["metadata"].get("annotations", {}).get("kerf.dev/explanation", ""))

    cluster.submit("runs", labels=asks(2))
    cluster.bound("runs")
    assert note("runs").startswith("placed: 2 GPUs; 1 of 2 nodes had room, this one ranks best by policy")
    cluster.submit("waits", labels=asks(2))
    wait_until(lambda: note("waits"), WITHIN_S, "it says why")
    assert re.fullmatch(r"pending: needs 2 GPUs; \S+ is nearest with [01] (free|installed)", note("waits"))
    cluster.set_phase("runs", "Succeeded")
    cluster.bound("waits")
    assert note("waits").startswith("placed: 2 GPUs; 1 of 2 nodes had room")


def test_pending_pods_are_woken_when_capacity_returns(cluster: KerfCluster) -> None:
    """HAMi #1368, TAS #149: they wait for the five minutes after which kube-scheduler looks again.

    What returns here is capacity that only Kerf knows of: nothing happens that would make kube-scheduler ask.
    """
    cluster.add_nodes(gpu_node("node", gpus=2))
    claim: dict[str, Any] = {"metadata": {"name": "dropped", "namespace": "default", "uid": "dropped"}}
    claim["metadata"]["labels"] = asks(2)
    assert cluster.kerf.post("filter", {"Pod": claim, "NodeNames": ["node"]})["NodeNames"] == ["node"]
    for name in ("first", "second"):
        cluster.submit(name, labels=asks(1))
        cluster.pending(name, "best here: 0 free")
    claim["metadata"]["labels"] = asks(3)
    cluster.kerf.post("filter", {"Pod": claim, "NodeNames": ["node"]})  # fits nowhere: gives back
    assert {cluster.node_of("first"), cluster.node_of("second")} == {"node"}
    # One is woken by Kerf; the other by that, or by the binding that follows.
    assert cluster.kerf.metric("kerf_pods_woken_total") >= 1


def test_mixed_gpu_sizes_on_a_node(cluster: KerfCluster) -> None:
    """gpushare #219: every GPU of a node counts as the average of all."""
    mixed = gpu_node("mixed", gpus=4)
    sizes = [15360, 40960, 15360, 40960]
    mixed["metadata"]["annotations"] = {
        "kerf.dev/gpus": json.dumps(
            [{"index": index, "model": "mixed", "memory_mib": size} for index, size in enumerate(sizes)]
        )
    }
    cluster.add_nodes(mixed)
    each = {"kerf.dev/gpu-memory-each": "40Gi"}
    cluster.submit("large", gpus=2, annotations=each)
    assert assigned_gpus(cluster.bound("large")) == [1, 3]
    cluster.submit("another", gpus=1, annotations=each)
    cluster.pending("another", "best here: 0 free")
    cluster.submit("small", gpus=1)
    assert assigned_gpus(cluster.bound("small")) == [0]


def test_a_full_node_is_not_chosen_again_and_again(cluster: KerfCluster) -> None:
    """KAI #848: bind fails on the full node, and it is chosen once more."""
    cluster.add_nodes(gpu_node("a-full", gpus=2), gpu_node("b-free", gpus=8))
    cluster.submit("holder", nodeName="a-full", gpus=2)  # bound by hand: it never met a scheduler
    wait_until(lambda: cluster.kerf.metric("kerf_gpu_units_free") == 8, WITHIN_S, "Kerf knows of the holder")
    failed = cluster.kerf.metric("kerf_failed_binds_total")
    for number in range(4):
        cluster.submit(f"pod-{number}", labels=asks(2))
        assert cluster.node_of(f"pod-{number}") == "b-free"
    cluster.submit("one-more", labels=asks(2))
    cluster.pending("one-more", "best here: 0 free")
    assert cluster.kerf.metric("kerf_failed_binds_total") == failed


def test_bind_checks_the_node_the_pod_and_the_fit(cluster: KerfCluster) -> None:
    """HAMi, gpushare: bind writes whatever node it is told."""
    cluster.add_nodes(
        gpu_node("right", gpus=2), gpu_node("small", gpus=2, product="Tesla-T4", memory_mib=15360), cpu_node("plain")
    )
    annotations = {"kerf.dev/gpu-memory-each": "40Gi"}
    cluster.submit("pod", labels=asks(1), annotations=annotations, scheduler_name="nobody")
    assert cluster.kerf.post("filter", {"Pod": cluster.pod("pod"), "NodeNames": ["right", "small"]})["NodeNames"] == [
        "right"
    ]
    assert "no longer fits" in bind(cluster, "pod", "small")
    assert "no GPUs here" in bind(cluster, "pod", "plain")
    assert "not known" in bind(cluster, "pod", "nowhere")
    assert "was deleted and created again" in bind(cluster, "pod", "right", PodUID="another")
    assert "nodeName" not in cluster.pod("pod")["spec"]
    assert bind(cluster, "pod", "right") == ""
    assert cluster.node_of("pod") == "right"


def test_terminating_pods_hold_their_gpus(cluster: KerfCluster) -> None:
    """HAMi, gpushare: a pod that is being deleted counts as gone while its containers still run."""
    cluster.add_nodes(gpu_node("node", gpus=1))
    cluster.submit("leaving", labels=asks(1))
    cluster.bound("leaving")
    cluster.delete_pod("leaving", grace_s=600)
    cluster.submit("waiting", labels=asks(1))
    cluster.pending("waiting", "best here: 0 free")
    cluster.delete_pod("leaving")  # the kubelet is done
    assert cluster.node_of("waiting") == "node"


def test_a_node_that_comes_back_with_fewer_gpus(cluster: KerfCluster) -> None:
    """Unsigned numbers wrap around: less than nothing is free, which looks like very much."""
    cluster.add_nodes(gpu_node("node", gpus=4))
    for number in range(3):
        cluster.submit(f"pod-{number}", labels=asks(1))
        cluster.bound(f"pod-{number}")
    cluster.plane.request("DELETE", "/api/v1/nodes/node")
    wait_until(lambda: cluster.kerf.metric("kerf_nodes") == 0, WITHIN_S, "Kerf has seen that the node is gone")
    cluster.plane.apply(gpu_node("node", gpus=2))
    wait_until(lambda: cluster.kerf.metric("kerf_gpus") == 2, WITHIN_S, "Kerf knows the new node")
    assert cluster.kerf.metric("kerf_gpu_units_free") == 0
    cluster.submit("next", labels=asks(1))
    cluster.pending("next", "best here: 0 free")
    for number in range(3):
        cluster.delete_pod(f"pod-{number}")
    assert cluster.node_of("next") == "node"
    assert assigned_gpus(cluster.pod("next"))[0] < 2


def test_a_restart_forgets_nothing(clusters: Clusters) -> None:
    """gpushare: what it knew is gone after a restart, until every pod has changed once."""
    clusters.close()
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("node", gpus=4))
    cluster.submit("holder", labels=asks(3))
    before = assigned_gpus(cluster.bound("holder"))
    cluster.kerf.process.stop(grace_s=0)  # kill -9
    cluster.submit("too-big", labels=asks(2))
    cluster.submit("next", labels=asks(1))
    cluster.kerf = KerfProcess(cluster.plane, "kerf-again", port=cluster.kerf.port)
    assert set(before) | set(assigned_gpus(cluster.bound("next"))) == {0, 1, 2, 3}
    cluster.pending("too-big", "needs 2 GPUs")
    assert len(set(booked(cluster))) == 4


def test_an_extender_that_fails_does_not_stall_the_scheduler(clusters: Clusters) -> None:
    """One call that fails, and pods stay where they are: gpushare hangs on its own locks, HAMi on its node lock."""
    clusters.close()
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("node", gpus=4), cpu_node("plain"))
    cluster.kerf.process.stop(grace_s=0)
    for number in range(4):
        cluster.submit(f"pod-{number}", labels=asks(1))
    cluster.submit("web", cpu="1")
    cluster.pending("pod-0", "connection refused")
    assert cluster.node_of("web") in ("node", "plain")  # it asks for no GPU, and nobody is there to keep it off them
    cluster.kerf = KerfProcess(cluster.plane, "kerf-back", port=cluster.kerf.port)
    assert [cluster.node_of(f"pod-{number}") for number in range(4)] == ["node"] * 4
    assert sorted(booked(cluster)) == [("node", index) for index in range(4)]


def test_malformed_json_harms_nobody(cluster: KerfCluster) -> None:
    """gpushare, elastic: a body that can't be read ends the process."""
    cluster.add_nodes(gpu_node("node", gpus=1))
    bodies = (b"", b"{", b"null", b"[[[[", b'{"Pod":7}', b"\xff\xfe", b'{"Pod":{"spec":{"containers":7}}}')
    for verb in ("filter", "prioritize", "preempt", "bind", "mutate"):
        for body in bodies:
            assert raw_post(cluster, verb, body) in (200, 400)
    assert cluster.kerf.get("/healthz") == {"status": "ok"}
    assert cluster.kerf.metric("kerf_reservations") == 0
    cluster.submit("next", labels=asks(1))
    assert cluster.node_of("next") == "node"


def test_garbage_in_annotations_harms_nobody(cluster: KerfCluster) -> None:
    """HAMi: an annotation of another version, and the scheduler crashes or counts the GPU as free."""
    garbage = gpu_node("garbage", gpus=4)
    garbage["metadata"]["annotations"] = {"kerf.dev/gpus": '[{"index": 0', "hami.io/node-nvidia-register": "::::"}
    cluster.add_nodes(garbage, steered(gpu_node("sound", gpus=4)))
    cluster.submit(
        "holder",
        gpus=2,
        nodeName="sound",
        annotations={"kerf.dev/assigned-gpus": "0,9999999999", "hami.io/vgpu-devices-allocated": ";;,,:"},
    )
    cluster.submit("next", labels=asks(1))
    assert cluster.node_of("next") == "sound"
    cluster.submit("too-big", labels=asks(2))
    cluster.pending("too-big", "best here: 1 free")  # 4 - 2 of unknown index - 1


def test_scores_stay_in_range_whatever_the_number_of_nodes(clusters: Clusters) -> None:
    """TAS: scores go below 0 from the 12th node on."""
    cluster = clusters.open(SCHEDULER_CONFIG / "scores.yaml", "--mode", "scores", "--set", "decisions.policy=tightest")
    names = [f"node-{number:02d}" for number in range(30)]
    cluster.add_nodes(*(gpu_node(name, gpus=1 + number % 15) for number, name in enumerate(names)))
    asking = pod("asking", labels=asks(1))
    scores = {
        line["Host"]: line["Score"] for line in cluster.kerf.post("prioritize", {"Pod": asking, "NodeNames": names})
    }
    assert scores.keys() == set(names)
    assert all(isinstance(score, int) and 0 <= score <= 10 for score in scores.values())
    assert Counter(scores.values())[10] == 2  # the two nodes of one GPU
    cluster.submit("pod", labels=asks(1))
    assert cluster.node_of("pod") in ("node-00", "node-15")


def test_kerf_ends_when_it_is_told(clusters: Clusters) -> None:
    """gpushare ignores SIGTERM."""
    kerf = KerfProcess(clusters.plane, "kerf-told-to-end")
    began = time.monotonic()
    kerf.process.stop(grace_s=60.0)  # SIGKILL only then
    assert time.monotonic() - began < 60.0


def test_bind_is_not_offered_to_the_network() -> None:
    """HAMi, gpushare: a NodePort on which anyone binds pods. Here loopback, or a Service that says who may."""
    for path in (ROOT / "manifests").glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] == "Service":
                assert document["spec"].get("type", "ClusterIP") == "ClusterIP", path
    (settings,) = (
        yaml.safe_load(document["data"]["kerf.yaml"])
        for document in yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text())
        if document["kind"] == "ConfigMap"
    )
    assert settings["server"]["host"] == "127.0.0.1"


def raw_post(cluster: KerfCluster, verb: str, body: bytes) -> int:
    """The status of a call with any body."""
    request = urllib.request.Request(f"{cluster.kerf.url}/{verb}", body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
