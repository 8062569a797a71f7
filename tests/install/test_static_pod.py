"""T8: Kerf as a static pod beside the cluster's own kube-scheduler, with that scheduler's identity and file."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.controlplane.kerf import ROOT, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.e2e.clusters import KerfCluster, KerfProcess, assigned_gpus

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

STATIC_POD = ROOT / "manifests" / "static-pod" / "kerf.yaml"


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
