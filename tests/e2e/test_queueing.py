"""The pending queue on a real control plane: rows G1, M5, A5, S1 and S9, gates, gangs, restarts."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.scheduling.skips import _QUEUED_REASON
from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import POD_GROUPS, cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.webhooks import gates_of, gating

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.usefixtures("judged")]

GATED: dict[str, Any] = {"schedulingGates": [{"name": "kerf.dev/queue"}]}


@pytest.fixture
def queue(clusters: Clusters) -> KerfCluster:
    """An empty cluster whose Kerf has its queue enabled."""
    return open_queue(clusters)


def open_queue(clusters: Clusters, **options: Any) -> KerfCluster:
    """Nothing is kept for the first in the queue unless a test wants it: a busy machine makes everyone wait long."""
    options = {"reserve_after_s": 3600, **options}
    clusters.plane.apply(QUEUE_RBAC)
    settings = [f"--set=queue.{name}={json.dumps(value)}" for name, value in {"enabled": True, **options}.items()]
    return clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *settings)


def annotation(found: Manifest, name: str) -> str:
    return str(found["metadata"].get("annotations", {}).get(f"kerf.dev/{name}", ""))


def skipped(cluster: KerfCluster, name: str, containing: str) -> str:
    """Wait until a pod says why it waits."""

    def told() -> str:
        text = annotation(cluster.pod(name), "skipped")
        return text if containing in text else ""

    return wait_until(told, WITHIN_S, f"pod {name} is skipped because of {containing!r}")


def gated(cluster: KerfCluster, name: str) -> bool:
    return bool(cluster.pod(name)["spec"].get("schedulingGates"))


def gang(name: str, size: int) -> dict[str, str]:
    return {"kerf.dev/gang": name, "kerf.dev/gang-size": str(size)}


def test_a_gated_pod_is_nominated_opened_and_bound_there(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("large", gpus=8), gpu_node("small", gpus=2))
    queue.submit("waits", gpus=1, **GATED)
    found = queue.bound("waits")
    assert found["spec"]["nodeName"] == annotation(found, "planned-node") == "small"  # as a live decision
    assert annotation(found, "planned-by") == "greedy"
    assert len(assigned_gpus(found)) == 1
    wait_until(lambda: queue.kerf.metric("kerf_queue_honoured_total") >= 1, WITHIN_S, "the nomination is counted")
    assert queue.kerf.metric("kerf_queue_fallbacks_total") == 0


def test_m5_pods_without_room_stay_pending_with_a_reason_and_go_when_there_is_some(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("node", gpus=2))
    queue.submit("first", gpus=2, **GATED)
    queue.bound("first")
    queue.submit("second", gpus=2, **GATED)
    assert "needs 2 GPUs, best node: 0 free" in skipped(queue, "second", "needs 2 GPUs")
    assert gated(queue, "second")
    assert not queue.pending_message("second").startswith("0/")  # kube-scheduler was never asked
    queue.set_phase("first", "Succeeded")
    found = queue.bound("second")
    assert annotation(found, "skipped") == ""


def test_g1_the_label_of_genius_orders_the_queue_and_equals_go_first_come(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("node", gpus=1))
    queue.submit("runs", gpus=1, **GATED)
    queue.bound("runs")
    for name, priority in (("low", "1"), ("first", "5"), ("second", "5"), ("high", "9")):
        queue.submit(name, labels={"genius/gpu-number": "1", "genius/priority": priority}, **GATED)
        skipped(queue, name, "needs 1 GPU")
        if name == "first":  # creation times are whole seconds
            wait_until(lambda: _created(queue, "first") < _now(queue), WITHIN_S, "a second has passed")
    ends = "runs"
    for name in ("high", "first", "second", "low"):
        queue.set_phase(ends, "Succeeded")
        queue.bound(name)
        ends = name


def _created(cluster: KerfCluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["creationTimestamp"])


def _now(cluster: KerfCluster) -> str:
    """The API server's clock, by an object made now."""
    made = cluster.plane.request(
        "POST",
        "/api/v1/namespaces/default/configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "now-"}},
    )
    return str(made["metadata"]["creationTimestamp"])


