"""T8: Kerf as a static pod beside the cluster's own kube-scheduler, with that scheduler's identity and file."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.docs.pages import DOCS, commands, sections
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, assigned_gpus
from tests.telemetry.exporters import V4_8, Gpu, dcgm_page
from tests.telemetry.exporters import Node as TelemetryNode
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import serving

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

STATIC_POD = ROOT / "manifests" / "static-pod" / "kerf.yaml"
SERVICES, PROMETHEUS_IP = "127.77.0.0/24", "127.77.0.9"


def test_t8_static_pod_places_pods_with_the_rights_of_kube_scheduler(tmp_path: Path) -> None:
    manifest = yaml.safe_load(STATIC_POD.read_text())
    (container,) = manifest["spec"]["containers"]
    # Of the command only what a second process on this machine can't share is replaced: the port and the file's place.
    assert container["args"][:2] == ["serve", "--kubeconfig=/etc/kubernetes/scheduler.conf"]
    assert "--host=127.0.0.1" in container["args"]
    with ExitStack() as running:
        plane = running.enter_context(ControlPlane(tmp_path, users={"kerf": "system:kube-scheduler"}))
        plane.request("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All&fieldValidation=Strict", manifest)
        kerf = KerfProcess(plane, "kerf", "--host=127.0.0.1")
        running.callback(kerf.stop)
        running.callback(plane.start_scheduler(SCHEDULER_CONFIG / "decisive.yaml", extender_url=kerf.url).stop)
        cluster = KerfCluster(plane, kerf)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.submit("pod", gpus=1)
        cluster.submit("too-large", gpus=2)
        assert assigned_gpus(cluster.bound("pod")) == [0]
        assert cluster.event("pod", "GPUsAssigned")
        cluster.pending("too-large")
        cluster.delete_pod("pod")
        assert assigned_gpus(cluster.bound("too-large")) == [0, 1]  # woken by a patch of its status


def test_f3_a_pod_of_the_queue_is_let_go_with_the_rights_of_the_documented_command(tmp_path: Path) -> None:
    """docs/guides/queueing.md: the static pod speaks as kube-scheduler, and nothing else is applied."""
    guide = sections((DOCS / "guides" / "queueing.md").read_text())["Turn it on"]
    apply, serve = (command.text for command in list(commands(guide))[:2])
    (manifest,) = re.findall(r"manifests/\S+\.yaml", apply)
    with ExitStack() as running:
        plane = running.enter_context(ControlPlane(tmp_path, users={"kerf": "system:kube-scheduler"}))
        plane.apply(ROOT / manifest)
        settings = re.findall(r"--set \S+", serve)
        kerf = KerfProcess(plane, "kerf", "--host=127.0.0.1", *(word for each in settings for word in each.split()))
        running.callback(kerf.stop)
        running.callback(plane.start_scheduler(SCHEDULER_CONFIG / "decisive.yaml", extender_url=kerf.url).stop)
        cluster = KerfCluster(plane, kerf)
        cluster.add_nodes(gpu_node("node", gpus=1))
        cluster.submit("queued", gpus=1, schedulingGates=[{"name": "kerf.dev/queue"}])
        assert assigned_gpus(cluster.bound("queued")) == [0]
        assert cluster.pod("queued")["metadata"]["annotations"]["kerf.dev/planned-node"] == "node"
        assert kerf.get("/readyz") == {"status": "ok"}
        assert kerf.metric("kerf_queue_errors_total") == 0


def test_g12_prometheus_is_found_where_the_clusters_dns_is_not_asked(tmp_path: Path) -> None:
    """In the host's network no name of a Service is known; its cluster IP, here one of loopback, leads there."""
    page = dcgm_page(TelemetryNode("node", [Gpu(0, load=0.75)]), V4_8).encode()
    with ExitStack() as running:
        exporter = running.enter_context(serving(lambda *_: (200, page)))
        scraped = [Job("dcgm", f"{exporter.url.removeprefix('http://')}/metrics")]
        found = running.enter_context(prometheus(tmp_path, scraped, host=PROMETHEUS_IP))
        users, flags = {"kerf": "system:kube-scheduler"}, (f"--service-cluster-ip-range={SERVICES}",)
        plane = running.enter_context(ControlPlane(tmp_path / "plane", users=users, flags=flags))
        metadata = {"name": "prometheus-operated", "namespace": "kube-system"}
        port = {"name": "http-web", "port": int(found.url.rpartition(":")[2])}
        headless: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
        headless |= {"spec": {"clusterIP": "None", "ports": [port]}}
        charts: dict[str, Any] = {**headless, "metadata": {**metadata, "name": "kube-prometheus-stack-prometheus"}}
        charts["spec"] = {"clusterIP": PROMETHEUS_IP, "ports": [port]}
        headless["metadata"]["labels"] = {"operated-prometheus": "true"}
        charts["metadata"]["labels"] = {"app": "kube-prometheus-stack-prometheus"}
        plane.apply(gpu_node("node", gpus=1), headless, charts)
        settings = ("--set=leader_election.mode=off", "--set=telemetry.interval_s=0.5")
        kerf = KerfProcess(plane, "kerf", "--host=127.0.0.1", *settings, ready_path="/syncz")
        running.callback(kerf.stop)

        def told() -> bool:
            telemetry = kerf.get("/telemetry")
            return bool(telemetry["state"] == "ok" and telemetry["gpusMatched"] == 1)

        wait_until(told, WITHIN_S, "samples are read")
        telemetry = kerf.get("/telemetry")
        assert telemetry["candidates"] == [
            f"http://prometheus-operated.kube-system.svc:{port['port']}",
            f"http://{PROMETHEUS_IP}:{port['port']}",
        ]
        assert telemetry["source"] == f"http://{PROMETHEUS_IP}:{port['port']}"
        assert kerf.get("/nodes/node")["gpuDetails"][0]["observed"]["load"] == 0.75
