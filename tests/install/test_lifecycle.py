"""The chart in a real cluster: installed, changed, rolled back, removed; what it installs is what is run."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.api import ApiError
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.e2e.clusters import KerfCluster, KerfProcess, assigned_gpus
from tests.install.helm import CHART, Helm

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which Kerf and its kube-scheduler are the chart's service account, with its rights."""
    with ControlPlane(tmp_path_factory.mktemp("install"), users={"kerf": ACCOUNT, "scheduler": ACCOUNT}) as running:
        yield running


@pytest.fixture
def helm(plane: ControlPlane, tmp_path: Path) -> Helm:
    return Helm(tmp_path, plane.kubeconfig("admin"))


def read(plane: ControlPlane, path: str) -> dict[str, Any] | None:
    """An object, None where there is none."""
    try:
        found: dict[str, Any] = plane.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found


def deployment(plane: ControlPlane) -> dict[str, Any] | None:
    return read(plane, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf")


@pytest.fixture
def installed(helm: Helm) -> Iterator[str]:
    """Installs the chart; gives its notes."""
    yield helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace")
    helm("uninstall", "kerf", "--namespace", NAMESPACE, "--ignore-not-found")


def test_install_upgrade_rollback_uninstall(plane: ControlPlane, helm: Helm, installed: str) -> None:
    assert "schedulerName: kerf-scheduler" in installed
    first = deployment(plane)
    assert first is not None
    assert first["spec"]["replicas"] == 1

    service = ["--set", "mode=service", "--set", "replicas=2"]
    notes = helm("upgrade", "kerf", str(CHART), "--namespace", NAMESPACE, *service)
    assert "http://kerf.kerf-system.svc:8888" in notes
    second = deployment(plane)
    assert second is not None
    assert second["spec"]["replicas"] == 2
    budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/kerf"
    assert read(plane, budget) is not None

    helm("rollback", "kerf", "1", "--namespace", NAMESPACE)
    third = deployment(plane)
    assert third is not None
    assert third["spec"] == first["spec"]
    assert read(plane, budget) is None

    helm("uninstall", "kerf", "--namespace", NAMESPACE)
    assert deployment(plane) is None
    assert read(plane, "/apis/rbac.authorization.k8s.io/v1/clusterroles/kerf") is None


def test_what_is_installed_schedules(plane: ControlPlane, installed: str, tmp_path: Path) -> None:
    """Commands, mounted files and rights as installed; only the ports and paths of a pod are those of this machine."""
    del installed
    found = deployment(plane)
    assert found is not None
    spec = found["spec"]["template"]["spec"]
    files = read(plane, f"/api/v1/namespaces/{NAMESPACE}/configmaps/kerf")
    assert files is not None
    for name, text in files["data"].items():
        (tmp_path / name).write_text(text)
    (kerf,) = spec["initContainers"]
    assert kerf["args"] == ["serve", "--config=/etc/kerf/kerf.yaml"]
    (scheduler,) = spec["containers"]
    assert (scheduler["command"], scheduler["args"]) == (["kube-scheduler"], ["--config=/etc/kerf/scheduler.yaml"])

    with ExitStack() as running:
        # As a sidecar: synced before kube-scheduler starts, deciding once that one leads.
        process = KerfProcess(plane, "kerf", "--config", str(tmp_path / "kerf.yaml"), ready_path="/syncz")
        running.callback(process.stop)
        config = tmp_path / "scheduler.yaml"
        election = yaml.safe_load(config.read_text())["leaderElection"]
        running.callback(plane.start_scheduler(config, extender_url=process.url, leader_election=election).stop)
        cluster = KerfCluster(plane, process)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.create(pod("trains", gpus=2, scheduler_name="kerf-scheduler"))
        assert assigned_gpus(cluster.bound("trains")) == [0, 1]
        assert cluster.event("trains", "GPUsAssigned")
        cluster.clean()