def test_a5_a_gang_starts_whole_or_not_at_all(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=4), gpu_node("b", gpus=4))
    for number in range(2):
        queue.submit(f"g{number}", gpus=4, annotations=gang("train", 3), **GATED)
    assert "2 of 3 exist" in skipped(queue, "g0", "gang default/train waits")
    queue.submit("g2", gpus=4, annotations=gang("train", 3), **GATED)
    skipped(queue, "g2", "its gang default/train does not fit as a whole")
    queue.submit("other", gpus=4, **GATED)
    queue.bound("other")  # passes: the gang holds nothing while it waits
    assert all(gated(queue, f"g{number}") for number in range(3))
    queue.add_nodes(gpu_node("c", gpus=8))
    nodes = [queue.node_of(f"g{number}") for number in range(3)]
    assert sorted(nodes.count(node) for node in set(nodes)) == [1, 2]


def test_a5_two_gangs_that_fit_one_at_a_time_never_block_each_other(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=4))
    for number in range(4):
        for name in ("one", "two"):
            queue.submit(f"{name}-{number}", gpus=1, annotations=gang(name, 4), **GATED)

    def whole() -> str:
        bound = {found["metadata"]["name"] for found in queue.pods() if found["spec"].get("nodeName")}
        return next((name for name in ("one", "two") if {f"{name}-{n}" for n in range(4)} <= bound), "")

    first = wait_until(whole, WITHIN_S, "one of the gangs is bound")
    second = "two" if first == "one" else "one"
    assert all(gated(queue, f"{second}-{number}") for number in range(4))
    for number in range(4):
        queue.set_phase(f"{first}-{number}", "Succeeded")
    for number in range(4):
        queue.bound(f"{second}-{number}")


def test_a5_a_gang_keeps_to_one_nvlink_domain_and_so_does_a_member_made_again(queue: KerfCluster) -> None:
    clique = "nvidia.com/gpu.clique"

    def node(name: str, domain: str) -> Manifest:
        return gpu_node(name, gpus=4, labels={clique: domain})

    annotations = gang("train", 2) | {"kerf.dev/gang-topology": clique}
    queue.add_nodes(node("a", "one"), node("b", "two"))
    for name in ("g0", "g1"):
        queue.submit(name, gpus=4, annotations=annotations, **GATED)
    for name in ("g0", "g1"):
        skipped(queue, name, "gang")
        assert gated(queue, name)  # though each has room
    queue.add_nodes(node("c", "two"))
    assert {queue.node_of(name) for name in ("g0", "g1")} == {"b", "c"}
    assert queue.pod("g1")["spec"]["nodeSelector"] == {clique: "two"}  # wherever its nomination leads
    queue.delete_pod("g0")
    queue.submit("g0", gpus=4, annotations=annotations, **GATED)
    assert queue.node_of("g0") in {"b", "c"}


def test_a_gang_by_the_label_of_scheduler_plugins(queue: KerfCluster) -> None:
    queue.add_nodes(gpu_node("a", gpus=4))
    labels = {"scheduling.x-k8s.io/pod-group": "pair"}
    queue.submit("p0", gpus=1, labels=labels, **GATED)
    assert "its PodGroup does not exist" in skipped(queue, "p0", "gang default/pair")
    queue.plane.apply(POD_GROUPS)
    groups = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    wait_until(lambda: queue.plane.exists(groups), WITHIN_S, "PodGroups are served")
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "pair"},
        "spec": {"minMember": 2},
    }
    queue.plane.request("POST", groups, group)
    queue.submit("p1", gpus=1, labels=labels, **GATED)
    assert queue.node_of("p0") == queue.node_of("p1") == "a"


def test_s1_s9_small_pods_pass_until_room_is_kept_for_the_first(clusters: Clusters) -> None:
    queue = open_queue(clusters, reserve_after_s=0.5, order="fifo")
    queue.add_nodes(gpu_node("a", gpus=2))
    queue.submit("runs", gpus=1, **GATED)
    queue.bound("runs")
    queue.submit("large", gpus=2, **GATED)
    skipped(queue, "large", "needs 2 GPUs")
    queue.submit("small", gpus=1, **GATED)
    assert skipped(queue, "small", "room is kept") == "room is kept for default/large"
    queue.set_phase("runs", "Succeeded")
    queue.bound("large")
    queue.set_phase("large", "Succeeded")
    queue.bound("small")


def test_quotas_changed_while_pods_wait_hold_from_then_on(clusters: Clusters) -> None:
    """Kerf is started anew with other quotas: what runs is counted, what waits is judged by the new ones."""
    queue = open_queue(clusters, quotas={"default": 1})
    queue.add_nodes(gpu_node("a", gpus=4))
    for name in ("first", "second", "third"):
        queue.submit(name, gpus=1, **GATED)
    queue.bound("first")
    for name in ("second", "third"):
        skipped(queue, name, "quota of namespace default: 1 GPUs, 1 in use")
    queue.kerf.stop()
    clusters.restart_kerf('--set=queue.quotas={"default": 2}')
    queue.bound("second")
    assert "2 in use" in skipped(queue, "third", "quota of namespace default: 2 GPUs")
    queue.set_phase("first", "Succeeded")
    queue.bound("third")


def test_a_node_that_goes_after_the_nomination_costs_no_pod_its_turn(clusters: Clusters) -> None:
    """The gate is open, the pod nominated, the node gone before kube-scheduler comes to it: it goes the normal way."""
    queue = open_queue(clusters)
    queue.add_nodes(gpu_node("a", gpus=1), gpu_node("b", gpus=4))
    scheduler = clusters.scheduler
    scheduler.pause()
    try:
        queue.submit("p", gpus=1, **GATED)
        wait_until(lambda: not gated(queue, "p"), WITHIN_S, "the gate is open")
        assert queue.pod("p")["status"]["nominatedNodeName"] == "a"
        queue.remove_node("a")
    finally:
        scheduler.signal(signal.SIGCONT)
    assert queue.node_of("p") == "b"
    assert annotation(queue.pod("p"), "nomination-lost") == "1. a: the node is gone"
    wait_until(lambda: queue.kerf.metric("kerf_queue_fallbacks_total") == 1, WITHIN_S, "it is counted")


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_pod_let_go_that_finds_no_room_keeps_its_turn_and_is_nominated_anew(
    clusters: Clusters, restarted: bool
) -> None:
    queue = open_queue(clusters)
    lose_its_node(clusters, queue, gpu_node("b", gpus=1), {"runs": 1})
    skipped(queue, "p", "needs 1 GPU")
    queue.submit("next", gpus=1, **GATED)
    skipped(queue, "next", "needs 1 GPU")
    if restarted:
        queue.kerf.stop()
        clusters.restart_kerf()
    clusters.scheduler.pause()  # else it may come to the pod by itself first
    try:
        queue.kerf.metric("kerf_queue_rounds_total")  # what it asked before is answered before this
        queue.set_phase("runs", "Succeeded")
        wait_until(lambda: annotation(queue.pod("p"), "nomination-lost"), WITHIN_S, "it is nominated anew")
        found = queue.pod("p")
        assert found["status"]["nominatedNodeName"] == "b"
        assert annotation(found, "nomination-lost").startswith("1. a: 0/")
        assert gated(queue, "next")
    finally:
        clusters.scheduler.signal(signal.SIGCONT)
    assert queue.node_of("p") == "b"
    wait_until(lambda: queue.kerf.metric("kerf_queue_honoured_total") >= 1, WITHIN_S, "the nomination is honoured")
    assert queue.kerf.metric("kerf_queue_nominated_anew_total") == 1
    assert gated(queue, "next")
    queue.set_phase("p", "Succeeded")
    assert queue.node_of("next") == "b"


def test_a_pod_let_go_that_lost_its_node_is_held_from_what_is_kept_for_the_first(clusters: Clusters) -> None:
    queue = open_queue(clusters, reserve_after_s=0.5, order="fifo")
    lose_its_node(clusters, queue, gpu_node("c", gpus=4), {"r3": 3, "r1": 1}, before="large")
    skipped(queue, "p", "needs 1 GPU")
    queue.set_phase("r1", "Succeeded")  # room for p, on the node that is kept for the larger one before it
    wait_until(lambda: queue.kerf.metric("kerf_gpu_units_free") == 1, WITHIN_S, "Kerf knows that it is free")
    body = {"metadata": {"labels": {"ask": "again"}}}
    queue.plane.request("PATCH", "/api/v1/namespaces/default/pods/p", body, "application/merge-patch+json")
    assert _QUEUED_REASON in queue.pending("p", "kept for the first")
    queue.set_phase("r3", "Succeeded")
    assert queue.node_of("large") == "c"
    assert not queue.pod("p")["spec"].get("nodeName")
    queue.set_phase("large", "Succeeded")
    assert queue.node_of("p") == "c"
    lost = annotation(queue.pod("p"), "nomination-lost")  # none where kube-scheduler is first to find it
    assert lost == "" or lost.startswith("1. a: 0/")


def lose_its_node(
    clusters: Clusters, queue: KerfCluster, other: Manifest, running: dict[str, int], before: str = ""
) -> None:
    """A pod is let go for node "a", which goes before kube-scheduler comes to it; the other node is full."""
    queue.add_nodes(other)
    for name, gpus in running.items():
        queue.submit(name, gpus=gpus, **GATED)
        queue.bound(name)
    if before:
        queue.submit(before, gpus=4, **GATED)
        skipped(queue, before, "needs 4 GPUs")
    clusters.scheduler.pause()
    try:
        queue.submit("p", gpus=1, **GATED)
        queue.add_nodes(gpu_node("a", gpus=1))
        wait_until(lambda: not gated(queue, "p"), WITHIN_S, "the gate is open")
        assert queue.pod("p")["status"]["nominatedNodeName"] == "a"
        queue.remove_node("a")
    finally:
        clusters.scheduler.signal(signal.SIGCONT)
    queue.pending("p", "nodes are available")


def test_kerf_killed_between_nominate_and_open_loses_nothing(clusters: Clusters) -> None:
    """Killed as soon as a first nomination is seen, whatever else is on its way then; the next Kerf plans anew."""
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.plane.apply(QUEUE_RBAC)
    cluster.add_nodes(gpu_node("a", gpus=4))
    names = [f"p{number}" for number in range(4)]
    for name in names:
        cluster.submit(name, gpus=1, **GATED)
    first = KerfProcess(cluster.plane, "kerf-to-kill", "--set=queue.enabled=true")
    try:
        wait_until(
            lambda: any(cluster.pod(name)["status"].get("nominatedNodeName") for name in names),
            WITHIN_S,
            "a pod is nominated",
            interval_s=0.001,
        )
    finally:
        first.process.kill()
    second = KerfClusterWithQueue(cluster.plane)
    try:
        assert {cluster.node_of(name) for name in names} == {"a"}
        held = [gpu for name in names for gpu in assigned_gpus(cluster.pod(name))]
        assert sorted(held) == [0, 1, 2, 3]
    finally:
        second.stop()


def test_quotas_hold_pods_back_and_say_so(clusters: Clusters) -> None:
    queue = open_queue(clusters, quotas={"default": 2})
    queue.add_nodes(gpu_node("a", gpus=8))
    queue.submit("one", gpus=2, **GATED)
    queue.bound("one")
    queue.submit("two", gpus=1, **GATED)
    assert skipped(queue, "two", "quota") == "quota of namespace default: 2 GPUs, 2 in use, 1 more requested"
    queue.set_phase("one", "Succeeded")
    queue.bound("two")


def test_taking_the_opt_in_back_opens_the_gate(queue: KerfCluster) -> None:
    queue.submit("leaves", gpus=1, **GATED)
    skipped(queue, "leaves", "no node")
    body = {"metadata": {"labels": {"kerf.dev/queue": "disabled"}}}
    queue.plane.request("PATCH", "/api/v1/namespaces/default/pods/leaves", body, "application/merge-patch+json")
    wait_until(lambda: not gated(queue, "leaves"), WITHIN_S, "the gate is open")
    assert annotation(queue.pod("leaves"), "planned-by") == "kerf.dev/queue is disabled on the pod"


def test_gates_fail_open_after_a_time_when_so_configured(clusters: Clusters) -> None:
    queue = open_queue(clusters, fail_open_s=2)
    queue.submit("stuck", gpus=1, **GATED)
    wait_until(lambda: not gated(queue, "stuck"), WITHIN_S, "the gate is open")
    assert annotation(queue.pod("stuck"), "planned-by") == "fail-open after 2 s"
    queue.add_nodes(gpu_node("late", gpus=1))
    assert queue.node_of("stuck") == "late"


def test_a_pod_that_another_gate_holds_is_planned_once_that_is_open(queue: KerfCluster) -> None:
    """Nominated before, it would keep its node from all others for as long as its author likes."""
    queue.add_nodes(gpu_node("a", gpus=1))
    gates = [{"name": "kerf.dev/queue"}, {"name": "example.com/other"}]
    queue.submit("two-gates", gpus=1, schedulingGates=gates)
    assert (
        skipped(queue, "two-gates", "another scheduling gate") == "held by another scheduling gate: example.com/other"
    )
    assert "nominatedNodeName" not in queue.pod("two-gates")["status"]
    queue.submit("other", gpus=1)
    queue.bound("other")
    queue.set_phase("other", "Succeeded")
    open_other = {"spec": {"schedulingGates": GATED["schedulingGates"]}}
    queue.plane.request(
        "PATCH", "/api/v1/namespaces/default/pods/two-gates", open_other, "application/merge-patch+json"
    )
    queue.bound("two-gates")


def test_a_nomination_left_behind_the_gate_keeps_its_node_from_nobody(queue: KerfCluster) -> None:
    """kube-scheduler counts what is nominated as if it ran there, gated or not."""
    queue.add_nodes(gpu_node("a", gpus=1))
    queue.submit("left", gpus=2, **GATED)
    skipped(queue, "left", "needs 2 GPUs")
    status = {"status": {"nominatedNodeName": "a"}}
    queue.plane.request("PATCH", "/api/v1/namespaces/default/pods/left/status", status, "application/merge-patch+json")
    queue.submit("small", gpus=1)
    assert queue.node_of("small") == "a"


def test_killed_between_nominate_and_open_the_pod_is_planned_anew(clusters: Clusters) -> None:
    plain = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")  # nobody looks at the queue
    plain.add_nodes(gpu_node("full", gpus=1), gpu_node("free", gpus=1))
    plain.submit("holder", gpus=1, nodeName="full")
    plain.submit("nominated", gpus=1, **GATED)
    status = {"status": {"nominatedNodeName": "full"}}
    path = "/api/v1/namespaces/default/pods/nominated/status"
    plain.plane.request("PATCH", path, status, "application/merge-patch+json")
    manifests = [plain.pod("holder"), plain.pod("nominated")]
    assert manifests[1]["spec"]["schedulingGates"]
    clusters.plane.apply(QUEUE_RBAC)
    second = KerfClusterWithQueue(clusters.plane)
    try:
        assert plain.node_of("nominated") == "free"
    finally:
        second.stop()


class KerfClusterWithQueue:
    """A second Kerf that has its queue enabled, beside the one that kube-scheduler calls."""

    def __init__(self, plane: ControlPlane) -> None:
        self._kerf = KerfProcess(plane, "kerf-queue", "--set=queue.enabled=true")

    def stop(self) -> None:
        self._kerf.stop()


@pytest.fixture
def webhook(clusters: Clusters, tmp_path: Path) -> Iterator[KerfCluster]:
    """A cluster whose API server asks a Kerf of its own about pods that opt in: manifests/queue/webhook.yaml."""
    cluster = open_queue(clusters)
    with gating(clusters.plane, tmp_path):
        yield cluster


def test_g1_pods_of_genius_wait_in_the_order_of_their_priority_as_they_are(webhook: KerfCluster) -> None:
    webhook.add_nodes(gpu_node("node", gpus=1))
    webhook.submit("runs", labels={"genius/gpu-number": "1", "genius/priority": "0"})
    assert annotation(webhook.bound("runs"), "queued-by") == "priority"
    for name, priority in (("low", "1"), ("high", "9")):
        webhook.submit(name, labels={"genius/gpu-number": "1", "genius/priority": priority})
        skipped(webhook, name, "needs 1 GPU")
    webhook.set_phase("runs", "Succeeded")
    webhook.bound("high")
    assert gated(webhook, "low")
    webhook.set_phase("high", "Succeeded")
    webhook.bound("low")


def test_while_the_webhook_is_down_pods_are_created_without_the_gate(clusters: Clusters, tmp_path: Path) -> None:
    queue = open_queue(clusters)
    queue.add_nodes(gpu_node("a", gpus=1))
    with gating(clusters.plane, tmp_path) as kerf:
        kerf.stop()
        queue.submit("opted-in", gpus=1, labels={"kerf.dev/queue": "enabled"})
        assert not gated(queue, "opted-in")
        queue.bound("opted-in")


def test_namespaces_and_pods_opt_in_and_out(webhook: KerfCluster) -> None:
    plane = webhook.plane
    namespace = {"name": "team", "labels": {"kerf.dev/queue": "enabled"}}
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})

    def create(name: str, **options: Any) -> Manifest:
        manifest = pod(name, gpus=1, namespace="team", **options)
        made: Manifest = plane.request("POST", "/api/v1/namespaces/team/pods", manifest)
        return made

    try:
        wait_until(lambda: gates_of(create(f"try-{time.monotonic_ns()}")), WITHIN_S, "the namespace is known to opt in")
        assert not gates_of(create("out", labels={"kerf.dev/queue": "disabled"}))
        waiting = create("waits")
        assert waiting["metadata"]["annotations"]["kerf.dev/queued-by"] == "namespace"
        webhook.submit("plain", gpus=1)
        webhook.submit("single", gpus=1, labels={"kerf.dev/queue": "enabled"})
        assert not gated(webhook, "plain")
        assert gated(webhook, "single")
        body = {"metadata": {"labels": {"kerf.dev/queue": None}}}
        plane.request("PATCH", "/api/v1/namespaces/team", body, "application/merge-patch+json")
        path = "/api/v1/namespaces/team/pods/waits"
        wait_until(lambda: not gates_of(plane.request("GET", path)), WITHIN_S, "the gate is open again")
    finally:
        plane.request("DELETE", "/api/v1/namespaces/team/pods?gracePeriodSeconds=0")


def test_kerf_plan_apply_places_pods_of_a_file(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("node", gpus=2), cpu_node("plain", cpu="2"))
    manifests = [pod("planned", gpus=2), pod("web", cpu="1"), pod("never", gpus=4)]
    path = tmp_path / "pods.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    command = [sys.executable, "-m", "extender", "plan", "-f", str(path), "--apply", "-o", "json"]
    command += ["--kubeconfig", str(cluster.plane.kubeconfig()), "--planner", "genetic"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    report = json.loads(result.stdout)
    assert sorted(report["applied"]) == ["default/planned", "default/web"]
    assert [entry["pod"] for entry in report["unassigned"]] == ["default/never"]
    assert cluster.node_of("planned") == "node"
    assert cluster.node_of("web") == "plain"
    assert gated(cluster, "never")


def test_many_gated_pods_at_once_all_get_their_gpus_once(queue: KerfCluster) -> None:
    queue.add_nodes(*(gpu_node(f"n{number:02}", gpus=8) for number in range(8)))
    for number in range(70):
        queue.submit(f"p{number:02}", gpus=1, **GATED)

    def bound() -> list[Manifest]:
        return [found for found in queue.pods() if found["spec"].get("nodeName")]

    wait_until(lambda: len(bound()) == 64, 4 * WITHIN_S, "64 pods are bound")
    held = [(found["spec"]["nodeName"], *assigned_gpus(found)) for found in bound()]
    assert len(set(held)) == 64  # no GPU twice, and every GPU once
    assert queue.kerf.metric("kerf_queue_waiting") == 6
